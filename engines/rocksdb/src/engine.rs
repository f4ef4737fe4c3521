//! The engine: its opening, its statistics, and the calls of [`engine_api`] that pass on to the parts of this crate.
//!
//! Owns: the public type of an open store, and the order of the steps of an opening. Must not: hold state that readers
//! and writers share, which is in [`Store`]. Shared between threads by reference.

use std::path::Path;

use engine_api::{Checkpoint, Engine, Error, ErrorKind, Key, Reader, Result, Stats, Value, WriteTxn, scrub_by_scan};
use engine_kit::create_dir;
use rocksdb::{DB, DEFAULT_COLUMN_FAMILY_NAME, WaitForCompactOptions, properties};

use crate::manifest::Keeper;
use crate::options::label;
use crate::reader::RocksdbReader;
use crate::replay::Filter;
use crate::store::{Store, open_read_only};
use crate::write::RocksdbTxn;
use crate::{RocksdbOptions, bulk, error, scrub, settings};

pub struct RocksdbEngine {
    store: Store,
}

impl RocksdbEngine {
    /// Opens the store in `dir`. Creates the directory and the store if they are missing.
    ///
    /// # Errors
    /// `FixInput` if the store is open elsewhere or was made with settings that this build does not know; `DataDamaged`
    /// if its files contradict each other.
    pub fn open(dir: &Path, options: &RocksdbOptions) -> Result<Self> {
        create_dir(dir)?;
        let manifest = Keeper::check(dir)?;
        let mut rocksdb_options = settings::rocksdb_options(dir, options)?;
        let filter = Filter::set(&mut rocksdb_options, manifest.last_sequence);
        manifest.listen(&mut rocksdb_options);
        let families = [(DEFAULT_COLUMN_FAMILY_NAME, rocksdb_options.clone())];
        let db = DB::open_cf_with_opts(&rocksdb_options, dir, families)
            .map_err(|e| error::rocks(&format!("cannot open the RocksDB store: dir={}", dir.display()), e))?;
        // Only now, because RocksDB has locked the directory.
        bulk::remove_leftovers(dir)?;
        // The manifest is a new one, and nothing depends on its length yet: on a full disk the older length will do.
        manifest.keep().ok();
        Ok(Self { store: Store::checked((filter, db), rocksdb_options, dir, options, Some(manifest))? })
    }

    /// Opens the store in `dir` for reading alone, and writes nothing there, not even RocksDB's own log of events.
    ///
    /// # Errors
    /// The same as [`RocksdbEngine::open`], and `FixInput` if there is no store.
    pub fn open_read_only(dir: &Path, options: &RocksdbOptions) -> Result<Self> {
        let manifest = Keeper::check(dir)?;
        let mut rocksdb_options = settings::rocksdb_options(dir, options)?;
        let opened = open_read_only(dir, &mut rocksdb_options, &manifest)?;
        Ok(Self { store: Store::checked(opened, rocksdb_options, dir, options, None)? })
    }

    fn property(&self, name: &properties::PropName) -> Result<u64> {
        let value =
            self.store.db.property_int_value(name).map_err(|e| error::rocks("RocksDB cannot report a figure", e))?;
        Ok(value.unwrap_or(0))
    }
}

impl Engine for RocksdbEngine {
    /// Returns the label, whose part about filters depends on the existing files. If there is no file yet, it depends
    /// on whether new files will have filters.
    fn label(&self) -> &'static str {
        let is_filtered = self.store.filter_bytes.map_or(self.store.options.bloom_bits.is_some(), |bytes| bytes > 0);
        label(self.store.options.profile, is_filtered)
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(RocksdbReader::new(&self.store.db, self.store.options.prefix_bytes)))
    }

    fn begin(&self) -> Result<Box<dyn WriteTxn + '_>> {
        Ok(Box::new(RocksdbTxn::new(&self.store, self.store.lock_writer()?)))
    }

    fn checkpoint(&self) -> Result<Checkpoint> {
        self.store.checkpoint()
    }

    fn stats(&self) -> Result<Stats> {
        let figures = [
            ("block_cache_capacity_bytes", properties::BLOCK_CACHE_CAPACITY),
            ("block_cache_usage_bytes", properties::BLOCK_CACHE_USAGE),
            ("block_cache_pinned_bytes", properties::BLOCK_CACHE_PINNED_USAGE),
            ("memtables_bytes", properties::SIZE_ALL_MEM_TABLES),
            ("table_readers_bytes", properties::ESTIMATE_TABLE_READERS_MEM),
            ("live_sst_bytes", properties::LIVE_SST_FILES_SIZE),
            ("pending_compaction_bytes", properties::ESTIMATE_PENDING_COMPACTION_BYTES),
            ("delayed_write_rate_bytes_per_s", properties::ACTUAL_DELAYED_WRITE_RATE),
            ("write_stopped", properties::IS_WRITE_STOPPED),
            ("background_errors_count", properties::BACKGROUND_ERRORS),
        ];
        let mut details = Vec::with_capacity(figures.len() + 1);
        details.push(("filters_at_opening_bytes", self.store.filter_bytes.unwrap_or(0)));
        for (name, property) in figures {
            details.push((name, self.property(property)?));
        }
        Ok(Stats {
            // This counts entries: an overwritten pair counts twice until it is compacted.
            pairs_estimate: self.property(properties::ESTIMATE_NUM_KEYS)?,
            disk_bytes: settings::disk_bytes(&self.store.dir)?,
            details,
        })
    }

    /// Flushes the memtable first. Makes hard links if `dir` is on the same file system, and copies otherwise.
    fn snapshot(&self, dir: &Path) -> Result<()> {
        rocksdb::checkpoint::Checkpoint::new(&self.store.db)
            .and_then(|checkpoint| checkpoint.create_checkpoint(dir))
            .map_err(|e| error::rocks(&format!("RocksDB cannot make a copy: dir={}", dir.display()), e))?;
        Keeper::keep_copy(dir)
    }

    fn load_sorted(&self, pairs: &[(Key, Value)], checkpoint: &Checkpoint) -> Result<()> {
        bulk::load_sorted(&self.store, pairs, checkpoint)
    }

    /// Flushes, compacts everything above the bottommost level into it, and waits. Sorted files that were ingested at
    /// the bottom are not rewritten.
    fn settle(&self) -> Result<()> {
        let failed = |e| error::rocks("RocksDB cannot settle", e);
        self.store.db.flush().map_err(failed)?;
        let errors = self.property(properties::BACKGROUND_ERRORS)?;
        self.store.db.compact_range(None::<&[u8]>, None::<&[u8]>);
        self.store.db.wait_for_compact(&WaitForCompactOptions::default()).map_err(failed)?;
        // The compaction itself returns nothing.
        if self.property(properties::BACKGROUND_ERRORS)? > errors {
            return Err(Error::new(
                ErrorKind::Reopen,
                format!("RocksDB failed to compact: dir={}: its file LOG says why", self.store.dir.display()),
            ));
        }
        Ok(())
    }

    /// Compares every block of every file with its checksum, then scans.
    fn scrub(&mut self) -> Result<u64> {
        let failed = |e| error::rocks("RocksDB cannot keep its files for the scrub", e);
        if self.store.manifest.is_none() {
            scrub::files(&self.store.dir)?;
        } else {
            // A compaction would remove files that the scrub's own opening is reading.
            self.store.db.disable_file_deletions().map_err(failed)?;
            let checked = scrub::files(&self.store.dir);
            self.store.db.enable_file_deletions().map_err(failed)?;
            checked?;
        }
        scrub_by_scan(&mut *self.reader()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.store.poison.check()?;
        self.store.db.flush_wal(true).map_err(|e| error::write("RocksDB cannot flush its log", e))?;
        self.store.db.cancel_all_background_work(true);
        // The length at the last flush is recorded already, so a failure here is ignored.
        self.store.keep_manifest().ok();
        Ok(())
    }
}
