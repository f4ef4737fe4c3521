//! The engine: its opening, its copies and statistics, and the calls of [`engine_api`] that pass on to the parts of
//! this crate.
//!
//! Owns: the public type of an open store. Must not: hold state that readers and writers share, which is in [`Store`].
//! Shared between threads by reference.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use engine_api::{Checkpoint, Engine, Error, ErrorKind, Key, Reader, Result, Stats, Value, WriteTxn, scrub_by_scan};
use engine_kit::{allocated_bytes, copy_to_new, create_dir, sync_dir};
use lmdb::{EnvironmentFlags, Transaction};

use crate::reader::LmdbReader;
use crate::store::Store;
use crate::write::{LmdbTxn, load_sorted};
use crate::{FILE_NAME, LmdbOptions, error};

pub struct LmdbEngine {
    pub(crate) store: Store,
}

impl LmdbEngine {
    /// Opens the store in `dir`. Creates the directory and the store if they are missing.
    ///
    /// # Errors
    /// `FixInput` if the process has the store open already, the file is not LMDB's or has other tables, or the map
    /// does not fit into the address space.
    pub fn open(dir: &Path, options: &LmdbOptions) -> Result<Self> {
        create_dir(dir)?;
        let store = Store::open(dir, options, EnvironmentFlags::empty())?;
        sync_dir(dir)?;
        Ok(Self { store })
    }

    /// Opens the store in `dir` for reading alone, and writes nothing there, not even a lock file. The caller must keep
    /// writers away.
    ///
    /// # Errors
    /// The same as [`LmdbEngine::open`], and `FixInput` if there is no store.
    pub fn open_read_only(dir: &Path, options: &LmdbOptions) -> Result<Self> {
        let flags = EnvironmentFlags::READ_ONLY | EnvironmentFlags::NO_LOCK;
        Ok(Self { store: Store::open(dir, options, flags)? })
    }

    /// Copies the newest commit into `dir`, which must exist and be empty.
    fn copy_into(&self, dir: &Path) -> Result<()> {
        const WHAT: &str = "LMDB snapshot failed";
        let path = CString::new(dir.as_os_str().as_bytes()).map_err(|e| {
            Error::with_source(ErrorKind::FixInput, format!("{WHAT}: path holds a zero byte: dir={}", dir.display()), e)
        })?;
        let env = self.store.env.env();
        // SAFETY: the environment is open, and `path` is a C string that outlives the call.
        let copy = |flags| error::check(unsafe { lmdb_sys::mdb_env_copy2(env, path.as_ptr(), flags) });
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
        Ok(Box::new(LmdbReader::open(&self.store)?))
    }

    fn begin(&self) -> Result<Box<dyn WriteTxn + '_>> {
        Ok(Box::new(LmdbTxn::begin(&self.store)?))
    }

    fn checkpoint(&self) -> Result<Checkpoint> {
        self.store.checkpoint()
    }

    fn stats(&self) -> Result<Stats> {
        const WHAT: &str = "LMDB cannot report its statistics";
        let store = &self.store;
        let info = store.env.info().map_err(|e| error::lmdb(WHAT, e))?;
        let txn = store.env.begin_ro_txn().map_err(|e| error::lmdb(WHAT, e))?;
        let tree = txn.stat(store.pairs).map_err(|e| error::lmdb(WHAT, e))?;
        let file = engine_kit::metadata(&store.file())?;
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
                ("map_bytes", info.map_size() as u64),
                ("map_used_bytes", (info.last_pgno() as u64 + 1) * page_bytes),
                ("readers_max", u64::from(info.max_readers())),
                ("reader_slots_used", u64::from(info.num_readers())),
                ("file_len_bytes", file.len()),
                ("commits_since_open", store.commits.count()),
            ],
        })
    }

    fn snapshot(&self, dir: &Path) -> Result<()> {
        copy_to_new(dir, || self.copy_into(dir))
    }

    fn load_sorted(&self, pairs: &[(Key, Value)], checkpoint: &Checkpoint) -> Result<()> {
        load_sorted(&self.store, pairs, checkpoint)
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

    fn close(self: Box<Self>) -> Result<()> {
        self.store.flush()
    }
}
