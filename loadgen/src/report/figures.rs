//! The figures of a run, each with its name, its unit, and whether higher or lower is better.
//!
//! Owns: how a figure is computed from a record, and when it cannot be. Must not: aggregate repeats.

use crate::result::{Curve, Memory, Opening, Record};

use super::format;

/// Bytes of a pair as the user sees it: a key and a value of 32 bytes each.
const PAIR_BYTES: f64 = 64.0;

/// Definition of one figure of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    /// Name, including the unit that it is counted per.
    pub(crate) name: &'static str,
    /// `None` for a figure that is neither better nor worse: no ratio is shown.
    pub(crate) better: Option<Better>,
    /// Computes the figure from a run; `None` if it was not measured.
    pub(crate) of: fn(&Record) -> Option<f64>,
    /// Formats the figure with its unit.
    pub(crate) text: fn(f64) -> String,
}

impl Figure {
    const fn higher(name: &'static str, of: fn(&Record) -> Option<f64>, text: fn(f64) -> String) -> Self {
        Self { name, better: Some(Better::Higher), of, text }
    }

    const fn lower(name: &'static str, of: fn(&Record) -> Option<f64>, text: fn(f64) -> String) -> Self {
        Self { name, better: Some(Better::Lower), of, text }
    }
}

/// Whether higher or lower values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    /// Higher is better, as for throughput.
    Higher,
    /// Lower is better, as for every cost.
    Lower,
}

/// One figure of an operation's latencies, in ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stat {
    /// Name as in the reference.
    pub(crate) name: &'static str,
    /// Computes the figure; `None` if too few values are beyond the quantile.
    pub(crate) of: fn(&Curve) -> Option<f64>,
}

/// Rows of a latency table.
pub(crate) const STATS: [Stat; 6] = [
    Stat { name: "avg", of: |curve| Some(curve.mean_ns) },
    Stat { name: "p50", of: |curve| Some(curve.quantiles_ns.p50 as f64) },
    Stat { name: "p90", of: |curve| known(curve, 10, curve.quantiles_ns.p90) },
    Stat { name: "p99", of: |curve| known(curve, 100, curve.quantiles_ns.p99) },
    Stat { name: "p99.9", of: |curve| known(curve, 1_000, curve.quantiles_ns.p999) },
    Stat { name: "max", of: |curve| Some(curve.quantiles_ns.max as f64) },
];

/// Operations a second over the measured part.
pub(crate) const THROUGHPUT: Figure = Figure::higher("Throughput", throughput, format::per_second);

/// Operations a second as a share of the device's random reads a second, measured right before with 64 at once.
pub(crate) const THROUGHPUT_OF_DEVICE: Figure = Figure::higher(
    "Throughput / the device's random reads, 64 at once",
    |run| share(throughput(run)?, run.device_reads_per_s?),
    format::digits,
);

/// Reads that the device completed for one operation.
pub(crate) const READS_PER_OP: Figure = Figure::lower(
    "Device reads per operation, of the whole machine",
    |run| per_op(run, run.io.device_reads? as f64),
    format::digits,
);

/// Bytes written to the device for each byte that the user wrote.
pub(crate) const WRITE_AMPLIFICATION: Figure = Figure::lower(
    "Write amplification (device bytes / user bytes)",
    |run| share(run.io.device_write_bytes? as f64, run.io.user_write_bytes as f64),
    format::digits,
);

/// Cost of opening a store of which nothing is in the page cache: a part of a cold start.
pub(crate) const OPENING: [Figure; 2] = [
    Figure::lower(
        "Opening from a cold start, time",
        |run| cold_opening(run).map(|open| open.elapsed_s),
        format::short_seconds,
    ),
    Figure::lower(
        "Opening from a cold start, bytes from the device",
        |run| Some(cold_opening(run)?.device_read_bytes? as f64),
        format::bytes,
    ),
];

/// Returns the opening of a cold run. A steady run opens cold, too, but would only repeat the figure.
fn cold_opening(run: &Record) -> Option<Opening> {
    run.open.filter(|_| run.workload.state == "cold")
}

/// For a killed writer's store: the time from opening it to the first correct read.
pub(crate) const FIRST_READ: Figure = Figure::lower(
    "Time to the first correct read",
    |run| (run.elapsed_s > 0.0).then_some(run.elapsed_s),
    format::short_seconds,
);

/// Time in all commits divided by the number of their puts. In the mean of [`Op::CommitPerItem`](engine_latency::Op) a
/// commit of one put weighs as much as any other. Here it weighs as much as one put, so the figure holds where commits
/// differ in size.
pub(crate) const COMMIT_PER_PUT: Figure = Figure::lower(
    "Time in commits / put",
    |run| {
        let of = |op: &str| run.curves.iter().find(|curve| curve.op == op);
        let (commits, puts) = (of("commit")?, of("write")?);
        share(commits.mean_ns * commits.count as f64, puts.count as f64)
    },
    format::nanos,
);

/// Disk space of the store when the run has ended, including overwritten values and postponed work. It is divided by
/// the pairs that were loaded, because some engines only estimate how many they hold.
pub(crate) const BYTES_PER_LOADED: Figure = Figure::lower(
    "Bytes on disk at the end / pair loaded",
    |run| share(disk_bytes(run)?, run.workload.pairs as f64),
    |value| format!("{} B", format::digits(value)),
);

/// Costs of an operation in addition to its time.
pub(crate) const COSTS: [Figure; 14] = [
    THROUGHPUT,
    THROUGHPUT_OF_DEVICE,
    COMMIT_PER_PUT,
    READS_PER_OP,
    Figure::lower(
        "Bytes from the device per operation",
        |run| per_op(run, run.io.device_read_bytes? as f64),
        format::bytes,
    ),
    WRITE_AMPLIFICATION,
    Figure::lower(
        "Space amplification (disk / 64 B pairs)",
        |run| share(bytes_per_pair(run)?, PAIR_BYTES),
        format::digits,
    ),
    Figure::lower(
        "CPU per operation, user and system",
        // Every run takes CPU time, so zero means that it was not counted.
        |run| per_op(run, (run.io.user_s + run.io.system_s) * 1e9).filter(|cpu| *cpu > 0.0),
        format::nanos,
    ),
    Figure::lower("Major faults per operation", |run| per_op(run, run.io.major_faults? as f64), format::digits),
    PEAK_RSS,
    PEAK_PAGE_CACHE,
    PEAK_CHARGED,
    OPENING[0],
    OPENING[1],
];

/// Rows of the table of a load.
pub(crate) const BOOTSTRAP: [Figure; 8] = [
    Figure::lower("Disk usage", disk_bytes, format::bytes),
    Figure::lower("Bytes / pair", bytes_per_pair, |value| format!("{} B", format::digits(value))),
    LOAD_TIME,
    Figure::higher(
        "Pairs / s",
        |run| share(run.pairs as f64, run.elapsed_s).filter(|rate| *rate > 0.0),
        format::per_second,
    ),
    PEAK_RSS,
    PEAK_PAGE_CACHE,
    PEAK_CHARGED,
    WRITE_AMPLIFICATION,
];

/// Time of a load until all pairs are durable.
pub(crate) const LOAD_TIME: Figure =
    Figure::lower("Time", |run| (run.elapsed_s > 0.0).then_some(run.elapsed_s), format::seconds);

/// Largest resident set of the process, which includes files mapped into it.
pub(crate) const PEAK_RSS: Figure =
    Figure { name: "Peak RSS", better: None, of: |run| peak(run, |at| Some(at.rss_bytes)), text: format::bytes };

/// Largest page cache that was charged to the run's cgroup.
pub(crate) const PEAK_PAGE_CACHE: Figure = Figure {
    name: "Peak page cache",
    better: None,
    of: |run| peak(run, |at| at.page_cache_bytes),
    text: format::bytes,
};

/// Largest memory that was charged to the run's cgroup.
pub(crate) const PEAK_CHARGED: Figure =
    Figure { name: "Peak charged", better: None, of: |run| peak(run, |at| at.charged_bytes), text: format::bytes };

/// Returns the largest value of one kind of memory in the run's samples.
pub(crate) fn peak(run: &Record, of: fn(&Memory) -> Option<u64>) -> Option<f64> {
    run.memory.iter().filter_map(of).max().map(|bytes| bytes as f64)
}

fn throughput(run: &Record) -> Option<f64> {
    share(run.ops as f64, run.elapsed_s).filter(|rate| *rate > 0.0)
}

/// Returns the store's disk space at the end; `None` if it was not measured, or if the run was killed before its end.
fn disk_bytes(run: &Record) -> Option<f64> {
    (run.disk_bytes > 0 && run.elapsed_s > 0.0).then_some(run.disk_bytes as f64)
}

fn bytes_per_pair(run: &Record) -> Option<f64> {
    share(disk_bytes(run)?, run.pairs as f64)
}

fn per_op(run: &Record, value: f64) -> Option<f64> {
    share(value, run.ops as f64)
}

fn share(value: f64, of: f64) -> Option<f64> {
    (of > 0.0).then(|| value / of)
}

/// Least number of values beyond a quantile. With fewer, a quantile depends on a few slow operations, and another run
/// has others.
const BEYOND_MIN: u64 = 20;

/// Returns a quantile that one value in `one_in` exceeds, if there are enough values.
fn known(curve: &Curve, one_in: u64, value: u64) -> Option<f64> {
    (curve.count >= BEYOND_MIN * one_in).then_some(value as f64)
}
