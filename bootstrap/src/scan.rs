//! Opens stores that are read from end to end.
//!
//! Owns: the memory of such an engine, and the digest of all pairs. Must not: write to a store. Runs on the thread that reads the store.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Result;
use bytesize::ByteSize;
use engine_api::Engine;
use engines::{Digest, EngineKind, EngineOptions, OpenMode, Terms};

use crate::running;
use crate::signal::Stop;

/// A scan's engine gets 1/SCAN_MEMORY_SHARE of the process's memory, because a scan reads everything only once.
const SCAN_MEMORY_SHARE: u64 = 8;
/// Smallest memory with which every engine opens.
const SCAN_MEMORY_MIN: u64 = 16 << 20;

/// Number of pairs between two checks for a signal, far fewer than are read in a second.
const LOOK_EVERY_PAIRS: u64 = 1 << 16;

/// Returns the memory for an engine that scans a store: `memory`, or the default share.
pub(crate) fn scan_memory(memory: Option<ByteSize>) -> ByteSize {
    let share = (probe::memory_limit().bytes / SCAN_MEMORY_SHARE).max(SCAN_MEMORY_MIN);
    memory.unwrap_or(ByteSize::b(share))
}

/// Opens a store to read all of it, with an eighth of the process's memory unless `memory` is given. Writes nothing, so
/// a store on a read-only file system will do. With `engine`, a store of another engine is refused.
pub(crate) fn open_to_scan(
    dir: &Path,
    engine: Option<EngineKind>,
    memory: Option<ByteSize>,
) -> Result<Box<dyn Engine>> {
    if let Some(engine) = engine {
        engines::check(dir, &EngineOptions::new(engine), OpenMode::Existing, &Terms::default())?;
    }
    engines::open_read_only(dir, Some(scan_memory(memory))).map_err(|error| running::explain(dir, error))
}

/// Reads a store, and returns the digest of its pairs; `None` when asked to stop. `progress` gets the number of pairs now
/// and then.
///
/// # Errors
/// Those of the engine.
pub(crate) fn digest_until(engine: &dyn Engine, stop: &Stop, progress: &dyn Fn(u64)) -> Result<Option<Digest>> {
    let mut digest = Digest::default();
    engine.reader()?.scan(&mut |key, value| {
        digest.add(key, value);
        if !digest.pairs().is_multiple_of(LOOK_EVERY_PAIRS) {
            return ControlFlow::Continue(());
        }
        progress(digest.pairs());
        if stop.asked().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(stop.asked().is_none().then_some(digest))
}
