//! The kinds of work that a run measures, of loads before it, and of states of the page cache.
//!
//! Owns: these choices and their names in files. Must not: do any of the work.

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

impl Kind {
    /// Whether it gets keys, one by one or in batches, and nothing else.
    pub(crate) fn is_read(self) -> bool {
        matches!(self, Self::ReadNegative | Self::ReadPositive | Self::GetMany | Self::GetManyAbsent)
    }

    /// Whether an operation is a batch of keys.
    pub(crate) fn is_batch(self) -> bool {
        matches!(self, Self::GetMany | Self::GetManyAbsent)
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

/// Returns the default order of a `bootstrap`.
pub(crate) fn shuffled() -> String {
    "shuffled".to_owned()
}

/// Returns the default seconds of a steady run before it is measured.
pub(crate) fn thirty() -> f64 {
    30.0
}
