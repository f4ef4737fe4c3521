//! Implements [`engine_api`] with redb 4.4, a copy-on-write B-tree in one file that is read through redb's own page
//! cache.
//!
//! Owns: the file `pairs.redb` in the directory it is given, with two tables: `pairs` (32 to 32 bytes, fixed width, so
//! that a leaf needs no offset table and holds 63 pairs) and `meta` (the checkpoint). Must not: know the marker file,
//! the directory lock or any other engine. Threads: none of its own; redb has none either.
//!
//! # Durability of a commit
//!
//! | | process killed | OS crash or power loss |
//! |---|---|---|
//! | `Buffered` | kept | kept |
//! | `Synced` | kept | kept, provided the device honours a flush |
//!
//! Both rows are the same commit, `redb::Durability::Immediate`. redb's other level, `Durability::None`, keeps the
//! batch in the process's memory, where a killed process loses it: less than `Buffered` promises. Skipping redb's
//! flushes would keep a batch after a kill. But after a power loss the root could be on disk without the pages that it
//! names, so this is not done. A benchmark row of redb is therefore always a synced one.
//!
//! # Settings, and why
//!
//! - **Quick repair on every commit**, unless [`RedbOptions::quick_repair_every`] asks for fewer. After a crash the
//!   newest commit decides. A commit without quick repair removes the recorded state of the allocator. The next open
//!   then walks the whole file twice, tens of gigabytes at a billion pairs. So quick repair on every Nth commit saves
//!   the walk after one crash in N. Nothing is lost either way, because checksums prove a commit of one flush. Quick
//!   repair costs a second flush per commit, and writes the allocator's state of every region.
//! - **Cache size** is the caller's ([`RedbOptions::cache_bytes`]). redb reads with `pread`, so under a memory cap the
//!   kernel's page cache is charged in addition. The registry gives redb a quarter of the cap.
//! - **One open table per transaction**, because opening a table costs several lookups and would be charged to
//!   every put. The table borrows from its transaction; `self_cell` keeps the two together.
//! - **A reserve of free disk space** ([`RedbOptions::disk_reserve_bytes`]), see below.
//!
//! TRIED.md in this crate's folder has redb's other settings, each with its figure or the reason.
//!
//! # When the disk is full
//!
//! redb latches any failed write: until it is opened again it refuses writes, and reads of pages that are not cached.
//! So a commit that has met a full disk returns [`ErrorKind::Reopen`] and not `FreeSpace`. Nothing committed before is
//! lost. After freeing space and opening again, the checkpoint tells whether the batch is in.
//!
//! To keep this rare, `begin` checks the free space first and returns [`ErrorKind::FreeSpace`] while less than the
//! reserve is left. Nothing was touched then, reads continue, and the next `begin` after space was freed succeeds.
//!
//! [`ErrorKind::Reopen`]: engine_api::ErrorKind::Reopen
//! [`ErrorKind::FreeSpace`]: engine_api::ErrorKind::FreeSpace

mod damage;
mod descriptor;
mod engine;
mod error;
mod file;
mod reader;
mod shadow;
mod store;
mod tables;
mod write;

pub use descriptor::DESCRIPTOR;
pub use engine::RedbEngine;

use engine_api::{Error, ErrorKind, Result};

pub const FILE_NAME: &str = "pairs.redb";

/// Options for opening a redb store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedbOptions {
    /// Size of redb's page cache in bytes. Reads may use all of it, unwritten pages up to half. The open transaction's
    /// page lists and the kernel's page cache take memory in addition to it.
    pub cache_bytes: u64,
    /// Free bytes of the file system below which `begin` returns `FreeSpace`.
    pub disk_reserve_bytes: u64,
    /// Number of commits of which one is made with quick repair: 1 means every commit, 0 none. Decides how long opening
    /// takes after a crash, and does not affect the durability of a commit.
    pub quick_repair_every: u32,
    /// Whether a batch's changes are held until its commit and then applied in key order.
    pub sort_batches: bool,
}

impl RedbOptions {
    /// Names of the settings that [`RedbOptions::set`] accepts.
    pub const SETTINGS: &[&str] = &["quick_repair_every", "sort_batches"];

    /// Changes the setting that `name` names, one of [`RedbOptions::SETTINGS`].
    ///
    /// # Errors
    /// `FixInput` if the name is none of these, or `value` is not a valid value of the setting.
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
    /// The cache has redb's own default of 1 GiB. The reserve has 64 MiB, because a commit of 1000 random keys writes
    /// 1000 leaves and their branches, 5 to 10 MiB.
    fn default() -> Self {
        Self { cache_bytes: 1 << 30, disk_reserve_bytes: 64 << 20, quick_repair_every: 1, sort_batches: false }
    }
}
