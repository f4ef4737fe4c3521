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
//!   the leaves that they read next, and batches of gets announce the pages of all their keys, with readahead also those
//!   around them.
//! - **`NO_TLS`**, so that a read transaction belongs to its object and a thread may hold several. `reset` and `renew`
//!   then move a reader to a newer snapshot, and the reader keeps its slot in the reader table.
//! - **A map of 1 TiB** ([`LmdbOptions::map_bytes`]), reserved up front: it costs address space only, and the file
//!   grows by writing. For hosts that limit address space (`ulimit -v`), the map can grow on demand, see below.
//! - **Not `WRITEMAP`**: it is slower once the data exceeds RAM, and a stray write would land in the store. The file
//!   would be as long as the map. A full disk would end the process by a signal instead of returning an error.
//! - **Not `NOMEMINIT`**: unused parts of pages would hold remains of the process's memory, such as keys of TLS, and
//!   copies of the store would contain them.
//! - **A reserve of free disk space** ([`LmdbOptions::disk_reserve_bytes`]): `begin` returns `FreeSpace` below it. LMDB
//!   itself survives a full disk: the transaction is aborted, and nothing committed is lost. But it cannot tell a write
//!   that a full disk cut short from a failing device. It reports both as an I/O error, which poisons the engine.
//!
//! ## Tried
//!
//! LMDB has no guide to its settings. These are the flags, calls and caveats of its header `lmdb.h`, in which its authors say
//! who gains from each. "Open" has not been measured here.
//!
//! `make bench-settings` measures each setting by turns with the defaults: programs on LMDB's own interface
//! (`engines/trials`), and `loadgen bench` on the scenarios `loadgen/scenarios/settings/lmdb-*.toml`. Medians of three
//! or five turns, with the lowest and the highest (`loadgen/results/settings`). The stores have 5M pairs unless another
//! number is named. Each effect is a ratio to the default: a time divided by the default's time, or a rate divided by
//! the default's rate.
//!
//! | knob | where in `lmdb.h` | kept | figure or reason |
//! |---|---|---|---|
//! | LMDB 0.9.32 in place of 0.9.24 | version | no | time of a present get in memory 1.02 (0.98 to 1.06), absent 1.03 (0.97 to 1.07); of a synced commit of 1000 puts 0.96 (0.87 to 1.17); rate of a sorted load 0.92 (0.77 to 1.17). No difference is decided, and `lmdb-rkv` brings 0.9.24 |
//! | LMDB's development branch, as heed 0.22 brings it (0.9.70) | version | no | present get 1.05 (0.94 to 1.15), absent 1.04 (0.98 to 1.08); commit 0.93 (0.80 to 0.98); rate of a sorted load 0.83 (0.74 to 1.13). It commits a little faster, and it is no release |
//! | LMDB 1.0 | version | open | its file has another format |
//! | readahead for every store (`readahead=true`) | flag | only while the file takes less than three quarters of the memory | file in memory's size, nothing of it read yet: time of a present get 0.09 (0.07 to 0.11), absent 0.06 (0.05 to 0.08), rate of a scan 9.0 (8.5 to 9.4). 20M pairs under a cap of 18%: gets 15,000 to 116 a second, of zipfian keys 33,800 to 126; rate of a scan 1.39 |
//! | `MDB_NOTLS` | flag | yes | a thread may hold several readers |
//! | `MDB_NOMETASYNC` | flag | yes | for `Buffered`: one flush for each commit in place of two |
//! | `MDB_NOSYNC` for a load, with or without batches in key order | flag | no | rate of a shuffled load 2.53 (2.39 to 2.72), in key order 2.83 (2.78 to 3.14); of a sorted one in batches of 10,000: 1.27 (1.26 to 1.32). A killed load would have to begin again, because LMDB cannot tell a half-written store from a whole one. A sorted load, the default, is 57 times as fast as a shuffled one, and flushes once for a million pairs |
//! | `MDB_NOSYNC` for commits | flag | refused | a power loss can damage the file |
//! | `MDB_WRITEMAP` | flag | no | commit 1.58 (1.53 to 1.83). Slower, a full disk ends the process by SIGBUS, and a stray write lands in the store |
//! | `MDB_WRITEMAP` with `MDB_MAPASYNC` for a load | flag | no | rate of a shuffled load 4.5 (3.8 to 4.5), of a sorted one 0.75 (0.71 to 0.79). For the reasons in the rows of both flags |
//! | `MDB_NOMEMINIT` | flag | no | commit 1.02 (0.86 to 1.05); rate of a sorted load 1.07 (1.00 to 1.09), shuffled 0.99 (0.91 to 1.04). Pages would hold pieces of the process's memory |
//! | `MDB_NOLOCK` | flag | refused | the readers and the writer of a process need the table of readers |
//! | `MDB_FIXEDMAP` | flag | refused | lmdb.h calls it experimental |
//! | `MDB_APPEND`, pairs in key order | puts | yes | sorted loads: 57 times as fast as shuffled ones |
//! | a batch's puts in key order ([`LmdbOptions::sort_batches`]) | puts | no | commit, puts included: 1.03 (0.98 to 1.04) and 0.96 (0.92 to 1.11) in two measurements; rate of a shuffled load in batches of 10,000: 1.04 (1.02 to 1.06) and 1.12 (1.04 to 1.13) |
//! | puts through a cursor, in key order | puts | no | commit 0.94 (0.85 to 1.07). Not decided |
//! | `MDB_RESERVE` | puts | no | commit 0.98 (0.94 to 1.24). It saves a copy of 32 bytes |
//! | `MDB_DUPSORT` with `MDB_DUPFIXED`: a pair as a duplicate of the first two bytes of its key, 2M pairs in memory | tables | no | present get 1.27 (1.11 to 1.27), absent 1.19 (1.08 to 1.26), 0.92 of the bytes. In a layout that no other program reads |
//! | `MDB_INTEGERKEY` | tables | refused | keys have 32 bytes |
//! | another comparison of keys (`mdb_set_compare`): the first eight bytes as a word, 2M pairs in memory | tables | no | present get 0.95 (0.91 to 0.99), absent 0.92 (0.87 to 0.96). Programs such as `mdb_dump` and `mdb_copy` would need it as well, and one that lacks it could break the file |
//! | the checkpoint in the table of pairs, under a key of its own, as RocksDB has it here | nowhere | open | it has a table of its own, whose one page each commit writes in addition. That is one page of some 1,800 in a commit of 1000 puts, and one of a handful in a commit of one |
//! | readers that are reset and renewed | calls | yes | a reader keeps its slot |
//! | no transaction of long duration | caveats | yes | readers are refreshed; a copy keeps one for as long as it takes |
//! | slots of dead readers removed | caveats | no | one process opens a store, and the first opening clears the table |
//! | copies that are compacted (`MDB_CP_COMPACT`) | calls | yes | for copies. A store is not compacted in place |
//! | pages of more than 4 KiB | build | no | 0.9 takes the system's size |
//! | huge pages for the map (`MADV_HUGEPAGE`) | nowhere | open | for a file that fits into memory. strata has them for its own memory |
//! | a map that is read in advance | nowhere | no | figures in memory are taken after it is read |
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
//! growth give up after a short wait. The transaction then continues in the map as it is, and the put that no longer
//! fits returns [`ErrorKind::FreeSpace`]. The next `begin` tries again.
//!
//! [`ErrorKind::FreeSpace`]: engine_api::ErrorKind::FreeSpace

mod ahead;
mod batch;
mod descriptor;
mod engine;
mod error;
mod fault;
mod length;
mod map;
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
    /// Size of the map at opening in bytes: address space, not memory or disk. Rounded up to whole pages, and to the
    /// size that the store already occupies.
    pub map_bytes: u64,
    /// Limit in bytes up to which the map grows by doubling. At or below `map_bytes` the map never grows.
    pub map_bytes_max: u64,
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
    /// A map of 1 TiB is ten times as much as a billion pairs take after random inserts, and 1/128 of a process's
    /// address space. 1024 readers are more than the threads of any host, at 64 bytes each. A reserve of 64 MiB is ten
    /// commits of 1000 random keys.
    fn default() -> Self {
        Self {
            map_bytes: 1 << 40,
            map_bytes_max: 16 << 40,
            readers_max: 1024,
            disk_reserve_bytes: 64 << 20,
            readahead_bytes_max: 0,
            sort_batches: false,
        }
    }
}
