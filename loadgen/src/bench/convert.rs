//! Converts the reports of `bootstrap` and `loadgen live` into the figures of a run, because those programs are measured
//! as users run them.
//!
//! Owns: the mapping of their JSON. Must not: measure.

use anyhow::{Context, Result};
use engine_latency::Op;
use engine_latency::export::{Report, ReportSeries};
use probe::Charged;
use serde::Deserialize;

use super::run::Run;
use crate::live::process::Usage;
use crate::live::start::{Start, WarmUp};
use crate::result::{Curve, Io, Opening, Quantiles, Record, Sample, Series, Workload};

/// The report of `bootstrap --report`.
#[derive(Deserialize)]
struct Loaded {
    pairs: u64,
    elapsed_ms: u64,
    rss_peak_bytes: u64,
    page_cache_bytes: u64,
    samples: Vec<Point>,
    latencies: Report,
    #[serde(default)]
    process: Io,
}

/// A sample of a load: the pairs so far, and the figures of each operation since the sample before.
#[derive(Deserialize)]
struct Point {
    pairs: u64,
    read_negative: Option<Sample>,
    write: Option<Sample>,
    commit: Option<Sample>,
}

/// The report of `loadgen live --report`, as far as it is needed.
#[derive(Deserialize)]
struct Lived {
    seconds: f64,
    latency: Report,
    usage: Usage,
    charged: Option<Charged>,
    start: Start,
    opening: Option<Opening>,
}

/// Converts the report of `bootstrap --report`.
pub(crate) fn bootstrap(run: &Run, text: &str) -> Result<Record> {
    let loaded: Loaded = serde_json::from_str(text).context("bootstrap's report cannot be read")?;
    let series = |op: &str, of: fn(&Point) -> Option<Sample>| {
        let sample = |point: &Point| Some(Sample { at: point.pairs as f64, ..of(point)? });
        let samples = loaded.samples.iter().filter_map(sample).collect();
        Series { op: op.to_owned(), over: "pairs".to_owned(), samples }
    };
    let peaks = format!("rss_peak_bytes={} page_cache_bytes={}", loaded.rss_peak_bytes, loaded.page_cache_bytes);
    Ok(Record {
        elapsed_s: loaded.elapsed_ms as f64 / 1e3,
        ops: loaded.pairs,
        curves: curves(&loaded.latencies, "bootstrap"),
        series: vec![
            series("read_negative", |point| point.read_negative),
            series("write", |point| point.write),
            series("commit", |point| point.commit),
        ],
        io: Io { user_write_bytes: loaded.pairs * 64, ..loaded.process },
        pairs: loaded.pairs,
        notes: vec![peaks],
        engine: loaded.latencies.engine,
        engine_options: run.engine_options(),
        ..Record::default()
    })
}

/// Converts the report of `loadgen live --report`. Its state is the one that was seen.
pub(crate) fn live(run: &Run, text: &str) -> Result<Record> {
    let lived: Lived = serde_json::from_str(text).context("the live report cannot be read")?;
    let writes = lived.latency.get("ingest", Op::Write).map_or(0, |series| series.count);
    let mut notes = vec![format!("rss_peak_bytes={}", lived.usage.peak_rss_bytes)];
    notes.extend(lived.charged.map(|charged| format!("charged_peak_bytes={}", charged.peak_bytes)));
    notes.push(format!("page_cache_at_start_bytes={}", lived.start.page_cache_bytes));
    if let Some(WarmUp { state, read_bytes, left_bytes }) = &lived.start.warm_up {
        notes.push(format!("warm_up={state} read_bytes={read_bytes} left_bytes={left_bytes}"));
    }
    Ok(Record {
        elapsed_s: lived.seconds,
        ops: run.cell.events,
        curves: curves(&lived.latency, "ingest"),
        io: Io { user_write_bytes: writes * 64, ..lived.usage.io },
        open: lived.opening,
        pairs: run.pairs,
        workload: Workload { state: lived.start.state().to_owned(), ..Workload::default() },
        notes,
        engine: lived.latency.engine,
        engine_options: run.engine_options(),
        ..Record::default()
    })
}

fn curves(report: &Report, source: &str) -> Vec<Curve> {
    let of_source = report.series.iter().filter(|series| series.source == source);
    let curve = |of: &ReportSeries| {
        let (min, max) = (of.min_ns, of.max_ns);
        let [p50, p90, p99, p999, p9999] = [of.p50_ns, of.p90_ns, of.p99_ns, of.p999_ns, of.p9999_ns];
        let curve = vec![(0.0, min), (0.5, p50), (0.9, p90), (0.99, p99), (0.999, p999), (0.9999, p9999), (1.0, max)];
        let quantiles_ns = Quantiles { min, p50, p90, p99, p999, p9999, max };
        Curve { op: of.op.as_str().to_owned(), count: of.count, mean_ns: of.mean_ns, quantiles_ns, curve }
    };
    of_source.map(curve).collect()
}
