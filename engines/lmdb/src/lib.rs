//! LMDB 0.9 (the crate lmdb-rkv) behind [`engine_api`]: a copy-on-write B+tree in one memory-mapped file.
//!
//! Owns: `data.mdb` and `lock.mdb` in the directory it is given, with two named tables: `pairs` (32 to 32 bytes)
//! and `meta` (the checkpoint). Must not: know the marker file, the directory lock or any other engine. Threads:
//! none of its own, except LMDB's helper thread while a snapshot is copied.
//!
//! # What a commit survives
//!
//! | | process killed | OS crash or power loss |
//! |---|---|---|
//! | `Buffered` | kept | kept, except that the newest one alone may be missing, whole |
//! | `Synced` | kept | kept, provided the device honours a flush |
//!
//! `Buffered` is `MDB_NOMETASYNC`: the data pages are flushed before the meta page is written, and the meta page
//! goes to the page cache; the next commit's flush takes it along. It saves one of the two flushes. The cheaper
//! `MDB_NOSYNC` is not offered: unless the file system keeps the order of writes, a power loss can leave a meta
//! page naming pages that were never written, that is, a damaged file.
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
//! # A file that is cut or damaged
//!
//! LMDB has no checksums and reads through a map, so a page that is not there, or points anywhere, is a memory fault. A
//! file that is too short for its newest commit is refused when it is opened; of the rest [`explain_faults`] says which
//! file it was.
//!
//! # Growing the map
//!
//! LMDB moves the map by unmapping it, so no transaction of the process may be active then, and it does not
//! check readers itself. Here every transaction of the process, readers and internal ones alike, holds a
//! read lock for as long as it is active, and the map is grown in one place: inside `begin`, before the write
//! transaction exists, under that lock's write side. A reader that is refreshed steps aside for a waiting growth;
//! a reader that is neither refreshed nor dropped makes growth give up after a short wait. The transaction then
//! goes on in the map as it is, and [`ErrorKind::FreeSpace`] comes from the put that no longer fits; the next
//! `begin` tries again.
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

/// Name of the store's data file inside its directory: LMDB's own, so that `mdb_stat` and its kin work.
pub const FILE_NAME: &str = "data.mdb";

/// How to open an LMDB store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LmdbOptions {
    /// Size of the map at opening in bytes: address space, not memory or disk. Rounded up to whole pages, and to
    /// what the store already occupies.
    pub map_bytes: u64,
    /// The map grows by doubling up to this many bytes. At or below `map_bytes` it never grows.
    pub map_bytes_max: u64,
    /// Slots of the reader table: how many readers may be open at once, internal ones included.
    pub readers_max: u32,
    /// `begin` returns `FreeSpace` while the file system has less than this many bytes left.
    pub disk_reserve_bytes: u64,
    /// The kernel reads ahead of a page that is missing, as LMDB has it without `MDB_NORDAHEAD`.
    pub readahead: bool,
    /// A batch's changes are held until its commit and applied in key order.
    pub sort_batches: bool,
}

impl LmdbOptions {
    /// The names that [`LmdbOptions::set`] takes.
    pub const SETTINGS: &[&str] = &["readahead", "sort_batches"];

    /// Sets what one of [`LmdbOptions::SETTINGS`] names.
    ///
    /// # Errors
    /// `FixInput`: the name is none of these, or the value is neither `true` nor `false`.
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
    /// 1 TiB is ten times what a billion pairs take after random inserts, and 1/128 of a process's address
    /// space; 1024 readers are more than the threads of any host, at 64 bytes each; 64 MiB is ten commits of
    /// 1000 random keys.
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
