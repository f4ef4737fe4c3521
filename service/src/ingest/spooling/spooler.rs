//! Takes the slots of the stream and writes them to the spool.
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
use crate::ingest::phase::Taker;
use crate::ingest::receive::Message;
use crate::ingest::sequence::Sequence;
use crate::spool::{Full, Origin, SpoolFigures, Writer, source_of};

/// The state of the thread `spool`, which assembles and writes.
pub(in crate::ingest) struct Spooler {
    place: Place,
    /// `None` before the first slot of a spool without a base.
    writer: Option<Writer>,
    /// The provider of the present connection, as frames name it.
    source: u32,
    figures: Arc<SpoolFigures>,
    sequence: Sequence,
    state: State,
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
            sequence: Sequence::new(Taker::Spool, state.clone(), last, gap_timeout),
            state,
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
        self.sequence.phase.begin();
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
        if let Message::Reconnected { provider, .. } | Message::From { provider, .. } = message {
            self.source = source_of(self.state.providers.name(provider));
        }
        if let Some(gap) = self.slots(message)? {
            self.flush()?;
            self.sequence.start_over(self.last(), gap);
        }
        if nothing_waits { self.flush() } else { Ok(()) }
    }

    /// Keeps the slots that are whole and next after this message. Returns the gap that it leads to.
    fn slots(&mut self, message: Message) -> Result<Option<Gap>, Full> {
        let gap_of_message = self.sequence.take(message).err();
        while let Some(slot) = self.sequence.next() {
            let source = self.source;
            let writer = self.writer_for(&slot)?;
            writer.set_source(source);
            writer.append(&slot)?;
            self.sequence.taken(&slot);
            self.sequence.phase.committed(slot.slot, slot.created_unix_ms);
        }
        Ok(gap_of_message.or_else(|| self.sequence.check()))
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
            None => self.place.open(first.parent, &self.figures).map_err(|error| Full(format!("{error:#}")))?,
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
