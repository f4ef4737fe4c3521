//! Aged stores: loaded in order, then changed at random places.
//!
//! Owns: the process that changes the pairs. Must not: time anything. Runs on the main thread.

use anyhow::Result;
use bytesize::ByteSize;
use engines::{EngineOptions, OpenMode};
use probe::MemoryLimit;

use super::child::ChildArgs;
use super::run::Run;
use super::update::update;

/// Runs the hidden command that makes all updates of an aged store, in buffered commits.
///
/// # Errors
/// Errors of the engine.
pub fn run(args: &ChildArgs) -> Result<()> {
    let run = &*args.run;
    let engine = engines::open(&args.dir, &as_under_cap(run), OpenMode::Existing)?;
    update(run, &*engine, 0..run.aged_updates())?;
    engine.close()?;
    Ok(())
}

/// Returns the engine's options with the cache that it has by default under the run's cap, as a service has it that was under
/// this cap all along. The cap itself is not in force, because some engines would take hours under it. So the memory that an
/// engine takes in addition to its cache, as RocksDB's profile tuned does for compactions, is that of the machine.
fn as_under_cap(run: &Run) -> EngineOptions {
    let limit = run.cap_bytes.map(|bytes| MemoryLimit { bytes, ..probe::memory_limit() });
    let share = limit.map(|limit| run.engine.division_of(limit).cache_bytes).filter(|bytes| *bytes > 0);
    EngineOptions { memory: run.engine.memory.or(share.map(ByteSize::b)), ..run.engine.clone() }
}
