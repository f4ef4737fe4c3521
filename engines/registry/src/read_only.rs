//! Opens a store for reading alone. Nothing in its directory is created, changed or removed, so a copy on a read-only
//! file system can be opened, too.
//!
//! Owns: the checks before such an opening. The store itself refuses every write. Threads: none of its own.

use std::path::Path;

use bytesize::ByteSize;
use engine_api::{Engine, Result};

use crate::directory::DATA;
use crate::engine::{effective, open_engine, with_way_out};
use crate::lock;
use crate::marker;
use crate::options::EngineOptions;
use crate::process;
use crate::standing;
use crate::store::{Lock, OpenMode, Store, check};
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
    let engine =
        open_engine(&dir.join(DATA), &options, &known.holds).map_err(|e| with_way_out(dir, known.engine, e))?;
    standing::check_seq(dir, &known, engine.checkpoint()?.seq)?;
    let lock = Lock::Reader { _lock: lock };
    Ok(Box::new(Store { engine, identity: known, options, dir: dir.to_owned(), place: None, lock }))
}
