//! The kinds of work that a run measures, of loads before it, and of states of the page cache; and a cell of a scenario,
//! which chooses among them.
//!
//! Owns: these choices and their names in files. Must not: do any of the work, or judge a cell.

use serde::{Deserialize, Serialize};

/// Kind of work that a run measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Loads pairs into an empty store, sampled over its size (`bootstrap`).
    Bootstrap,
    /// Gets keys that are absent.
    ReadNegative,
    /// Gets keys that are present, and compares each value.
    ReadPositive,
    /// Gets keys that are present, in batches.
    GetMany,
    /// Gets keys that are absent, in batches.
    GetManyAbsent,
    /// Puts in batches, without reads.
    Write,
    /// Reads and writes in random turns on one thread.
    Mix,
    /// Reads on several threads while one writer writes.
    Beside,
    /// Scans every pair in order.
    Scan,
    /// Scans a few pairs from a key that is present.
    ShortScan,
    /// Opens a killed writer's store, up to the first correct read.
    Recover,
    /// Runs the service on a stream (`loadgen live`).
    Live,
}

/// State of the page cache at a run's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// No page of the store is in it.
    #[default]
    Cold,
    /// The store was read through, and a tenth of its keys were read. After a rest of some seconds the same work was
    /// done unmeasured for a tenth of the time. For `live`: its files were read once, and the service's own warm-up has
    /// ended before the first slot.
    Warm,
    /// No page of the store is in it when the store is opened. Then the same work is done unmeasured for
    /// `before_seconds`.
    Steady,
}

/// Order of the pairs with which a store is loaded before it is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Load {
    /// Through the engine's bulk path, then settled: the state of a store after months.
    #[default]
    Sorted,
    /// In random order, then settled.
    Shuffled,
    /// In random order and measured at once, with all the background work that the engine still has to do.
    Fresh,
    /// Through the engine's bulk path and measured at once, with all the background work that the engine still has to do.
    SortedFresh,
    /// As sorted, then changed at random places by an engine with the cache that it has under the cell's cap, and not settled
    /// after that: the state of a store that is written to.
    Aged,
}

/// One or several runs: each of `keys`, `caps` and `threads` with each of the others.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cell {
    pub(crate) workload: Kind,
    /// Distributions of the keys: uniform, zipfian:EXPONENT or sequential.
    #[serde(default = "uniform")]
    pub(crate) keys: Vec<String>,
    /// Kinds of the store's keys, by the leading bytes that they share: random, alike, some-alike, counting or grouped. Each
    /// has a store and a run of its own.
    #[serde(default = "random_keys")]
    pub(crate) key_shapes: Vec<String>,
    /// Memory caps as shares of the pairs' bytes. Empty: not capped.
    #[serde(default)]
    pub(crate) caps: Vec<f64>,
    /// Numbers of reading threads, one run for each.
    #[serde(default = "one_thread")]
    pub(crate) threads: Vec<u32>,
    /// State of the page cache at the start.
    #[serde(default)]
    pub(crate) state: State,
    /// Length of the measured part in seconds.
    #[serde(default = "ten")]
    pub(crate) seconds: f64,
    /// Time in seconds for which the same work is done unmeasured before the measured part of a `steady` state.
    #[serde(default = "thirty")]
    pub(crate) before_seconds: f64,
    /// Operations a second over all threads. `None`: closed loop.
    pub(crate) rate: Option<f64>,
    /// Share of writes in `mix`.
    #[serde(default = "half")]
    pub(crate) write_share: f64,
    /// Share of the writes that are deletes.
    #[serde(default)]
    pub(crate) delete_share: f64,
    /// Whether each pair is also written with key and value exchanged, as an index in both directions.
    #[serde(default)]
    pub(crate) double_index: bool,
    /// Writes in a commit, or keys in a `get_many`.
    #[serde(default = "thousand")]
    pub(crate) batch: u32,
    /// Largest number of writes in a commit. Sizes from `batch` to `batch_max` are log-uniform: as many of 1 to 10 as
    /// of 100 to 1000. `None`: every commit has `batch` writes.
    pub(crate) batch_max: Option<u32>,
    /// Pairs after which a `short_scan` ends (`None`: ten). For `beside`: the readers make such scans and no gets.
    pub(crate) scan_pairs: Option<u32>,
    /// Puts a second of the writer in an open loop, for `beside` and `write`. `None`: each commit follows the last one
    /// at once.
    pub(crate) write_rate: Option<f64>,
    /// Durability of a commit: synced or buffered.
    #[serde(default = "synced")]
    pub(crate) durability: String,
    /// Values of the service's `ingest_depth`, one run of `live` for each. Empty: the service's default.
    #[serde(default)]
    pub(crate) ingest_depth: Vec<u32>,
    /// Number of events of `live`, or of puts before the kill of `recover` (0: as many as fit into two seconds). For reads in a
    /// warm state: of puts that the run makes once the store is open, so that its reads find them not yet merged.
    #[serde(default)]
    pub(crate) events: u64,
    /// Order of a `bootstrap`: shuffled or sorted.
    #[serde(default = "shuffled")]
    pub(crate) order: String,
    /// Whether a `bootstrap` ends when the engine has settled.
    #[serde(default)]
    pub(crate) settle: bool,
    /// Whether each get is followed by the least that it could cost, which is measured as well: a random read of the device,
    /// or in a warm state a miss of the processor's caches.
    #[serde(default)]
    pub(crate) floor: bool,
}

impl Kind {
    /// Whether it gets keys, one by one or in batches, or makes short scans, and nothing else.
    pub(crate) fn is_read(self) -> bool {
        matches!(self, Self::ReadNegative | Self::ReadPositive | Self::GetMany | Self::GetManyAbsent | Self::ShortScan)
    }

    /// Whether an operation is a batch of keys.
    pub(crate) fn is_batch(self) -> bool {
        matches!(self, Self::GetMany | Self::GetManyAbsent)
    }
}

impl Cell {
    /// Returns the number of pairs of a scan, if the readers make short scans.
    pub(crate) fn scan_pairs(&self) -> Option<u32> {
        if self.workload == Kind::ShortScan { self.scan_pairs.or(Some(10)) } else { self.scan_pairs }
    }

    /// Returns the number of puts that a run makes before it reads.
    pub(crate) fn puts_before_reads(&self) -> u64 {
        if self.workload.is_read() { self.events } else { 0 }
    }
}

impl Load {
    /// Whether the engine still has background work to do when the store is measured.
    pub(crate) fn is_fresh(self) -> bool {
        matches!(self, Self::Fresh | Self::SortedFresh)
    }
}

/// Returns the name of a choice, as scenarios and results have it.
pub(crate) fn name_of(value: impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        other => format!("{other:?}"),
    }
}

/// Returns the default kind of the values.
pub(crate) fn unique() -> String {
    "unique".to_owned()
}

/// Returns the default kind of the keys.
pub(crate) fn random() -> String {
    "random".to_owned()
}

/// Returns the default order of a `bootstrap`.
pub(crate) fn shuffled() -> String {
    "shuffled".to_owned()
}

/// Returns the default seconds of a steady run before it is measured.
fn thirty() -> f64 {
    30.0
}

pub(crate) fn one_thread() -> Vec<u32> {
    vec![1]
}
fn ten() -> f64 {
    10.0
}
fn half() -> f64 {
    0.5
}
pub(crate) fn thousand() -> u32 {
    1000
}
fn random_keys() -> Vec<String> {
    vec![random()]
}
fn uniform() -> Vec<String> {
    vec!["uniform".to_owned()]
}
pub(crate) fn synced() -> String {
    "synced".to_owned()
}
