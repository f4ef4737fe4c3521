//! The open store: its environment, its two tables, its map, and whether a commit has failed.
//!
//! Shared between threads by reference.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use engine_api::{BulkLoad, Checkpoint, Engine, Error, ErrorKind, Reader, Result, Stats, WriteTxn, scrub_by_scan};
use engine_kit::{Commits, Poison, allocated_bytes, check_space, copy_to_new, create_dir, free_bytes, sync_dir};
use lmdb::{Database, DatabaseFlags, Environment, EnvironmentFlags, RwTransaction, Transaction};
use parking_lot::{Mutex, MutexGuard};

use crate::fault::Named;
use crate::map::Map;
use crate::readahead::Readahead;
use crate::reader::{LmdbReader, read_checkpoint};
use crate::write::LmdbTxn;
use crate::{FILE_NAME, LmdbOptions, error, length};

/// Key of the encoded checkpoint in the meta table.
pub(crate) const CHECKPOINT: &[u8; 10] = b"checkpoint";

pub(crate) const PAIRS_TABLE: &str = "pairs";
const META_TABLE: &str = "meta";

/// Device and inode of the directories that this process has open. One process must not open an LMDB store twice,
/// because the second close would drop the file locks of the first.
static OPEN_DIRS: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

pub struct LmdbEngine {
    env: Environment,
    /// LMDB's own table, which holds the records of the named tables.
    main: Database,
    pairs: Database,
    meta: Database,
    map: Map,
    readahead: Readahead,
    writer: Mutex<()>,
    pub(crate) commits: Commits,
    poison: Poison,
    options: LmdbOptions,
    dir: PathBuf,
    // Last field: the directory is released once the environment is closed.
    _opened: OpenDir,
}

impl LmdbEngine {
    /// Opens the store in `dir`. Creates the directory and the store if they are missing.
    ///
    /// # Errors
    /// `FixInput` if the process has the store open already, the file is not LMDB's or has other tables, or the map
    /// does not fit into the address space.
    pub fn open(dir: &Path, options: &LmdbOptions) -> Result<Self> {
        create_dir(dir)?;
        let engine = Self::open_with(dir, options, EnvironmentFlags::empty())?;
        sync_dir(dir)?;
        Ok(engine)
    }

    /// Opens the store in `dir` for reading alone, and writes nothing there, not even a lock file. The caller must keep
    /// writers away.
    ///
    /// # Errors
    /// The same as [`LmdbEngine::open`], and `FixInput` if there is no store.
    pub fn open_read_only(dir: &Path, options: &LmdbOptions) -> Result<Self> {
        Self::open_with(dir, options, EnvironmentFlags::READ_ONLY | EnvironmentFlags::NO_LOCK)
    }

    fn open_with(dir: &Path, options: &LmdbOptions, flags: EnvironmentFlags) -> Result<Self> {
        let opened = OpenDir::claim(dir)?;
        length::check(&dir.join(FILE_NAME))?;
        let failed = |e| error::lmdb(&format!("cannot open the LMDB store: dir={}", dir.display()), e);
        let env = Environment::new()
            .set_flags(EnvironmentFlags::NO_READAHEAD | EnvironmentFlags::NO_TLS | flags)
            .set_max_dbs(2)
            .set_max_readers(options.readers_max)
            .set_map_size(whole_pages(options.map_bytes))
            .open(dir)
            .map_err(failed)?;
        let (pairs, meta) = open_tables(&env, dir)?;
        let main = env.open_db(None).map_err(failed)?;
        let map = Map::new(&env, options)?;
        let engine = Self {
            env,
            main,
            pairs,
            meta,
            map,
            readahead: Readahead::new(options.readahead_bytes_max),
            writer: Mutex::new(()),
            commits: Commits::default(),
            poison: Poison::new("LMDB", dir.display()),
            options: *options,
            dir: dir.to_owned(),
            _opened: opened,
        };
        // A checkpoint that this build cannot read is refused now and not at its first use.
        engine.checkpoint()?;
        let txn = engine.env.begin_ro_txn().map_err(|e| error::lmdb("LMDB cannot begin a read", e))?;
        engine.read_ahead_while_small(&txn)?;
        drop(txn);
        Ok(engine)
    }

    pub(crate) fn env(&self) -> &Environment {
        &self.env
    }

    pub(crate) fn map(&self) -> &Map {
        &self.map
    }

    pub(crate) fn readahead(&self) -> &Readahead {
        &self.readahead
    }

    pub(crate) fn main(&self) -> Database {
        self.main
    }

    pub(crate) fn pairs(&self) -> Database {
        self.pairs
    }

    pub(crate) fn meta(&self) -> Database {
        self.meta
    }

    pub(crate) fn lock_writer(&self) -> MutexGuard<'_, ()> {
        self.writer.lock()
    }

    /// Whether a batch's changes are held until its commit, so that they can be sorted.
    pub(crate) fn sorts_batches(&self) -> bool {
        self.options.sort_batches
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
        check(rc).map_err(|e| error::lmdb("LMDB cannot set the durability", e))
    }

    /// Maps an error of the open write transaction, which can only be dropped afterwards. Poisons the engine if the
    /// error leaves the state on disk unknown.
    pub(crate) fn failed(&self, what: &str, e: lmdb::Error) -> Error {
        if e == lmdb::Error::MapFull {
            self.map.note_full();
            return self.map_full(what, e);
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

    fn map_full(&self, what: &str, e: lmdb::Error) -> Error {
        let (bytes, max) = (self.map.bytes(), self.map.bytes_max());
        let how = if bytes < max {
            "begin again: the map grows once no reader is open or all are refreshed; or reopen with a larger --lmdb-map-size"
        } else {
            "reopen with a larger --lmdb-map-size"
        };
        Error::with_source(
            ErrorKind::FreeSpace,
            format!("{what}: the map is full: map_bytes={bytes} map_bytes_max={max}: {how}"),
            e,
        )
    }

    /// Copies the newest commit into `dir`, which must exist and be empty.
    fn copy_into(&self, dir: &Path) -> Result<()> {
        const WHAT: &str = "LMDB snapshot failed";
        let path = CString::new(dir.as_os_str().as_bytes()).map_err(|e| {
            Error::with_source(ErrorKind::FixInput, format!("{WHAT}: path holds a zero byte: dir={}", dir.display()), e)
        })?;
        let _map = self.map.hold();
        // SAFETY: the environment is open, `path` is a C string that outlives the call, and the guard keeps the map in
        // place for the read transaction inside.
        let copy = |flags| check(unsafe { lmdb_sys::mdb_env_copy2(self.env.env(), path.as_ptr(), flags) });
        let file = dir.join(FILE_NAME);
        let io = |e: std::io::Error| Error::io(format!("{WHAT}: file={} reason={e}", file.display()), e);
        match copy(lmdb_sys::MDB_CP_COMPACT) {
            Ok(()) => {}
            // The compacting copy refuses a file with a page that neither a table nor the list of free pages names. The
            // plain copy copies that page as well.
            Err(lmdb::Error::Incompatible) => {
                fs::remove_file(&file).map_err(io)?;
                copy(0).map_err(|e| error::lmdb(WHAT, e))?;
            }
            Err(e) => return Err(error::lmdb(WHAT, e)),
        }
        // LMDB closes the copy without flushing it.
        File::open(&file).and_then(|copied| copied.sync_all()).map_err(io)?;
        sync_dir(dir)
    }
}

impl Engine for LmdbEngine {
    fn label(&self) -> &'static str {
        "lmdb"
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(LmdbReader::open(self)?))
    }

    fn begin(&self) -> Result<Box<dyn WriteTxn + '_>> {
        Ok(Box::new(LmdbTxn::begin(self)?))
    }

    fn checkpoint(&self) -> Result<Checkpoint> {
        let _map = self.map.hold();
        let txn = self.env.begin_ro_txn().map_err(|e| error::lmdb("LMDB cannot begin a read", e))?;
        read_checkpoint(&txn, self.meta)
    }

    fn stats(&self) -> Result<Stats> {
        const WHAT: &str = "LMDB cannot report its statistics";
        let _map = self.map.hold();
        let info = self.env.info().map_err(|e| error::lmdb(WHAT, e))?;
        let txn = self.env.begin_ro_txn().map_err(|e| error::lmdb(WHAT, e))?;
        let tree = txn.stat(self.pairs).map_err(|e| error::lmdb(WHAT, e))?;
        let file = engine_kit::metadata(&self.dir.join(FILE_NAME))?;
        let page_bytes = u64::from(tree.page_size());
        Ok(Stats {
            pairs_estimate: tree.entries() as u64,
            disk_bytes: allocated_bytes(&file),
            details: vec![
                ("tree_depth", u64::from(tree.depth())),
                ("branch_pages", tree.branch_pages() as u64),
                ("leaf_pages", tree.leaf_pages() as u64),
                ("overflow_pages", tree.overflow_pages() as u64),
                ("page_bytes", page_bytes),
                ("map_bytes", self.map.bytes()),
                ("map_used_bytes", (info.last_pgno() as u64 + 1) * page_bytes),
                ("readers_max", u64::from(info.max_readers())),
                ("reader_slots_used", u64::from(info.num_readers())),
                ("file_len_bytes", file.len()),
                ("commits_since_open", self.commits.count()),
            ],
        })
    }

    fn snapshot(&self, dir: &Path) -> Result<()> {
        copy_to_new(dir, || self.copy_into(dir))
    }

    fn bulk(&self) -> Option<&dyn BulkLoad> {
        Some(self)
    }

    /// LMDB has no checksums: a walk over every page finds a broken tree, but never a changed value.
    fn scrub(&mut self) -> Result<u64> {
        let scanned = scrub_by_scan(&mut *self.reader()?)?;
        let counted = self.stats()?.pairs_estimate;
        if scanned != counted {
            return Err(Error::new(
                ErrorKind::DataDamaged,
                format!("LMDB's tree and its count of pairs differ: pairs={scanned} counted={counted}"),
            ));
        }
        Ok(scanned)
    }

    /// Flushes the meta page that a buffered commit may have left in the page cache.
    fn close(self: Box<Self>) -> Result<()> {
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

/// Opens the two tables. Creates both in one transaction if the file is new.
fn open_tables(env: &Environment, dir: &Path) -> Result<(Database, Database)> {
    let failed = |e| error::lmdb(&format!("cannot open the LMDB store's tables: dir={}", dir.display()), e);
    if env.stat().map_err(failed)?.entries() == 0 {
        let txn = env.begin_rw_txn().map_err(failed)?;
        // SAFETY: no other transaction of this environment opens tables, because it is not shared yet.
        let tables = unsafe {
            let pairs = txn.create_db(Some(PAIRS_TABLE), DatabaseFlags::empty()).map_err(failed)?;
            (pairs, txn.create_db(Some(META_TABLE), DatabaseFlags::empty()).map_err(failed)?)
        };
        txn.commit().map_err(failed)?;
        return Ok(tables);
    }
    let open = |name| match env.open_db(Some(name)) {
        Err(e @ (lmdb::Error::NotFound | lmdb::Error::Incompatible)) => Err(Error::with_source(
            ErrorKind::FixInput,
            format!("the LMDB file is not a store of this engine: dir={} missing_table={name}", dir.display()),
            e,
        )),
        opened => opened.map_err(failed),
    };
    Ok((open(PAIRS_TABLE)?, open(META_TABLE)?))
}

/// Rounds the map size up. LMDB demands whole pages of the operating system, and 64 KiB is a multiple of every page
/// size in use.
fn whole_pages(bytes: u64) -> usize {
    usize::try_from(bytes.max(1).next_multiple_of(64 << 10)).unwrap_or(usize::MAX)
}

fn check(rc: i32) -> lmdb::Result<()> {
    if rc == lmdb_sys::MDB_SUCCESS { Ok(()) } else { Err(lmdb::Error::from_err_code(rc)) }
}
