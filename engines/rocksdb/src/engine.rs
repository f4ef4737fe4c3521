//! The open store: its `rocksdb::DB`, its writer's lock, and whether a write has failed.
//!
//! Shared between threads by reference.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine_api::{BulkLoad, Checkpoint, Engine, Error, ErrorKind, Reader, Result, Stats, WriteTxn, scrub_by_scan};
use engine_kit::{Poison, check_space, create_dir, free_bytes};
use parking_lot::{Mutex, MutexGuard};
use rocksdb::{
    DB, DEFAULT_COLUMN_FAMILY_NAME, InfoLogger, LogLevel, Options, ReadOptions, WaitForCompactOptions, properties,
};

use crate::manifest::Keeper;
use crate::reader::RocksdbReader;
use crate::replay::Filter;
use crate::write::RocksdbTxn;
use crate::{Profile, RocksdbOptions, bulk, error, reader, scrub, settings};

pub struct RocksdbEngine {
    db: DB,
    /// The WAL filter. RocksDB has a bare pointer to it, so it is dropped after the store.
    _filter: Filter,
    rocksdb_options: Options,
    options: RocksdbOptions,
    dir: PathBuf,
    /// Bytes of filters in the files that existed when the store was opened; `None` if there were no files.
    filter_bytes: Option<u64>,
    /// Keeper of the manifest's length; `None` if the store is open for reading alone.
    manifest: Option<Arc<Keeper>>,
    writer: Mutex<()>,
    pub(crate) poison: Poison,
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
        let filter = Filter::set(&mut rocksdb_options, manifest.last_sequence());
        manifest.listen(&mut rocksdb_options);
        let families = [(DEFAULT_COLUMN_FAMILY_NAME, rocksdb_options.clone())];
        let db = DB::open_cf_with_opts(&rocksdb_options, dir, families)
            .map_err(|e| error::rocks(&format!("cannot open the RocksDB store: dir={}", dir.display()), e))?;
        // Only now, because RocksDB has locked the directory.
        bulk::remove_leftovers(dir)?;
        // The manifest is a new one, and nothing depends on its length yet: on a full disk the older length will do.
        manifest.keep().ok();
        Self::check((filter, db), rocksdb_options, dir, options, Some(manifest))
    }

    /// Opens the store in `dir` for reading alone, and writes nothing there, not even RocksDB's own log of events.
    ///
    /// # Errors
    /// The same as [`RocksdbEngine::open`], and `FixInput` if there is no store.
    pub fn open_read_only(dir: &Path, options: &RocksdbOptions) -> Result<Self> {
        let manifest = Keeper::check(dir)?;
        let mut rocksdb_options = settings::rocksdb_options(dir, options)?;
        let filter = Filter::set(&mut rocksdb_options, manifest.last_sequence());
        rocksdb_options.create_if_missing(false);
        // Events are logged nowhere, because RocksDB's own log would be a new file in the directory.
        rocksdb_options.set_info_logger(InfoLogger::new_callback_logger(LogLevel::Fatal, |_, _| {}));
        let families = [(DEFAULT_COLUMN_FAMILY_NAME, rocksdb_options.clone())];
        let db = DB::open_cf_with_opts_for_read_only(&rocksdb_options, dir, families, false)
            .map_err(|e| error::rocks(&format!("cannot open the RocksDB store: dir={}", dir.display()), e))?;
        Self::check((filter, db), rocksdb_options, dir, options, None)
    }

    /// Refuses a checkpoint that this build cannot read, now and not at its first use. On an error the store is dropped
    /// before the filter, because Rust drops the variables of a pattern from the last to the first.
    fn check(
        (filter, db): (Filter, DB),
        rocksdb_options: Options,
        dir: &Path,
        options: &RocksdbOptions,
        manifest: Option<Arc<Keeper>>,
    ) -> Result<Self> {
        let filter_bytes = filter_bytes(&db)?;
        let engine = Self {
            db,
            _filter: filter,
            rocksdb_options,
            options: options.clone(),
            dir: dir.to_owned(),
            filter_bytes,
            manifest,
            writer: Mutex::new(()),
            poison: Poison::new("RocksDB", dir.display()),
        };
        engine.checkpoint()?;
        Ok(engine)
    }

    pub(crate) fn db(&self) -> &DB {
        &self.db
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn rocksdb_options(&self) -> &Options {
        &self.rocksdb_options
    }

    /// Waits for the previous writer and takes its lock. Refuses if the engine is poisoned or the disk is nearly full.
    pub(crate) fn lock_writer(&self) -> Result<MutexGuard<'_, ()>> {
        let writer = self.writer.lock();
        self.poison.check()?;
        check_space(self.dir.display(), free_bytes(&self.dir), self.options.disk_reserve_bytes)?;
        Ok(writer)
    }

    /// Records the present length of the manifest.
    pub(crate) fn keep_manifest(&self) -> Result<()> {
        self.manifest.as_ref().map_or(Ok(()), |manifest| manifest.keep())
    }

    fn property(&self, name: &properties::PropName) -> Result<u64> {
        let value = self.db.property_int_value(name).map_err(|e| error::rocks("RocksDB cannot report a figure", e))?;
        Ok(value.unwrap_or(0))
    }

    fn files_at_level(&self, level: usize) -> Result<u64> {
        let value = self
            .db
            .property_value(properties::num_files_at_level(level))
            .map_err(|e| error::rocks("RocksDB cannot report a figure", e))?;
        Ok(value.and_then(|text| text.trim().parse().ok()).unwrap_or(0))
    }
}

impl Engine for RocksdbEngine {
    /// Returns the label, whose part about filters depends on the existing files. If there is no file yet, it depends
    /// on whether new files will have filters.
    fn label(&self) -> &'static str {
        let filtered = self.filter_bytes.map_or(self.options.bloom_bits.is_some(), |bytes| bytes > 0);
        match (self.options.profile, filtered) {
            (Profile::Memory, _) => "rocksdb_memory",
            (Profile::Tuned, _) => "rocksdb_tuned",
            (Profile::Vanilla, true) => "rocksdb_bloom",
            (Profile::Vanilla, false) => "rocksdb",
        }
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(RocksdbReader::new(&self.db)))
    }

    fn begin(&self) -> Result<Box<dyn WriteTxn + '_>> {
        Ok(Box::new(RocksdbTxn::new(self, self.lock_writer()?)))
    }

    fn checkpoint(&self) -> Result<Checkpoint> {
        reader::checkpoint(&self.db, &ReadOptions::default())
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
            ("running_compactions_count", properties::NUM_RUNNING_COMPACTIONS),
            ("running_flushes_count", properties::NUM_RUNNING_FLUSHES),
            ("delayed_write_rate_bytes_per_s", properties::ACTUAL_DELAYED_WRITE_RATE),
            ("write_stopped", properties::IS_WRITE_STOPPED),
            ("background_errors_count", properties::BACKGROUND_ERRORS),
            ("snapshots_count", properties::NUM_SNAPSHOTS),
        ];
        let mut details = Vec::with_capacity(figures.len() + FILES_AT_LEVEL.len() + 1);
        details.push(("filters_at_opening_bytes", self.filter_bytes.unwrap_or(0)));
        for (name, property) in figures {
            details.push((name, self.property(property)?));
        }
        for (level, name) in FILES_AT_LEVEL.into_iter().enumerate() {
            details.push((name, self.files_at_level(level)?));
        }
        Ok(Stats {
            // This counts entries: an overwritten pair counts twice until it is compacted.
            pairs_estimate: self.property(properties::ESTIMATE_NUM_KEYS)?,
            disk_bytes: disk_bytes(&self.dir)?,
            details,
        })
    }

    /// Flushes the memtable first. Makes hard links if `dir` is on the same file system, and copies otherwise.
    fn snapshot(&self, dir: &Path) -> Result<()> {
        rocksdb::checkpoint::Checkpoint::new(&self.db)
            .and_then(|checkpoint| checkpoint.create_checkpoint(dir))
            .map_err(|e| error::rocks(&format!("RocksDB cannot make a copy: dir={}", dir.display()), e))?;
        Keeper::keep_copy(dir)
    }

    fn bulk(&self) -> Option<&dyn BulkLoad> {
        Some(self)
    }

    /// Flushes, compacts everything above the bottommost level into it, and waits. Sorted files that were ingested at
    /// the bottom are not rewritten.
    fn settle(&self) -> Result<()> {
        let failed = |e| error::rocks("RocksDB cannot settle", e);
        self.db.flush().map_err(failed)?;
        let errors = self.property(properties::BACKGROUND_ERRORS)?;
        self.db.compact_range(None::<&[u8]>, None::<&[u8]>);
        self.db.wait_for_compact(&WaitForCompactOptions::default()).map_err(failed)?;
        // The compaction itself returns nothing.
        if self.property(properties::BACKGROUND_ERRORS)? > errors {
            return Err(Error::new(
                ErrorKind::Reopen,
                format!("RocksDB failed to compact: dir={}: its file LOG says why", self.dir.display()),
            ));
        }
        Ok(())
    }

    /// Compares every block of every file with its checksum, then scans.
    fn scrub(&mut self) -> Result<u64> {
        let failed = |e| error::rocks("RocksDB cannot keep its files for the scrub", e);
        if self.manifest.is_none() {
            scrub::files(&self.dir)?;
        } else {
            // A compaction would remove files that the scrub's own opening is reading.
            self.db.disable_file_deletions().map_err(failed)?;
            let checked = scrub::files(&self.dir);
            self.db.enable_file_deletions().map_err(failed)?;
            checked?;
        }
        scrub_by_scan(&mut *self.reader()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.poison.check()?;
        self.db.flush_wal(true).map_err(|e| error::write("RocksDB cannot flush its log", e))?;
        self.db.cancel_all_background_work(true);
        // The length at the last flush is recorded already, so a failure here is ignored.
        self.keep_manifest().ok();
        Ok(())
    }
}

/// Names of the figures for each level. RocksDB's default has seven levels.
const FILES_AT_LEVEL: [&str; 7] = [
    "level0_files_count",
    "level1_files_count",
    "level2_files_count",
    "level3_files_count",
    "level4_files_count",
    "level5_files_count",
    "level6_files_count",
];

/// Returns the bytes of the filters in all files; `None` if there is no file.
fn filter_bytes(db: &DB) -> Result<Option<u64>> {
    let failed = |e| error::rocks("RocksDB cannot read the properties of its files", e);
    if db.live_files().map_err(failed)?.is_empty() {
        return Ok(None);
    }
    let text = db.property_value(properties::AGGREGATED_TABLE_PROPERTIES).map_err(failed)?.unwrap_or_default();
    let figure = text.split(';').find_map(|entry| entry.trim().strip_prefix("filter block size="));
    let bytes = figure.and_then(|bytes| bytes.trim().parse().ok());
    bytes.map(Some).ok_or_else(|| {
        Error::new(ErrorKind::Internal, format!("RocksDB does not say what filters its files have: said={text:?}"))
    })
}

/// Returns the allocated bytes of the files in `dir` and below.
pub(crate) fn disk_bytes(dir: &Path) -> Result<u64> {
    engine_kit::disk_bytes(dir)
        .map_err(|e| Error::io(format!("cannot size the store's files: dir={} reason={e}", dir.display()), e))
}
