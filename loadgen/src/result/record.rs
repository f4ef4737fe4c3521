//! The record: one run of one workload on one engine under one cap.
//!
//! Owns: the names and units of the fields. Figures that could not be taken are `null`, never 0.

use std::collections::BTreeMap;

pub use probe::{Baseline, Machine, Quantiles};
use serde::{Deserialize, Serialize};

/// The format written, and the newest read.
pub const SCHEMA_VERSION: u32 = 1;

/// One line of a result file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA_VERSION`] of the writer.
    pub schema: u32,
    /// Version and commit of the program, such as `0.1.0 (1a2b3c4)`; `-dirty` behind the commit with local changes.
    pub program: String,
    /// What was typed to make this run, where the writer knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The scenario's name, such as `read-under-cap`.
    pub scenario: String,
    /// Runs with the same scenario, engine, workload and cap are repeats of each other; counted from 0.
    pub repeat: u32,
    /// The engine's label, such as `rocksdb_bloom`.
    pub engine: String,
    /// The engine as it was asked for, such as `rocksdb --bloom 20`: every option that is not the default, and no memory that
    /// only a cap implies. Runs with other options are other cells. Older files, and measurements of a service, have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_line: Option<String>,
    /// Every setting of the engine that was in effect.
    pub engine_options: BTreeMap<String, String>,
    /// What was done.
    pub workload: Workload,
    /// Memory cap of the run's cgroup in bytes; `None`: not capped.
    pub cap_bytes: Option<u64>,
    /// How the cap was put in place, or why there is none.
    pub cap_by: String,
    /// When the run started, ms since the Unix epoch.
    pub start_unix_ms: u64,
    /// How long the measured part took.
    pub elapsed_s: f64,
    /// Operations of the measured part.
    pub ops: u64,
    /// Latencies, one entry per operation.
    pub curves: Vec<Curve>,
    /// Latency over time or over size, in the order taken.
    pub series: Vec<Series>,
    /// Memory over time.
    pub memory: Vec<Memory>,
    /// What the kernel counted over the measured part.
    pub io: Io,
    /// Bytes the store occupies on disk at the end.
    pub disk_bytes: u64,
    /// Pairs in the store at the end.
    pub pairs: u64,
    /// The device, measured in the same session before the first run.
    pub baseline: Option<Baseline>,
    /// The device's 4 KiB random read on this very store right before the run; for runs from a cold start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_read_ns: Option<Quantiles>,
    /// What opening the store took, before the measured part; for runs whose own process opens one. Older files have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<Opening>,
    /// The machine.
    pub machine: Machine,
    /// What a reader has to know: noise, a cap exceeded, pages that were not cold. Empty for a clean run.
    pub notes: Vec<String>,
}

impl Record {
    /// What tells this run from all others of a file.
    pub fn run_key(&self) -> String {
        let engine = self.engine_asked_for().unwrap_or_else(|| self.engine.clone());
        Self::key_of(&self.scenario, &engine, &self.workload, self.cap_bytes, self.repeat)
    }

    /// [`Record::run_key`] of a run that is not done yet, of the engine as [`Record::engine_line`] has it.
    pub fn key_of(scenario: &str, engine: &str, workload: &Workload, cap_bytes: Option<u64>, repeat: u32) -> String {
        let workload = serde_json::to_string(workload).unwrap_or_default();
        format!("{scenario} {engine} {workload} {cap_bytes:?} {repeat}")
    }

    /// [`Record::engine_line`], of older files made from the options. Those have the memory that a cap implied among them,
    /// so that of capped runs memory is left out. `None` where nothing but the label is known: of runs that were killed.
    pub fn engine_asked_for(&self) -> Option<String> {
        if self.engine_line.is_some() {
            return self.engine_line.clone();
        }
        let option = |name: &str| self.engine_options.get(name).map(String::as_str);
        let mut line = option("engine")?.to_owned();
        let mut add = |name: &str, value: Option<&str>| {
            if let Some(value) = value {
                line.push_str(&format!(" --{name} {value}"));
            }
        };
        add("bloom", option("bloom"));
        add("profile", option("profile").filter(|profile| *profile != "vanilla"));
        let bytes = |name: &str| Some(engines::size(option(name)?).ok()?.as_u64().to_string());
        add("memory", bytes("memory").filter(|_| self.cap_bytes.is_none()).as_deref());
        add("lmdb-map-size", bytes("lmdb_map_size").as_deref());
        Some(line)
    }
}

/// What a run did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Such as `read_negative`, `read_positive`, `bootstrap`, `mix_50_50`, `scan`, `live`, `query`, `recover`.
    pub name: String,
    /// `closed`: the next operation starts when the last one ended; `open`: at its intended time.
    pub arrival: String,
    /// Operations a second asked for, of an open loop.
    pub target_rate: Option<f64>,
    /// `uniform`, `zipfian:0.99`, `sequential`.
    pub keys: String,
    /// Pairs loaded before the run.
    pub pairs: u64,
    /// Threads (or connections) that work at once.
    pub threads: u32,
    /// `cold`: nothing of the store in the page cache at the start; `steady`: as cold, but the same work was done unmeasured
    /// for a while (`before_seconds` in `more`); `warm`: read through beforehand; else in words.
    pub state: String,
    /// `synced` or `buffered` where the run commits.
    pub durability: Option<String>,
    /// Of keys, values and order.
    pub seed: u64,
    /// Everything else that tells this workload from others, such as `batch=1000` or `transport=uds`.
    pub more: BTreeMap<String, String>,
}

/// What opening a store took. Engines differ in how much they read there, and how much they leave for the first gets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opening {
    /// How long it took.
    pub elapsed_s: f64,
    /// Bytes fetched from the device on behalf of the process meanwhile.
    pub device_read_bytes: Option<u64>,
}

/// One operation's latencies over the measured part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// `read_negative`, `read_positive`, `write`, `commit`, `commit_per_item`, `get_many`, `scan`, `query`.
    pub op: String,
    /// How many.
    pub count: u64,
    /// Exact mean.
    pub mean_ns: f64,
    /// To 3 significant digits.
    pub quantiles_ns: Quantiles,
    /// `(share, ns)` from 0 to 1, ascending, denser by nines: the percentile curve.
    pub curve: Vec<(f64, u64)>,
}

/// One operation over time or size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// As in [`Curve::op`].
    pub op: String,
    /// `elapsed_s` or `pairs`: the unit of [`Sample::at`].
    pub over: String,
    /// In ascending order of `at`.
    pub samples: Vec<Sample>,
}

/// One interval of a series.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are their names, in ns but for at and count")]
pub struct Sample {
    pub at: f64,
    pub count: u64,
    pub mean_ns: f64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

/// Memory at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Since the start of the run.
    pub at_s: f64,
    /// Resident set of the process: memory-mapped files are in it, files read by `pread` are not.
    pub rss_bytes: u64,
    /// Page cache charged to the cgroup; `None` without one.
    pub page_cache_bytes: Option<u64>,
    /// Everything charged to the cgroup, which is what the cap limits.
    pub charged_bytes: Option<u64>,
}

/// What the kernel counted for the process over the measured part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Io {
    /// Bytes fetched from the device on behalf of the process (`/proc/self/io` `read_bytes`).
    pub device_read_bytes: Option<u64>,
    /// Bytes that the device wrote meanwhile, of the whole machine. In files of before it is what the process caused to be
    /// written (`write_bytes`), which counts all of a large folio for each page of it that was changed.
    pub device_write_bytes: Option<u64>,
    /// Reads the device completed meanwhile, of the whole machine (`/proc/diskstats`).
    pub device_reads: Option<u64>,
    /// Writes the device completed meanwhile, of the whole machine.
    pub device_writes: Option<u64>,
    /// Page faults that waited for the device.
    pub major_faults: Option<u64>,
    /// CPU time in user mode.
    pub user_s: f64,
    /// CPU time in the kernel.
    pub system_s: f64,
    /// Bytes of keys and values the workload wrote: what write amplification is against.
    pub user_write_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(options: &[(&str, &str)], cap_bytes: Option<u64>) -> Record {
        let options: BTreeMap<_, _> =
            options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let workload = serde_json::json!({
            "name": "scan", "arrival": "closed", "target_rate": null, "keys": "uniform", "pairs": 1, "threads": 1,
            "state": "cold", "durability": null, "seed": 1, "more": {},
        });
        let machine = serde_json::json!({
            "cpu": "", "cores": 1, "memory_bytes": 1, "kernel": "", "filesystem": "", "device": "",
            "readahead_bytes": null, "loadavg": "",
        });
        let record = serde_json::json!({
            "schema": 1, "program": "", "scenario": "s", "repeat": 0, "engine": "rocksdb_bloom",
            "engine_options": options, "workload": workload, "cap_bytes": cap_bytes, "cap_by": "", "start_unix_ms": 0,
            "elapsed_s": 1.0, "ops": 1, "curves": [], "series": [], "memory": [], "io": Io::default(), "disk_bytes": 1,
            "pairs": 1, "baseline": null, "machine": machine, "notes": [],
        });
        serde_json::from_value(record).unwrap()
    }

    #[test]
    fn engines_of_older_files_are_named_by_their_options() {
        let options = [("engine", "rocksdb"), ("bloom", "20"), ("profile", "vanilla"), ("memory", "30.5 MiB")];
        let asked = |cap| record(&options, cap).engine_asked_for();
        assert_eq!(asked(Some(1 << 27)).as_deref(), Some("rocksdb --bloom 20"), "a cap implies a memory");
        assert_eq!(asked(None).as_deref(), Some("rocksdb --bloom 20 --memory 31981568"));
        let tuned = [("engine", "rocksdb"), ("bloom", "10"), ("profile", "tuned")];
        assert_eq!(record(&tuned, None).engine_asked_for().as_deref(), Some("rocksdb --bloom 10 --profile tuned"));
        assert_eq!(record(&[], None).engine_asked_for(), None, "of a killed run nothing but the label is known");
        assert_ne!(record(&tuned, None).run_key(), record(&options[..2], None).run_key());
    }
}
