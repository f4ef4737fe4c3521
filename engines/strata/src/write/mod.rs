//! The writing side: transactions, the WAL, flushes, merges, recovery, repair.
//!
//! Owns: every change of a file in the store's directory. Must not: be called by the reading side. Commits run on the
//! thread of the transaction, flushes on `strata-flush`, merges on `strata-merge`, sorted loads on the caller's thread
//! and on `strata-load`.
//!
//! A module uses only those of the lines below its own, or those after it in its line:
//!
//! ```text
//! flush merge steps bulk output txn    the work on several parts of an open store
//! shared                               the parts together, and the order of locks
//! recover replay                       the opening
//! commits                              WAL and memtables, under the lock of the writer
//! memory                               the division of the memory
//! runs                                 the manifest and the files that it names
//! repair rebuild salvage               a store that does not open
//! common mailbox counters garbage plan divide directory lost segment_writer at_once unnamed
//! ```

pub(crate) mod at_once;
pub(crate) mod bulk;
mod changes;
pub(crate) mod commits;
pub(crate) mod common;
pub(crate) mod counters;
pub(crate) mod directory;
pub(crate) mod divide;
pub(crate) mod flush;
pub(crate) mod garbage;
pub(crate) mod lost;
pub(crate) mod mailbox;
pub(crate) mod memory;
pub(crate) mod merge;
pub(crate) mod output;
pub(crate) mod plan;
pub(crate) mod rebuild;
pub(crate) mod recover;
pub(crate) mod repair;
pub(crate) mod replay;
pub(crate) mod runs;
pub(crate) mod salvage;
pub(crate) mod segment_writer;
pub(crate) mod shared;
pub(crate) mod steps;
pub(crate) mod txn;
pub(crate) mod unnamed;
