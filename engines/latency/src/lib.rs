//! Latency histograms of engine operations: how they are recorded, merged and exported.
//!
//! Owns: [`Op`] (the operations' names), [`Recorder`] (one per thread, wait-free), [`Latency`] (all recorders of one
//! engine), [`Measured`] (any engine, timed), and the exports. Must not: lock, allocate or make a system call while an
//! operation is timed; know a concrete engine.
//! Threads: a [`Recorder`] belongs to one thread at a time. [`Latency`] is shared, and any thread may take a
//! [`Snapshot`] while the others record.
//!
//! Values are integer nanoseconds in HdrHistogram's buckets: 1 ns to 60 s with 3 significant digits. A longer duration
//! is recorded as 60 s. An operation that fails is not recorded.

// Other crates link this one.
#![warn(missing_docs)]

mod buckets;
pub mod export;
mod measured;
mod recorder;
mod snapshot;
pub mod table;

pub use measured::{Measured, MeasuredReader};
pub use recorder::{Latency, Recorder, instrument_ns};
pub use snapshot::{Series, Snapshot};

use serde::{Deserialize, Serialize};

/// The timed operations, which are the values of the `op` label of every export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// A get of one key that is absent.
    ReadNegative,
    /// A get of one key that is present.
    ReadPositive,
    /// One put into, or one delete from, the open transaction.
    Write,
    /// One whole commit, with its flush if it has one.
    Commit,
    /// Time of a commit divided by the number of events in its batch. Recorded once for each commit whose batch had an
    /// event.
    CommitPerItem,
    /// One call of `get_many`, whatever the number of its keys. The caller has no value before the call ends, so it
    /// waits this long for each key. The service makes one call for each piece of a batch.
    GetMany,
    /// One whole scan, to the end or to where the caller's visitor ends it. The time that the visitor takes is included.
    Scan,
}

impl Op {
    /// Every operation, in the order in which reports list them.
    pub const ALL: [Self; 7] = [
        Self::ReadNegative,
        Self::ReadPositive,
        Self::Write,
        Self::Commit,
        Self::CommitPerItem,
        Self::GetMany,
        Self::Scan,
    ];

    /// Returns the value of the `op` label: `read_negative`, `read_positive`, `write`, `commit`, `commit_per_item`,
    /// `get_many` or `scan`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadNegative => "read_negative",
            Self::ReadPositive => "read_positive",
            Self::Write => "write",
            Self::Commit => "commit",
            Self::CommitPerItem => "commit_per_item",
            Self::GetMany => "get_many",
            Self::Scan => "scan",
        }
    }
}
