//! The writing side: transactions, the WAL, flushes, merges, recovery, repair.
//!
//! Owns: every change of a file in the store's directory. Must not: be called by the reading side. Commits run on the
//! thread of the transaction, flushes on `strata-flush`, merges on `strata-merge`, sorted loads on the caller's thread
//! and on `strata-load`.

pub(crate) mod ahead;
pub(crate) mod at_once;
pub(crate) mod balance;
pub(crate) mod bulk;
pub(crate) mod commit;
pub(crate) mod counters;
pub(crate) mod directory;
pub(crate) mod divide;
pub(crate) mod fill;
pub(crate) mod flush;
pub(crate) mod garbage;
pub(crate) mod install;
pub(crate) mod limits;
pub(crate) mod lost;
pub(crate) mod merge;
pub(crate) mod output;
pub(crate) mod plan;
pub(crate) mod rebuild;
pub(crate) mod recover;
pub(crate) mod repair;
pub(crate) mod replay;
pub(crate) mod rotate;
pub(crate) mod salvage;
pub(crate) mod shared;
pub(crate) mod steps;
pub(crate) mod txn;
pub(crate) mod writer;
