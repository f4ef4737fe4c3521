//! redb 4.4 behind [`engine_api`]: a copy-on-write B-tree in one file, read through redb's own page cache.
//!
//! Owns: the file `pairs.redb` in the directory it is given, with two tables: `pairs` (32 to 32 bytes, fixed
//! width, so that a leaf needs no offset table and holds 63 pairs) and `meta` (the checkpoint). Must not: know
//! the marker file, the directory lock or any other engine. Threads: none of its own; redb has none either.
//!
//! # What a commit survives
//!
//! | | process killed | OS crash or power loss |
//! |---|---|---|
//! | `Buffered` | kept | kept |
//! | `Synced` | kept | kept, provided the device honours a flush |
//!
//! Both rows are the same commit, `redb::Durability::Immediate`. redb's other level, `Durability::None`, keeps
//! the batch in the process's memory, and a killed process loses it: that is less than `Buffered` promises.
//! Skipping redb's flushes beneath it would keep a batch over a kill, but after a power loss the root could be
//! on disk without the pages it names, so it is not done. A benchmark row of redb is therefore always a synced one.
//!
//! # Settings, and why
//!
//! - **Quick repair on every commit**, unless [`RedbOptions::quick_repair_every`] asks for fewer. After a crash the newest
//!   commit decides: one without it removes the recorded allocator's state, and the next open walks the whole file twice,
//!   tens of gigabytes at a billion pairs. So every Nth commit saves the walk for one crash in N. Nothing is lost either way:
//!   a commit of one flush is proved by its checksums. Quick repair costs a second flush per commit, and writes the allocator's
//!   state of every region.
//! - **Cache size** is the caller's ([`RedbOptions::cache_bytes`]). redb reads with `pread`, so under a memory
//!   cap the kernel's page cache is charged beside it: give redb about half of the cap.
//! - **One open table per transaction**, because opening a table costs several lookups and would be charged to
//!   every put. The table borrows from its transaction; `self_cell` keeps the two together.
//! - **A reserve of free disk space** ([`RedbOptions::disk_reserve_bytes`]), see below.
//!
//! # When the disk is full
//!
//! redb latches any failed write: from then on it refuses writes, and reads of pages that are not cached, until
//! it is opened again. A commit that has met a full disk therefore reports [`ErrorKind::Reopen`], not
//! `FreeSpace`: nothing committed before is lost, and after freeing space and opening again the checkpoint tells
//! whether the batch is in. So that this stays rare, `begin` looks at the free space first and returns
//! [`ErrorKind::FreeSpace`] while less than the reserve is left; then nothing was touched, reads go on, and the
//! next `begin` after space was freed succeeds.
//!
//! [`ErrorKind::Reopen`]: engine_api::ErrorKind::Reopen
//! [`ErrorKind::FreeSpace`]: engine_api::ErrorKind::FreeSpace

mod copy;
mod damage;
mod engine;
mod error;
mod reader;
mod shadow;
mod write;

pub use engine::RedbEngine;

use engine_api::{Error, ErrorKind, Result};
use redb::{ReadOnlyTable, TableDefinition};

/// Name of the store's file inside its directory.
pub const FILE_NAME: &str = "pairs.redb";

/// How to open a redb store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedbOptions {
    /// Size of redb's page cache in bytes; reads may use all of it, unwritten pages up to half. Memory
    /// beside it: the open transaction's page lists and the kernel's page cache.
    pub cache_bytes: u64,
    /// `begin` returns `FreeSpace` while the file system has less than this many bytes left.
    pub disk_reserve_bytes: u64,
    /// Every so many commits one is made with quick repair: 1 is each, 0 none. Says how long opening takes after a crash, and
    /// not what a commit survives.
    pub quick_repair_every: u32,
    /// A batch's changes are held until its commit and applied in key order.
    pub sort_batches: bool,
}

impl RedbOptions {
    /// The names that [`RedbOptions::set`] takes.
    pub const SETTINGS: &[&str] = &["quick_repair_every", "sort_batches"];

    /// Sets what one of [`RedbOptions::SETTINGS`] names.
    ///
    /// # Errors
    /// `FixInput`: the name is none of these, or the value is not of its kind.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let refuse = |message: String| Err(Error::new(ErrorKind::FixInput, message));
        match name {
            "quick_repair_every" => match value.parse() {
                Ok(commits) => self.quick_repair_every = commits,
                Err(_) => return refuse(format!("{name}={value}: give a number of commits, 0 for none")),
            },
            "sort_batches" => match value.parse() {
                Ok(sorts) => self.sort_batches = sorts,
                Err(_) => return refuse(format!("{name}={value}: give true or false")),
            },
            _ => return refuse(format!("redb has no setting name={name}: it takes {}", Self::SETTINGS.join(", "))),
        }
        Ok(())
    }

    /// Whether commit `number` since opening, counted from 1, is made with quick repair.
    fn repairs_quickly(&self, number: u64) -> bool {
        self.quick_repair_every > 0 && number.is_multiple_of(self.quick_repair_every.into())
    }
}

impl Default for RedbOptions {
    /// redb's own default cache of 1 GiB, and a reserve of 64 MiB: a commit of 1000 random keys writes
    /// 1000 leaves and their branches, 5 to 10 MiB.
    fn default() -> Self {
        Self { cache_bytes: 1 << 30, disk_reserve_bytes: 64 << 20, quick_repair_every: 1, sort_batches: false }
    }
}

type Bytes32 = &'static [u8; 32];
type PairsReadOnly = ReadOnlyTable<Bytes32, Bytes32>;

const PAIRS: TableDefinition<'static, Bytes32, Bytes32> = TableDefinition::new("pairs");
const META: TableDefinition<'static, &'static str, &'static [u8]> = TableDefinition::new("meta");
/// The key of the encoded checkpoint in `meta`.
const CHECKPOINT: &str = "checkpoint";

/// The error of an engine that has failed a commit.
fn poisoned() -> Error {
    Error::new(
        ErrorKind::Reopen,
        "an earlier commit of this redb store failed, so what is on disk is not known: close the process and open again",
    )
}
