//! A Yellowstone server that misbehaves when told to: silent, late, refusing, forgetful, restarted.
//!
//! Owns: the messages sent on each subscription. Must not: know the service, or judge it. Threads: `provider`, one,
//! with every socket.
//!
//! The chain is a pure function of the slot and continues by the clock, whatever the server does: a slot every
//! `slot_ms`, none skipped, a few accounts each. Outside of the acts that misbehave, only confirmed slots are sent,
//! whole and in order.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use futures::Stream;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::codec::CompressionEncoding;
use tonic::metadata::{KeyAndValueRef, MetadataMap};
use tonic::{Request, Response, Status, Streaming};
use yellowstone_grpc_proto::geyser::geyser_server::{Geyser, GeyserServer};
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{
    GetBlockHeightRequest, GetBlockHeightResponse, GetLatestBlockhashRequest, GetLatestBlockhashResponse,
    GetSlotRequest, GetSlotResponse, GetVersionRequest, GetVersionResponse, IsBlockhashValidRequest,
    IsBlockhashValidResponse, PingRequest, PongResponse, SubscribeDeshredRequest, SubscribeGossipRequest,
    SubscribeReplayInfoRequest, SubscribeReplayInfoResponse, SubscribeRequest, SubscribeUpdate, SubscribeUpdateDeshred,
    SubscribeUpdateGossip, SubscribeUpdatePing,
};

use super::messages;
use super::world::{Act, Figures, World, lock, unix_ms};

/// Time between two checks of a subscription for slots to send.
const STEP: Duration = Duration::from_millis(20);
/// Time between two pings on a subscription.
const PING_EVERY: Duration = Duration::from_secs(1);
/// Account updates in a slot: usually, and while messages are small and many.
const UPDATES: u32 = 20;
const UPDATES_SMALL: u32 = 3000;
/// Number of slots by which the slots of `boasts` and of the `foreign` chain are ahead of the chain.
const AHEAD_SLOTS: u64 = 1_000_000_000;
/// Number of slots that are sent again and again under `repeats`.
const REPEATED_SLOTS: u64 = 5;

/// A running server. It stops when dropped.
pub struct Provider {
    address: std::net::SocketAddr,
    world: Arc<Mutex<World>>,
    shutdown: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Provider {
    /// Binds `listen` (port 0 picks a free one) and serves a chain that begins at `start_slot`.
    pub fn start(listen: &str, start_slot: u64, slot_ms: u64) -> Result<Self> {
        Self::start_compressed(listen, start_slot, slot_ms, None)
    }

    /// Starts as [`Self::start`] does. The server sends in `encoding` to clients that accept it.
    pub fn start_compressed(
        listen: &str,
        start_slot: u64,
        slot_ms: u64,
        encoding: Option<CompressionEncoding>,
    ) -> Result<Self> {
        let listener =
            std::net::TcpListener::bind(listen).with_context(|| format!("cannot listen: address={listen}"))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let world = World {
            act: Act::Serves,
            start_slot,
            slot_ms,
            replay_slots: 1000,
            started: Instant::now(),
            started_unix_ms: unix_ms(),
            generation: 0,
            restarted: None,
            lost: None,
            required: None,
            headers: Vec::new(),
            subscriptions: 0,
            sent: start_slot - 1,
        };
        let world = Arc::new(Mutex::new(world));
        let (shutdown, stopped) = oneshot::channel();
        let service = GeyserServer::new(Server { world: Arc::clone(&world) })
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Zstd);
        let service = match encoding {
            Some(encoding) => service.send_compressed(encoding),
            None => service,
        };
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let sockets = TcpListenerStream::new(tokio::net::TcpListener::from_std(listener)?);
                let serve = tonic::transport::Server::builder().add_service(service).serve_with_incoming(sockets);
                tokio::select! {
                    served = serve => served.context("the provider's server failed"),
                    _ = stopped => Ok(()),
                }
            })
        };
        let thread = std::thread::Builder::new().name("provider".to_owned()).spawn(run)?;
        Ok(Self { address, world, shutdown: Some(shutdown), thread: Some(thread) })
    }

    /// Returns the bound address, with the port that was picked.
    pub fn address(&self) -> std::net::SocketAddr {
        self.address
    }

    /// Starts `act`, which ends the current one.
    pub fn set(&self, act: Act) {
        let mut world = lock(&self.world);
        world.act = act;
        match act {
            Act::Down | Act::Refuses | Act::Foreign | Act::Lies => world.generation += 1,
            Act::Restarts => {
                world.generation += 1;
                world.restarted = Some(Instant::now());
            }
            Act::Loses => world.lost = Some((world.tip() + 1, world.subscriptions)),
            _ => {}
        }
    }

    /// Refuses requests without this header from now on. Existing subscriptions stay.
    pub fn require(&self, name: &str, value: &str) {
        lock(&self.world).required = Some((name.to_owned(), value.to_owned()));
    }

    /// Returns the newest subscription's header of that name.
    pub fn header(&self, name: &str) -> Option<String> {
        lock(&self.world).headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
    }

    /// Returns the server's figures so far.
    pub fn figures(&self) -> Figures {
        let world = lock(&self.world);
        let age = unix_ms().saturating_sub(world.created_unix_ms(world.sent));
        Figures {
            act: world.act,
            tip: world.tip(),
            sent: world.sent,
            sent_age_ms: age,
            lost: world.lost.is_some_and(|(slot, _)| world.sent < slot),
            subscriptions: world.subscriptions,
        }
    }

    /// Ends every connection and waits for the thread.
    pub fn stop(mut self) -> Result<()> {
        self.shutdown = None;
        self.thread.take().map_or(Ok(()), |thread| thread.join().map_err(|_| anyhow!("the provider panicked"))?)
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.shutdown = None;
    }
}

type Updates = Pin<Box<dyn Stream<Item = Result<SubscribeUpdate, Status>> + Send>>;
type Sent = Result<(), mpsc::error::SendError<Result<SubscribeUpdate, Status>>>;
type Never<T> = tokio_stream::Pending<Result<T, Status>>;

struct Subscription {
    world: Arc<Mutex<World>>,
    tx: mpsc::Sender<Result<SubscribeUpdate, Status>>,
    number: u64,
    generation: u64,
    next: u64,
}

impl Subscription {
    /// Sends until the client or the server ends the subscription.
    async fn run(mut self) {
        let mut pinged = Instant::now();
        loop {
            let (through, act, start_slot) = {
                let world = lock(&self.world);
                if world.generation != self.generation {
                    break;
                }
                (world.sends_through(), world.act, world.start_slot)
            };
            if pinged.elapsed() >= PING_EVERY {
                pinged = Instant::now();
                let ping = messages::update(UpdateOneof::Ping(SubscribeUpdatePing {}), unix_ms());
                if self.tx.send(Ok(ping)).await.is_err() {
                    return;
                }
            }
            let due = through.is_some_and(|through| self.next <= through);
            let sent = match act {
                _ if due => self.slot(act).await,
                Act::Repeats => self.repeat(start_slot).await,
                _ => Ok(()),
            };
            if sent.is_err() || !due && tokio::time::timeout(STEP, self.tx.closed()).await.is_ok() {
                return;
            }
        }
        let ended = Status::unavailable("server is shutting down try again later");
        // The client may be gone already.
        self.tx.send(Err(ended)).await.ok();
    }

    /// Sends the next slot, unless it is withheld from this subscription.
    async fn slot(&mut self, act: Act) -> Sent {
        let slot = self.next;
        self.next += 1;
        let (created_unix_ms, kept) = {
            let world = lock(&self.world);
            (world.created_unix_ms(slot), world.lost.is_some_and(|lost| lost.0 == slot && self.number <= lost.1))
        };
        match act {
            _ if kept => return Ok(()),
            Act::Confirms => return self.tx.send(Ok(messages::confirmed(slot, unix_ms()))).await,
            Act::Lies => {
                self.tx.send(Ok(messages::meta_of_no_chain(slot, created_unix_ms))).await?;
                return self.tx.send(Ok(messages::confirmed(slot, unix_ms()))).await;
            }
            Act::Metas => return self.tx.send(Ok(messages::meta(slot, created_unix_ms))).await,
            Act::Foreign => return self.whole(slot + AHEAD_SLOTS, UPDATES, created_unix_ms).await,
            Act::Boasts => self.tx.send(Ok(messages::confirmed(slot + AHEAD_SLOTS, unix_ms()))).await?,
            _ => {}
        }
        let updates = if act == Act::Small { UPDATES_SMALL } else { UPDATES };
        self.whole(slot, updates, if act == Act::Ancient { 0 } else { created_unix_ms }).await?;
        let mut world = lock(&self.world);
        if world.sent + 1 == slot {
            world.sent = slot;
        }
        Ok(())
    }
}

impl Subscription {
    /// Sends all messages of a slot.
    async fn whole(&self, slot: u64, updates: u32, created_unix_ms: u64) -> Sent {
        for index in 0..updates {
            self.tx.send(Ok(messages::account(slot, index, created_unix_ms))).await?;
        }
        self.tx.send(Ok(messages::meta(slot, created_unix_ms))).await?;
        self.tx.send(Ok(messages::confirmed(slot, unix_ms()))).await
    }

    async fn repeat(&self, start_slot: u64) -> Sent {
        for slot in start_slot..start_slot + REPEATED_SLOTS {
            self.whole(slot, 1, unix_ms()).await?;
        }
        Ok(())
    }
}

struct Server {
    world: Arc<Mutex<World>>,
}

#[tonic::async_trait]
impl Geyser for Server {
    type SubscribeStream = Updates;
    type SubscribeDeshredStream = Never<SubscribeUpdateDeshred>;
    type SubscribeGossipStream = Never<SubscribeUpdateGossip>;

    async fn subscribe(
        &self,
        request: Request<Streaming<SubscribeRequest>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let headers = request.metadata().clone();
        lock(&self.world).check_token(&headers)?;
        let mut requests = request.into_inner();
        let first = requests.message().await?.ok_or_else(|| Status::invalid_argument("no subscription"))?;
        // The channel holds one message, so that each message leaves in a frame of its own, as from a server that
        // flushes each.
        let (tx, updates) = mpsc::channel(1);
        let subscription = {
            let mut world = lock(&self.world);
            if let Some(refusal) = world.refusal(first.from_slot) {
                return Err(refusal);
            }
            world.subscriptions += 1;
            world.headers = ascii(&headers);
            let next = first.from_slot.unwrap_or_else(|| world.tip());
            if world.subscriptions == 1 {
                // Slots before the first client's start count as sent, because the client has them.
                world.sent = next.saturating_sub(1);
            }
            let (number, generation) = (world.subscriptions, world.generation);
            Subscription { world: Arc::clone(&self.world), tx, number, generation, next }
        };
        tokio::spawn(subscription.run());
        // Reads the answers to pings, so that the client's window stays open.
        tokio::spawn(async move { while let Ok(Some(_)) = requests.message().await {} });
        Ok(Response::new(Box::pin(ReceiverStream::new(updates))))
    }

    async fn subscribe_replay_info(
        &self,
        request: Request<SubscribeReplayInfoRequest>,
    ) -> Result<Response<SubscribeReplayInfoResponse>, Status> {
        let world = lock(&self.world);
        world.check_token(request.metadata())?;
        if world.act == Act::Refuses {
            return Err(Status::permission_denied("method not in your plan"));
        }
        // The real server reports this number while it has no slot yet.
        let first = if world.is_starting() { u64::MAX } else { world.first_available() };
        Ok(Response::new(SubscribeReplayInfoResponse { first_available: Some(first) }))
    }

    async fn subscribe_deshred(
        &self,
        _: Request<Streaming<SubscribeDeshredRequest>>,
    ) -> Result<Response<Self::SubscribeDeshredStream>, Status> {
        Err(not_served())
    }

    async fn subscribe_gossip(
        &self,
        _: Request<SubscribeGossipRequest>,
    ) -> Result<Response<Self::SubscribeGossipStream>, Status> {
        Err(not_served())
    }

    async fn ping(&self, request: Request<PingRequest>) -> Result<Response<PongResponse>, Status> {
        Ok(Response::new(PongResponse { count: request.into_inner().count }))
    }

    async fn get_latest_blockhash(
        &self,
        _: Request<GetLatestBlockhashRequest>,
    ) -> Result<Response<GetLatestBlockhashResponse>, Status> {
        Err(not_served())
    }

    async fn get_block_height(
        &self,
        _: Request<GetBlockHeightRequest>,
    ) -> Result<Response<GetBlockHeightResponse>, Status> {
        Err(not_served())
    }

    async fn get_slot(&self, _: Request<GetSlotRequest>) -> Result<Response<GetSlotResponse>, Status> {
        Ok(Response::new(GetSlotResponse { slot: lock(&self.world).tip() }))
    }

    async fn is_blockhash_valid(
        &self,
        _: Request<IsBlockhashValidRequest>,
    ) -> Result<Response<IsBlockhashValidResponse>, Status> {
        Err(not_served())
    }

    async fn get_version(&self, _: Request<GetVersionRequest>) -> Result<Response<GetVersionResponse>, Status> {
        Ok(Response::new(GetVersionResponse { version: "{}".to_owned() }))
    }
}

fn not_served() -> Status {
    Status::unimplemented("not served by this provider")
}

fn ascii(headers: &MetadataMap) -> Vec<(String, String)> {
    let text = |header| match header {
        KeyAndValueRef::Ascii(name, value) => Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned())),
        KeyAndValueRef::Binary(..) => None,
    };
    headers.iter().filter_map(text).collect()
}
