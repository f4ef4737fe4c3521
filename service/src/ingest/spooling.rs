//! Follows the stream into the spool while the store is not there yet, and hands the spool over to the ingest.
//!
//! Owns: the receiver and the thread `spool` of that time; the slots that go from the spool to ingest-apply. Must not:
//! touch the engine, or skip a gap. Threads: the receiver is a task; `spool` assembles and writes; the replay reads on
//! the blocking pool.
//!
//! The spool continues while it is replayed, because a replay may take longer than a server keeps its slots. It ends
//! once the replay has reached its end. Then the ingest's own receiver begins at the newest applied slot, which every
//! server still has.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use solana::ChainCheckpoint;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::{error, info, warn};

use super::State;
use super::assemble::{Assembler, Input, Limits};
use super::receive::{Message, ReceiveConfig, messages_of, queue_batches};
use super::standing::Standing;
use super::stream::receive_from;
use super::upstream::Upstream;
use super::waiting::Waiting;
use crate::chain::{Base, Gap, Phase, WholeSlot};
use crate::overlay::Overlay;
use crate::readiness;
use crate::spool::{Figures, Full, Origin, Reader, Writer, source_of};

/// How often the end of a replay looks whether ingest-apply has applied the last slot.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How often the stream is shown as the spool's receiver sees it.
const SHOW_EVERY: Duration = Duration::from_millis(500);

/// Settings of the spool. Those of the slots that it takes are the stream's.
#[derive(Clone, Debug)]
pub struct SpoolConfig {
    /// Directory of the spool, which is made if it is missing.
    pub dir: PathBuf,
    /// Maximum size of the spool.
    pub bytes_max: u64,
    /// Limits of readiness, which a [`State`] needs.
    pub limits: readiness::Limits,
}

/// A spool that follows the stream.
pub struct Spooling {
    dir: PathBuf,
    figures: Arc<Figures>,
    state: State,
    stop: watch::Sender<bool>,
    receiver: JoinHandle<()>,
    writer: JoinHandle<()>,
}

impl Spooling {
    /// Opens the spool, or begins one after the block `base`, and follows the stream into it. Without a base the spool
    /// begins with the first whole slot of the stream.
    ///
    /// # Errors
    /// Errors of opening the spool; no thread can be started.
    pub fn start(
        config: SpoolConfig,
        base: Option<Base>,
        stream: ReceiveConfig,
        figures: Arc<Figures>,
    ) -> Result<Self> {
        let names = stream.providers.iter().map(|provider| provider.shown().to_owned()).collect();
        Self::start_from(stream.providers.clone(), names, config, base, stream, figures, on_thread)
    }

    /// Starts as [`Self::start`] does, from any upstreams with these names. `run` has the slots assembled and written;
    /// the simulation does that on its own runtime.
    pub(super) fn start_from<U: Upstream + 'static>(
        upstreams: Vec<U>,
        names: Vec<String>,
        config: SpoolConfig,
        base: Option<Base>,
        stream: ReceiveConfig,
        figures: Arc<Figures>,
        run: impl FnOnce(Spooler, mpsc::Receiver<Message>) -> Result<JoinHandle<()>>,
    ) -> Result<Self> {
        let SpoolConfig { dir, bytes_max, limits } = config;
        figures.begin();
        let place = Place { dir: dir.clone(), meaning: stream.selection.to_string(), bytes_max };
        let writer = base.map(|base| place.open(base, &figures)).transpose()?;
        let last = writer.as_ref().map(Writer::last);
        info!(dir = %dir.display(), slot = last.map(|last| last.slot), "the stream is kept on disk until the store can take it");
        let checkpoint = last.map_or_else(ChainCheckpoint::default, |last| ChainCheckpoint {
            slot: Some(last.slot),
            blockhash: last.blockhash,
            ..ChainCheckpoint::default()
        });
        let state = State::new(checkpoint, Overlay::new(&checkpoint, false, false), limits).with_providers(names);
        let (stop, stopped) = watch::channel(false);
        let (messages, received) = mpsc::channel(queue_batches());
        let spooler = Spooler {
            place,
            writer,
            source: 0,
            figures: Arc::clone(&figures),
            assembler: Assembler::new(last, Limits::within(probe::memory_limit().bytes)),
            standing: Standing::of_spool(state.clone()),
            state: state.clone(),
            waiting: Waiting::new(stream.settings.gap_timeout),
        };
        let writer = run(spooler, received)?;
        let receiver = tokio::spawn(receive_from(upstreams, stream, messages, state.clone(), stopped));
        Ok(Self { dir, figures, state, stop, receiver, writer })
    }

    /// State of the receiver and of the spool's place in the chain.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the slots that the stream lacks right after the base, while the spool has none. A store that is loaded
    /// at the base could not continue with this spool.
    pub fn lacks(&self) -> Option<Gap> {
        // ORDERING: Relaxed: a statistic.
        let has_slots = self.figures.slots.load(std::sync::atomic::Ordering::Relaxed) > 0;
        if has_slots { None } else { self.state.readiness.verdict().gap }
    }

    /// The block that the spool follows; `None` before the first slot.
    ///
    /// # Errors
    /// I/O errors; a file that is no spool.
    pub fn base(&self) -> Result<Option<Base>> {
        // ORDERING: Relaxed: the file was begun before, or is found at the next look.
        let is_open = self.figures.open.load(std::sync::atomic::Ordering::Relaxed);
        is_open.then(|| Ok(Reader::open(&self.dir)?.last())).transpose()
    }

    /// Finds the block of `slot` in the spool. `None` if the spool has not reached it.
    ///
    /// # Errors
    /// The slot is not on the chain of the spool; errors of reading.
    pub fn find(&self, slot: u64) -> Result<Option<Base>> {
        let until = self.figures.flushed_bytes();
        let mut reader = Reader::open(&self.dir)?;
        while reader.last().slot < slot && reader.pass(until)? {}
        let last = reader.last();
        ensure!(last.slot <= slot, "the slot is not on the chain of the stream: slot={slot} next_slot={}", last.slot);
        Ok((last.slot == slot).then_some(last))
    }

    /// Ends the spool and removes its slots.
    pub async fn discard(self) {
        remove(self).await;
    }

    /// Ends the receiver and the task of the writing at once, as the end of the process does.
    #[cfg(test)]
    pub(super) fn abort(self) {
        self.receiver.abort();
        self.writer.abort();
    }

    /// Ends the receiver and the thread, after the slots that were received are flushed.
    async fn end(self) {
        self.stop.send_replace(true);
        self.receiver.await.ok();
        self.writer.await.ok();
    }
}

/// Starts the thread `spool`. Returns the task that ends with it.
fn on_thread(spooler: Spooler, received: mpsc::Receiver<Message>) -> Result<JoinHandle<()>> {
    let (ended, has_ended) = tokio::sync::oneshot::channel();
    thread::Builder::new()
        .name("spool".to_owned())
        .spawn(move || {
            spooler.run(received);
            ended.send(()).ok();
        })
        .context("cannot start the thread of the spool")?;
    Ok(tokio::spawn(async move { has_ended.await.unwrap_or_default() }))
}

/// The state of the thread `spool`, which assembles and writes.
pub(super) struct Spooler {
    place: Place,
    /// `None` before the first slot of a spool without a base.
    writer: Option<Writer>,
    /// The provider of the present connection, as frames name it.
    source: u32,
    figures: Arc<Figures>,
    assembler: Assembler,
    standing: Standing,
    state: State,
    waiting: Waiting,
}

impl Spooler {
    fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        self.begin();
        while let Some(message) = messages.blocking_recv() {
            if !self.goes_on(message, messages.is_empty()) {
                return;
            }
        }
        self.end();
    }

    /// Publishes the phase, before the first message.
    pub(super) fn begin(&self) {
        self.standing.begin();
    }

    /// Takes in one message. Returns false once the spool takes no more slots.
    pub(super) fn goes_on(&mut self, message: Message, nothing_waits: bool) -> bool {
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
    pub(super) fn end(mut self) {
        if let Err(Full(why)) = self.flush() {
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
                if let Some(writer) = &mut self.writer {
                    writer.set_source(self.source);
                }
                if self.standing.reconnected(provider) {
                    // Whole slots that wait for a parent are the earlier provider's word, which nothing has confirmed.
                    self.assembler.restart(self.last());
                }
                self.input(Input::Reconnected)?;
            }
            Message::Tick => self.check_waiting()?,
            Message::Gap(gap) => self.start_over(gap)?,
            // A kept slot keeps its block, so that the next one contradicts it. The receiver sends no heal.
            Message::Replaced { .. } | Message::Heal(_) | Message::Beat => {}
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
            self.writer_for(&slot)?.append(&slot)?;
            self.state.resume.set_slot(slot.slot);
            self.waiting.over();
            self.standing.committed(slot.slot, slot.created_unix_ms);
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
            None => {
                let base = Base { slot: first.parent_slot, blockhash: first.parent_blockhash };
                let mut writer = self.place.open(base, &self.figures).map_err(|error| Full(format!("{error:#}")))?;
                writer.set_source(self.source);
                writer
            }
        };
        Ok(self.writer.insert(writer))
    }
}

/// The place of a spool on disk, and the meaning of its events.
struct Place {
    dir: PathBuf,
    meaning: String,
    bytes_max: u64,
}

impl Place {
    fn open(&self, base: Base, figures: &Arc<Figures>) -> Result<Writer> {
        let origin = Origin { base, meaning: self.meaning.clone() };
        Writer::open(&self.dir, &origin, self.bytes_max, Arc::clone(figures))
    }
}

/// A spool whose slots after the store's are given to ingest-apply.
pub struct Replay {
    spooling: Spooling,
    reader: Reader,
}

impl Replay {
    /// Finds the place of a store at `checkpoint` in the spool. `None` if the store has passed the spool's end: then
    /// the spool is ended and removed.
    ///
    /// # Errors
    /// The store's slot is before the spool's first one, or is not on its chain; errors of reading the spool.
    pub async fn of(spooling: Spooling, checkpoint: &ChainCheckpoint) -> Result<Option<Self>> {
        let dir = spooling.dir.clone();
        let applied = checkpoint.slot.with_context(|| {
            format!("the store stands at no slot, so the spool cannot follow it: dir={}: remove it", dir.display())
        })?;
        let mut reader = Reader::open(&dir)?;
        let base = reader.last().slot;
        let until = spooling.figures.flushed_bytes();
        ensure!(
            applied >= base,
            "the spool does not connect with the store: dir={} store_slot={applied} spool_base_slot={base} \
             missing_first_slot={} missing_last_slot={base}: load an archive of slot={base} or later, or remove the \
             directory of the spool to have the stream asked for the slots",
            dir.display(),
            applied + 1
        );
        while reader.last().slot < applied && reader.pass(until)? {}
        let Base { slot, blockhash } = reader.last();
        if slot < applied {
            info!(store_slot = applied, spool_slot = slot, "the store has passed the spool, which is removed");
            remove(spooling).await;
            return Ok(None);
        }
        let known = [blockhash, checkpoint.blockhash].iter().all(|hash| *hash != [0; 32]);
        ensure!(
            slot == applied && (!known || blockhash == checkpoint.blockhash),
            "the store's slot is not on the chain of the spool: dir={} store_slot={applied} spool_slot={slot}: remove \
             the directory of the spool to have the stream asked for the slots after the store's",
            dir.display()
        );
        Ok(Some(Self { spooling, reader }))
    }

    /// Sends the spool's slots to ingest-apply, which `state` belongs to. Ends the spool once all are sent, and removes
    /// it once they are committed, or once one of them contradicts the applied chain. Returns early when ingest-apply
    /// has ended or has given the replay up.
    pub async fn run(self, messages: &mpsc::Sender<Message>, state: &State) {
        let Self { spooling, reader } = self;
        info!(slot = reader.last().slot, "applying the slots that came during the load");
        let (dir, figures) = (spooling.dir.clone(), Arc::clone(&spooling.figures));
        let feeder = Feeder { figures: Arc::clone(&figures), messages: messages.clone(), state: state.clone() };
        // Until the spool ends, its receiver is the only one.
        let shows = async {
            loop {
                state.mirror(&spooling.state);
                tokio::time::sleep(SHOW_EVERY).await;
            }
        };
        let sent = tokio::select! {
            sent = feeder.clone().replay(Sent { reader, told: None }) => sent,
            () = shows => None,
        };
        let Some(sent) = sent else { return };
        // The rest is what came until the spool's end.
        spooling.end().await;
        let Some(sent) = feeder.replay(sent).await else { return };
        let last = sent.reader.last().slot;
        while state.published.slot().is_none_or(|slot| slot < last) {
            if messages.is_closed() {
                return;
            }
            if sent.is_given_up(state) {
                // A gap that is no contradiction may be one of a limit, and a later start may get past it.
                if !matches!(state.readiness.phase(), Phase::Gap(gap) if !gap.contradicts) {
                    warn!(
                        dir = %dir.display(),
                        "the spool contradicts the applied chain, and is removed; the stream is asked for its slots"
                    );
                    remove_dir(&dir, &figures);
                }
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        info!(slot = last, "the slots that came during the load are applied");
        drop(sent);
        remove_dir(&dir, &figures);
    }
}

/// How far a replay is.
struct Sent {
    reader: Reader,
    /// The provider of the newest slot that was sent, and the number of the connection that ingest-apply takes it for;
    /// `None` before the first slot.
    told: Option<(u32, u64)>,
}

impl Sent {
    fn is_given_up(&self, state: &State) -> bool {
        self.told.is_some_and(|(_, connection)| state.resume.is_given_up(connection))
    }
}

/// The sending end of a replay.
#[derive(Clone)]
struct Feeder {
    figures: Arc<Figures>,
    messages: mpsc::Sender<Message>,
    state: State,
}

impl Feeder {
    /// Sends the slots up to the flushed end of the spool, or until they are given up. `None` if ingest-apply has ended.
    async fn replay(self, mut sent: Sent) -> Option<Sent> {
        let replaying = move || {
            while !sent.is_given_up(&self.state) {
                match sent.reader.next(self.figures.flushed_bytes()) {
                    Ok(Some(slot)) => self.send(slot, &mut sent)?,
                    Ok(None) => break,
                    Err(failed) => {
                        let failed = format!("{failed:#}");
                        error!(
                            error = failed,
                            "the rest of the spool cannot be read; the stream is asked for its slots"
                        );
                        break;
                    }
                }
            }
            Some(sent)
        };
        spawn_blocking(replaying).await.ok().flatten()
    }

    /// Sends a slot, and before it the provider that it came from, unless the slot before came from the same one.
    /// `None` if ingest-apply has ended.
    fn send(&self, slot: WholeSlot, sent: &mut Sent) -> Option<()> {
        let source = sent.reader.source();
        if sent.told.is_none_or(|(told, _)| told != source) {
            let provider = self.state.providers.of_source(source);
            self.messages.blocking_send(Message::Reconnected { provider }).ok()?;
            sent.told = Some((source, self.state.resume.announce()));
        }
        // ORDERING: Relaxed: a statistic.
        let newest = self.figures.last_slot.load(std::sync::atomic::Ordering::Relaxed);
        self.state.readiness.set_newest_slot(newest);
        messages_of(slot).try_for_each(|message| self.messages.blocking_send(message).ok())
    }
}

async fn remove(spooling: Spooling) {
    let (dir, figures) = (spooling.dir.clone(), Arc::clone(&spooling.figures));
    spooling.end().await;
    remove_dir(&dir, &figures);
}

fn remove_dir(dir: &Path, figures: &Figures) {
    // A spool that stays is passed at the next start.
    if let Err(error) = std::fs::remove_dir_all(dir)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        warn!(%error, dir = %dir.display(), "cannot remove the spool");
    }
    figures.close();
}

#[cfg(test)]
#[path = "spooling_tests.rs"]
mod tests;
