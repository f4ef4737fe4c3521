//! The writer of one map: collects the changes of whole slots and commits them with the checkpoint.
//!
//! Owns: the only write path of the service, with its reads, its batch and the feed. Must not: know the stream, or commit a
//! part of a slot. Only the differences to an archive are committed in parts, and the checkpoint says so. Runs on the
//! ingest-apply thread.

mod commit;

use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use engine_api::{Durability, Engine, ErrorKind, Result};
use engine_latency::Measured;
use engines::EngineKind;
use solana::{ChainCheckpoint, MapPhase};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use super::State;
use super::batch::{Batch, BatchLimits};
use super::healing::{Differences, successor};
use super::reads::Reads;
use super::settings::CommitSettings;
use crate::base::chain::{Base, Gap, WholeSlot};
use crate::base::figure::count;
use crate::base::pulse::Pulse;
use crate::feed::{Change, FeedWriter, SlotEnd};

/// Value of [`MapConfig::full_retry`] outside of a simulation.
const FULL_RETRY: Duration = Duration::from_secs(2);

/// Value of [`MapConfig::commit_interval`] outside of a simulation: a reader that waits for a slot waits no longer than this
/// while the service catches up, and slots that are not committed are received again after a crash.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);

/// Number of changes of a heal that a derived store may lack: more than it waits for before it commits a part of a slot
/// (`CHANGES_DUE`), and far fewer than the feed keeps for it.
const FOLLOWER_LAG_MAX: u64 = 1 << 18;

/// Time after which a heal no longer waits for a derived store that does not go on, because it waits itself for space.
const FOLLOWER_STALL: Duration = Duration::from_secs(10);

/// Interval at which a heal looks how far the derived stores are.
const FOLLOWER_LOOK: Duration = Duration::from_millis(2);

/// How often the engine's own figures are refreshed. Not at every commit, because some engines inspect their files for
/// them.
const STATS_EVERY: Duration = Duration::from_secs(1);

/// Settings of a map: when to commit, how much, and how durably.
#[derive(Clone, Copy, Debug)]
pub struct MapConfig {
    /// Bounds on a commit while more messages are queued. When the queue is empty, all whole slots are committed at
    /// once.
    pub batch: BatchLimits,
    /// Maximum time between commits while slots keep coming. Slots share a commit until then.
    pub commit_interval: Duration,
    /// Wait before a commit that failed for lack of space, or of something else that may come back, is retried.
    pub full_retry: Duration,
    /// Number of keys that are looked up together; 1 looks up one after another.
    pub depth: usize,
    /// Whether the engine's `get_many` waits for one read of the device after another, so that threads have to help.
    pub reads_in_turn: bool,
    /// Seed of the draw of the keys that are got alone.
    pub sample_seed: u64,
    /// Which failures a commit survives: a crash of the process only, or a power loss as well.
    pub durability: Durability,
}

impl MapConfig {
    /// Returns the settings that follow from the operator's, for a store of this engine and the memory of this process.
    pub fn new(commit: &CommitSettings, engine: EngineKind, durability: Durability) -> Self {
        let due = commit.commit_every.map(|changes| changes as usize);
        Self {
            batch: BatchLimits::within(probe::memory_limit().bytes, engine, due),
            commit_interval: COMMIT_INTERVAL,
            full_retry: FULL_RETRY,
            depth: commit.ingest_depth as usize,
            reads_in_turn: engine.descriptor().get_many_waits_in_turn,
            // The random keys of the standard hasher are random enough for a draw.
            sample_seed: RandomState::new().hash_one(0),
            durability,
        }
    }
}

/// The map's side of the ingest.
pub(super) struct MapWriter {
    engine: Arc<Measured>,
    state: State,
    config: MapConfig,
    stop: watch::Receiver<bool>,
    /// Checkpoint of the last commit.
    committed: ChainCheckpoint,
    /// Slot and creation time of a commit of which the stream's side does not know yet.
    newly_committed: Option<(u64, u64)>,
    /// Changes taken in since the last commit.
    batch: Batch,
    reads: Reads,
    /// Writer of the feed, which gets every change of the map; `None` when there is no feed.
    feed: Option<FeedWriter>,
    /// The newest slot that is wholly in `batch` or committed.
    complete: Option<Base>,
    created_unix_ms: u64,
    last_commit: Instant,
    last_stats: Option<Instant>,
    pulse: Pulse,
}

impl MapWriter {
    /// Continues after the engine's checkpoint.
    ///
    /// # Errors
    /// Those of [`Apply::new`](super::apply::Apply::new).
    pub(super) fn new(
        engine: Arc<Measured>,
        state: State,
        feed: Option<FeedWriter>,
        config: MapConfig,
        pulse: Pulse,
        stop: watch::Receiver<bool>,
    ) -> Result<Self> {
        let committed = ChainCheckpoint::read(&engine.checkpoint()?)?;
        Ok(Self {
            reads: Reads::new(&engine, config.depth, config.reads_in_turn, config.sample_seed),
            engine,
            state,
            config,
            stop,
            committed,
            newly_committed: None,
            batch: Batch::new(config.batch),
            feed,
            complete: committed.slot.map(|slot| Base { slot, blockhash: committed.blockhash }),
            created_unix_ms: 0,
            last_commit: Instant::now(),
            last_stats: None,
            pulse,
        })
    }

    /// The newest slot that was taken; before the first one, that of the checkpoint.
    pub(super) fn complete(&self) -> Option<Base> {
        self.complete
    }

    /// The checkpoint of the last commit.
    pub(super) fn committed(&self) -> &ChainCheckpoint {
        &self.committed
    }

    /// Returns the slot of the newest commit and the time at which its block was made, once for each commit.
    pub(super) fn take_newly_committed(&mut self) -> Option<(u64, u64)> {
        self.newly_committed.take()
    }

    /// Takes the next slot of the chain, and commits when that is due. Returns the gap when the slot cannot be applied.
    pub(super) fn take(&mut self, slot: &WholeSlot) -> Result<Option<Gap>> {
        if !self.batch.has_room(slot.events.len()) {
            self.flush()?;
        }
        if let Some(gap) = self.take_in(slot)? {
            return Ok(Some(gap));
        }
        self.complete = Some(slot.base());
        self.created_unix_ms = slot.created_unix_ms;
        count(&self.state.figures.slots_applied, 1);
        if self.batch.is_due() || self.last_commit.elapsed() >= self.config.commit_interval {
            self.flush()?;
        }
        Ok(None)
    }

    /// Adds the changes of a slot to the batch as soon as the engine can read. Returns the gap when they do not fit.
    fn take_in(&mut self, slot: &WholeSlot) -> Result<Option<Gap>> {
        self.state.overlay.begin(slot.base());
        loop {
            match self.try_take_in(slot) {
                Err(failed) if failed.kind() == ErrorKind::Retry && !*self.stop.borrow() => {
                    warn!(error = %failed, slot = slot.slot, "a read has to wait: the slot is read again");
                    self.state.progress.commit_waits(&failed);
                    std::thread::sleep(self.config.full_retry);
                }
                taken => return taken,
            }
        }
    }

    fn try_take_in(&mut self, slot: &WholeSlot) -> Result<Option<Gap>> {
        // Opened for each slot, so that no reader is held while the engine commits.
        let mut reader = self.engine.own_reader()?;
        self.batch.take(slot, &mut self.reads, &mut reader, &self.pulse)
    }

    /// Commits the batch, which ends where its newest slot ends. Does nothing when no slot came after the last commit.
    pub(super) fn flush(&mut self) -> Result<()> {
        let newest = self.complete.map(|base| base.slot);
        let Some(slot) = newest.filter(|slot| self.committed.slot != Some(*slot)) else { return Ok(()) };
        self.commit_and_publish(self.up_to(slot))?;
        self.newly_committed = Some((slot, self.created_unix_ms));
        Ok(())
    }

    /// Brings the store to the block of an archive, in commits as large as any. Only the last one is at that block's
    /// slot; the ones before it name the first key that is not healed yet. Returns whether the store is at that
    /// block: not if it has gone on since it was at `from`, and not if the service stops; the next start finds the phase in
    /// the checkpoint.
    pub(super) fn heal(
        &mut self,
        mut differences: Differences,
        from: &ChainCheckpoint,
        to: Base,
        fits_feed: bool,
    ) -> Result<bool> {
        if self.committed != *from {
            info!(
                slot = self.committed.slot,
                "the store has gone on since it was compared: the differences are not used"
            );
            return Ok(false);
        }
        // The store may have stood at another block of the archive's slot.
        let parent_slot = self.committed.slot.unwrap_or(0).min(to.slot.saturating_sub(1));
        if let Some(feed) = self.feed.as_mut().filter(|_| !fits_feed) {
            feed.leave_out(differences.left(), to.slot);
        }
        self.state.published.heal();
        self.state.overlay.begin(to);
        let mut waits = true;
        while !*self.stop.borrow() {
            let mut changes = differences.next(to.slot, self.config.batch.due)?;
            let count = changes.len();
            if changes.is_empty() {
                changes.extend(self.change_of_nothing(to.slot)?);
            }
            let is_last = differences.left() == 0;
            let next = match changes.last() {
                Some(last) if !is_last => {
                    let phase = MapPhase::Healing { to_slot: to.slot, next_key: successor(&last.key) };
                    ChainCheckpoint { phase, ..self.committed }
                }
                _ => ChainCheckpoint {
                    slot: Some(to.slot),
                    blockhash: to.blockhash,
                    phase: MapPhase::Ready,
                    ..self.committed
                },
            };
            let end = SlotEnd { seq: 0, slot: to.slot, blockhash: to.blockhash, parent_slot, is_healed: true };
            self.batch.heal(changes, is_last.then_some(end));
            self.commit_and_publish(next)?;
            waits = waits && self.wait_for_followers();
            self.state.healing.applied(count);
            if is_last {
                self.complete = Some(to);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns a change that changes nothing, for a heal that finds no difference: without a change the feed has no end of the
    /// heal's slot, and the past would not know that it lacks the slots before. `None` if no derived store follows, or the map
    /// is empty.
    fn change_of_nothing(&self, slot: u64) -> Result<Option<Change>> {
        let mut found = None;
        if self.feed.as_ref().is_some_and(FeedWriter::has_followers) {
            self.engine.reader()?.scan(&mut |key, value| {
                found = Some(Change { slot, key: *key, old: Some(*value), new: Some(*value) });
                ControlFlow::Break(())
            })?;
        }
        Ok(found)
    }

    /// Waits until the derived stores have most of the committed changes, because these may be more than the feed keeps.
    /// Returns whether to wait after the next commit as well: not for one that does not go on.
    fn wait_for_followers(&self) -> bool {
        let Some(feed) = &self.feed else { return false };
        let (mut lag, mut since) = (u64::MAX, Instant::now());
        while !*self.stop.borrow() && since.elapsed() < FOLLOWER_STALL {
            self.pulse.beat();
            let now = feed.lag_of_followers();
            if now <= FOLLOWER_LAG_MAX {
                return true;
            }
            if now < lag {
                (lag, since) = (now, Instant::now());
            }
            std::thread::sleep(FOLLOWER_LOOK);
        }
        false
    }
}
