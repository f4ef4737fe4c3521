//! Export formats of a [`Snapshot`]: Prometheus text, an HdrHistogram interval log, and JSON.
//!
//! Owns: metric names, bucket bounds, tags and the shape of the JSON. Must not: do I/O.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use serde::{Deserialize, Serialize};

use crate::{Op, Series, Snapshot, instrument_ns};

/// Upper bounds of the Prometheus buckets as (`le` in seconds, ns): 1, 2 and 5 per decade from 100 ns to 10 s.
///
/// Values are compared with a bound at the histogram's 3 digits, so a value up to 0.1% above a bound may be counted
/// below it.
const BOUNDS: [(&str, u64); 25] = [
    ("1e-07", 100),
    ("2e-07", 200),
    ("5e-07", 500),
    ("1e-06", 1_000),
    ("2e-06", 2_000),
    ("5e-06", 5_000),
    ("1e-05", 10_000),
    ("2e-05", 20_000),
    ("5e-05", 50_000),
    ("0.0001", 100_000),
    ("0.0002", 200_000),
    ("0.0005", 500_000),
    ("0.001", 1_000_000),
    ("0.002", 2_000_000),
    ("0.005", 5_000_000),
    ("0.01", 10_000_000),
    ("0.02", 20_000_000),
    ("0.05", 50_000_000),
    ("0.1", 100_000_000),
    ("0.2", 200_000_000),
    ("0.5", 500_000_000),
    ("1", 1_000_000_000),
    ("2", 2_000_000_000),
    ("5", 5_000_000_000),
    ("10", 10_000_000_000),
];

/// Name and help text of a metric family in the Prometheus text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Name of the family, with the unit last.
    pub name: &'static str,
    /// Help text of the family, without the full stop that the export adds.
    pub help: &'static str,
}

/// Histogram of the latencies, by `engine`, `op` and `source`.
pub const LATENCY: Family =
    Family { name: "solkv_op_latency_seconds", help: "Latency of engine operations since start" };

/// A snapshot in the form that is written as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Value of the `engine` label, which the engine's `label` returns.
    pub engine: String,
    /// Time that two clock reads take, in ns: the instrument's share of every figure below.
    pub instrument_ns: u64,
    /// Time when recording began, in ms since the Unix epoch.
    pub start_unix_ms: u64,
    /// Time when the snapshot was taken, in ms since the Unix epoch.
    pub end_unix_ms: u64,
    /// One entry for each source and operation that recorded anything.
    pub series: Vec<ReportSeries>,
}

/// Figures of one operation of one source in a [`Report`]. Percentiles have 3 significant digits; the mean is exact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are their names, in the unit at their end")]
pub struct ReportSeries {
    pub source: String,
    pub op: Op,
    pub count: u64,
    pub min_ns: u64,
    pub mean_ns: f64,
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub p9999_ns: u64,
    pub max_ns: u64,
    pub stdev_ns: f64,
}

/// Appends the snapshot as a histogram in the Prometheus text format. A bucket gives only its bounds; [`report`] has the
/// quantiles.
pub fn prometheus(snapshot: &Snapshot, out: &mut String) {
    line(out, format_args!("# HELP {} {}.", LATENCY.name, LATENCY.help));
    line(out, format_args!("# TYPE {} histogram", LATENCY.name));
    for series in &snapshot.series {
        prometheus_histogram(&labels(&snapshot.engine, series), series, out);
    }
}

/// Returns the snapshot as an HdrHistogram V2 log with one interval per series, tagged `op.source`. Values are in ns.
/// Only the maximum that each line states for readers is in ms, as in the Java original.
pub fn hlog(snapshot: &Snapshot) -> Vec<u8> {
    const REASON: &str = "a vector takes every write and the histograms are within their own bounds";
    let mut out = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder
        .add_comment(&format!("solkv engine={} unit=ns instrument_ns={}", snapshot.engine, instrument_ns()))
        .with_start_time(snapshot.start)
        .with_base_time(snapshot.start)
        .with_max_value_divisor(1e6);
    let mut log = builder.begin_log_with(&mut out, &mut serializer).expect(REASON);
    let length = snapshot.end.duration_since(snapshot.start).unwrap_or(Duration::ZERO);
    for series in &snapshot.series {
        let tag: String = format!("{}.{}", series.op.as_str(), series.source);
        let tag = Tag::new(&tag).expect("an operation's and a source's name have no comma, space or line break");
        log.write_histogram(&series.histogram, Duration::ZERO, length, Some(tag)).expect(REASON);
    }
    out
}

/// Returns the snapshot as a [`Report`].
pub fn report(snapshot: &Snapshot) -> Report {
    let series = snapshot.series.iter().map(|series| {
        let histogram: &Histogram<u64> = &series.histogram;
        ReportSeries {
            source: series.source.clone(),
            op: series.op,
            count: histogram.len(),
            min_ns: histogram.min(),
            mean_ns: series.mean_ns(),
            p50_ns: histogram.value_at_quantile(0.5),
            p90_ns: histogram.value_at_quantile(0.9),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            p9999_ns: histogram.value_at_quantile(0.9999),
            max_ns: histogram.max(),
            stdev_ns: histogram.stdev(),
        }
    });
    Report {
        engine: snapshot.engine.clone(),
        instrument_ns: instrument_ns(),
        start_unix_ms: unix_ms(snapshot.start),
        end_unix_ms: unix_ms(snapshot.end),
        series: series.collect(),
    }
}

impl Report {
    /// Returns the figures of one operation of one source, or `None` if nothing was recorded.
    pub fn get(&self, source: &str, op: Op) -> Option<&ReportSeries> {
        self.series.iter().find(|series| series.source == source && series.op == op)
    }
}

fn prometheus_histogram(labels: &str, series: &Series, out: &mut String) {
    let (name, histogram) = (LATENCY.name, &series.histogram);
    let mut counts = [0u64; BOUNDS.len()];
    for bucket in histogram.iter_recorded() {
        let value = histogram.lowest_equivalent(bucket.value_iterated_to());
        let at = BOUNDS.partition_point(|&(_, bound)| bound < value);
        if let Some(count) = counts.get_mut(at) {
            *count += bucket.count_at_value();
        }
    }
    let mut below = 0;
    for ((le, _), count) in BOUNDS.iter().zip(counts) {
        below += count;
        line(out, format_args!("{name}_bucket{{{labels},le=\"{le}\"}} {below}"));
    }
    let (total, sum) = (histogram.len(), seconds(series.sum_ns));
    line(out, format_args!("{name}_bucket{{{labels},le=\"+Inf\"}} {total}"));
    line(out, format_args!("{name}_sum{{{labels}}} {sum}"));
    line(out, format_args!("{name}_count{{{labels}}} {total}"));
}

fn labels(engine: &str, series: &Series) -> String {
    format!("engine=\"{engine}\",op=\"{}\",source=\"{}\"", series.op.as_str(), series.source)
}

/// Formats nanoseconds as seconds, exactly: a floating-point number would print digits that were never measured.
fn seconds(nanos: u64) -> String {
    format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

fn line(out: &mut String, args: std::fmt::Arguments<'_>) {
    out.write_fmt(args).expect("a string takes every write");
    out.push('\n');
}

fn unix_ms(time: SystemTime) -> u64 {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Latency;

    fn sample() -> Snapshot {
        let latency = Latency::new("redb");
        let mut recorder = latency.recorder("ingest");
        (1..=1000).for_each(|value| recorder.record(Op::ReadNegative, value * 100));
        recorder.record(Op::Commit, 20_000_000_000);
        latency.snapshot()
    }

    #[test]
    fn prometheus_buckets_are_cumulative_and_end_at_the_count() {
        let mut text = String::new();
        prometheus(&sample(), &mut text);
        let has = |line: &str| assert!(text.lines().any(|l| l == line), "missing {line}\n{text}");
        let labels = "engine=\"redb\",op=\"read_negative\",source=\"ingest\"";
        has(&format!("solkv_op_latency_seconds_bucket{{{labels},le=\"1e-07\"}} 1"));
        has(&format!("solkv_op_latency_seconds_bucket{{{labels},le=\"5e-05\"}} 500"));
        has(&format!("solkv_op_latency_seconds_bucket{{{labels},le=\"10\"}} 1000"));
        has(&format!("solkv_op_latency_seconds_sum{{{labels}}} 0.050050000"));
        let beyond = "solkv_op_latency_seconds_bucket{engine=\"redb\",op=\"commit\",source=\"ingest\"";
        has(&format!("{beyond},le=\"10\"}} 0"));
        has(&format!("{beyond},le=\"+Inf\"}} 1"));
    }

    #[test]
    fn bounds_are_what_their_text_says() {
        for (le, nanos) in BOUNDS {
            assert_eq!((le.parse::<f64>().unwrap() * 1e9).round() as u64, nanos);
        }
    }

    #[test]
    fn the_report_survives_json() {
        let report = report(&sample());
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
        assert!(json.contains("\"op\":\"read_negative\""), "{json}");
        let reads = report.get("ingest", Op::ReadNegative).unwrap();
        assert_eq!((reads.count, reads.min_ns, reads.mean_ns), (1000, 100, 50_050.0));
    }
}
