//! Assembles the slots of the stream and writes them to the spool.
//!
//! Owns: the newest slot, which is held back, and the end of the spool. Must not: write a slot that its own provider has
//! refuted before the next one came, or skip a gap. Runs on the thread `spool`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::error;

use crate::chain::{Base, Gap, WholeSlot};
use crate::ingest::State;
use crate::ingest::assemble::{Assembler, Input, Limits};
use crate::ingest::receive::Message;
use crate::ingest::standing::Standing;
use crate::ingest::waiting::Waiting;
use crate::spool::{Figures, Full, Origin, Writer, source_of};

/// Maximum time for which the newest slot is held back. The next slot mostly comes within a second, and a block in its
/// place within the time that a takeover takes.
const HELD_MAX: Duration = Duration::from_secs(10);

/// The state of the thread `spool`, which assembles and writes.
pub(in crate::ingest) struct Spooler {
    place: Place,
    /// `None` before the first slot of a spool without a base.
    writer: Option<Writer>,
    /// The newest slot, which is held back until its provider cannot refute it any more by the parent of the next one.
    newest: Option<Newest>,
    /// The provider of the present connection, as frames name it.
    source: u32,
    figures: Arc<Figures>,
    assembler: Assembler,
    standing: Standing,
    state: State,
    waiting: Waiting,
}

struct Newest {
    slot: WholeSlot,
    /// The provider that the slot came from, as frames name it.
    source: u32,
    since: Instant,
}

impl Spooler {
    /// Creates the state at the end of `writer`'s spool, or before the first slot of the spool that `place` will hold.
    pub(super) fn new(
        place: Place,
        writer: Option<Writer>,
        figures: Arc<Figures>,
        state: State,
        gap_timeout: Duration,
    ) -> Self {
        let last = writer.as_ref().map(Writer::last);
        Self {
            place,
            writer,
            newest: None,
            source: 0,
            figures,
            assembler: Assembler::new(last, Limits::within(probe::memory_limit().bytes)),
            standing: Standing::of_spool(state.clone()),
            state,
            waiting: Waiting::new(gap_timeout),
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
        if let Err(Full(why)) = self.write_newest().and_then(|()| self.flush()) {
            error!(reason = why, "the spool's last slots are lost; the stream is asked for them");
            self.figures.stop(why);
        }
    }

    fn take(&mut self, message: Message, nothing_waits: bool) -> Result<(), Full> {
        match message {
            Message::Batch(inputs) => inputs.into_iter().try_for_each(|input| self.input(input))?,
            Message::Reconnected { provider } => {
                self.waiting.over();
                self.source = source_of(self.state.providers.name(provider));
                if self.standing.reconnected(provider) {
                    // Whole slots that wait for a parent are the earlier provider's word, which nothing has confirmed.
                    self.assembler.restart(self.last());
                }
                self.input(Input::Reconnected)?;
            }
            Message::Tick => {
                self.check_waiting()?;
                if self.newest.as_ref().is_some_and(|newest| newest.since.elapsed() >= HELD_MAX) {
                    self.write_newest()?;
                }
            }
            Message::Gap(gap) => self.start_over(gap)?,
            Message::Replaced { slot, provider } => self.replace(*slot, provider),
            // The receiver sends no heal.
            Message::Heal(_) | Message::Beat => {}
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
            self.write_newest()?;
            self.writer_for(&slot)?;
            // ORDERING: Relaxed: a statistic.
            self.figures.has_slots.store(true, std::sync::atomic::Ordering::Relaxed);
            self.state.resume.set_slot(slot.slot);
            self.waiting.over();
            self.standing.committed(slot.slot, slot.created_unix_ms);
            self.newest = Some(Newest { slot, source: self.source, since: Instant::now() });
        }
        match self.assembler.check_gap() {
            Some(gap) => self.start_over(gap),
            None => self.check_waiting(),
        }
    }

    fn check_waiting(&mut self) -> Result<(), Full> {
        let gap = self.waiting.check(&self.assembler);
        gap.map_or(Ok(()), |gap| self.start_over(gap))
    }

    fn start_over(&mut self, gap: Gap) -> Result<(), Full> {
        self.flush()?;
        if self.assembler.contradicting_block().is_some()
            && self.newest.take_if(|newest| newest.source == self.source).is_some()
            && let Some(last) = self.last()
        {
            // Its own provider refutes the newest slot, so that it is asked for again.
            self.state.resume.set_slot(last.slot);
        }
        self.assembler.restart(self.last());
        self.waiting.over();
        self.standing.gap(gap);
        Ok(())
    }

    /// Puts a block of this provider in the place of the newest slot. If that slot is written, it keeps its block, so that
    /// the next slot contradicts it.
    fn replace(&mut self, slot: WholeSlot, provider: usize) {
        let is_in_place = |newest: &&mut Newest| (newest.slot.slot, newest.slot.parent()) == (slot.slot, slot.parent());
        if let Some(newest) = self.newest.as_mut().filter(is_in_place) {
            self.assembler.replace_last(slot.base());
            (newest.slot, newest.source) = (slot, source_of(self.state.providers.name(provider)));
        }
    }

    fn write_newest(&mut self) -> Result<(), Full> {
        let Some(Newest { slot, source, .. }) = self.newest.take() else { return Ok(()) };
        let writer = self.writer_for(&slot)?;
        writer.set_source(source);
        writer.append(&slot)
    }

    fn flush(&mut self) -> Result<(), Full> {
        self.writer.as_mut().map_or(Ok(()), Writer::flush)
    }

    fn last(&self) -> Option<Base> {
        let newest = self.newest.as_ref().map(|newest| newest.slot.base());
        newest.or_else(|| self.writer.as_ref().map(Writer::last))
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
    pub(super) fn open(&self, base: Base, figures: &Arc<Figures>) -> Result<Writer> {
        let origin = Origin { base, meaning: self.meaning.clone() };
        Writer::open(&self.dir, &origin, self.bytes_max, Arc::clone(figures))
    }
}

#[cfg(test)]
mod tests {
    use solana::ChainCheckpoint;
    use tempfile::{TempDir, tempdir};

    use super::*;
    use crate::ingest::receive::messages_of;
    use crate::spool::Reader;

    const PROVIDERS: [&str; 2] = ["http://first", "http://second"];

    fn slot(number: u64, [own, parent]: [u8; 2]) -> WholeSlot {
        WholeSlot {
            slot: number,
            blockhash: [own; 32],
            parent_slot: number - 1,
            parent_blockhash: [parent; 32],
            created_unix_ms: 0,
            events: Vec::new(),
        }
    }

    /// A spool after slot 10 that has taken slot 11 of provider 0 with the wrong blockhash 99.
    struct Story {
        spooler: Spooler,
        state: State,
        temp: TempDir,
    }

    impl Story {
        fn begin() -> Self {
            let temp = tempdir().unwrap();
            let origin =
                Origin { base: Base { slot: 10, blockhash: [10; 32] }, meaning: "account-owner all".to_owned() };
            let checkpoint = ChainCheckpoint { slot: Some(10), blockhash: [10; 32], ..ChainCheckpoint::default() };
            let state = State::at(checkpoint).with_providers(PROVIDERS.map(str::to_owned));
            let figures = Arc::<Figures>::default();
            let place = Place { dir: temp.path().to_owned(), meaning: origin.meaning.clone(), bytes_max: 1 << 20 };
            let writer = Writer::open(temp.path(), &origin, 1 << 20, Arc::clone(&figures)).unwrap();
            let spooler = Spooler::new(place, Some(writer), figures, state.clone(), Duration::from_secs(3600));
            let mut story = Self { spooler, state, temp };
            story.connect(0);
            story.block(11, [99, 10]);
            story
        }

        fn take(&mut self, message: Message) {
            assert!(self.spooler.goes_on(message, true));
        }

        fn connect(&mut self, provider: usize) {
            self.take(Message::Reconnected { provider });
        }

        fn block(&mut self, number: u64, names: [u8; 2]) {
            messages_of(slot(number, names)).for_each(|message| self.take(message));
        }

        /// Returns slot, blockhash and source of each slot that a reader finds.
        fn kept(&self) -> Vec<(u64, u8, u32)> {
            let mut reader = Reader::open(self.temp.path()).unwrap();
            let until = self.spooler.figures.flushed_bytes();
            let slots = std::iter::from_fn(|| reader.next(until).unwrap().map(|slot| (slot, reader.source())));
            slots.map(|(slot, source)| (slot.slot, slot.blockhash[0], source)).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_that_its_own_provider_refutes_is_asked_for_again() {
        let [first, second] = PROVIDERS.map(source_of);
        let mut story = Story::begin();
        story.block(12, [12, 11]);
        assert_eq!((story.kept(), story.state.resume.slot()), (vec![], Some(10)));
        assert!(story.state.providers.is_distrusted(0));
        story.connect(1);
        story.block(11, [11, 10]);
        story.block(12, [12, 11]);
        assert_eq!(story.kept(), [(11, 11, second)]);
        assert!(!story.state.providers.is_distrusted(1));

        // Another provider's word does not count, and a slot that nothing follows is kept after a while.
        let mut story = Story::begin();
        story.connect(1);
        story.block(11, [11, 10]);
        assert!(story.state.providers.is_distrusted(1));
        tokio::time::advance(HELD_MAX).await;
        story.take(Message::Tick);
        assert_eq!(story.kept(), [(11, 99, first)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_that_two_lanes_replace_is_kept_as_the_other_block() {
        let mut story = Story::begin();
        story.connect(1);
        let other = |parent| slot(11, [11, parent]);
        story.take(Message::Replaced { slot: Box::new(other(77)), provider: 1 });
        assert_eq!(story.spooler.last(), Some(Base { slot: 11, blockhash: [99; 32] }), "after another parent");
        story.take(Message::Replaced { slot: Box::new(other(10)), provider: 1 });
        story.block(12, [12, 11]);
        story.spooler.write_newest().unwrap();
        story.spooler.flush().unwrap();
        let source = source_of(PROVIDERS[1]);
        assert_eq!(story.kept(), [(11, 11, source), (12, 12, source)]);
    }
}
