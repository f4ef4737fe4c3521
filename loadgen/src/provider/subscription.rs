//! One subscription: the messages of its source, as the current act lets them through.
//!
//! Owns: the order and the time of the messages of one subscription. Must not: refuse a client. Runs on the provider's
//! thread.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::mpsc;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use yellowstone_grpc_proto::geyser::geyser_client::GeyserClient;
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{SlotStatus, SubscribeRequest, SubscribeUpdate, SubscribeUpdatePing};

use super::act::{Act, changed, fork, slot_of};
use super::messages::{self, unix_ms};
use super::world::{World, lock};

/// Time between two checks of a subscription for slots to send, or for another act.
pub(super) const STEP: Duration = Duration::from_millis(20);
/// Time between two pings on a subscription.
const PING_EVERY: Duration = Duration::from_secs(1);
/// Time between two repetitions under `repeats`.
const REPEAT_EVERY: Duration = Duration::from_millis(100);
/// How late each block meta is under `alters`.
const META_LATE: Duration = Duration::from_millis(300);
/// Number of another server's messages that may wait to be sent.
const AHEAD: usize = 256;
/// Account updates in a slot of the provider's own chain.
const UPDATES: u32 = 20;

type Sent = Result<(), mpsc::error::SendError<Result<SubscribeUpdate, Status>>>;

/// Connects to the server that is followed.
pub(super) async fn upstream(url: &str) -> Result<GeyserClient<Channel>, Status> {
    let connected = GeyserClient::connect(url.to_owned()).await;
    let failed = |error| Status::unavailable(format!("cannot connect to the server that is followed: {error}"));
    Ok(connected.map_err(failed)?.max_decoding_message_size(usize::MAX))
}

/// The honest messages that a subscription begins with.
pub(super) enum Source {
    /// The provider's own chain: the next slot, and the messages that are left of the one before.
    Own { next: u64, messages: VecDeque<SubscribeUpdate> },
    /// The messages of another server, as they come.
    Of(Streaming<SubscribeUpdate>),
}

impl Source {
    /// Begins with a slot of the provider's own chain.
    pub(super) fn own(next: u64) -> Self {
        Self::Own { next, messages: VecDeque::new() }
    }

    /// Subscribes at the server `url`, as a client has asked for it.
    pub(super) async fn of(
        url: &str,
        first: SubscribeRequest,
        more: Streaming<SubscribeRequest>,
    ) -> Result<Self, Status> {
        let more = more.filter_map(|request| std::future::ready(request.ok()));
        let requests = futures::stream::iter([first]).chain(more);
        Ok(Self::Of(upstream(url).await?.subscribe(requests).await?.into_inner()))
    }

    /// Number of messages that may wait to be sent. One of the own chain, so that each message leaves in a frame of its
    /// own, as from a server that flushes each.
    pub(super) fn ahead(&self) -> usize {
        match self {
            Self::Own { .. } => 1,
            Self::Of(_) => AHEAD,
        }
    }

    /// Waits for the next message. The wait may be given up without a loss.
    async fn next(&mut self, world: &Mutex<World>) -> Result<SubscribeUpdate, Status> {
        loop {
            match self {
                Self::Own { next, messages } => {
                    if let Some(message) = messages.pop_front() {
                        return Ok(message);
                    }
                    let created_unix_ms = lock(world).created_unix_ms_of(*next);
                    match created_unix_ms {
                        Some(created_unix_ms) => {
                            messages.extend(whole(*next, created_unix_ms));
                            *next += 1;
                        }
                        None => tokio::time::sleep(STEP).await,
                    }
                }
                Self::Of(updates) => match updates.message().await? {
                    // The provider sends its own.
                    Some(SubscribeUpdate { update_oneof: Some(UpdateOneof::Ping(_)), .. }) => {}
                    Some(update) => return Ok(update),
                    None => return Err(Status::unavailable("the server that is followed has ended the stream")),
                },
            }
        }
    }
}

/// Returns all messages of a slot of the provider's own chain.
fn whole(slot: u64, created_unix_ms: u64) -> impl Iterator<Item = SubscribeUpdate> {
    let accounts = (0..UPDATES).map(move |index| messages::account(slot, index, created_unix_ms));
    accounts.chain([messages::meta(slot, created_unix_ms), messages::confirmed(slot, created_unix_ms)])
}

pub(super) struct Subscription {
    pub(super) world: Arc<Mutex<World>>,
    pub(super) tx: mpsc::Sender<Result<SubscribeUpdate, Status>>,
    pub(super) source: Source,
    pub(super) number: u64,
    pub(super) generation: u64,
    pub(super) slot: Playing,
}

/// The slot whose messages are being sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Playing {
    slot: u64,
    act: Act,
    is_whole: bool,
}

impl Playing {
    /// The state before the first slot.
    pub(super) const NONE: Self = Self { slot: 0, act: Act::Serves, is_whole: false };
}

impl Subscription {
    /// Sends until the client, the server or an act ends the subscription.
    pub(super) async fn run(mut self) {
        let (mut pinged, mut repeated) = (Instant::now(), Instant::now());
        let mut held: Option<SubscribeUpdate> = None;
        let ended = loop {
            let Some(act) = lock(&self.world).act_for(self.generation) else {
                break Status::unavailable("server is shutting down try again later");
            };
            if pinged.elapsed() >= PING_EVERY && act != Act::Stalls {
                pinged = Instant::now();
                let ping = messages::update(UpdateOneof::Ping(SubscribeUpdatePing {}), unix_ms());
                if self.tx.send(Ok(ping)).await.is_err() {
                    return;
                }
            }
            if act == Act::Repeats && repeated.elapsed() >= REPEAT_EVERY {
                repeated = Instant::now();
                if self.repeat().await.is_err() {
                    return;
                }
            }
            if let Some(update) = held.take_if(|update| lock(&self.world).lets_go(update)) {
                if self.pass(act, update).await.is_err() {
                    return;
                }
                continue;
            }
            let takes = held.is_none() && !act.holds();
            // Most messages are there already, and need no timer.
            let there = if takes { self.source.next(&self.world).now_or_never() } else { None };
            let next = match there {
                Some(next) => Some(next),
                None => tokio::select! {
                    next = self.source.next(&self.world), if takes => Some(next),
                    () = self.tx.closed() => return,
                    () = tokio::time::sleep(STEP) => None,
                },
            };
            match next {
                Some(Ok(update)) => held = Some(update),
                Some(Err(status)) => break status,
                None => {}
            }
        };
        // The client may be gone already.
        self.tx.send(Err(ended)).await.ok();
    }

    /// Sends the messages that the act makes of one, unless its slot is withheld from this subscription.
    async fn pass(&mut self, act: Act, mut update: SubscribeUpdate) -> Sent {
        let Some(slot) = slot_of(&update) else { return self.tx.send(Ok(update)).await };
        if self.slot.slot != slot {
            self.slot = Playing { slot, act, is_whole: act.sends_whole() };
        }
        let (is_withheld, forks) = lock(&self.world).picks(slot, self.number);
        if is_withheld {
            self.slot.is_whole = false;
            return Ok(());
        }
        if forks {
            self.slot.is_whole = false;
            fork(&mut update);
        }
        let act = self.slot.act;
        let is_meta = matches!(update.update_oneof, Some(UpdateOneof::BlockMeta(_)));
        if act == Act::Alters && is_meta {
            tokio::time::sleep(META_LATE).await;
        }
        let confirms = matches!(&update.update_oneof, Some(UpdateOneof::Slot(status))
            if status.status == SlotStatus::SlotConfirmed as i32);
        if act == Act::Serves {
            lock(&self.world).remember(slot, &update);
        }
        for update in changed(act, update) {
            self.tx.send(Ok(update)).await?;
        }
        if confirms && self.slot.is_whole {
            lock(&self.world).has_sent(slot);
        }
        Ok(())
    }

    async fn repeat(&self) -> Sent {
        let remembered = lock(&self.world).remembered.clone();
        for update in remembered {
            self.tx.send(Ok(update)).await?;
        }
        Ok(())
    }
}
