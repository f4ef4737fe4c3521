//! The store's file: its creation, its opening for writing or for reading alone, and a repair in memory.
//!
//! Owns: the settings that redb gets for the file, and the mode in which it is open. Must not: know the state of an
//! open store. Runs on the thread that opens, checks or copies the store.

use std::fs;
use std::path::Path;

use engine_api::{Error, ErrorKind, Result};
use engine_kit::sync_dir;
use redb::{Database, DatabaseError, ReadOnlyDatabase, ReadTransaction, ReadableDatabase, WriteTransaction};

use crate::damage::caught;
use crate::shadow::Shadow;
use crate::tables::{META, PAIRS};
use crate::{FILE_NAME, error};

/// The open file, in one of three modes.
pub(crate) enum Db {
    Whole(Database),
    ReadOnly(ReadOnlyDatabase),
    /// Open for reading alone. redb has repaired the file after a kill, and the repair is only in memory.
    Repaired(Database),
}

impl Db {
    /// Opens the file in `dir` for writing. Creates it if it is missing.
    pub(crate) fn open(dir: &Path, cache_bytes: u64) -> Result<Self> {
        let path = dir.join(FILE_NAME);
        let db = if path.try_exists().map_err(|e| Error::io(format!("cannot look at file={}", path.display()), e))? {
            open_file(&path, cache_bytes)?
        } else {
            create_file(dir, cache_bytes)?
        };
        Ok(Self::Whole(db))
    }

    /// Opens the file in `dir` for reading alone, and writes nothing there.
    pub(crate) fn open_read_only(dir: &Path, cache_bytes: u64) -> Result<Self> {
        let path = dir.join(FILE_NAME);
        let opened = || Ok(builder(cache_bytes).open_read_only(&path));
        match caught(&cannot_open(&path), opened)? {
            Ok(db) => Ok(Self::ReadOnly(db)),
            Err(DatabaseError::RepairAborted) => Ok(Self::Repaired(open_shadow(&path, cache_bytes)?)),
            Err(other) => Err(error::open(&path.display().to_string(), other)),
        }
    }

    /// Begins a read of the newest commit.
    pub(crate) fn begin_read(&self) -> Result<ReadTransaction> {
        let begun = match self {
            Self::Whole(db) | Self::Repaired(db) => db.begin_read(),
            Self::ReadOnly(db) => db.begin_read(),
        };
        begun.map_err(|e| error::transaction("redb cannot begin a read", e))
    }

    /// Returns the database to write to, or an error if the file is open for reading alone.
    pub(crate) fn writable(&self) -> Result<&Database> {
        match self {
            Self::Whole(db) => Ok(db),
            Self::ReadOnly(_) | Self::Repaired(_) => Err(read_only()),
        }
    }

    /// Runs redb's own check of every page of the file in `dir`. If only the newest commit is damaged, redb goes back
    /// to the commit before it; this function returns an error all the same.
    pub(crate) fn check_pages(&mut self, dir: &Path, cache_bytes: u64) -> Result<()> {
        let file = dir.join(FILE_NAME);
        let check = || {
            Ok(match self {
                Self::Whole(db) => (db.check_integrity(), "redb found damage and repaired it"),
                Self::Repaired(db) => (db.check_integrity(), "redb found damage"),
                // redb checks only a database that it may repair, so this one is opened with repairs in memory.
                Self::ReadOnly(_) => (open_shadow(&file, cache_bytes)?.check_integrity(), "redb found damage"),
            })
        };
        let (checked, what) = caught("redb cannot check its pages", check)?;
        if checked.map_err(|e| error::open(&file.display().to_string(), e))? {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::DataDamaged,
            format!("{what}: file={}: compare its checkpoint and pairs", file.display()),
        ))
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

/// Begins a write transaction with quick repair. Waits for the one before it to end.
pub(crate) fn begin(db: &Database) -> Result<WriteTransaction> {
    let mut txn = db.begin_write().map_err(|e| error::transaction("redb cannot begin a write", e))?;
    txn.set_quick_repair(true);
    Ok(txn)
}

fn open_file(path: &Path, cache_bytes: u64) -> Result<Database> {
    let open = || builder(cache_bytes).open(path).map_err(|e| error::open(&path.display().to_string(), e));
    caught(&cannot_open(path), open)
}

fn cannot_open(path: &Path) -> String {
    format!("cannot open the redb store: file={}", path.display())
}

/// Opens the file without ever writing to it, through [`Shadow`].
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
