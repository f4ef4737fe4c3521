//! Receives the stream: connects, subscribes, answers pings, and passes compact inputs to ingest-apply in batches.
//!
//! Owns: when to connect again, and from which slot. Must not: block the runtime, keep updates beyond one batch, or log
//! the token. Runs as one task on the tokio runtime; the ingest-apply thread has the receiving end of the channel.
//!
//! Back pressure: while the channel is full the socket stays unread, so the server's own queue fills instead.

use std::pin::pin;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tracing::info;
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{SlotStatus, SubscribeUpdate};

use super::State;
use super::assemble::Input;
use super::backoff::Waits;
use super::connect::{Connection, Ended, Next};
use super::convert::{Converted, convert};
use super::follow::Selection;
use super::heard::Heard;
use super::provider::Provider;
use super::subscribe::{Commitment, request};
use super::upstream::Upstream;
use crate::chain::Gap;
use crate::figure::{count, unix_ms};

/// Maximum number of batches in the channel between the receiver and ingest-apply. With [`BATCH_INPUTS`] this is about
/// 260 thousand updates or 40 MiB, a few seconds at full rate. A commit of that length does not stop the reading of the
/// socket; more batches would only add lag.
pub const QUEUE_BATCHES_MAX: usize = 256;

/// The channel may fill 1/`QUEUE_SHARE` of the memory limit. In a small cgroup, 40 MiB in addition to an engine's
/// memory would get the process killed while it catches up.
const QUEUE_SHARE: u64 = 16;

/// Minimum number of batches in the channel. With fewer, the receiver and ingest-apply would wait for each other.
const QUEUE_BATCHES_MIN: usize = 8;

/// Maximum number of inputs in one batch: enough to make the channel's cost per update negligible.
pub const BATCH_INPUTS: usize = 1024;

/// Returns the capacity of this process's channel, in batches: [`QUEUE_BATCHES_MAX`], or less under a small memory
/// limit. Computed once.
pub fn queue_batches() -> usize {
    static BATCHES: LazyLock<usize> = LazyLock::new(|| batches_within(engines::memory_limit().bytes));
    *BATCHES
}

fn batches_within(limit_bytes: u64) -> usize {
    let batch_bytes = (BATCH_INPUTS * size_of::<Input>()) as u64;
    let batches = usize::try_from(limit_bytes / QUEUE_SHARE / batch_bytes).unwrap_or(usize::MAX);
    batches.clamp(QUEUE_BATCHES_MIN, QUEUE_BATCHES_MAX)
}

/// Settings of the receiver: the server, the subscription and its timeouts.
#[derive(Clone, Debug)]
pub struct ReceiveConfig {
    /// The Yellowstone server to connect to.
    pub provider: Provider,
    /// The accounts to subscribe to, and the value to take from them.
    pub selection: Selection,
    /// Commitment at which a slot is taken in.
    pub commitment: Commitment,
    /// The connection is given up after this long without a slot that was applied or can be.
    pub idle_timeout: Duration,
    /// Seed of the jitter in the waits between attempts, so that it differs from that of other clients.
    pub jitter_seed: u64,
}

/// A message from the receiver to ingest-apply.
#[derive(Debug)]
pub enum Message {
    /// Inputs in the order they arrived; never empty.
    Batch(Vec<Input>),
    /// The messages after this one come from a new connection: pass [`Input::Reconnected`] to the assembler.
    Reconnected,
    /// Half a second has passed on an open connection: check how long a slot has been waiting for its parent.
    Tick,
    /// The server cannot send these slots, or its stream lacks them.
    Gap(Gap),
    /// A sign of life is wanted: whoever sends this checks that ingest-apply reads its queue.
    Beat,
}

/// Receives until `stop` turns true, its sender is dropped, or the channel's receiving end is dropped.
///
/// Each connection starts over from the newest slot that ingest-apply has taken over.
pub async fn receive(config: ReceiveConfig, tx: mpsc::Sender<Message>, state: State, stop: watch::Receiver<bool>) {
    receive_from(config.provider.clone(), config, tx, state, stop).await;
}

/// Receives as [`receive`] does, from any upstream; the simulation passes a scripted server.
pub(super) async fn receive_from<U: Upstream>(
    upstream: U,
    config: ReceiveConfig,
    tx: mpsc::Sender<Message>,
    state: State,
    mut stop: watch::Receiver<bool>,
) {
    let receiver = Receiver { upstream, config, tx, state };
    tokio::select! {
        biased;
        () = receiver.run() => {}
        // An error means that the sender of `stop` is gone, which counts as stop as well.
        _ = stop.wait_for(|stop| *stop) => {}
    }
    // ORDERING: Relaxed: a statistic.
    receiver.state.figures.connected.store(false, Ordering::Relaxed);
}

/// State that the receiver keeps from one connection to the next.
#[derive(Debug, Default)]
struct Past {
    /// The slot that the store stood at when the newest connection was made.
    applied: Option<u64>,
    /// Number of connections announced to ingest-apply.
    connections: u64,
    /// Whether the newest connection brought a slot that can be applied.
    progressed: bool,
    /// Whether the newest connection ended because it brought no slot that can be applied.
    idle: bool,
    /// The slot at which the server's slots begin, right after the applied one, if the server has said so.
    begins_at: Option<u64>,
}

impl Past {
    /// Remembers the slot at which the server says that its slots begin. A server that repeats this after being asked
    /// for that very slot is retried later.
    fn begin_at(&mut self, ended: Ended) -> Ended {
        match ended {
            Ended::BeginsAt(slot) if self.begins_at == Some(slot) => {
                self.begins_at = None;
                Ended::Retry(format!(
                    "the server does not send slot={slot}, although it says that its slots begin there"
                ))
            }
            Ended::BeginsAt(slot) => {
                self.begins_at = Some(slot);
                Ended::BeginsAt(slot)
            }
            ended => {
                self.begins_at = None;
                ended
            }
        }
    }
}

struct Receiver<U> {
    upstream: U,
    config: ReceiveConfig,
    tx: mpsc::Sender<Message>,
    state: State,
}

impl<U: Upstream> Receiver<U> {
    async fn run(&self) {
        let mut waits = Waits::new(self.config.jitter_seed);
        let mut past = Past::default();
        loop {
            let applied = self.state.resume.slot();
            if applied != past.applied {
                past.applied = applied;
                waits.gap.reset();
            }
            let ended = match self.follow(applied, &mut past).await {
                Err(ended) => ended,
                Ok(never) => match never {},
            };
            // ORDERING: Relaxed: a statistic.
            self.state.figures.connected.store(false, Ordering::Relaxed);
            if std::mem::take(&mut past.progressed) {
                waits.broken.reset();
            }
            let ended = past.begin_at(ended).masked(|words| self.upstream.masked(words));
            past.idle = matches!(ended, Ended::Idle { .. });
            match ended.trouble() {
                Some(why) => self.state.readiness.set_trouble(why),
                // The earlier trouble is not the reason for this end.
                None => self.state.readiness.clear_trouble(),
            }
            let Some(wait) = ended.log_and_wait(self.config.provider.shown(), &mut waits) else { return };
            if let Ended::Gap(gap) = ended
                && self.tx.send(Message::Gap(gap)).await.is_err()
            {
                return;
            }
            tokio::select! {
                biased;
                () = tokio::time::sleep(wait) => {}
                () = self.upstream.renewed() => {}
                () = self.tx.closed() => return,
            }
        }
    }

    /// Runs one connection, from connecting to its end.
    async fn follow(&self, applied: Option<u64>, past: &mut Past) -> Result<std::convert::Infallible, Ended> {
        let from_slot = past.begins_at.or(applied);
        let subscription = request(self.config.selection, self.config.commitment, from_slot);
        let idle_timeout = self.config.idle_timeout;
        let mut connection = Connection::open(&self.upstream, idle_timeout, subscription, applied).await?;
        self.send(Message::Reconnected).await?;
        past.connections += 1;
        // ORDERING: Relaxed: a statistic.
        self.state.figures.connected.store(true, Ordering::Relaxed);
        count(&self.state.figures.connects, 1);
        info!(url = self.config.provider.shown(), from_slot, "subscribed");
        if !past.idle {
            self.state.readiness.clear_trouble();
        }
        let mut heard = Heard::new(applied);
        self.tell_newest(&heard);
        let mut batch = Vec::with_capacity(BATCH_INPUTS);
        let mut renewed = pin!(self.upstream.renewed());
        loop {
            let next = tokio::select! {
                biased;
                next = connection.next() => next.map_err(|ended| self.is_gap(ended, &heard))?,
                () = &mut renewed => return Err(Ended::Renewed),
            };
            match next {
                Next::Tick => self.send(Message::Tick).await?,
                Next::Update(update) => {
                    let Some(progress) = self.take(update, &mut batch, &mut heard).await? else { continue };
                    connection.heard_of_a_slot();
                    if progress {
                        past.progressed = true;
                        connection.progressed();
                        self.state.readiness.clear_trouble();
                    }
                }
            }
            if self.state.resume.is_given_up(past.connections) {
                return Err(Ended::GivenUp);
            }
        }
    }

    /// Takes in one update. Returns `None` when the update is no boundary of a slot. Otherwise returns whether the
    /// update made a slot whole, which can be applied now or later.
    async fn take(
        &self,
        update: SubscribeUpdate,
        batch: &mut Vec<Input>,
        heard: &mut Heard,
    ) -> Result<Option<bool>, Ended> {
        count(&self.state.figures.updates_received, 1);
        if let Some(UpdateOneof::Slot(status)) = &update.update_oneof
            && status.status == SlotStatus::SlotFinalized as i32
        {
            // Must happen before ingest-apply gets the status, because ingest-apply then looks at the finalized slots
            // heard of.
            self.state.overlay.heard_final(status.slot);
        }
        let (input, boundary) = match convert(self.config.selection, self.config.commitment, update) {
            Ok(Converted::Nothing) => return Ok(None),
            Ok(Converted::Account(input)) => (input, None),
            Ok(Converted::Boundary(input)) => {
                if let Some(applied) = self.state.resume.slot() {
                    heard.applied(applied);
                }
                let progress = heard.hear(&input);
                self.tell_newest(heard);
                (input, Some(progress))
            }
            Err(malformed) => {
                count(&self.state.figures.updates_malformed, 1);
                // Skipping the update would leave the map wrong without any sign of it.
                return Err(Ended::Gap(Gap {
                    first_slot: malformed.slot,
                    last_slot: malformed.slot,
                    detail: malformed.detail,
                }));
            }
        };
        batch.push(input);
        if boundary.is_some() || batch.len() == BATCH_INPUTS {
            // ORDERING: Relaxed: a statistic.
            self.state.figures.last_update_unix_ms.store(unix_ms(), Ordering::Relaxed);
            self.send(Message::Batch(std::mem::replace(batch, Vec::with_capacity(BATCH_INPUTS)))).await?;
        }
        Ok(boundary)
    }

    fn tell_newest(&self, heard: &Heard) {
        self.state.readiness.set_newest_slot(heard.newest().unwrap_or(0));
    }

    /// Turns the end of an idle connection into a gap where it brought parts of slots and none whole: it lacks the
    /// first of them.
    fn is_gap(&self, ended: Ended, heard: &Heard) -> Ended {
        let (Ended::Idle { why, .. }, Some((slot, lacks))) = (&ended, heard.incomplete()) else { return ended };
        let first_slot = self.state.resume.slot().map_or(slot, |applied| applied + 1).min(slot);
        Ended::Gap(Gap { first_slot, last_slot: slot, detail: format!("{why}: slot={slot} has {lacks}") })
    }

    async fn send(&self, message: Message) -> Result<(), Ended> {
        self.tx.send(message).await.map_err(|_| Ended::Closed)?;
        let queued = self.tx.max_capacity() - self.tx.capacity();
        // ORDERING: Relaxed: a statistic.
        self.state.figures.queue_batches.store(queued as u64, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_memory_limit_makes_the_queue_smaller() {
        assert_eq!(batches_within(u64::MAX), QUEUE_BATCHES_MAX);
        assert_eq!(batches_within(0), QUEUE_BATCHES_MIN);
        let bytes = batches_within(128 << 20) * BATCH_INPUTS * size_of::<Input>();
        assert!((7 << 20..=8 << 20).contains(&bytes), "{bytes}");
    }
}
