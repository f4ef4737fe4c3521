//! Follows the stream into the spool while the store is not there yet, and hands the spool over to the ingest.
//!
//! Owns: the receiver and the thread `spool` of that time; the slots that go from the spool to ingest-apply. Must not:
//! touch the engine, or skip a gap. Threads: the receiver is a task; `spool` assembles and writes; the replay reads on
//! the blocking pool.
//!
//! The spool continues while it is replayed, because a replay may take longer than a server keeps its slots. It ends
//! once the replay has reached its end. Then the ingest's own receiver begins at the newest applied slot, which every
//! server still has.

mod replay;
mod spooler;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use solana::ChainCheckpoint;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};

pub use self::replay::Replay;
use self::spooler::Place;
pub(super) use self::spooler::Spooler;
use super::State;
use super::receive::{Message, ReceiveConfig, queue_batches};
use super::stream::receive_from;
use super::upstream::Upstream;
use crate::base::chain::{Base, Gap};
use crate::overlay::Overlay;
use crate::spool::{Reader, SpoolFigures, Writer};

/// Settings of the spool. Those of the slots that it takes are the stream's.
#[derive(Clone, Debug)]
pub struct SpoolConfig {
    /// Directory of the spool, which is made if it is missing.
    pub dir: PathBuf,
    /// Maximum size of the spool.
    pub bytes_max: u64,
}

/// A spool that follows the stream.
pub struct Spooling {
    dir: PathBuf,
    figures: Arc<SpoolFigures>,
    state: State,
    stop: watch::Sender<bool>,
    receiver: JoinHandle<()>,
    writer: JoinHandle<()>,
}

impl Spooling {
    /// Opens the spool, or begins one after the block `base`, and follows the stream into it. Without a base the spool
    /// begins with the first whole slot of the stream. The pages of `ingest` show the stream's receiver.
    ///
    /// # Errors
    /// Errors of opening the spool; no thread can be started.
    pub fn start(
        config: SpoolConfig,
        base: Option<Base>,
        stream: ReceiveConfig,
        figures: Arc<SpoolFigures>,
        ingest: &State,
    ) -> Result<Self> {
        Self::start_from(stream.providers.clone(), config, base, stream, figures, ingest, on_thread)
    }

    /// Starts as [`Self::start`] does, from any upstreams, which are those of `ingest`. `run` has the slots taken and
    /// written; the simulation does that on its own runtime.
    pub(super) fn start_from<U: Upstream + 'static>(
        upstreams: Vec<U>,
        config: SpoolConfig,
        base: Option<Base>,
        stream: ReceiveConfig,
        figures: Arc<SpoolFigures>,
        ingest: &State,
        run: impl FnOnce(Spooler, mpsc::Receiver<Message>) -> Result<JoinHandle<()>>,
    ) -> Result<Self> {
        let SpoolConfig { dir, bytes_max } = config;
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
        let state = ingest.at_checkpoint(checkpoint, Overlay::new(&checkpoint, false, false));
        let (stop, stopped) = watch::channel(false);
        let (messages, received) = mpsc::channel(queue_batches());
        let spooler = Spooler::new(place, writer, Arc::clone(&figures), state.clone(), stream.settings.gap_timeout);
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
        // Before a gap is shown, the slots before it are flushed.
        let gap = self.state.progress.gap()?;
        // ORDERING: Relaxed: a statistic.
        (self.figures.slots.load(std::sync::atomic::Ordering::Relaxed) == 0).then_some(gap)
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

async fn remove(spooling: Spooling) {
    let (dir, figures) = (spooling.dir.clone(), Arc::clone(&spooling.figures));
    spooling.end().await;
    remove_dir(&dir, &figures);
}

fn remove_dir(dir: &Path, figures: &SpoolFigures) {
    // A spool that stays is passed at the next start.
    if let Err(error) = std::fs::remove_dir_all(dir)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        warn!(%error, dir = %dir.display(), "cannot remove the spool");
    }
    figures.close();
}

#[cfg(test)]
mod tests;
