//! Gives the slots of the spool to ingest-apply.
//!
//! Owns: the place of the store in the spool, and the end of the spool after the replay. Must not: write, or skip a slot.
//! Runs on a task of the runtime; the reading has a thread of the blocking pool.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use solana::ChainCheckpoint;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tracing::{error, info, warn};

use super::{Spooling, remove, remove_dir};
use crate::base::chain::{Base, Phase, WholeSlot};
use crate::ingest::State;
use crate::ingest::receive::{Message, Wholes};
use crate::spool::{Reader, SpoolFigures};

/// How often the end of a replay looks whether ingest-apply has applied the last slot.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(50);

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
            format!("the store has no slot, so the spool cannot follow it: dir={}: remove it", dir.display())
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
        info!(slot = reader.last().slot, "applying the slots that were kept");
        pass_contradiction(&spooling, state);
        let (dir, figures) = (spooling.dir.clone(), Arc::clone(&spooling.figures));
        let feeder = Feeder {
            reader,
            of: None,
            figures: Arc::clone(&figures),
            messages: Wholes::new(messages.clone()),
            state: state.clone(),
        };
        let Some(feeder) = feeder.replay().await else { return };
        // The rest is what came until the spool's end.
        spooling.end().await;
        let Some(feeder) = feeder.replay().await else { return };
        let last = feeder.reader.last().slot;
        while state.published.slot().is_none_or(|slot| slot < last) {
            if messages.is_closed() {
                return;
            }
            if feeder.is_given_up() {
                // A gap that is no contradiction may be one of a limit, and a later start may get past it.
                if !matches!(state.progress.phase(), Phase::Gap(gap) if !gap.contradicts) {
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
        info!(slot = last, "the slots that were kept are applied");
        drop(feeder);
        remove_dir(&dir, &figures);
    }
}

/// Has the store take over a contradiction of the kept slots that only the spool knows. A gap of the spool that is itself
/// a contradiction is left out: the stream will contradict the store as well.
fn pass_contradiction(spooling: &Spooling, state: &State) {
    let of_spool = &spooling.state.progress;
    if let Some(contradiction) = of_spool.contradiction().filter(|_| of_spool.gap().is_none_or(|gap| !gap.contradicts))
    {
        state.progress.contradict(&contradiction.gap, contradiction.accused);
    }
}

/// The sending end of a replay, and how far it is.
struct Feeder {
    reader: Reader,
    /// The provider of the newest slot that was sent, and the number of the connection that ingest-apply takes it for;
    /// `None` before the first slot.
    of: Option<(u32, u64)>,
    figures: Arc<SpoolFigures>,
    messages: Wholes,
    state: State,
}

impl Feeder {
    fn is_given_up(&self) -> bool {
        self.of.is_some_and(|(_, connection)| self.state.resume.is_given_up(connection))
    }

    /// Sends the slots up to the flushed end of the spool, or until they are given up. `None` if ingest-apply has ended.
    async fn replay(mut self) -> Option<Self> {
        let replaying = move || {
            while !self.is_given_up() {
                match self.reader.next(self.figures.flushed_bytes()) {
                    Ok(Some(slot)) => self.send(slot)?,
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
            Some(self)
        };
        spawn_blocking(replaying).await.ok().flatten()
    }

    /// Sends a slot, and before it the provider that it came from, unless the slot before came from the same one.
    /// `None` if ingest-apply has ended.
    fn send(&mut self, slot: WholeSlot) -> Option<()> {
        let source = self.reader.source();
        if self.of.is_none_or(|(of, _)| of != source) {
            let (provider, stream) = (self.state.providers.of_source(source), self.state.providers.stream());
            self.messages.queue().blocking_send(Message::From { provider, stream }).ok()?;
            self.of = Some((source, self.state.resume.announce()));
        }
        Handle::current().block_on(self.messages.send(slot)).ok()
    }
}
