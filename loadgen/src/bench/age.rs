//! Aged stores: loaded in order, then changed at random places.
//!
//! Owns: the rule which pairs have been changed, and the process that changes them. Must not: time anything. Runs on
//! the main thread.
//!
//! Update n changes pair n, and starts again with the first pair after the last one. The keys of consecutive pairs are
//! unrelated, so these are random places of the store. A reader can compute each value without remembering any. With
//! 0.72 updates a pair, other random updates would have changed only half of the pairs, some of them more than once.

use anyhow::{Context, Result};
use bytesize::ByteSize;
use engine_api::{Checkpoint, Durability};
use engines::{EngineOptions, OpenMode};
use probe::MemoryLimit;

use super::child::ChildArgs;
use super::run::Run;

/// Number of puts in a commit.
const BATCH: u64 = 1000;

/// Computes the version of each pair's value in an aged store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    pairs: u64,
    updates: u64,
}

impl Versions {
    /// Versions after `updates` updates of `pairs` pairs.
    pub(crate) fn new(pairs: u64, updates: u64) -> Self {
        Self { pairs, updates }
    }

    /// Returns how many times pair `index` was changed.
    pub(crate) fn of(self, index: u64) -> u32 {
        ((self.updates / self.pairs) + u64::from(index < self.updates % self.pairs)) as u32
    }
}

/// Runs the hidden command that makes all updates of an aged store, in buffered commits.
///
/// # Errors
/// A run that is not valid JSON; errors of the engine.
pub fn run(args: &ChildArgs) -> Result<()> {
    let run: Run = serde_json::from_str(args.run()).context("not a run")?;
    let (pairs, versions) = (run.generator()?, run.versions());
    let engine = engines::open(args.dir(), &as_under_cap(&run), OpenMode::Existing)?;
    let mut done = 0;
    while done < versions.updates {
        let end = (done + BATCH).min(versions.updates);
        let mut txn = engine.begin()?;
        for update in done..end {
            let (index, version) = (update % run.pairs, (update / run.pairs + 1) as u32);
            txn.put(&pairs.key(index), &pairs.value(index, version))?;
        }
        let checkpoint = engine.checkpoint()?;
        txn.commit(&Checkpoint { seq: checkpoint.seq + (end - done), ..checkpoint }, Durability::Buffered)?;
        done = end;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_pair_is_the_number_of_its_updates() {
        for updates in [0, 1, 7, 10, 11, 25] {
            let versions = Versions::new(10, updates);
            for index in 0..10 {
                let counted = (0..updates).filter(|update| update % 10 == index).count();
                assert_eq!(versions.of(index), counted as u32, "updates={updates} index={index}");
            }
        }
    }
}
