//! Converts the reports of `bootstrap` and `loadgen live` into answers of a run, because those programs are measured as
//! users run them.
//!
//! Owns: the mapping of their JSON. Must not: measure.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use engine_latency::export::Report;
use serde::Deserialize;
use serde_json::Value;

use super::child::Answer;
use super::run::Run;
use crate::live::start::{Start, WarmUp};
use crate::result::{Curve, Io, Opening, Quantiles, Sample, Series};

/// Figures of one operation between two samples of a load.
#[derive(Clone, Debug, Deserialize)]
struct Interval {
    count: u64,
    mean_ns: f64,
    p50_ns: u64,
    p99_ns: u64,
    max_ns: u64,
}

impl Answer {
    /// The empty answer of a run that was killed.
    pub(crate) fn none(run: &Run) -> Self {
        Self {
            engine: run.engine.label().to_owned(),
            engine_options: BTreeMap::new(),
            elapsed_s: 0.0,
            ops: 0,
            curves: Vec::new(),
            series: Vec::new(),
            io: Io::default(),
            open: None,
            floor_ns: None,
            engine_stats: BTreeMap::new(),
            pairs: run.pairs,
            state: None,
            notes: Vec::new(),
        }
    }
}

/// Converts the report of `bootstrap --report`.
pub(crate) fn bootstrap(run: &Run, text: &str) -> Result<Answer> {
    let report: Value = serde_json::from_str(text).context("bootstrap's report is not JSON")?;
    let number =
        |name: &str| report.get(name).and_then(Value::as_u64).with_context(|| format!("no {name} in the report"));
    let samples = report.get("samples").and_then(Value::as_array).context("no samples in the report")?;
    let mut series = Vec::new();
    for op in ["read_negative", "write", "commit"] {
        let mut of_op = Vec::new();
        for sample in samples {
            let at = sample.get("pairs").and_then(Value::as_u64).context("a sample without pairs")?;
            let Some(interval) = sample.get(op).filter(|value| !value.is_null()) else { continue };
            let Interval { count, mean_ns, p50_ns, p99_ns, max_ns } = Interval::deserialize(interval)?;
            of_op.push(Sample { at: at as f64, count, mean_ns, p50_ns, p99_ns, max_ns });
        }
        series.push(Series { op: op.to_owned(), over: "pairs".to_owned(), samples: of_op });
    }
    let latencies = Report::deserialize(report.get("latencies").context("no latencies in the report")?)?;
    let io = report.get("process").map(io_of).unwrap_or_default();
    let pairs = number("pairs")?;
    Ok(Answer {
        elapsed_s: number("elapsed_ms")? as f64 / 1e3,
        ops: pairs,
        curves: curves(&latencies, "bootstrap"),
        series,
        io: Io { user_write_bytes: pairs * 64, ..io },
        open: None,
        floor_ns: None,
        engine_stats: BTreeMap::new(),
        pairs,
        state: None,
        notes: vec![format!(
            "rss_peak_bytes={} page_cache_bytes={}",
            number("rss_peak_bytes")?,
            number("page_cache_bytes")?
        )],
        engine: latencies.engine,
        engine_options: run.engine_options(),
    })
}

/// Converts the report of `loadgen live --report`.
pub(crate) fn live(run: &Run, text: &str, elapsed: Duration) -> Result<Answer> {
    let report: Value = serde_json::from_str(text).context("the live report is not JSON")?;
    let latencies = Report::deserialize(report.get("latency").context("no latency in the report")?)?;
    let usage = |name: &str| report.pointer(&format!("/usage/{name}")).and_then(Value::as_f64).unwrap_or(0.0);
    let writes = latencies.get("ingest", engine_latency::Op::Write).map_or(0, |series| series.count);
    let charged = report.get("charged").and_then(|charged| charged.get("peak_bytes")).and_then(Value::as_u64);
    let mut notes = vec![format!("rss_peak_bytes={}", usage("peak_rss_bytes") as u64)];
    if let Some(charged) = charged {
        notes.push(format!("charged_peak_bytes={charged}"));
    }
    let start = Start::deserialize(report.get("start").context("no start in the report")?)?;
    notes.push(format!("page_cache_at_start_bytes={}", start.page_cache_bytes));
    if let Some(WarmUp { state, read_bytes, left_bytes }) = &start.warm_up {
        notes.push(format!("warm_up={state} read_bytes={read_bytes} left_bytes={left_bytes}"));
    }
    Ok(Answer {
        elapsed_s: report.get("seconds").and_then(Value::as_f64).unwrap_or(elapsed.as_secs_f64()),
        ops: run.events,
        curves: curves(&latencies, "ingest"),
        series: Vec::new(),
        io: Io { user_write_bytes: writes * 64, ..report.get("usage").map(io_of).unwrap_or_default() },
        open: report.get("opening").map(Option::<Opening>::deserialize).transpose()?.flatten(),
        floor_ns: None,
        engine_stats: BTreeMap::new(),
        pairs: run.pairs,
        state: Some(start.state().to_owned()),
        notes,
        engine: latencies.engine,
        engine_options: run.engine_options(),
    })
}

fn io_of(process: &Value) -> Io {
    let bytes = |name: &str| process.get(name).and_then(Value::as_u64);
    let seconds = |name: &str| process.get(name).and_then(Value::as_f64).unwrap_or(0.0);
    Io {
        device_read_bytes: bytes("device_read_bytes"),
        device_write_bytes: bytes("device_write_bytes"),
        major_faults: bytes("major_faults"),
        user_s: seconds("user_s"),
        system_s: seconds("system_s"),
        ..Io::default()
    }
}

fn curves(report: &Report, source: &str) -> Vec<Curve> {
    let of_source = report.series.iter().filter(|series| series.source == source);
    let curve = |series: &engine_latency::export::ReportSeries| {
        let quantiles_ns = Quantiles {
            min: series.min_ns,
            p50: series.p50_ns,
            p90: series.p90_ns,
            p99: series.p99_ns,
            p999: series.p999_ns,
            p9999: series.p9999_ns,
            max: series.max_ns,
        };
        let q = quantiles_ns;
        let curve =
            [(0.0, q.min), (0.5, q.p50), (0.9, q.p90), (0.99, q.p99), (0.999, q.p999), (0.9999, q.p9999), (1.0, q.max)];
        Curve {
            op: series.op.as_str().to_owned(),
            count: series.count,
            mean_ns: series.mean_ns,
            quantiles_ns,
            curve: curve.to_vec(),
        }
    };
    of_source.map(curve).collect()
}
