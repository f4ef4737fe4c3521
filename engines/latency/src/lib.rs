//! Latency histograms of engine operations: who records them, how they are merged, and how they leave the process.
//!
//! Owns: [`Op`] (the operations' names), [`Recorder`] (one per thread, wait-free), [`Latency`] (all recorders of one
//! engine), [`Measured`] (any engine, timed), and the exports. Must not: lock, allocate or make a system call while
//! an operation is timed, or know a concrete engine.
//! Threads: a [`Recorder`] belongs to one thread at a time; [`Latency`] is shared, and any thread may take a
//! [`Snapshot`] while the others record.
//!
//! Values are integer nanoseconds in HdrHistogram's buckets: 1 ns to 60 s with 3 significant digits. Longer is
//! recorded as 60 s. An operation that fails is not recorded.

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

/// The timed operations. The `op` label of every export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// A get that found nothing.
    ReadNegative,
    /// A get that found a value.
    ReadPositive,
    /// One put or delete into the open transaction.
    Write,
    /// A whole commit.
    Commit,
    /// A commit's time divided by the events of its batch; once per commit that had any.
    CommitPerItem,
    /// One call of `get_many`, whatever the number of keys. The service makes one for each piece of a batch.
    GetMany,
    /// A whole scan, the visitor's own time included.
    Scan,
}

impl Op {
    /// Every operation, in the order of reports.
    pub const ALL: [Self; 7] = [
        Self::ReadNegative,
        Self::ReadPositive,
        Self::Write,
        Self::Commit,
        Self::CommitPerItem,
        Self::GetMany,
        Self::Scan,
    ];

    /// The label: `read_negative`, `read_positive`, `write`, `commit`, `commit_per_item`, `get_many`, `scan`.
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
