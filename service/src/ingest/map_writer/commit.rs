//! The commit of a batch, and its publication to readers and subscribers.
//!
//! Owns: the order of feed, engine and publication, and the retries. Must not: choose the batch, or retry a commit
//! that may have changed something. Runs on the ingest-apply thread.

use std::sync::Arc;

use engine_api::{Engine as _, Error, ErrorKind, Result};
use solana::ChainCheckpoint;
use tokio::time::Instant;
use tracing::warn;

use super::{MapWriter, STATS_EVERY};
use crate::base::figure::count;

impl MapWriter {
    /// Commits the batch with the checkpoint `next`, whose seq is counted here, as soon as that is possible, and
    /// publishes it.
    pub(super) fn commit_and_publish(&mut self, next: ChainCheckpoint) -> Result<()> {
        let checkpoint = loop {
            self.pulse.beat();
            match self.commit(next) {
                Ok(checkpoint) => break checkpoint,
                Err(failed) if may_pass(&failed) && !*self.stop.borrow() => {
                    let no_space = failed.kind() == ErrorKind::FreeSpace;
                    count(&self.state.figures.commits_without_space, no_space.into());
                    let what = if no_space { "no space" } else { "a commit has to wait" };
                    warn!(error = %failed, "{what}: lookups continue, and the batch is kept and retried");
                    self.state.progress.commit_waits(&failed);
                    std::thread::sleep(self.config.full_retry);
                }
                Err(failed) => return Err(failed),
            }
        };
        self.committed = checkpoint;
        self.batch.clear();
        self.last_commit = Instant::now();
        self.publish(checkpoint);
        if self.last_stats.is_none_or(|at| at.elapsed() >= STATS_EVERY) {
            self.refresh_stats();
        }
        Ok(())
    }

    /// Returns the checkpoint of a batch that ends with `slot`, without its seq.
    pub(in crate::ingest) fn up_to(&self, slot: u64) -> ChainCheckpoint {
        let blockhash = self.complete.map_or([0; 32], |base| base.blockhash);
        ChainCheckpoint { slot: Some(slot), blockhash, ..self.committed }
    }

    /// Writes the batch and commits it with the checkpoint `next`. The feed gets the changes before the engine commits
    /// them. Returns the new checkpoint, which counts the changes.
    pub(in crate::ingest) fn commit(&mut self, next: ChainCheckpoint) -> Result<ChainCheckpoint> {
        let changes = self.batch.changes();
        let mut txn = self.engine.begin_for(self.batch.events())?;
        for change in changes {
            self.pulse.beat();
            match &change.new {
                Some(value) => txn.put(&change.key, value)?,
                None => txn.delete(&change.key)?,
            }
        }
        let checkpoint = ChainCheckpoint { seq: self.committed.seq + changes.len() as u64, ..next };
        let (all, deleted) = (changes.len(), changes.iter().filter(|change| change.new.is_none()).count());
        self.state.overlay.committing(changes.iter().map(|change| (change.slot, change.key, change.old)));
        if let Some(feed) = &mut self.feed {
            feed.append(self.committed.seq + 1, changes.to_vec(), self.batch.ends(self.committed.seq))?;
        }
        self.state.published.committing();
        if let Err(failed) = txn.commit(&checkpoint.write(), self.config.durability) {
            // Not after a commit with an unknown outcome: there, opening the store again decides which changes the feed
            // holds.
            if may_pass(&failed) {
                self.state.published.not_committed();
                if let Some(feed) = &mut self.feed {
                    feed.abort()?;
                }
            }
            return Err(failed);
        }
        let counters = &self.state.figures;
        count(&counters.commits, 1);
        count(&counters.events_applied, self.batch.events());
        count(&counters.events_written, (all - deleted) as u64);
        count(&counters.events_deleted, deleted as u64);
        Ok(checkpoint)
    }

    fn publish(&mut self, checkpoint: ChainCheckpoint) {
        self.state.published.publish(checkpoint);
        self.state.overlay.published(checkpoint.slot);
        if let Some(feed) = &mut self.feed {
            feed.publish(&checkpoint);
        }
    }

    pub(in crate::ingest) fn refresh_stats(&mut self) {
        self.last_stats = Some(Instant::now());
        if let Some(feed) = &mut self.feed {
            feed.expire();
        }
        match self.engine.stats() {
            Ok(stats) => self.state.figures.stats.store(Arc::new(stats)),
            Err(failed) => warn!(error = %failed, "cannot read the engine's statistics"),
        }
    }
}

/// Whether a failed commit has changed nothing, so that the same commit may succeed later.
fn may_pass(failed: &Error) -> bool {
    matches!(failed.kind(), ErrorKind::FreeSpace | ErrorKind::Retry)
}
