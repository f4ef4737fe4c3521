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
//! ## Tried
//!
//! redb has no guide to its settings. These are the calls of its interface, its notes on releases, and its author's answers to
//! users (issues 643 and 810 of its repository: commit seldom, a larger cache, keys in order, few commits in a row without a flush). "Open" has not been measured here.
//!
//! `make bench-settings` measures each setting by turns with the defaults: programs on redb's own interface
//! (`engines/trials`), and `loadgen bench` on the scenarios `loadgen/scenarios/settings/lmdb-redb-*.toml`. Medians of
//! two to five turns, with the lowest and the highest (`loadgen/results/settings`). The stores have 5M pairs unless
//! another number is named. Times are ratios of times and rates are ratios of rates.
//!
//! | knob | where redb names it | kept | figure or reason |
//! |---|---|---|---|
//! | quick repair on no commit | `set_quick_repair` | no | time of a synced commit of 1000 puts, puts included: 0.88 (0.84 to 1.01) and 0.97 (0.86 to 1.06) in two measurements; rate of a shuffled load 1.01 (1.00 to 1.03). Opening after a kill, nothing in memory: 10.2 s for each GiB of the file, in place of 1.2 ms. The next opening after a crash walks the whole file |
//! | quick repair on every tenth commit | `set_quick_repair` | no | commit: 0.99 (0.96 to 1.03) and 0.99 (0.90 to 1.04). It gains nothing, and nine of ten crashes are followed by the walk |
//! | two flushes without quick repair (`set_two_phase_commit`) | `set_two_phase_commit` | no | commit: 0.98 (0.83 to 1.05). Not decided |
//! | `Durability::None` for commits | `set_durability` | refused | a killed process loses them |
//! | a load that flushes every 50th batch of 10,000 only (`Durability::None` between) | `set_durability`, issue 810 | no | rate of a shuffled load of 2M pairs 1.81 (1.69 to 1.82), 0.12 of the bytes written, a file of twice the size; of a sorted load 1.43 (1.16 to 1.63). The file is too large. A sorted load, the default, is 32 times as fast as a shuffled one, and flushes once for a million pairs |
//! | large commits | issue 643 | yes | 1000 puts, 10,000 in a shuffled load, a million in a sorted one |
//! | a batch's changes in key order ([`RedbOptions::sort_batches`]) | issue 643 | no | commit: 0.98 (0.95 to 1.00) and 0.99 (0.89 to 1.04); rate of a shuffled load 1.05 (0.99 to 1.12) and 1.07 (1.04 to 1.09). Commits are not decided |
//! | a cursor for sorted loads (`insert_before`) | release 4.2 and 4.4 | yes | redb says three times the rate of `insert` |
//! | keys and values of a fixed width | `TableDefinition` | yes | a leaf holds 63 pairs |
//! | the checkpoint in the table of pairs, as RocksDB has it here | nowhere | open | it has a table of its own, whose page each commit writes in addition. It would matter in commits of few puts |
//! | `insert_reserve` | `Table` | no | for values without a fixed width |
//! | several tables that are written by several threads | release 4.2 | no | the puts that it would share out are 12 of 55 ms of a commit (`batch_puts_ms` in `trials.md`), so two threads could save a tenth |
//! | size of the cache | `set_cache_size`, issue 643 | a quarter of the limit | zipfian gets of 50M pairs under a cap of 18%, mean: a half 1.03 (1.01 to 1.08), five eighths 1.04 (1.03 to 1.40), three quarters 1.11 (1.05 to 1.12) |
//! | size of the cache under a cap of 4% | the same | a quarter of it, 32 MB | 50M pairs, three repeats, against 64 MB, which was the default until 2026-11-26: with 32 MB uniform gets mean 0.86 (0.78 to 1.07), p50 0.88 (0.84 to 0.89), zipfian mean 0.97 (0.87 to 1.09); with 8 MB 0.83 (0.69 to 1.10), 0.84 (0.79 to 0.90), 0.89 (0.81 to 0.97), of which none is decided |
//! | compaction after a shuffled load, 2M pairs | `compact` | no | 0.71 of the file's bytes, in 0.49 us a pair; present get in memory 1.04 (0.97 to 1.09), absent 1.04 (0.95 to 1.12). It needs the store for itself, and the space comes back into use by later writes |
//! | compaction after a sorted load | `compact` | no | it leaves nothing to compact |
//! | size of pages and regions | `Builder` | no | redb has these settings for its own tests |
//! | a storage of its own (`create_with_backend`) | `StorageBackend` | no | redb's own reads and writes the file |
//! | several processes, a check of the whole file at its opening | release 4.5 | no | one process opens a store. Of all tables redb 4.5 makes those with keys of text faster |
//! | huge pages for the cache (`GLIBC_TUNABLES=glibc.malloc.hugetlb=1`), 10M pairs in memory, three repeats (`allocators-huge.jsonl`); jemalloc | nowhere | no | present p50 0.90 (0.68 to 1.20); 1.00 (0.69 to 1.45). Neither is decided |
//! | a build without overflow checks, 2M pairs in memory | nowhere | no | present get 0.97 (0.66 to 1.07), absent 0.94 (0.69 to 1.07): not decided. They are on for every crate of this workspace |
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

mod copy;
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
