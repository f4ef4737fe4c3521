//! The state of the open store: its file, its options, and whether a commit has failed.
//!
//! Owns: the refusal of a store that cannot be read, and of writes. Must not: change pairs. Shared between threads by
//! reference.

use std::path::{Path, PathBuf};

use engine_api::{Checkpoint, Error, ErrorKind, Result};
use engine_kit::{Commits, Poison, check_space, free_bytes};
use redb::{Database, ReadTransaction};

use crate::damage::caught;
use crate::file::Db;
use crate::tables::{PAIRS, PairsReadOnly, read_checkpoint};
use crate::{FILE_NAME, RedbOptions, error};

/// An open redb store. Readers and the write transaction hold a reference to it.
pub(crate) struct Store {
    db: Db,
    dir: PathBuf,
    pub(crate) options: RedbOptions,
    pub(crate) commits: Commits,
    pub(crate) poison: Poison,
}

impl Store {
    /// Opens the store in `dir`, which must exist. Creates its file if it is missing.
    pub(crate) fn open(dir: &Path, options: &RedbOptions) -> Result<Self> {
        Self::check(Db::open(dir, options.cache_bytes)?, dir, options)
    }

    /// Opens the store in `dir` for reading alone.
    pub(crate) fn open_read_only(dir: &Path, options: &RedbOptions) -> Result<Self> {
        Self::check(Db::open_read_only(dir, options.cache_bytes)?, dir, options)
    }

    /// Takes a snapshot of the newest commit and opens its pairs table.
    pub(crate) fn open_snapshot(&self) -> Result<(ReadTransaction, PairsReadOnly)> {
        let txn = self.db.begin_read()?;
        let pairs = txn.open_table(PAIRS).map_err(|e| error::table("redb cannot open the pairs table", e))?;
        Ok((txn, pairs))
    }

    /// Returns the checkpoint of the newest commit.
    pub(crate) fn checkpoint(&self) -> Result<Checkpoint> {
        caught("redb cannot read the checkpoint", || read_checkpoint(&self.db.begin_read()?))
    }

    /// Returns the database to write to, or an error if the store is open for reading alone.
    pub(crate) fn db(&self) -> Result<&Database> {
        self.db.writable()
    }

    /// Returns the path of the store's file.
    pub(crate) fn file(&self) -> PathBuf {
        self.dir.join(FILE_NAME)
    }

    /// Runs redb's own check of every page: see [`Db::check_pages`].
    pub(crate) fn check_pages(&mut self) -> Result<()> {
        self.db.check_pages(&self.dir, self.options.cache_bytes)
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

    /// Refuses a file with other tables, or with a checkpoint that this build cannot read, now and not at the first
    /// use.
    fn check(db: Db, dir: &Path, options: &RedbOptions) -> Result<Self> {
        let store = Self {
            db,
            dir: dir.to_owned(),
            options: *options,
            commits: Commits::default(),
            poison: Poison::new("redb", dir.display()),
        };
        store.checkpoint()?;
        caught("redb cannot open the pairs table", || store.open_snapshot())?;
        Ok(store)
    }
}
