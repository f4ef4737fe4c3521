//! Implements [`engine_api`] with LMDB 0.9 (the crate lmdb-rkv), a copy-on-write B+tree in one memory-mapped file.
//!
//! Owns: `data.mdb` and `lock.mdb` in the directory it is given, with two named tables: `pairs` (32 to 32 bytes) and
//! `meta` (the checkpoint). Must not: know the marker file, the directory lock or any other engine. Threads: none of
//! its own, except LMDB's helper thread while a snapshot is copied.
//!
//! # Durability of a commit
//!
//! | | process killed | OS crash or power loss |
//! |---|---|---|
//! | `Buffered` | kept | kept, except that the newest one alone may be missing, whole |
//! | `Synced` | kept | kept, provided the device honours a flush |
//!
//! `Buffered` is `MDB_NOMETASYNC`: the data pages are flushed before the meta page is written. The meta page stays in
//! the page cache until the next commit flushes it. This saves one of the two flushes. The cheaper `MDB_NOSYNC` is not
//! offered: unless the file system keeps the order of writes, a power loss can leave a meta page that names pages that
//! were never written. Such a file is damaged.
//!
//! # Settings, and why
//!
//! - **`NO_READAHEAD`**, unless [`LmdbOptions::readahead`] asks for it. Keys are uniform: with readahead each miss reads 128 KiB for the sake of 4 KiB,
//!   which is several times slower as soon as the data exceeds the memory cap. Scans announce the leaves that they come to
//!   next instead, and batches of gets the pages of all their keys.
//! - **`NO_TLS`**, so that a read transaction belongs to its object, a thread may hold several, and `reset` and
//!   `renew` move a reader on without giving up its slot in the reader table.
//! - **A map of 1 TiB** ([`LmdbOptions::map_bytes`]), reserved up front: it costs address space only, the file
//!   grows by writing. Growth on demand exists for hosts that limit address space (`ulimit -v`), see below.
//! - **Not `WRITEMAP`**: slower once the data exceeds RAM, and a stray write would land in the store. The file would be as long
//!   as the map, and a disk that is full would end the process by a signal, where it is an error now.
//! - **Not `NOMEMINIT`**: unused parts of pages would hold whatever the process's memory held, keys of TLS among it, and
//!   copies of the store would carry that on.
//! - **A reserve of free disk space** ([`LmdbOptions::disk_reserve_bytes`]): `begin` returns `FreeSpace` below it.
//!   LMDB itself survives a full disk (the transaction is aborted, nothing committed is lost), but it cannot tell
//!   a write cut short by a full disk from a failing device and reports both as an I/O error, which poisons.
//!
//! ## Tried
//!
//! `loadgen bench loadgen/scenarios/settings/lmdb-redb-*.toml` measures each setting by turns with the defaults. Ratios are
//! medians, with the lowest and the highest, of two or three repeats
//! (`loadgen/results/2026-11-22/settings`). A ratio below 1 is a gain.
//!
//! | setting | effect | kept |
//! |---|---|---|
//! | a batch's puts in key order ([`LmdbOptions::sort_batches`]) | synced commit of 1000 puts into 5M pairs, puts included: 1.03 (0.98 to 1.04); shuffled load of 5M pairs in batches of 10,000: 0.96 (0.94 to 0.98) | no |
//!
//! # A file that is cut or damaged
//!
//! LMDB has no checksums and reads through a map, so a page that is missing, or a wrong page number, is a memory fault.
//! A file that is too short for its newest commit is refused when it is opened. For other damage [`explain_faults`]
//! makes the process name the file before it ends.
//!
//! # Growing the map
//!
//! LMDB moves the map by unmapping it, so no transaction of the process may be active then, and LMDB does not check for
//! readers itself. In this crate every active transaction, a reader's or an internal one, holds a read lock. The map is
//! grown in one place only: inside `begin`, before the write transaction exists, under that lock's write side.
//!
//! A reader that is refreshed makes way for a waiting growth. A reader that is neither refreshed nor dropped makes the
//! growth give up after a short wait. The transaction then goes on in the map as it is, and the put that no longer fits
//! returns [`ErrorKind::FreeSpace`]. The next `begin` tries again.
//!
//! [`ErrorKind::FreeSpace`]: engine_api::ErrorKind::FreeSpace

mod ahead;
mod batch;
mod engine;
mod error;
mod fault;
mod length;
mod map;
mod page;
mod pages;
mod reader;
mod write;

pub use engine::LmdbEngine;
pub use fault::explain_faults;

use engine_api::{Error, ErrorKind, Result};

/// Name of the data file inside the store's directory. It is LMDB's own name, so that `mdb_stat` and its kin work.
pub const FILE_NAME: &str = "data.mdb";

/// Options for opening an LMDB store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LmdbOptions {
    /// Size of the map at opening in bytes: address space, not memory or disk. Rounded up to whole pages, and to the
    /// size that the store already occupies.
    pub map_bytes: u64,
    /// Limit in bytes up to which the map grows by doubling. At or below `map_bytes` the map never grows.
    pub map_bytes_max: u64,
    /// Slots in the reader table: the number of readers that may be open at once, internal ones included.
    pub readers_max: u32,
    /// Free bytes of the file system below which `begin` returns `FreeSpace`.
    pub disk_reserve_bytes: u64,
    /// Whether the kernel reads ahead of a missing page, as it does without LMDB's flag `MDB_NORDAHEAD`.
    pub readahead: bool,
    /// Whether a batch's changes are held until its commit and then applied in key order.
    pub sort_batches: bool,
}

impl LmdbOptions {
    /// Names of the settings that [`LmdbOptions::set`] accepts.
    pub const SETTINGS: &[&str] = &["readahead", "sort_batches"];

    /// Changes the setting that `name` names, one of [`LmdbOptions::SETTINGS`].
    ///
    /// # Errors
    /// `FixInput` if the name is none of these, or the value is neither `true` nor `false`.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let refuse = |message: String| Err(Error::new(ErrorKind::FixInput, message));
        let field = match name {
            "readahead" => &mut self.readahead,
            "sort_batches" => &mut self.sort_batches,
            _ => return refuse(format!("LMDB has no setting name={name}: it takes {}", Self::SETTINGS.join(", "))),
        };
        let Ok(wanted) = value.parse() else { return refuse(format!("{name}={value}: give true or false")) };
        *field = wanted;
        Ok(())
    }
}

impl Default for LmdbOptions {
    /// A map of 1 TiB is ten times as much as a billion pairs take after random inserts, and 1/128 of a process's
    /// address space. 1024 readers are more than the threads of any host, at 64 bytes each. A reserve of 64 MiB is ten
    /// commits of 1000 random keys.
    fn default() -> Self {
        Self {
            map_bytes: 1 << 40,
            map_bytes_max: 16 << 40,
            readers_max: 1024,
            disk_reserve_bytes: 64 << 20,
            readahead: false,
            sort_batches: false,
        }
    }
}
