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
//! - **Readahead while the file fits into memory** ([`LmdbOptions::readahead_bytes_max`]), `NO_READAHEAD` beyond. Keys
//!   are uniform. With readahead, each miss reads as much as the device is set up for (Linux's default is 128 KiB),
//!   although 4 KiB are needed. This fills empty memory quickly, but makes reads slower once the data exceeds the
//!   memory. They were more than a hundred times slower on the machine of the results, whose device reads 8 MiB ahead.
//!   The size is checked when the store is opened, and before each batch. With and without readahead, scans announce
//!   the leaves that they read next. Batches of gets announce nothing: several threads look keys up at once.
//! - **`NO_TLS`**, so that a read transaction belongs to its object and a thread may hold several. `reset` and `renew`
//!   then move a reader to a newer snapshot, and the reader keeps its slot in the reader table.
//! - **A map of 1 TiB**, or of twice the file's size at the opening, reserved up front: it costs address space only, and
//!   the file grows by writing. LMDB would move a map that grows later by unmapping it, so that no reader of the process
//!   may be open then. Hosts that limit address space (`ulimit -v`) set a smaller one ([`LmdbOptions::map_bytes`]).
//! - **Not `WRITEMAP`**: it is slower once the data exceeds RAM, and a stray write would land in the store. The file
//!   would be as long as the map. A full disk would end the process by a signal instead of returning an error.
//! - **Not `NOMEMINIT`**: unused parts of pages would hold remains of the process's memory, such as keys of TLS, and
//!   copies of the store would contain them.
//! - **A reserve of free disk space** ([`LmdbOptions::disk_reserve_bytes`]): `begin` returns `FreeSpace` below it. LMDB
//!   itself survives a full disk: the transaction is aborted, and nothing committed is lost. But it cannot tell a write
//!   that a full disk cut short from a failing device. It reports both as an I/O error, which poisons the engine.
//!
//! TRIED.md in this crate's folder has the other flags and calls of LMDB, each with its figure or the reason.
//!
//! # A file that is cut or damaged
//!
//! LMDB has no checksums and reads through a map, so a page that is missing, or a wrong page number, is a memory fault.
//! A file that is too short for its newest commit is refused when it is opened. For other damage [`explain_faults`]
//! makes the process name the file before it ends.

mod ahead;
mod descriptor;
mod engine;
mod error;
mod fault;
mod length;
mod page;
mod pages;
mod readahead;
mod reader;
mod store;
mod tables;
mod write;

pub use descriptor::DESCRIPTOR;
pub use engine::LmdbEngine;
pub use fault::explain_faults;

use engine_api::{Error, ErrorKind, Result};

/// Name of the data file inside the store's directory. It is LMDB's own name, so that `mdb_stat` and its kin work.
pub const FILE_NAME: &str = "data.mdb";

/// Options for opening an LMDB store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LmdbOptions {
    /// Size of the map in bytes: address space, not memory or disk. Rounded up to whole pages, and to the size that the
    /// store already occupies. `None`: 1 TiB, or twice the size of the file at the opening if that is more.
    pub map_bytes: Option<u64>,
    /// Slots in the reader table: the number of readers that may be open at once, internal ones included.
    pub readers_max: u32,
    /// Free bytes of the file system below which `begin` returns `FreeSpace`.
    pub disk_reserve_bytes: u64,
    /// Size of the file in bytes up to which the kernel reads the neighbours of a missing page as well, as it does without
    /// LMDB's flag `MDB_NORDAHEAD`. 0: never.
    pub readahead_bytes_max: u64,
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
        if !Self::SETTINGS.contains(&name) {
            return refuse(format!("LMDB has no setting name={name}: it takes {}", Self::SETTINGS.join(", ")));
        }
        let Ok(wanted) = value.parse() else { return refuse(format!("{name}={value}: give true or false")) };
        match name {
            "readahead" => self.readahead_bytes_max = if wanted { u64::MAX } else { 0 },
            _ => self.sort_batches = wanted,
        }
        Ok(())
    }
}

impl Default for LmdbOptions {
    /// 1024 readers are more than the threads of any host, at 64 bytes each. A reserve of 64 MiB is ten commits of 1000
    /// random keys.
    fn default() -> Self {
        Self {
            map_bytes: None,
            readers_max: 1024,
            disk_reserve_bytes: 64 << 20,
            readahead_bytes_max: 0,
            sort_batches: false,
        }
    }
}
