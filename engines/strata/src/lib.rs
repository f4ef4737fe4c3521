//! strata behind [`engine_api`]: pairs of 32-byte keys and 32-byte values in sorted, immutable runs.
//!
//! Owns: the directory it is given; FORMAT.md beside this crate names every byte in it. Must not: know the marker file,
//! the directory lock or any other engine. Threads: `strata-flush`, which makes runs of memtables, and `strata-merge`, which
//! merges them; commits run on the thread of the transaction, gets on the reader's.
//!
//! # How it works
//!
//! ```text
//! commit -> WAL (one record) -> memtable -> delta runs -> base run      a get asks from left to right
//! ```
//! - A **page** is 4 KiB: a header with a checksum, and 63 to 79 pairs in order, without the leading bytes that all their
//!   keys share. A **segment** is a file of pages with three filter planes and a directory, which holds the first eight
//!   bytes of each page's first key. A **run** is a list of segments with disjoint ranges. Nothing that is live is ever
//!   overwritten.
//! - Filters and directory are in memory, so a get of an absent key nearly always ends there, and a get of a present
//!   one reads one page. A get fetches the filters' lines of all runs and the base's directory at once, because where they
//!   are depends on the key alone; a batch of gets does each such step for many keys before the next. Pages are read past the page cache, which holds nothing of a store: the memory that is left is
//!   given to whole segments where a good part of them fits, page by page as they are asked for, and to single records
//!   that were read lately where it does not (see [`StrataOptions::memory_bytes`]).
//! - A batch of gets, a scan and a merge keep several reads in flight by io_uring where the kernel allows it; where it
//!   does not, they read one after the other, and the statistic `io_uring_refused` counts it.
//! - One merge runs at a time, in steps, and merges of newer and older runs take turns. Merges write at most 128 MiB a second
//!   as long as they keep up. Where they do not, commits are slowed from 20 delta runs on and held at 36, or at a debt of two
//!   and three times what makes a merge into the base due; such waits are counted in the statistics, the longest too.
//! - The next WAL file and memtable are made while the present ones fill, and the WAL's bytes are with the device by the time
//!   that a commit begins the next file.
//! - Everything that is held in memory is taken from one budget, which is divided anew after each flush and merge: filters
//!   come first, then records, pages and more filters. Work takes from them what it needs, and gives it back.
//! - Everything that touches a disk goes through [`storage::Storage`], so that tests put faults and power losses wherever
//!   one could be.
//! - Readers wait for nobody and take no lock: each holds a snapshot, which is a version of the runs and a length of the
//!   memtable, and a set of the record cache that is being written to is a miss. What merges replace is dropped by the
//!   store's threads, once no reader holds it.
//! - Records in the cache outlive merges into the base: a merge forgets the keys that it changes, and no others.
//!
//! # What a commit survives
//!
//! | | process killed | OS crash or power loss |
//! |---|---|---|
//! | `Buffered` | kept | the newest commits may be missing, whole; what is kept ends at a checkpoint |
//! | `Synced` | kept | kept, provided the device honours a flush |
//!
//! `Buffered` writes the WAL and does not flush it; `Synced` adds one `fdatasync`. Recovery replays the WAL up to the
//! first record that is not whole. Where that record was durable once, opening fails and names the place.
//!
//! Who chooses keys, values and their order can neither forge a record of the WAL nor make keys collide: both depend on
//! secrets of the store (FORMAT.md, "Secrets").
//!
//! # How it is tested
//!
//! Beside the conformance suite: kills and power loss at every change of a simulated device, failed reads, flushes and
//! allocations at every place, reads of io_uring that the kernel fails, bounds on what merges leave (`tests/it`); every order of threads in the lock-free parts (`make loom`), their unsafe code in Miri
//! (`make miri`); fuzz targets for everything that is decoded (`make fuzz`); and random work with SIGKILLs, faults and
//! flipped bits against a model for as long as you like (`make torture`), which prints how to see a failure again.
//!
//! # When the disk is full
//!
//! `begin` looks at the free space and returns [`ErrorKind::FreeSpace`] below [`StrataOptions::disk_reserve_bytes`].
//! A record of the WAL that does not fit is cut off by its checksum: the commit reports `FreeSpace`, and nothing of it
//! was applied. Reads go on, and writes too once there is space; no restart is needed. A merge asks for the space that it will
//! need before it writes, and leaves the reserve alone.
//!
//! [`ErrorKind::FreeSpace`]: engine_api::ErrorKind::FreeSpace

mod budget;
mod engine;
mod file;
mod format;
#[doc(hidden)]
pub mod fuzzing;
mod mapped;
mod memory;
mod read;
mod sizes;
mod stats;
pub mod storage;
mod sync;
mod write;

pub use engine::StrataEngine;
#[doc(hidden)]
pub use sizes::Sizes;
pub use write::repair::Repaired;

/// How strata is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrataOptions {
    /// Bytes for everything that is held in memory: memtables (a sixteenth), directories, filter planes as far as they
    /// fit, and pages or single records with what is left. `Stats` says how they are divided. A batch that is being
    /// written is the caller's and comes on top, with its record and, where it is larger than a memtable, one of its size;
    /// all of it is given back once the batch is committed and flushed.
    pub memory_bytes: u64,
    /// Free space that `begin` insists on, in bytes: room for a WAL and a flush.
    pub disk_reserve_bytes: u64,
}

impl Default for StrataOptions {
    fn default() -> Self {
        Self { memory_bytes: 256 << 20, disk_reserve_bytes: 64 << 20 }
    }
}
