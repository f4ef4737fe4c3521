//! The strata engine for [`engine_api`]: pairs of 32-byte keys and 32-byte values in sorted, immutable runs.
//!
//! Owns: the directory it is given; FORMAT.md in this crate's folder describes every byte in it. Must not: know the
//! marker file, the directory lock or any other engine. Threads: `strata-flush`, which writes memtables as runs, and
//! `strata-merge`, which merges runs. Commits run on the thread of the transaction, gets on the reader's. A sorted load
//! runs on the caller's thread and on `strata-load`, which exists only while a segment is filled. An
//! opening reads segments on `strata-open`.
//!
//! # How it works
//!
//! ```text
//! commit -> WAL (one record) -> memtable -> delta runs -> base run      a get asks from left to right
//! ```
//! - A **page** is 4 KiB: a header with a checksum, and 63 to 84 pairs in order of their keys. Leading bytes that all
//!   keys share are stored once. A **segment** is a file of pages with three filter planes and a directory, which holds
//!   the first eight bytes of each page's first key. A **run** is a list of segments with disjoint ranges. No live page
//!   is ever overwritten.
//! - Filters and directory are in memory, so a get of an absent key nearly always ends there, and a get of a present
//!   key reads one page. A get prefetches the filters' cache lines of all runs and the base's directory at once,
//!   because their places depend on the key alone. A batch of gets does each such step for many keys before the next.
//!   Reads bypass the page cache, which holds nothing of a store. The memory that is left holds whole segments if a
//!   good part of them fits; they are brought in page by page as pages are needed. Otherwise it holds single records
//!   that were read recently (see [`StrataOptions::memory_bytes`]).
//! - A batch of gets, a scan and a merge keep several reads in flight by `io_uring` where the kernel allows it. Where
//!   it does not, they read one after the other, and the statistic `io_uring_refused` counts it.
//! - One merge step runs at a time, and merges of newer and older runs take turns. Merges write at most 128 MiB a
//!   second as long as they keep up, and 32 once no memtable was filled for five seconds. Where they do not keep up, commits are slowed from 24 delta runs on and held at 36. They
//!   are also slowed and held at a debt of 1.1 and 1.5 times the amount that makes a merge into the base due, which is a
//!   quarter of the base. The statistics count such waits and hold the longest one.
//! - The next WAL file and memtable are made while the present ones fill. When a commit begins the next file, the WAL's
//!   bytes have already reached the device.
//! - All memory is taken from one budget, which is divided again after each flush and merge: filters come first, then
//!   records, pages and more filters. Flushes, merges and scans take the memory that they need from these, and give it
//!   back.
//! - Every access to a disk goes through [`storage::Storage`], so that tests can put faults and power losses anywhere.
//! - Gets wait for nobody and take no lock. A scan may order the newest entries of a memtable, under that memtable's lock.
//!   Each reader holds a snapshot, which is a version of the runs and a length of
//!   the memtable. A set of the record cache that is being written to counts as a miss. The store's threads drop the
//!   versions that merges replace, once no reader holds them.
//! - Cached records survive merges into the base: a merge forgets the keys that it changes, and no others.
//!
//! TRIED.md in this crate's folder has the experiments, with figures and verdicts.
//!
//! # Durability of a commit
//!
//! | | process killed | OS crash or power loss |
//! |---|---|---|
//! | `Buffered` | kept | the newest commits may be missing, whole; the store ends at a checkpoint |
//! | `Synced` | kept | kept, provided the device honours a flush |
//!
//! `Buffered` writes the WAL and does not flush it; `Synced` adds one `fdatasync`. Recovery replays the WAL up to the
//! first record that is not whole. If whole records follow it, it was durable once, and opening
//! fails and names the place.
//!
//! A stranger who chooses keys, values and their order can neither forge a record of the WAL nor make keys collide,
//! because both depend on secrets of the store (FORMAT.md, "Secrets").
//!
//! # Tests
//!
//! In addition to the conformance suite: kills and power loss at every change of a simulated device, failed reads,
//! flushes and allocations at every place, reads of `io_uring` that the kernel fails, and bounds on the debt that
//! merges leave (`tests/it`); every order of threads in the lock-free parts but the
//! memtable's order (`make test TOPIC=loom`), and their unsafe code in
//! Miri (`make test TOPIC=miri`); fuzz targets for every decoder (`make fuzz`); and random work with SIGKILLs, losses of
//! power and faults of the disk, compared with a model, for as long as you like (`make torture`), which prints how to
//! reproduce a failure.
//!
//! # When the disk is full
//!
//! `begin` checks the free space and returns [`ErrorKind::FreeSpace`] below [`StrataOptions::disk_reserve_bytes`]. If a
//! record of the WAL does not fit, the commit reports `FreeSpace` and applies nothing. The cut record fails its
//! checksum, so recovery ignores it. A batch that is larger than a memtable is refused before anything of it is written,
//! unless there is room for its record and its run beside the reserve. Reads continue, and writes continue once there is
//! space; no restart is needed. A merge checks the space that it will need before it writes, and leaves the reserve
//! alone.
//!
//! [`ErrorKind::FreeSpace`]: engine_api::ErrorKind::FreeSpace

mod budget;
mod descriptor;
mod engine;
mod file;
mod format;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
#[path = "../fuzz/decoders.rs"]
pub mod fuzzing;
mod huge;
mod mapped;
mod memtable;
mod read;
mod retire;
mod search;
mod sizes;
mod statistic;
mod stats;
pub mod storage;
mod sync;
mod write;

pub use descriptor::DESCRIPTOR;
pub use engine::StrataEngine;
#[doc(hidden)]
pub use sizes::Sizes;

/// Settings of a strata store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrataOptions {
    /// Memory for everything that the store holds, in bytes: memtables (a sixteenth), directories, filter planes as far
    /// as they fit, and pages or single records with the rest. `Stats` shows the division. A batch that is being
    /// written comes on top: the caller's own memory, its record, and a memtable of its size if it is larger than a
    /// memtable. All of that is given back once the batch is committed and flushed.
    pub memory_bytes: u64,
    /// Free disk space in bytes that `begin` demands: room for a WAL and a flush. With a large memory `begin` demands
    /// more: see [`StrataOptions::reserve_bytes`].
    pub disk_reserve_bytes: u64,
    /// Number of leading bytes of a key that the filters of a new store are made of: 32, or 16 for a store whose lookups are
    /// scans of the keys that share so many bytes.
    pub prefix_bytes: u32,
}

impl Default for StrataOptions {
    fn default() -> Self {
        Self { memory_bytes: 256 << 20, disk_reserve_bytes: 64 << 20, prefix_bytes: 32 }
    }
}
