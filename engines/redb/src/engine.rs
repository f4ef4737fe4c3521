//! The open store: its file, its one `redb::Database`, and whether a commit has failed.
//!
//! Shared between threads by reference.

use std::fs;
use std::path::{Path, PathBuf};

use engine_api::{BulkLoad, Checkpoint, Engine, Error, ErrorKind, Reader, Result, Stats, WriteTxn, scrub_by_scan};
use engine_kit::{Commits, Poison, allocated_bytes, check_space, copy_to_new, create_dir, free_bytes, sync_dir};
use redb::{Database, DatabaseError, ReadOnlyDatabase, ReadTransaction, ReadableDatabase, ReadableTableMetadata};

use crate::damage::caught;
use crate::reader::{RedbReader, open_snapshot, read_checkpoint};
use crate::shadow::Shadow;
use crate::write::{RedbTxn, begin};
use crate::{FILE_NAME, META, PAIRS, RedbOptions, copy, error};

pub struct RedbEngine {
    db: Db,
    dir: PathBuf,
    options: RedbOptions,
    pub(crate) commits: Commits,
    pub(crate) poison: Poison,
}

/// The open file, in one of three modes.
enum Db {
    Whole(Database),
    ReadOnly(ReadOnlyDatabase),
    /// Open for reading alone. redb has repaired the file after a kill, and the repair is only in memory.
    Repaired(Database),
}

impl RedbEngine {
    /// Opens the store in `dir`. Creates the directory and the store if they are missing.
    ///
    /// # Errors
    /// `FixInput` if the file is open elsewhere, is not redb's, or has an older format or other tables.
    pub fn open(dir: &Path, options: &RedbOptions) -> Result<Self> {
        create_dir(dir)?;
        let path = dir.join(FILE_NAME);
        let db = if path.try_exists().map_err(|e| Error::io(format!("cannot look at file={}", path.display()), e))? {
            open_file(&path, options.cache_bytes)?
        } else {
            create_file(dir, options.cache_bytes)?
        };
        Self::check(Db::Whole(db), dir, options)
    }

    /// Opens the store in `dir` for reading alone, and writes nothing there. If the process that wrote the file was
    /// killed, redb has to repair it; that is done in memory.
    ///
    /// # Errors
    /// The same as [`RedbEngine::open`], and `FixInput` if there is no store.
    pub fn open_read_only(dir: &Path, options: &RedbOptions) -> Result<Self> {
        let path = dir.join(FILE_NAME);
        let opened = || Ok(builder(options.cache_bytes).open_read_only(&path));
        let db = match caught(&cannot_open(&path), opened)? {
            Ok(db) => Db::ReadOnly(db),
            Err(DatabaseError::RepairAborted) => Db::Repaired(open_shadow(&path, options.cache_bytes)?),
            Err(other) => return Err(error::open(&path.display().to_string(), other)),
        };
        Self::check(db, dir, options)
    }

    /// Refuses a file with other tables, or with a checkpoint that this build cannot read, now and not at the first
    /// use.
    fn check(db: Db, dir: &Path, options: &RedbOptions) -> Result<Self> {
        let engine = Self {
            db,
            dir: dir.to_owned(),
            options: *options,
            commits: Commits::default(),
            poison: Poison::new("redb", dir.display()),
        };
        engine.checkpoint()?;
        caught("redb cannot open the pairs table", || open_snapshot(&engine))?;
        Ok(engine)
    }

    /// Begins a read of the newest commit.
    pub(crate) fn begin_read(&self) -> Result<ReadTransaction> {
        let begun = match &self.db {
            Db::Whole(db) | Db::Repaired(db) => db.begin_read(),
            Db::ReadOnly(db) => db.begin_read(),
        };
        begun.map_err(|e| error::transaction("redb cannot begin a read", e))
    }

    /// Returns the database to write to, or an error if the store is open for reading alone.
    pub(crate) fn db(&self) -> Result<&Database> {
        match &self.db {
            Db::Whole(db) => Ok(db),
            Db::ReadOnly(_) | Db::Repaired(_) => Err(read_only()),
        }
    }

    pub(crate) fn options(&self) -> &RedbOptions {
        &self.options
    }

    /// Poisons the engine if a write ran into damage, because the state of redb's memory is unknown then.
    pub(crate) fn poison_if_damaged(&self, error: &Error) {
        if error.kind() == ErrorKind::DataDamaged {
            self.poison.set();
        }
    }

    /// Refuses a write on a poisoned engine or a nearly full disk.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.poison.check()?;
        check_space(self.dir.display(), free_bytes(&self.dir), self.options.disk_reserve_bytes)
    }
}

impl Engine for RedbEngine {
    fn label(&self) -> &'static str {
        "redb"
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(caught("redb cannot begin a read", || RedbReader::open(self))?))
    }

    fn begin(&self) -> Result<Box<dyn WriteTxn + '_>> {
        self.check_writable()?;
        let txn = caught("redb cannot begin a write", || RedbTxn::begin(self));
        // The writer that this call waited for may have failed.
        self.poison.check()?;
        Ok(Box::new(txn?))
    }

    fn checkpoint(&self) -> Result<Checkpoint> {
        caught("redb cannot read the checkpoint", || read_checkpoint(&self.begin_read()?))
    }

    fn stats(&self) -> Result<Stats> {
        let count = || {
            let (_txn, pairs) = open_snapshot(self)?;
            pairs.len().map_err(|e| error::storage("redb cannot count the pairs", e))
        };
        let file = engine_kit::metadata(&self.dir.join(FILE_NAME))?;
        Ok(Stats {
            pairs_estimate: caught("redb cannot count the pairs", count)?,
            disk_bytes: allocated_bytes(&file),
            // redb's own page statistics are left out, because they walk the whole tree.
            details: vec![
                ("cache_capacity_bytes", self.options.cache_bytes),
                ("file_len_bytes", file.len()),
                ("commits_since_open", self.commits.count()),
            ],
        })
    }

    fn snapshot(&self, dir: &Path) -> Result<()> {
        copy_to_new(dir, || caught("redb snapshot failed", || copy::copy_to(self, dir)))
    }

    fn bulk(&self) -> Option<&dyn BulkLoad> {
        Some(self)
    }

    /// Runs redb's own check of every page, then a scan. If only the newest commit is damaged, redb goes back to the
    /// commit before it; this function returns an error all the same.
    fn scrub(&mut self) -> Result<u64> {
        let file = self.dir.join(FILE_NAME);
        let (cache_bytes, db) = (self.options.cache_bytes, &mut self.db);
        let check = || {
            Ok(match db {
                Db::Whole(db) => (db.check_integrity(), "redb found damage and repaired it"),
                Db::Repaired(db) => (db.check_integrity(), "redb found damage"),
                // redb checks only a database that it may repair, so this one is opened with repairs in memory.
                Db::ReadOnly(_) => (open_shadow(&file, cache_bytes)?.check_integrity(), "redb found damage"),
            })
        };
        let (checked, what) = caught("redb cannot check its pages", check)?;
        if !checked.map_err(|e| error::open(&file.display().to_string(), e))? {
            return Err(Error::new(
                ErrorKind::DataDamaged,
                format!("{what}: file={}: compare its checkpoint and pairs", file.display()),
            ));
        }
        scrub_by_scan(&mut *self.reader()?)
    }

    /// Every commit is flushed already. Dropping the database records the allocator's state.
    fn close(self: Box<Self>) -> Result<()> {
        self.poison.check()
    }
}

/// Creates the store's file in `dir` with its tables. The file gets its name only once it is complete, so a crash in
/// this function leaves no store instead of half of one.
pub(crate) fn create_file(dir: &Path, cache_bytes: u64) -> Result<Database> {
    const WHAT: &str = "cannot create the redb store";
    let path = dir.join(FILE_NAME);
    let unfinished = dir.join(format!("{FILE_NAME}.new"));
    let failed = |e: std::io::Error| Error::io(format!("{WHAT}: file={} reason={e}", path.display()), e);
    match fs::remove_file(&unfinished) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    let shown = path.display().to_string();
    let db = builder(cache_bytes).create(&unfinished).map_err(|e| error::open(&shown, e))?;
    let txn = begin(&db)?;
    txn.open_table(PAIRS).map(drop).map_err(|e| error::table(WHAT, e))?;
    txn.open_table(META).map(drop).map_err(|e| error::table(WHAT, e))?;
    txn.commit().map_err(error::commit)?;
    fs::rename(&unfinished, &path).map_err(failed)?;
    sync_dir(dir)?;
    Ok(db)
}

fn open_file(path: &Path, cache_bytes: u64) -> Result<Database> {
    let open = || builder(cache_bytes).open(path).map_err(|e| error::open(&path.display().to_string(), e));
    caught(&cannot_open(path), open)
}

fn cannot_open(path: &Path) -> String {
    format!("cannot open the redb store: file={}", path.display())
}

/// Opens the file without ever writing to it, through [`crate::shadow`].
fn open_shadow(path: &Path, cache_bytes: u64) -> Result<Database> {
    let shown = path.display().to_string();
    let backend =
        Shadow::open(path).map_err(|e| Error::io(format!("cannot open the redb store: file={shown} reason={e}"), e))?;
    let open = || builder(cache_bytes).create_with_backend(backend).map_err(|e| error::open(&shown, e));
    caught(&cannot_open(path), open)
}

fn read_only() -> Error {
    Error::new(ErrorKind::FixInput, "the redb store is open for reading alone")
}

fn builder(cache_bytes: u64) -> redb::Builder {
    let mut builder = redb::Builder::new();
    builder.set_cache_size(usize::try_from(cache_bytes).unwrap_or(usize::MAX));
    builder
}
