//! Receives processed slots for the overlay, on a subscription and a connection of its own.
//!
//! Owns: that connection. Must not: affect the ingest's own connection: it is made after the ingest's and ends with it,
//! because a server may have a place for one alone. Runs as one task on the tokio runtime.
//!
//! Why two subscriptions: at confirmed the server sends a slot once it is whole, without duplicates, and with
//! `from_slot` without a gap. At processed it sends each event as it happens. No server repeats the events of a slot
//! that was in flight when the connection was made, and the stream does not show whether a slot is whole. Such a stream
//! may feed memory, where a bank is used only if its start was seen. It must never feed the disk.
//!
//! There is no replay here, because a replayed bank looks the same as one that was in flight. A missed slot is
//! confirmed a second later.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tracing::info;
use yellowstone_grpc_proto::geyser::SubscribeUpdate;

use super::convert::convert;
use crate::base::chain::Commitment;
use crate::base::plausible::SLACK_SLOTS;
use crate::ingest::State;
use crate::ingest::backoff::Waits;
use crate::ingest::connect::{Connection, Next};
use crate::ingest::ended::Ended;
use crate::ingest::message_check::Tokens;
use crate::ingest::receive::{BATCH_INPUTS, ReceiveConfig};
use crate::ingest::subscribe::request_processed;
use crate::ingest::upstream::Upstream as _;
use crate::overlay::Message;
use crate::overlay::banks::Seen;

/// How often it is checked whether the ingest is subscribed, while it is not.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Receives until `stop` turns true, its sender is dropped, or the channel's receiving end is dropped.
pub(super) async fn receive(
    config: ReceiveConfig,
    followed: watch::Receiver<usize>,
    tx: mpsc::Sender<Message>,
    state: State,
    mut stop: watch::Receiver<bool>,
) {
    let receiver = Receiver { config, followed, tx, state };
    tokio::select! {
        () = receiver.run() => {}
        // An error means that the sender of `stop` is gone, which counts as stop as well.
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

struct Receiver {
    config: ReceiveConfig,
    /// Index of the provider that the ingest follows.
    followed: watch::Receiver<usize>,
    tx: mpsc::Sender<Message>,
    state: State,
}

impl Receiver {
    async fn run(&self) {
        let mut waits = Waits::new(self.config.jitter_seed);
        loop {
            let mut heard_slot = false;
            let mut followed = self.followed.clone();
            let first = *followed.borrow_and_update();
            let Some(at) = self.state.served_by(first) else {
                tokio::select! {
                    () = sleep(LOOK_EVERY) => continue,
                    () = self.tx.closed() => return,
                }
            };
            let provider = &self.config.providers[at];
            let ended = match self.follow(at, &mut followed, &mut heard_slot).await {
                Err(ended) => ended,
                Ok(never) => match never {},
            };
            if heard_slot {
                waits.broken.reset();
            }
            let ended = ended.masked(|words| provider.masked(words));
            if let Some(why) = ended.trouble() {
                self.state.providers.complained(at, why);
            }
            let Some(wait) = ended.log_and_wait(provider.shown(), &mut waits) else { return };
            tokio::select! {
                () = sleep(wait) => {}
                () = provider.renewed() => {}
                () = changed(&mut followed) => {}
                () = self.tx.closed() => return,
            }
        }
    }

    /// Runs one connection, from connecting to its end.
    async fn follow(
        &self,
        at: usize,
        followed: &mut watch::Receiver<usize>,
        heard_slot: &mut bool,
    ) -> Result<std::convert::Infallible, Ended> {
        let provider = &self.config.providers[at];
        let request = request_processed(self.config.selection);
        let mut connection = Connection::open(provider, self.config.idle_timeout, request, None).await?;
        self.send(vec![Seen::Connected]).await?;
        info!(url = provider.shown(), "subscribed to processed slots");
        let mut batch = Vec::with_capacity(BATCH_INPUTS);
        let (mut newest, mut tokens) = (0, Tokens::default());
        let mut renewed = pin!(provider.renewed());
        let mut changed = pin!(changed(followed));
        loop {
            let next = tokio::select! {
                biased;
                next = connection.next() => next?,
                () = &mut renewed => return Err(Ended::Renewed),
                () = &mut changed => return Err(Ended::Renewed),
            };
            let Next::Update(update) = next else {
                connection.check_idle()?;
                // The ingest needs the place.
                if !self.state.is_served_by(at) {
                    return Err(Ended::Renewed);
                }
                continue;
            };
            if let Some(slot) = self.take(update, &mut tokens, &mut batch).await? {
                connection.sent_a_slot();
                if slot > newest {
                    newest = slot;
                    *heard_slot = true;
                    connection.progressed();
                }
            }
        }
    }

    /// Takes in one update. Returns the slot when the update is a block meta or a status, which concern a bank as a
    /// whole.
    async fn take(
        &self,
        update: SubscribeUpdate,
        tokens: &mut Tokens,
        batch: &mut Vec<Seen>,
    ) -> Result<Option<u64>, Ended> {
        tokens.note(self.config.selection, &update);
        // A write that cannot be read leaves its bank incomplete, so end the connection: a new one forgets the banks in
        // flight.
        let seen = convert(self.config.selection, update).map_err(|malformed| Ended::Retry(malformed.detail))?;
        let Some(seen) = seen else { return Ok(None) };
        let (slot, is_boundary) = match &seen {
            Seen::BlockMeta { base, .. } => (base.slot, true),
            Seen::Status { slot, .. } => (*slot, true),
            Seen::Account { slot, .. } => (*slot, false),
            Seen::Connected => (0, false),
        };
        let boundary = is_boundary.then_some(slot);
        if is_boundary {
            tokens.check().map_err(Ended::Retry)?;
        }
        // So far ahead of the engine no bank can be read. A false slot there would count as the newest one.
        let confirmed = self.state.overlay.slot(Commitment::Confirmed);
        if confirmed.is_some_and(|confirmed| slot > confirmed.saturating_add(SLACK_SLOTS)) {
            return Ok(boundary);
        }
        batch.push(seen);
        if boundary.is_some() || batch.len() == BATCH_INPUTS {
            self.send(std::mem::replace(batch, Vec::with_capacity(BATCH_INPUTS))).await?;
        }
        Ok(boundary)
    }

    async fn send(&self, batch: Vec<Seen>) -> Result<(), Ended> {
        self.tx.send(Message::Batch(batch)).await.map_err(|_| Ended::Closed)
    }
}

/// Waits until the ingest follows another provider.
async fn changed(followed: &mut watch::Receiver<usize>) {
    if followed.changed().await.is_err() {
        // The ingest has ended, so that this task is about to be stopped.
        std::future::pending::<()>().await;
    }
}
