//! Assembles the slots of the stream and writes them to the spool.
//!
//! Owns: the end of the spool. Must not: skip a gap. Runs on the thread `spool`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::sync::mpsc;
use tracing::error;

use crate::base::chain::{Base, Gap, WholeSlot};
use crate::ingest::State;
use crate::ingest::assemble::{Assembler, HeldLimits, Input};
use crate::ingest::late_updates::LateLines;
use crate::ingest::parent_wait::ParentWait;
use crate::ingest::phase::StreamPhase;
use crate::ingest::receive::{Message, Whole};
use crate::spool::{Full, Origin, SpoolFigures, Writer, source_of};

/// The state of the thread `spool`, which assembles and writes.
pub(in crate::ingest) struct Spooler {
    place: Place,
    /// `None` before the first slot of a spool without a base.
    writer: Option<Writer>,
    /// The provider of the present connection, as frames name it.
    source: u32,
    figures: Arc<SpoolFigures>,
    assembler: Assembler,
    standing: StreamPhase,
    state: State,
    waiting: ParentWait,
    /// The lines about updates that came after their slot.
    late: LateLines,
}

impl Spooler {
    /// Creates the state at the end of `writer`'s spool, or before the first slot of the spool that `place` will hold.
    pub(super) fn new(
        place: Place,
        writer: Option<Writer>,
        figures: Arc<SpoolFigures>,
        state: State,
        gap_timeout: Duration,
    ) -> Self {
        let last = writer.as_ref().map(Writer::last);
        Self {
            place,
            writer,
            source: 0,
            figures,
            assembler: Assembler::new(last, HeldLimits::within(probe::memory_limit().bytes)),
            standing: StreamPhase::of_spool(state.clone()),
            state,
            waiting: ParentWait::new(gap_timeout),
            late: LateLines::default(),
        }
    }

    /// Takes messages until the channel is closed, or the spool takes no more slots.
    pub(super) fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        self.begin();
        while let Some(message) = messages.blocking_recv() {
            if !self.goes_on(message, messages.is_empty()) {
                return;
            }
        }
        self.end();
    }

    /// Publishes the phase, before the first message.
    pub(in crate::ingest) fn begin(&self) {
        self.standing.begin();
    }

    /// Takes in one message. Returns false once the spool takes no more slots.
    pub(in crate::ingest) fn goes_on(&mut self, message: Message, nothing_waits: bool) -> bool {
        let Err(Full(why)) = self.take(message, nothing_waits) else { return true };
        error!(
            reason = why,
            slot = self.last().map(|last| last.slot),
            "the spool takes no more slots; the work on the store goes on, and the stream is asked for the slots after it"
        );
        self.figures.stop(why);
        false
    }

    /// Flushes the slots after the last message.
    pub(in crate::ingest) fn end(mut self) {
        if let Err(Full(why)) = self.flush() {
            error!(reason = why, "the spool's last slots are lost; the stream is asked for them");
            self.figures.stop(why);
        }
    }

    fn take(&mut self, message: Message, nothing_waits: bool) -> Result<(), Full> {
        match message {
            Message::Batch(inputs) => inputs.into_iter().try_for_each(|input| self.input(input))?,
            Message::Reconnected { provider } => {
                self.waiting.pause();
                self.source = source_of(self.state.providers.name(provider));
                if self.standing.reconnected(provider) {
                    // Whole slots that wait for a parent are the earlier provider's word, which nothing has confirmed.
                    self.assembler.restart(self.last());
                }
                // That of an earlier connection may be of another chain.
                self.state.readiness.set_newest_slot(0);
                self.assembler.push(Input::Reconnected).or_else(|gap| self.start_over(gap))?;
            }
            Message::Tick => {
                self.check_waiting()?;
                self.state.resume.tick_taken(&self.assembler);
            }
            Message::Gap(gap) => self.start_over(gap)?,
            // The receiver and the merging send no heal.
            Message::Heal(_) | Message::Beat => {}
            Message::Slot(Whole { slot, .. }) => self.whole(&slot)?,
        }
        if nothing_waits { self.flush() } else { Ok(()) }
    }

    fn input(&mut self, input: Input) -> Result<(), Full> {
        if self.standing.has_given_up() {
            return Ok(());
        }
        if let Err(gap) = self.assembler.push(input) {
            return self.start_over(gap);
        }
        if matches!(input, Input::Account { .. }) {
            return Ok(());
        }
        while let Some(slot) = self.assembler.next() {
            self.keep(&slot)?;
        }
        let (provider, assembler) = (self.standing.provider(), &self.assembler);
        self.state.brought(provider, self.standing.connection(), assembler);
        self.late.tell(assembler.dropped().late_updates, provider, &self.state.providers);
        match self.assembler.check_gap() {
            Some(gap) => self.start_over(gap),
            None => self.check_waiting(),
        }
    }

    /// Keeps the next slot of the chain, which was assembled elsewhere.
    fn whole(&mut self, slot: &WholeSlot) -> Result<(), Full> {
        if self.standing.has_given_up() {
            return Ok(());
        }
        if let Some(gap) = self.assembler.gap_before(slot) {
            return self.start_over(gap);
        }
        self.keep(slot)?;
        self.assembler.restart(Some(slot.base()));
        Ok(())
    }

    fn keep(&mut self, slot: &WholeSlot) -> Result<(), Full> {
        let source = self.source;
        let writer = self.writer_for(slot)?;
        writer.set_source(source);
        writer.append(slot)?;
        // ORDERING: Relaxed: a statistic.
        self.figures.has_slots.store(true, std::sync::atomic::Ordering::Relaxed);
        self.state.resume.set_slot(slot.slot);
        self.waiting.over();
        self.standing.committed(slot.slot, slot.created_unix_ms);
        Ok(())
    }

    fn check_waiting(&mut self) -> Result<(), Full> {
        let gap = self.waiting.check(&self.assembler);
        gap.map_or(Ok(()), |gap| self.start_over(gap))
    }

    fn start_over(&mut self, gap: Gap) -> Result<(), Full> {
        self.flush()?;
        self.assembler.restart(self.last());
        self.waiting.over();
        self.standing.gap(gap);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Full> {
        self.writer.as_mut().map_or(Ok(()), Writer::flush)
    }

    fn last(&self) -> Option<Base> {
        self.writer.as_ref().map(Writer::last)
    }

    /// Returns the writer, or begins the spool before its first slot.
    fn writer_for(&mut self, first: &WholeSlot) -> Result<&mut Writer, Full> {
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => self.place.open(first.parent(), &self.figures).map_err(|error| Full(format!("{error:#}")))?,
        };
        Ok(self.writer.insert(writer))
    }
}

/// The place of a spool on disk, and the meaning of its events.
pub(super) struct Place {
    pub(super) dir: PathBuf,
    pub(super) meaning: String,
    pub(super) bytes_max: u64,
}

impl Place {
    /// Opens the spool, or makes one that begins after `base`.
    ///
    /// # Errors
    /// Those of [`Writer::open`].
    pub(super) fn open(&self, base: Base, figures: &Arc<SpoolFigures>) -> Result<Writer> {
        let origin = Origin { base, meaning: self.meaning.clone() };
        Writer::open(&self.dir, &origin, self.bytes_max, Arc::clone(figures))
    }
}
