//! The engine: its opening, its statistics, and the calls of [`engine_api`] that pass on to the parts of this crate.
//!
//! Owns: the public type of an open store. Must not: hold state that readers and writers share, which is in [`Store`].
//! Shared between threads by reference.

use std::path::Path;

use engine_api::{Checkpoint, Engine, Key, Reader, Result, Stats, Value, WriteTxn, scrub_by_scan};
use engine_kit::{allocated_bytes, copy_by_scan, create_dir};
use redb::ReadableTableMetadata;

use crate::damage::caught;
use crate::reader::RedbReader;
use crate::store::Store;
use crate::write::{RedbTxn, load_sorted};
use crate::{RedbOptions, error};

/// Page cache of a copy in bytes. Small, because the copy is written once, front to back.
const COPY_CACHE_BYTES: u64 = 64 << 20;

pub struct RedbEngine {
    store: Store,
}

impl RedbEngine {
    /// Opens the store in `dir`. Creates the directory and the store if they are missing.
    ///
    /// # Errors
    /// `FixInput` if the file is open elsewhere, is not redb's, or has an older format or other tables.
    pub fn open(dir: &Path, options: &RedbOptions) -> Result<Self> {
        create_dir(dir)?;
        Ok(Self { store: Store::open(dir, options)? })
    }

    /// Opens the store in `dir` for reading alone, and writes nothing there. If the process that wrote the file was
    /// killed, redb has to repair it; that is done in memory.
    ///
    /// # Errors
    /// The same as [`RedbEngine::open`], and `FixInput` if there is no store.
    pub fn open_read_only(dir: &Path, options: &RedbOptions) -> Result<Self> {
        Ok(Self { store: Store::open_read_only(dir, options)? })
    }
}

impl Engine for RedbEngine {
    fn label(&self) -> &'static str {
        "redb"
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(caught("redb cannot begin a read", || RedbReader::open(&self.store))?))
    }

    fn begin(&self) -> Result<Box<dyn WriteTxn + '_>> {
        self.store.check_writable()?;
        let txn = caught("redb cannot begin a write", || RedbTxn::begin(&self.store));
        // The writer that this call waited for may have failed.
        self.store.poison.check()?;
        Ok(Box::new(txn?))
    }

    fn checkpoint(&self) -> Result<Checkpoint> {
        self.store.checkpoint()
    }

    fn stats(&self) -> Result<Stats> {
        let count = || {
            let (_txn, pairs) = self.store.open_snapshot()?;
            pairs.len().map_err(|e| error::storage("redb cannot count the pairs", e))
        };
        let file = engine_kit::metadata(&self.store.file())?;
        Ok(Stats {
            pairs_estimate: caught("redb cannot count the pairs", count)?,
            disk_bytes: allocated_bytes(&file),
            // redb's own page statistics are left out, because they walk the whole tree.
            details: vec![
                ("cache_capacity_bytes", self.store.options.cache_bytes),
                ("file_len_bytes", file.len()),
                ("commits_since_open", self.store.commits.count()),
            ],
        })
    }

    fn snapshot(&self, dir: &Path) -> Result<()> {
        let options = RedbOptions { cache_bytes: COPY_CACHE_BYTES, ..self.store.options };
        copy_by_scan(&mut *self.reader()?, dir, || Ok(Box::new(Self::open(dir, &options)?)))
    }

    fn load_sorted(&self, pairs: &[(Key, Value)], checkpoint: &Checkpoint) -> Result<()> {
        load_sorted(&self.store, pairs, checkpoint)
    }

    /// Runs redb's own check of every page, then a scan. If only the newest commit is damaged, redb goes back to the
    /// commit before it; this function returns an error all the same.
    fn scrub(&mut self) -> Result<u64> {
        self.store.check_pages()?;
        scrub_by_scan(&mut *self.reader()?)
    }

    /// Every commit is flushed already. Dropping the database records the allocator's state.
    fn close(self: Box<Self>) -> Result<()> {
        self.store.poison.check()
    }
}
