//! The sources of the slots of one life: the spool, the stream, and archives for the gaps that the stream leaves.
//!
//! Owns: their order, which is that of the service. Must not: check anything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use engine_latency::Measured;
use solana::ChainCheckpoint;
use tokio::sync::{mpsc, watch};

use super::Simulation;
use super::healing::Healer;
use super::server::Server;
use crate::ingest::State;
use crate::ingest::receive::{Message, ReceiveConfig};
use crate::ingest::spooling::{Replay, Spooling};
use crate::ingest::stream::receive_from;
use crate::spool::SpoolFigures;

/// The source of the first slots.
pub(super) enum Begin {
    /// Slots of the spool that the store lacks, if there are any, and then the stream.
    Follow(Option<Replay>),
    /// An archive, and then the slots of the spool.
    Heal(Option<Spooling>),
}

/// The sources of the slots that ingest-apply gets.
pub(super) struct Sources {
    pub(super) servers: Vec<Server>,
    pub(super) stream: ReceiveConfig,
    pub(super) messages: mpsc::Sender<Message>,
    pub(super) state: State,
    pub(super) stopped: watch::Receiver<bool>,
    /// Whether the stream is followed, and nothing was healed in this life before.
    pub(super) follows: Arc<AtomicBool>,
}

/// The beginning of a life.
pub(super) struct Start {
    pub(super) begin: Begin,
    pub(super) healer: Option<Healer>,
    /// SpoolFigures of this life's spool.
    pub(super) spool: Arc<SpoolFigures>,
    /// Dropped with the task that writes the spool.
    pub(super) written: Arc<()>,
}

impl Simulation {
    /// Begins a life of a store at `checkpoint`.
    pub(super) async fn start(&mut self, checkpoint: &ChainCheckpoint, engine: &Arc<Measured>, state: &State) -> Start {
        match self.heal_for(checkpoint, engine, state).await {
            Some(start) => start,
            None => self.replay_for(checkpoint, state).await,
        }
    }

    /// Returns the sources of a life that sends its slots to `messages`.
    pub(super) fn sources(
        &self,
        messages: mpsc::Sender<Message>,
        state: &State,
        stopped: watch::Receiver<bool>,
        follows: Arc<AtomicBool>,
    ) -> Sources {
        let (servers, stream, state) = (self.servers.clone(), self.receive.clone(), state.clone());
        Sources { servers, stream, messages, state, stopped, follows }
    }
}

impl Sources {
    /// Sends the slots until the service stops.
    pub(super) async fn feed(self, mut begin: Begin, healer: Option<Healer>) {
        let mut has_healed = false;
        loop {
            begin = match begin {
                Begin::Heal(spooling) => {
                    has_healed = true;
                    // ORDERING: Relaxed: one thread.
                    self.follows.store(false, Ordering::Relaxed);
                    let healer = healer.as_ref().expect("only a healer leads to a heal");
                    let Some(replay) = healer.heal(spooling, &self.messages, &self.state).await else { return };
                    Begin::Follow(replay)
                }
                Begin::Follow(replay) => {
                    tokio::select! {
                        () = self.follow(replay, !has_healed) => return,
                        () = needed(healer.as_ref(), &self.state, self.stream.settings.gap_timeout) => Begin::Heal(None),
                    }
                }
            };
        }
    }

    async fn follow(&self, replay: Option<Replay>, is_first: bool) {
        if let Some(replay) = replay {
            replay.run(&self.messages, &self.state).await;
            self.servers.iter().for_each(Server::forget);
        }
        // ORDERING: Relaxed: one thread.
        self.follows.store(is_first, Ordering::Relaxed);
        let (servers, stream) = (self.servers.clone(), self.stream.clone());
        receive_from(servers, stream, self.messages.clone(), self.state.clone(), self.stopped.clone()).await;
    }
}

async fn needed(healer: Option<&Healer>, state: &State, gap_timeout: Duration) {
    match healer {
        Some(_) => crate::heal::needed(state, gap_timeout).await,
        None => std::future::pending().await,
    }
}
