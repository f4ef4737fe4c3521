//! The sources of the slots that ingest-apply gets: the spool, the stream, and archives for the gaps that the stream leaves.
//!
//! Owns: their order. Must not: know a slot's content. Runs as one task on the tokio runtime.

use std::time::Duration;

use solana::ChainCheckpoint;
use tokio::sync::{mpsc, watch};

use crate::base::chain::Base;
use crate::base::failed::Failed;
use crate::base::published::is_between_slots;
use crate::config::Config;
use crate::heal::{self, Healer, Stopped};
use crate::ingest::State;
use crate::ingest::receive::{Message, ReceiveConfig};
use crate::ingest::spooling::{Replay, Spooling};
use crate::ingest::stream::receive;

/// The source of the first slots.
pub(crate) enum Begin {
    /// Slots of the spool that the store lacks, if there are any, and then the stream.
    Follow(Option<Replay>),
    /// An archive, because a heal was interrupted: before its end, or before the spool could be joined.
    Heal(Option<Spooling>),
}

impl Begin {
    /// Finds the slots that a store at `checkpoint` lacks.
    pub(crate) async fn of(
        config: &Config,
        spooling: Option<Spooling>,
        checkpoint: &ChainCheckpoint,
    ) -> Result<Self, Failed> {
        let base = spooling.as_ref().map(Spooling::base).transpose()?;
        // A spool without a base will begin with the stream's next slot.
        let is_after = |base: Option<Base>| base.is_none_or(|base| checkpoint.slot < Some(base.slot));
        let is_before = config.store.heals() && base.is_some_and(is_after);
        if is_before || is_between_slots(checkpoint) {
            return Ok(Self::Heal(spooling));
        }
        Ok(Self::Follow(match spooling {
            Some(spooling) => Replay::of(spooling, checkpoint).await.map_err(Failed::wrong)?,
            None => None,
        }))
    }
}

/// The sources of the slots that ingest-apply gets.
pub(crate) struct Slots {
    pub(crate) begin: Begin,
    pub(crate) healer: Option<Healer>,
    pub(crate) stream: ReceiveConfig,
    pub(crate) stopped: watch::Receiver<bool>,
}

impl Slots {
    /// Sends ingest-apply the slots of the spool, if there is one, and then those of the stream. Lets it heal gaps that
    /// the stream leaves.
    pub(crate) async fn feed(self, messages: mpsc::Sender<Message>, state: State) {
        let Self { mut begin, mut healer, mut stream, stopped } = self;
        loop {
            begin = match (begin, &mut healer) {
                (Begin::Heal(spooling), Some(healer)) => {
                    match healer.heal(spooling, &stream, &messages, &state, stopped.clone()).await {
                        Ok(replay) => {
                            stream.first = healer.provider();
                            Begin::Follow(replay)
                        }
                        Err(Stopped) => return,
                    }
                }
                (Begin::Follow(replay), healer) => {
                    tokio::select! {
                        () = follow(replay, &stream, &messages, &state, &stopped) => return,
                        () = needed(healer.as_mut(), &state, stream.settings.gap_timeout) => Begin::Heal(None),
                    }
                }
                // Without a healer no start begins with a heal, and no gap leads to one.
                (Begin::Heal(_), None) => return,
            };
        }
    }
}

/// Returns once the store has to be healed; never without a healer. The sources of archives are watched meanwhile.
async fn needed(healer: Option<&mut Healer>, state: &State, gap_timeout: Duration) {
    match healer {
        Some(healer) => tokio::select! {
            () = heal::needed(state, gap_timeout) => {}
            () = healer.watch(state) => {}
        },
        None => std::future::pending().await,
    }
}

/// Sends the slots of the spool, and then those of the stream, until the service stops.
async fn follow(
    replay: Option<Replay>,
    stream: &ReceiveConfig,
    messages: &mpsc::Sender<Message>,
    state: &State,
    stopped: &watch::Receiver<bool>,
) {
    if let Some(replay) = replay {
        tokio::select! {
            () = replay.run(messages, state) => {}
            () = until(stopped.clone()) => {}
        }
    }
    receive(stream.clone(), messages.clone(), state.clone(), stopped.clone()).await;
}

async fn until(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender is gone, which means stop as well.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}
