//! The state of the open store: its `rocksdb::DB`, its writer's lock, and whether a write has failed.
//!
//! Owns: the order in which the store and its WAL filter are dropped. Must not: change pairs. Shared between threads by
//! reference.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine_api::{Checkpoint, Error, ErrorKind, Result};
use engine_kit::{Poison, check_space, free_bytes};
use parking_lot::{Mutex, MutexGuard};
use rocksdb::{DB, DEFAULT_COLUMN_FAMILY_NAME, InfoLogger, LogLevel, Options, ReadOptions, properties};

use crate::manifest::Keeper;
use crate::replay::Filter;
use crate::{RocksdbOptions, error, reader, set};

/// An open RocksDB store. The write transaction and the loads hold a reference to it.
pub(crate) struct Store {
    pub(crate) db: DB,
    /// The WAL filter. RocksDB has a bare pointer to it, so it is dropped after the store.
    _filter: Filter,
    pub(crate) rocksdb_options: Options,
    pub(crate) options: RocksdbOptions,
    pub(crate) dir: PathBuf,
    /// Bytes of filters in the files that existed when the store was opened; `None` if there were no files.
    pub(crate) filter_bytes: Option<u64>,
    /// Whether a batch's changes are held until its commit, so that they can be sorted.
    pub(crate) sorts_batches: bool,
    /// Keeper of the manifest's length; `None` if the store is open for reading alone.
    pub(crate) manifest: Option<Arc<Keeper>>,
    writer: Mutex<()>,
    pub(crate) poison: Poison,
}

impl Store {
    /// Builds the state of a store that RocksDB has opened. Refuses a checkpoint that this build cannot read, now and
    /// not at its first use. On an error the store is dropped before the filter, because Rust drops the variables of a
    /// pattern from the last to the first.
    pub(crate) fn checked(
        (filter, db): (Filter, DB),
        rocksdb_options: Options,
        dir: &Path,
        options: &RocksdbOptions,
        manifest: Option<Arc<Keeper>>,
    ) -> Result<Self> {
        let sorts_batches = set::sorts_batches(&options.set)?;
        let filter_bytes = filter_bytes(&db)?;
        let store = Self {
            db,
            _filter: filter,
            rocksdb_options,
            options: options.clone(),
            dir: dir.to_owned(),
            filter_bytes,
            sorts_batches,
            manifest,
            writer: Mutex::new(()),
            poison: Poison::new("RocksDB", dir.display()),
        };
        store.checkpoint()?;
        Ok(store)
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

    /// Returns the checkpoint of the newest commit.
    pub(crate) fn checkpoint(&self) -> Result<Checkpoint> {
        reader::checkpoint(&self.db, &ReadOptions::default())
    }
}

/// Opens the store in `dir` for reading alone, with these options and a WAL filter. The caller drops the store before
/// the filter.
///
/// # Errors
/// RocksDB's reason, also if there is no store.
pub(crate) fn open_read_only(dir: &Path, options: &mut Options, manifest: &Keeper) -> Result<(Filter, DB)> {
    let filter = Filter::set(options, manifest.last_sequence);
    options.create_if_missing(false);
    // Events are logged nowhere, because RocksDB's own log would be a new file in the directory.
    options.set_info_logger(InfoLogger::new_callback_logger(LogLevel::Fatal, |_, _| {}));
    let families = [(DEFAULT_COLUMN_FAMILY_NAME, options.clone())];
    let db = DB::open_cf_with_opts_for_read_only(options, dir, families, false)
        .map_err(|e| error::rocks(&format!("cannot open the RocksDB store: dir={}", dir.display()), e))?;
    Ok((filter, db))
}

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
