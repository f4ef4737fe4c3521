//! The record: one run of one workload on one engine under one cap.
//!
//! Owns: the names and units of the fields. Figures that could not be measured are `null`, never 0.

use std::collections::BTreeMap;
use std::path::Path;

pub use probe::{Baseline, Machine, Quantiles};
use serde::{Deserialize, Serialize};

/// Version of the format that is written, and the newest that can be read.
pub const SCHEMA_VERSION: u32 = 1;

/// One line of a result file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA_VERSION`] of the program that wrote the record.
    pub schema: u32,
    /// Version and commit of the program, such as `0.1.0 (1a2b3c4)`. With local changes, `-dirty` follows the commit.
    pub program: String,
    /// Command line of the program that made this run. `None` where the writer does not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Name of the scenario, such as `read-under-cap`.
    pub scenario: String,
    /// Number of the repeat, counted from 0. Runs with the same scenario, engine, workload and cap are repeats of each
    /// other.
    pub repeat: u32,
    /// Label of the engine, such as `rocksdb_bloom`.
    pub engine: String,
    /// The engine as it was asked for, such as `rocksdb --bloom 20`: every option that is not the default, but no
    /// memory that only a cap implies. Runs with other options are other cells. `None` for measurements of a service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_line: Option<String>,
    /// Every setting of the engine that was in effect.
    pub engine_options: BTreeMap<String, String>,
    pub workload: Workload,
    /// State that the scenario asked for, where the state that was seen is another one. [`Workload::state`] is the state
    /// that was seen. `None` in older files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_asked: Option<String>,
    /// Memory cap of the run's cgroup in bytes. `None`: not capped.
    pub cap_bytes: Option<u64>,
    /// How the cap was enforced, or the reason why there is none.
    pub cap_by: String,
    /// Time at which the run started, in ms since the Unix epoch.
    pub start_unix_ms: u64,
    /// Duration of the measured part.
    pub elapsed_s: f64,
    /// Number of operations in the measured part.
    pub ops: u64,
    /// Latencies, one entry for each operation.
    pub curves: Vec<Curve>,
    /// Latency over time or over size, in the order of measurement.
    pub series: Vec<Series>,
    pub memory: Vec<Memory>,
    /// Kernel counters over the measured part.
    pub io: Io,
    /// Bytes that the store occupies on disk at the end.
    pub disk_bytes: u64,
    /// Number of pairs in the store at the end.
    pub pairs: u64,
    /// Baseline of the device, measured in the same session before the first run.
    pub baseline: Option<Baseline>,
    /// Latency of the device's 4 KiB random read on this store. Only for runs from a cold start: right before the run, or with
    /// `floor` in [`Workload::more`] one after each get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_read_ns: Option<Quantiles>,
    /// Latency of a load from a random place of 1 GiB of memory after each get. Only for warm runs with `floor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_read_ns: Option<Quantiles>,
    /// Random 4 KiB reads a second of the device on this store with 64 at once, right before the run. Only for `live`
    /// from a cold start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_reads_per_s: Option<f64>,
    /// Cost of opening the store, before the measured part. Only for runs whose own process opens a store. `None` in
    /// older files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<Opening>,
    /// The engine's own statistics at the end of the run, by name. Only for runs whose own process opens a store; empty in
    /// older files.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub engine_stats: BTreeMap<String, u64>,
    pub machine: Machine,
    /// Notes for the reader: noise, a cap exceeded, pages that were not cold. Empty for a clean run.
    pub notes: Vec<String>,
}

impl Record {
    /// Makes the record of lookups in a running service that began just now, in a closed loop without figures. `dir` is on the
    /// disk whose machine is described.
    pub(crate) fn of_service(scenario: &str, engine: &str, pairs: u64, seed: u64, dir: &Path) -> Self {
        Self {
            schema: SCHEMA_VERSION,
            program: super::program(),
            command: Some(super::command()),
            scenario: scenario.to_owned(),
            engine: engine.to_owned(),
            workload: Workload {
                name: "query".to_owned(),
                arrival: "closed".to_owned(),
                keys: "uniform".to_owned(),
                pairs,
                threads: 1,
                state: "as the service was".to_owned(),
                seed,
                ..Workload::default()
            },
            cap_by: "the service's own".to_owned(),
            start_unix_ms: super::unix_ms(),
            pairs,
            machine: probe::machine(dir),
            ..Self::default()
        }
    }

    /// Returns the note of a run that was killed; `None` for any other.
    pub fn killed(&self) -> Option<&str> {
        self.notes.iter().map(String::as_str).find(|note| note.starts_with("killed"))
    }

    /// Returns the key that tells this run from all others of a file.
    pub fn run_key(&self) -> String {
        let engine = self.engine_line.as_ref().unwrap_or(&self.engine);
        let state = self.state_asked.as_ref().unwrap_or(&self.workload.state).clone();
        let asked = Workload { state, ..self.workload.clone() };
        Self::key_of(&self.scenario, engine, &asked, self.cap_bytes, self.repeat)
    }

    /// Returns the [`Record::run_key`] of a run that is not done yet. `engine` has the form of [`Record::engine_line`].
    pub fn key_of(scenario: &str, engine: &str, workload: &Workload, cap_bytes: Option<u64>, repeat: u32) -> String {
        let workload = serde_json::to_string(workload).unwrap_or_default();
        format!("{scenario} {engine} {workload} {cap_bytes:?} {repeat}")
    }
}

/// Description of a run's work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Name of the work, such as `read_negative`, `read_positive`, `bootstrap`, `mix_50_50`, `scan`, `short_scan`, `live`,
    /// `query`, `recover`.
    pub name: String,
    /// `closed`: the next operation starts when the last one has ended. `open`: it starts at its intended time.
    pub arrival: String,
    /// Operations a second asked for. `None` for a closed loop.
    pub target_rate: Option<f64>,
    /// Distribution of the keys: `uniform`, `zipfian:0.99` or `sequential`.
    pub keys: String,
    /// Number of pairs loaded before the run.
    pub pairs: u64,
    /// Number of threads (or connections) that work at once.
    pub threads: u32,
    /// State of the page cache as it was seen. `cold`: at most a hundredth of the store is in it at the start. `steady`:
    /// as cold, but the same work was done unmeasured for a while (`before_seconds` in `more`). `warm`: the store was
    /// read through beforehand; for `live`, its files were, and the service's own warm-up had ended. `partly cached`:
    /// the state that was asked for did not come about. Any other text describes the state.
    pub state: String,
    /// `synced` or `buffered`. `None` for a run without commits.
    pub durability: Option<String>,
    /// Seed of keys, values and order.
    pub seed: u64,
    /// Every other setting that tells this workload from others, such as `batch=1000` or `transport=uds`.
    pub more: BTreeMap<String, String>,
}

/// Cost of opening a store. Engines differ in how much they read then, and in how much they leave for the first gets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opening {
    /// Duration of opening in seconds.
    pub elapsed_s: f64,
    /// Bytes read from the device on behalf of the process meanwhile.
    pub device_read_bytes: Option<u64>,
}

/// Latencies of one operation over the measured part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Name of the operation: `read_negative`, `read_positive`, `write`, `commit`, `commit_per_item`, `get_many`, `scan`,
    /// `query`.
    pub op: String,
    /// Number of latencies in the curve.
    pub count: u64,
    /// Exact mean, not of rounded values.
    pub mean_ns: f64,
    /// Quantiles to 3 significant digits.
    pub quantiles_ns: Quantiles,
    /// The percentile curve: `(share, ns)` from share 0 to 1, ascending, and denser near 1.
    pub curve: Vec<(f64, u64)>,
}

/// Latencies of one operation over time or size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Name of the operation, as in [`Curve::op`].
    pub op: String,
    /// Unit of [`Sample::at`]: `elapsed_s` or `pairs`.
    pub over: String,
    /// Samples in ascending order of `at`.
    pub samples: Vec<Sample>,
}

/// One interval of a series.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    #[serde(default)]
    pub at: f64,
    pub count: u64,
    pub mean_ns: f64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

/// Memory at one moment of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Seconds since the start of the run.
    pub at_s: f64,
    /// Resident set of the process. It includes memory-mapped files, but not files read by `pread`.
    pub rss_bytes: u64,
    /// Page cache charged to the cgroup. `None` without a cgroup.
    pub page_cache_bytes: Option<u64>,
    /// Bytes charged to the cgroup in total, which the cap limits. `None` without a cgroup.
    pub charged_bytes: Option<u64>,
}

/// Kernel counters over the measured part, of the process unless noted otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Io {
    /// Bytes read from the device on behalf of the process (`/proc/self/io` `read_bytes`).
    pub device_read_bytes: Option<u64>,
    /// Bytes that the device wrote meanwhile, for the whole machine. Older files have instead the bytes that the
    /// process caused to be written (`write_bytes`). That counter includes a whole large folio for each of its pages
    /// that was changed.
    pub device_write_bytes: Option<u64>,
    /// Reads that the device completed meanwhile, for the whole machine (`/proc/diskstats`).
    pub device_reads: Option<u64>,
    /// Writes that the device completed meanwhile, for the whole machine.
    pub device_writes: Option<u64>,
    /// Page faults that waited for the device.
    pub major_faults: Option<u64>,
    /// CPU time in user mode, in seconds.
    pub user_s: f64,
    /// CPU time in the kernel, in seconds.
    pub system_s: f64,
    /// Bytes of keys and values that the workload wrote: the base of write amplification.
    pub user_write_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_began_in_another_state_is_not_made_again() {
        let line = |line: &str| Record { engine_line: Some(line.to_owned()), ..Record::default() };
        let (tuned, plain) = (line("rocksdb --profile tuned"), line("rocksdb"));
        assert_ne!(tuned.run_key(), plain.run_key());
        let mut other = tuned.clone();
        other.workload.state = "partly cached".to_owned();
        assert_ne!(other.run_key(), tuned.run_key());
        other.state_asked = Some(String::new());
        assert_eq!(other.run_key(), tuned.run_key());
    }
}
