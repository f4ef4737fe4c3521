//! Opens a store for reading alone. Nothing in its directory is created, changed or removed, so a copy on a read-only
//! file system can be opened, too.
//!
//! Owns: the shared lock, and the refusal of every write. Threads: none of its own.

use std::path::Path;

use bytesize::ByteSize;
use engine_api::{BulkLoad, Checkpoint, Engine, Error, ErrorKind, Pace, Reader, Result, Stats, Warmed, WriteTxn};

use crate::directory::DATA;
use crate::engine::{effective, open_engine, with_way_out};
use crate::lock;
use crate::marker;
use crate::options::EngineOptions;
use crate::process;
use crate::standing;
use crate::store::{OpenMode, check};
use crate::terms::Terms;

/// Opens the store in `dir` for reading alone. Several processes may do so at once. A process that has the store open
/// for writing keeps readers out, and readers keep such a process out.
///
/// # Errors
/// `FixInput` if there is no store, or its files are gone; `DataDamaged` if it has lost commits; `Retry` if a process
/// has it open for writing; any error of opening the engine.
pub fn open_read_only(dir: &Path, memory: Option<ByteSize>) -> Result<Box<dyn Engine>> {
    let Some(known) = marker::read(dir)? else { return Err(standing::no_store(dir)) };
    let asked = EngineOptions { memory, ..EngineOptions::new(known.engine) };
    check(dir, &asked, OpenMode::Existing, &Terms::default())?;
    let lock = lock::share(dir)?;
    let options = effective(&asked, Some(&known));
    process::raise_open_files();
    let engine = open_engine(&dir.join(DATA), &options).map_err(|e| with_way_out(dir, known.engine, e))?;
    standing::check_seq(dir, &known, engine.checkpoint()?.seq)?;
    Ok(Box::new(ReadOnly { engine, dir: dir.display().to_string(), _lock: lock }))
}

/// A store that is open for reading alone.
struct ReadOnly {
    // First field: the engine is closed before the lock is released.
    engine: Box<dyn Engine>,
    dir: String,
    _lock: lock::Shared,
}

impl ReadOnly {
    fn refused(&self) -> Error {
        Error::new(ErrorKind::FixInput, format!("the store is open for reading alone: dir={}", self.dir))
    }
}

impl Engine for ReadOnly {
    fn label(&self) -> &'static str {
        self.engine.label()
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        self.engine.reader()
    }

    fn begin(&self) -> Result<Box<dyn WriteTxn + '_>> {
        Err(self.refused())
    }

    fn checkpoint(&self) -> Result<Checkpoint> {
        self.engine.checkpoint()
    }

    fn stats(&self) -> Result<Stats> {
        self.engine.stats()
    }

    fn snapshot(&self, _dir: &Path) -> Result<()> {
        Err(self.refused())
    }

    fn bulk(&self) -> Option<&dyn BulkLoad> {
        None
    }

    fn settle(&self) -> Result<()> {
        Err(self.refused())
    }

    fn warm_up(&self, go_on: &mut dyn FnMut(Warmed) -> Pace) -> Result<()> {
        self.engine.warm_up(go_on)
    }

    fn scrub(&mut self) -> Result<u64> {
        self.engine.scrub()
    }

    /// There is nothing to flush, so the engine is dropped and not closed.
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
