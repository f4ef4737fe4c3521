//! Updates of a store before it is measured: those that age it, and those that a run makes before it reads.
//!
//! Owns: the commits of these updates. Must not: decide how many there are, or time them. Runs on the main thread.

use std::ops::Range;

use anyhow::Result;
use engine_api::{Checkpoint, Durability, Engine};

use super::run::Run;

/// Number of puts in a commit.
const BATCH: u64 = 1000;

/// Makes the updates of these numbers in buffered commits. [`versions`](super::versions) has the rule which pair each changes.
///
/// # Errors
/// Errors of the engine.
pub(crate) fn update(run: &Run, engine: &dyn Engine, updates: Range<u64>) -> Result<()> {
    let pairs = run.generator()?;
    let mut done = updates.start;
    while done < updates.end {
        let end = (done + BATCH).min(updates.end);
        let mut txn = engine.begin()?;
        for update in done..end {
            let (index, version) = (update % run.pairs, (update / run.pairs + 1) as u32);
            txn.put(&pairs.key(index), &pairs.value(index, version))?;
        }
        let checkpoint = engine.checkpoint()?;
        txn.commit(&Checkpoint { seq: checkpoint.seq + (end - done), ..checkpoint }, Durability::Buffered)?;
        done = end;
    }
    Ok(())
}
