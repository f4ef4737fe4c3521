//! The thread ingest-apply: takes the stream's messages, and has the map take its whole slots.
//!
//! Owns: the order of the two sides. The stream's side (`Sequence`) knows chain, gaps and waits; the map's side
//! (`MapWriter`) reads, collects and commits. Must not: apply anything out of chain order or past a gap. Runs on its
//! own OS thread, `ingest-apply`, from the first message until the channel is closed. It takes the time from tokio's
//! clock, which is the machine's clock outside of a simulation.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine_api::Result;
use engine_latency::Measured;
use tokio::sync::{mpsc, watch};

use super::State;
use super::contradiction_file::ContradictionFile;
use super::healing::Heal;
use super::map_writer::{MapConfig, MapWriter};
use super::phase::Taker;
use super::receive::Message;
use super::sequence::Sequence;
use crate::base::chain::Gap;
use crate::base::figure::unix_ms;
use crate::base::pulse::Pulse;
use crate::feed::FeedWriter;

/// The applying side of the ingest, run by the ingest-apply thread.
pub struct Apply {
    state: State,
    stop: watch::Receiver<bool>,
    sequence: Sequence,
    pub(super) map: MapWriter,
    /// The memory of a contradiction; `None` without a directory for it.
    memory: Option<ContradictionFile>,
    pulse: Pulse,
}

impl Apply {
    /// Creates the applying side, which continues after the engine's checkpoint. `gap_timeout`: how long whole slots wait for a
    /// parent, over all connections, before it counts as missing. The clock stands still while there is no connection.
    ///
    /// # Errors
    /// Any error of the engine on reading its checkpoint; a checkpoint that another program or a newer version wrote,
    /// or that contradicts itself.
    pub fn new(
        engine: Arc<Measured>,
        state: State,
        feed: Option<FeedWriter>,
        config: MapConfig,
        gap_timeout: Duration,
        pulse: Pulse,
        stop: watch::Receiver<bool>,
    ) -> Result<Self> {
        let map = MapWriter::new(engine, state.clone(), feed, config, pulse.clone(), stop.clone())?;
        let sequence = Sequence::new(Taker::Map, state.clone(), map.complete(), gap_timeout);
        Ok(Self { state, stop, sequence, map, memory: None, pulse })
    }

    /// Remembers contradictions of the newest block in the store's directory, and knows those that an earlier process has
    /// noted.
    #[must_use]
    pub fn with_memory(mut self, dir: &Path) -> Self {
        self.memory = Some(ContradictionFile::begin(dir, self.map.committed(), &self.state));
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
        self.map.refresh_stats();
        self.sequence.phase.begin();
    }

    /// Takes in one message. `nothing_waits` says that the queue is empty.
    pub(super) fn take(&mut self, message: Message, nothing_waits: bool) -> Result<()> {
        match message {
            Message::Heal(heal) => self.heal(*heal)?,
            message => {
                if let Some(gap) = self.slots(message)? {
                    // The slots before it are committed, and nothing after it is applied.
                    self.flush()?;
                    self.sequence.start_over(self.map.complete(), gap);
                }
            }
        }
        // The queue is empty, so commit now instead of waiting for a fuller batch.
        if nothing_waits {
            self.flush()?;
        }
        self.state.overlay.settle();
        if let Some(memory) = &mut self.memory {
            memory.remember(&self.state, self.map.committed());
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

    /// Applies the slots that are whole and next after this message. Returns the gap that it leads to.
    fn slots(&mut self, message: Message) -> Result<Option<Gap>> {
        let gap_of_message = self.sequence.take(message).err();
        while let Some(slot) = self.sequence.next() {
            let gap = self.map.take(&slot)?;
            if gap.is_none() {
                self.sequence.taken(&slot);
            }
            self.note_commit();
            if gap.is_some() {
                return Ok(gap);
            }
        }
        Ok(gap_of_message.or_else(|| self.sequence.check()))
    }

    fn flush(&mut self) -> Result<()> {
        self.map.flush()?;
        self.note_commit();
        Ok(())
    }

    /// Has the stream's side know of a commit since the last call.
    fn note_commit(&mut self) {
        if let Some((slot, created_unix_ms)) = self.map.take_newly_committed() {
            self.sequence.phase.committed(slot, created_unix_ms);
        }
    }

    /// Brings the store to the block of an archive, and the stream's side after it.
    fn heal(&mut self, heal: Heal) -> Result<()> {
        self.flush()?;
        let Heal { differences, from, to, fits_feed, done } = heal;
        if self.map.heal(differences, &from, to, fits_feed)? {
            self.sequence.healed(to);
            done.send(()).ok();
        }
        Ok(())
    }
}
