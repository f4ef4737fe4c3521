//! Applies whole slots to the engine: collects their changes and commits them with the checkpoint.
//!
//! Owns: the only write path of the service. Must not: apply anything out of chain order or past a gap, or commit a
//! part of a slot. Only the differences to an archive are committed in parts, and the checkpoint says so. Runs on its
//! own OS thread, `ingest-apply`, from the first message until the channel is closed. It takes the time from tokio's
//! clock, which is the machine's clock outside of a simulation.

mod commit;

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine_api::{Durability, Engine, ErrorKind, Result};
use engine_latency::Measured;
use engines::EngineKind;
use solana::{ChainCheckpoint, MapPhase};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use super::State;
use super::assemble::{Assembler, HeldLimits, Input};
use super::batch::{self, Batch};
use super::contradiction_file::ContradictionFile;
use super::healing::{Heal, successor};
use super::late_updates::LateLines;
use super::parent_wait::ParentWait;
use super::phase::StreamPhase;
use super::reads::Reads;
use super::receive::{Message, Whole};
use super::settings::{CommitSettings, ReceiveSettings};
use crate::base::chain::{Base, Gap, WholeSlot};
use crate::base::figure::{count, unix_ms};
use crate::base::pulse::Pulse;
use crate::feed::{FeedWriter, SlotEnd};

/// Value of [`ApplyConfig::full_retry`] outside of a simulation.
const FULL_RETRY: Duration = Duration::from_secs(2);
/// How often the engine's own figures are refreshed. Not at every commit, because some engines inspect their files for
/// them.
const STATS_EVERY: Duration = Duration::from_secs(1);

/// Value of [`ApplyConfig::commit_interval`] outside of a simulation: a reader that waits for a slot waits no longer than this
/// while the service catches up, and slots that are not committed are received again after a crash.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);

/// Settings that say when to commit, how much, and how durably.
#[derive(Clone, Copy, Debug)]
pub struct ApplyConfig {
    /// Bounds on a commit while more messages are queued. When the queue is empty, all whole slots are committed at
    /// once.
    pub batch: batch::BatchLimits,
    /// Maximum time between commits while slots keep coming. Slots share a commit until then.
    pub commit_interval: Duration,
    /// How long whole slots wait for a parent, over all connections, before it counts as missing. The clock stands still
    /// while there is no connection.
    pub gap_timeout: Duration,
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

impl ApplyConfig {
    /// Returns the settings that follow from the operator's, for a store of this engine and the memory of this process.
    pub fn new(commit: &CommitSettings, receive: &ReceiveSettings, engine: EngineKind, durability: Durability) -> Self {
        let due = commit.commit_every.map(|changes| changes as usize);
        Self {
            batch: batch::BatchLimits::within(probe::memory_limit().bytes, engine, due),
            commit_interval: COMMIT_INTERVAL,
            gap_timeout: receive.gap_timeout,
            full_retry: FULL_RETRY,
            depth: commit.ingest_depth as usize,
            reads_in_turn: engine.descriptor().get_many_waits_in_turn,
            // The random keys of the standard hasher are random enough for a draw.
            sample_seed: RandomState::new().hash_one(0),
            durability,
        }
    }
}

/// The applying side of the ingest, run by the ingest-apply thread.
pub struct Apply {
    engine: Arc<Measured>,
    state: State,
    config: ApplyConfig,
    stop: watch::Receiver<bool>,
    /// Assembles the slots of a single stream. Others come whole.
    assembler: Assembler,
    /// The lines about updates that came after their slot.
    late: LateLines,
    /// Checkpoint of the last commit.
    committed: ChainCheckpoint,
    /// Changes taken in since the last commit.
    batch: Batch,
    reads: Reads,
    /// Writer of the feed, which gets every change of the map; `None` when there is no feed.
    feed: Option<FeedWriter>,
    /// The newest slot that is wholly in `batch` or committed.
    complete: Option<Base>,
    /// The memory of a contradiction; `None` without a directory for it.
    contradiction_file: Option<ContradictionFile>,
    created_unix_ms: u64,
    standing: StreamPhase,
    waiting: ParentWait,
    last_commit: Instant,
    last_stats: Option<Instant>,
    pulse: Pulse,
}

impl Apply {
    /// Creates the applying side, which continues after the engine's checkpoint.
    ///
    /// # Errors
    /// Any error of the engine on reading its checkpoint; a checkpoint that another program or a newer version wrote,
    /// or that contradicts itself.
    pub fn new(
        engine: Arc<Measured>,
        state: State,
        feed: Option<FeedWriter>,
        config: ApplyConfig,
        pulse: Pulse,
        stop: watch::Receiver<bool>,
    ) -> Result<Self> {
        let committed = ChainCheckpoint::read(&engine.checkpoint()?)?;
        let complete = committed.slot.map(|slot| Base { slot, blockhash: committed.blockhash });
        let standing = StreamPhase::new(state.clone());
        Ok(Self {
            reads: Reads::new(&engine, config.depth, config.reads_in_turn, config.sample_seed),
            engine,
            state,
            config,
            stop,
            assembler: Assembler::new(complete, HeldLimits::within(probe::memory_limit().bytes)),
            late: LateLines::default(),
            committed,
            batch: Batch::new(config.batch),
            feed,
            complete,
            contradiction_file: None,
            created_unix_ms: 0,
            standing,
            waiting: ParentWait::new(config.gap_timeout),
            last_commit: Instant::now(),
            last_stats: None,
            pulse,
        })
    }

    /// Remembers contradictions of the newest block in the store's directory, and knows those that an earlier process has
    /// noted.
    #[must_use]
    pub fn with_memory(mut self, dir: &Path) -> Self {
        self.contradiction_file = Some(ContradictionFile::begin(dir, &self.committed, &self.state));
        self
    }

    /// Applies messages until the channel is closed or `stop` turns true. Commits the whole slots before it returns.
    ///
    /// # Errors
    /// Engine errors that a retry cannot mend: the process should end.
    pub fn run(mut self, mut messages: mpsc::Receiver<Message>) -> Result<()> {
        self.begin();
        while let Some(message) = messages.blocking_recv() {
            self.pulse.beat();
            if *self.stop.borrow() {
                break;
            }
            self.busy_since(unix_ms());
            self.take(message, messages.is_empty())?;
            self.busy_since(0);
        }
        self.end()
    }

    /// Publishes the engine's figures and the phase, before the first message.
    pub(super) fn begin(&mut self) {
        self.refresh_stats();
        self.standing.begin();
    }

    /// Takes in one message. `nothing_waits` says that the queue is empty.
    pub(super) fn take(&mut self, message: Message, nothing_waits: bool) -> Result<()> {
        match message {
            Message::Batch(inputs) => {
                for input in inputs {
                    self.input(input)?;
                }
            }
            Message::Reconnected { provider } => {
                // The replay may bring the missing slots.
                self.waiting.pause();
                if self.standing.reconnected(provider) {
                    // Whole slots that wait for a parent are the earlier provider's word, which nothing has confirmed.
                    self.assembler.restart(self.complete);
                }
                if let Err(gap) = self.assembler.push(Input::Reconnected) {
                    return self.start_over(gap);
                }
                self.check_waiting()?;
                // That of an earlier connection may be of another chain.
                self.state.readiness.set_newest_slot(0);
            }
            Message::Slot(Whole { slot, .. }) => self.whole(&slot)?,
            Message::Tick => {
                self.check_waiting()?;
                self.state.resume.tick_taken(&self.assembler);
            }
            Message::Gap(gap) => self.start_over(gap)?,
            Message::Heal(heal) => self.heal(*heal)?,
            Message::Beat => {}
        }
        // The queue is empty, so commit now instead of waiting for a fuller batch.
        if nothing_waits {
            self.flush()?;
        }
        self.state.overlay.settle();
        if let Some(contradiction_file) = &mut self.contradiction_file {
            contradiction_file.remember(&self.state, &self.committed);
        }
        Ok(())
    }

    /// Commits the whole slots after the last message. This only shortens the next replay: the slot being assembled
    /// comes again.
    pub(super) fn end(mut self) -> Result<()> {
        self.flush()
    }

    fn busy_since(&self, unix_ms: u64) {
        // ORDERING: Relaxed: a statistic.
        self.state.figures.busy_since_unix_ms.store(unix_ms, Ordering::Relaxed);
    }

    fn input(&mut self, input: Input) -> Result<()> {
        if self.standing.has_given_up() {
            return Ok(());
        }
        if let Err(gap) = self.assembler.push(input) {
            return self.start_over(gap);
        }
        if matches!(input, Input::Account { .. }) { Ok(()) } else { self.hand_out() }
    }

    /// Applies the next slot of the chain, which was assembled elsewhere.
    fn whole(&mut self, slot: &WholeSlot) -> Result<()> {
        if self.standing.has_given_up() {
            return Ok(());
        }
        let gap = match self.assembler.gap_before(slot) {
            None => self.slot(slot)?,
            gap => gap,
        };
        if let Some(gap) = gap {
            return self.start_over(gap);
        }
        self.assembler.restart(self.complete);
        Ok(())
    }

    /// Applies the slots that are whole and next, and looks for a gap before the others.
    fn hand_out(&mut self) -> Result<()> {
        while let Some(slot) = self.assembler.next() {
            if let Some(gap) = self.slot(&slot)? {
                return self.start_over(gap);
            }
        }
        if let Some(gap) = self.assembler.check_gap() {
            return self.start_over(gap);
        }
        self.check_waiting()?;
        self.state.brought(self.standing.provider(), self.standing.connection(), &self.assembler);
        let dropped = self.assembler.dropped();
        self.late.tell(dropped.late_updates, self.standing.provider(), &self.state.providers);
        // ORDERING: Relaxed: statistics.
        self.state.figures.slots_dead.store(dropped.dead_slots, Ordering::Relaxed);
        self.state.figures.slots_duplicate.store(dropped.duplicate_slots, Ordering::Relaxed);
        self.state.figures.updates_duplicate.store(dropped.duplicate_updates, Ordering::Relaxed);
        Ok(())
    }

    fn check_waiting(&mut self) -> Result<()> {
        self.state.readiness.set_awaited(self.waiting.awaited(&self.assembler));
        let gap = self.waiting.check(&self.assembler);
        gap.map_or(Ok(()), |gap| self.start_over(gap))
    }

    /// Adds the next slot of the chain to the batch. Returns the gap when the slot cannot be applied.
    fn slot(&mut self, slot: &WholeSlot) -> Result<Option<Gap>> {
        if !self.batch.has_room(slot.events.len()) {
            self.flush()?;
        }
        if let Some(gap) = self.take_in(slot)? {
            return Ok(Some(gap));
        }
        self.standing.applied(slot.slot, self.standing.provider());
        self.complete = Some(slot.base());
        self.created_unix_ms = slot.created_unix_ms;
        self.state.resume.set_slot(slot.slot);
        self.waiting.over();
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
                    self.standing.commit_waits(&failed);
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
    fn flush(&mut self) -> Result<()> {
        let newest = self.complete.map(|base| base.slot);
        let Some(slot) = newest.filter(|slot| self.committed.slot != Some(*slot)) else { return Ok(()) };
        self.commit_and_publish(self.up_to(slot))?;
        self.standing.committed(slot, self.created_unix_ms);
        Ok(())
    }

    /// Brings the store to the block of an archive, in commits as large as any. Only the last one is at that block's
    /// slot; the ones before it name the first key that is not healed yet. Ends early when the service stops: the next
    /// start finds the phase in the checkpoint.
    fn heal(&mut self, heal: Heal) -> Result<()> {
        let Heal { mut differences, from, to, fits_feed, done } = heal;
        self.flush()?;
        if self.committed != from {
            info!(
                slot = self.committed.slot,
                "the store has gone on since it was compared: the differences are not used"
            );
            return Ok(());
        }
        // The store may have stood at another block of the archive's slot.
        let parent_slot = self.committed.slot.unwrap_or(0).min(to.slot.saturating_sub(1));
        if let Some(feed) = self.feed.as_mut().filter(|_| !fits_feed) {
            feed.leave_out(differences.left(), to.slot);
        }
        self.state.published.heal();
        self.state.overlay.begin(to);
        while !*self.stop.borrow() {
            let changes = differences.next(to.slot, self.config.batch.due)?;
            let count = changes.len();
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
            self.state.healing.applied(count);
            if is_last {
                self.complete = Some(to);
                self.assembler.begin_anew(to);
                self.state.resume.set_slot(to.slot);
                self.standing.healed();
                done.send(()).ok();
                break;
            }
        }
        Ok(())
    }

    /// Handles a gap in the received chain. The slots before it are committed and nothing after it is applied. The next
    /// connection starts over from there.
    fn start_over(&mut self, gap: Gap) -> Result<()> {
        self.flush()?;
        self.assembler.restart(self.complete);
        self.waiting.over();
        self.state.readiness.set_awaited(None);
        self.standing.gap(gap);
        Ok(())
    }
}
