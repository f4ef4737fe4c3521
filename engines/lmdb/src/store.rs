//! The state of the open store: its environment, its two tables, its map, and whether a commit has failed.
//!
//! Owns: the opening of the file, and the consequences of a failed write. Must not: read or write pairs. Shared between
//! threads by reference.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use engine_api::{Checkpoint, Code, Error, ErrorKind, Result};
use engine_kit::{Commits, Poison, check_space, free_bytes};
use lmdb::{Database, Environment, EnvironmentFlags, RwTransaction};
use parking_lot::Mutex;

use crate::fault::Named;
use crate::readahead::Readahead;
use crate::tables::{open_tables, read_checkpoint};
use crate::{FILE_NAME, LmdbOptions, error, length};

/// Device and inode of the directories that this process has open. One process must not open an LMDB store twice,
/// because the second close would drop the file locks of the first.
static OPEN_DIRS: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

/// Least size of a map whose size is not set: 1 TiB, ten times as much as a billion pairs take after random inserts, and
/// 1/128 of a process's address space.
const MAP_BYTES_LEAST: u64 = 1 << 40;

/// An open LMDB store. Readers and the write transaction hold a reference to it.
pub(crate) struct Store {
    pub(crate) env: Environment,
    /// LMDB's own table, which holds the records of the named tables.
    pub(crate) main: Database,
    pub(crate) pairs: Database,
    pub(crate) meta: Database,
    pub(crate) readahead: Readahead,
    pub(crate) writer: Mutex<()>,
    pub(crate) commits: Commits,
    poison: Poison,
    pub(crate) options: LmdbOptions,
    dir: PathBuf,
    // Last field: the directory is released once the environment is closed.
    _opened: OpenDir,
}

impl Store {
    /// Opens the store in `dir`, which must exist. `flags` are those of LMDB that are not the same for every store.
    ///
    /// # Errors
    /// `FixInput` if the process has the store open already, the file is not LMDB's or has other tables, or the map
    /// does not fit into the address space.
    pub(crate) fn open(dir: &Path, options: &LmdbOptions, flags: EnvironmentFlags) -> Result<Self> {
        let opened = OpenDir::claim(dir)?;
        let file = dir.join(FILE_NAME);
        length::check(&file)?;
        let file_bytes = fs::metadata(&file).map_or(0, |found| found.len());
        // A store that is only read does not grow, and an address space that is limited may have room for no more.
        let set = if flags.contains(EnvironmentFlags::READ_ONLY) { Some(file_bytes) } else { options.map_bytes };
        let failed = |e| error::lmdb(&format!("cannot open the LMDB store: dir={}", dir.display()), e);
        let env = Environment::new()
            .set_flags(EnvironmentFlags::NO_READAHEAD | EnvironmentFlags::NO_TLS | flags)
            .set_max_dbs(2)
            .set_max_readers(options.readers_max)
            .set_map_size(map_bytes(set, file_bytes))
            .open(dir)
            .map_err(failed)?;
        let (pairs, meta) = open_tables(&env, dir)?;
        let main = env.open_db(None).map_err(failed)?;
        let store = Self {
            env,
            main,
            pairs,
            meta,
            readahead: Readahead::new(options.readahead_bytes_max),
            writer: Mutex::new(()),
            commits: Commits::default(),
            poison: Poison::new("LMDB", dir.display()),
            options: *options,
            dir: dir.to_owned(),
            _opened: opened,
        };
        // A checkpoint that this build cannot read is refused now and not at its first use.
        store.checkpoint()?;
        let txn = store.env.begin_ro_txn().map_err(|e| error::lmdb("LMDB cannot begin a read", e))?;
        store.readahead.switch(&store.env, store.main, &txn)?;
        drop(txn);
        Ok(store)
    }

    /// Returns the path of the data file.
    pub(crate) fn file(&self) -> PathBuf {
        self.dir.join(FILE_NAME)
    }

    /// Refuses a write on a poisoned engine or a nearly full disk.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.poison.check()?;
        check_space(self.dir.display(), free_bytes(&self.dir), self.options.disk_reserve_bytes)
    }

    /// Sets whether the next commit flushes its meta page. Takes the open write transaction as proof that no other
    /// thread commits or sets flags.
    pub(crate) fn set_meta_sync(&self, txn: &RwTransaction<'_>, sync: bool) -> Result<()> {
        let _ = txn;
        // SAFETY: the environment is open for as long as `self` lives. LMDB demands that no two threads change flags at
        // once: the caller holds the writer's lock. Readers use only flags that this call leaves alone.
        let rc = unsafe { lmdb_sys::mdb_env_set_flags(self.env.env(), lmdb_sys::MDB_NOMETASYNC, i32::from(!sync)) };
        error::check(rc).map_err(|e| error::lmdb("LMDB cannot set the durability", e))
    }

    /// Maps an error of the open write transaction, which can only be dropped afterwards. Poisons the engine if the
    /// error leaves the state on disk unknown.
    pub(crate) fn failed(&self, what: &str, e: lmdb::Error) -> Error {
        if e == lmdb::Error::MapFull {
            let bytes = self.env.info().map_or(0, |info| info.map_size());
            let way_out = "open the store again, with a larger --lmdb-map-size or without it";
            let message = format!("{what}: the map is full: map_bytes={bytes}: {way_out}");
            return Error::with_source(ErrorKind::FreeSpace, message, e).with_code(Code::Option);
        }
        let failed = error::lmdb(what, e);
        if failed.kind() == ErrorKind::Reopen {
            self.poison.set();
        }
        failed
    }

    /// Maps an error of a commit. LMDB writes and flushes the data pages before it touches the meta page, so the batch
    /// is not applied. The kind depends on whether LMDB, or a failed flush, leaves the file in a known state.
    pub(crate) fn commit_failed(&self, e: lmdb::Error) -> Error {
        let failed = self.failed("LMDB commit failed", e);
        // If a full disk hit the meta page, LMDB has given up the environment: every new transaction fails then.
        let given_up = matches!(self.env.begin_ro_txn(), Err(lmdb::Error::Panic));
        let what = match failed.kind() {
            ErrorKind::FreeSpace if given_up => "LMDB could not write its meta page: free space, close the process and",
            // The file system accepted the write and refused the flush, or the other way round: for example a remount
            // as read-only.
            ErrorKind::FixInput | ErrorKind::Retry => "LMDB could not write a commit: close the process and",
            _ => return failed,
        };
        self.poison.set();
        Error::with_source(ErrorKind::Reopen, format!("{what} open again: reason={failed}"), failed)
    }

    /// Returns the checkpoint of the newest commit.
    pub(crate) fn checkpoint(&self) -> Result<Checkpoint> {
        let txn = self.env.begin_ro_txn().map_err(|e| error::lmdb("LMDB cannot begin a read", e))?;
        read_checkpoint(&txn, self.meta)
    }

    /// Flushes the meta page that a buffered commit may have left in the page cache.
    pub(crate) fn flush(&self) -> Result<()> {
        // The flush of a poisoned engine has failed before and is not repeated.
        self.poison.check()?;
        self.env.sync(true).map_err(|e| error::lmdb("LMDB cannot flush while closing", e))
    }
}

/// An entry in [`OPEN_DIRS`], which is removed on drop.
struct OpenDir {
    id: (u64, u64),
    _named: Named,
}

impl OpenDir {
    fn claim(dir: &Path) -> Result<Self> {
        let meta = fs::metadata(dir)
            .map_err(|e| Error::io(format!("cannot look at the store's directory: dir={}", dir.display()), e))?;
        let id = (meta.dev(), meta.ino());
        if !OPEN_DIRS.lock().insert(id) {
            return Err(Error::new(
                ErrorKind::FixInput,
                format!("this process has the LMDB store open already: dir={}", dir.display()),
            ));
        }
        Ok(Self { id, _named: Named::keep(&dir.join(FILE_NAME)) })
    }
}

impl Drop for OpenDir {
    fn drop(&mut self) {
        OPEN_DIRS.lock().remove(&self.id);
    }
}

/// Returns the size of the map: the one that is set, or room for the file to double. LMDB demands whole pages of the
/// operating system, and 64 KiB is a multiple of every page size in use.
fn map_bytes(set: Option<u64>, file_bytes: u64) -> usize {
    let bytes = set.unwrap_or(MAP_BYTES_LEAST.max(file_bytes.saturating_mul(2)));
    usize::try_from(bytes.max(1).next_multiple_of(64 << 10)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_room_for_the_file_to_double_unless_its_size_is_set() {
        assert_eq!(map_bytes(None, 0), 1 << 40);
        assert_eq!(map_bytes(None, 3 << 40), 6 << 40);
        assert_eq!((map_bytes(Some(1 << 20), 3 << 40), map_bytes(Some(1), 0)), (1 << 20, 64 << 10));
    }
}
