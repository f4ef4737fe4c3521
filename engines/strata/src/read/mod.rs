//! The reading side: versions of the runs, gets, batches of gets, scans, and the caches in memory that serve them.
//!
//! Owns: everything that a reader touches. Must not: change a file. Runs on the readers' threads, on
//! `strata-merge`, whose merges read through cursors, and on the thread that warms the store up.

pub(crate) mod batch;
pub(crate) mod cache;
pub(crate) mod cursor;
mod find;
mod guide;
pub(crate) mod lookup;
pub(crate) mod read_only;
pub(crate) mod reader;
pub(crate) mod resident;
pub(crate) mod sections;
pub(crate) mod segment;
mod set;
pub(crate) mod uring;
pub(crate) mod version;
pub(crate) mod visible;
pub(crate) mod warm;
