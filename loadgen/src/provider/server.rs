//! A Yellowstone server that misbehaves when told to: silent, late, refusing, forgetful, lying, restarted.
//!
//! Owns: the server's sockets and its answers. Must not: know the service, or judge it. Threads: `provider`, one, with
//! every socket.
//!
//! The server passes on the messages of another server, or makes a chain of its own. That chain is a pure function of
//! the slot and continues by the clock, whatever the server does: a slot every `slot_ms`, none skipped, a few accounts
//! each. Unless an act misbehaves, the server sends only confirmed slots of that chain, whole and in order.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use futures::Stream;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::codec::CompressionEncoding;
use tonic::metadata::{KeyAndValueRef, MetadataMap};
use tonic::{Request, Response, Status, Streaming};
use yellowstone_grpc_proto::geyser::geyser_server::{Geyser, GeyserServer};
use yellowstone_grpc_proto::geyser::{
    GetBlockHeightRequest, GetBlockHeightResponse, GetLatestBlockhashRequest, GetLatestBlockhashResponse,
    GetSlotRequest, GetSlotResponse, GetVersionRequest, GetVersionResponse, IsBlockhashValidRequest,
    IsBlockhashValidResponse, PingRequest, PongResponse, SubscribeDeshredRequest, SubscribeGossipRequest,
    SubscribeReplayInfoRequest, SubscribeReplayInfoResponse, SubscribeRequest, SubscribeUpdate, SubscribeUpdateDeshred,
    SubscribeUpdateGossip,
};

use super::act::Act;
use super::subscription::{Playing, STEP, Source, Subscription, upstream};
use super::world::{Figures, World, lock};

/// Time from one slot to the next on the chain of another server, by which `lags` is measured.
const SLOT_MS: u64 = 400;

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

    /// Binds `listen` (port 0 picks a free one) and passes on the messages of the server at the URL `of`. That server is
    /// asked anew for each subscription, as the client asks.
    pub fn start_of(listen: &str, of: &str) -> Result<Self> {
        Self::serve(listen, World::new(1, SLOT_MS, false), Some(of.into()), None)
    }

    /// Starts as [`Self::start`] does. The server sends in `encoding` to clients that accept it.
    pub fn start_compressed(
        listen: &str,
        start_slot: u64,
        slot_ms: u64,
        encoding: Option<CompressionEncoding>,
    ) -> Result<Self> {
        Self::serve(listen, World::new(start_slot, slot_ms, true), None, encoding)
    }

    fn serve(listen: &str, world: World, of: Option<Arc<str>>, encoding: Option<CompressionEncoding>) -> Result<Self> {
        let listener =
            std::net::TcpListener::bind(listen).with_context(|| format!("cannot listen: address={listen}"))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let world = Arc::new(Mutex::new(world));
        let (shutdown, stopped) = oneshot::channel();
        let service = GeyserServer::new(Server { world: Arc::clone(&world), of })
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
        lock(&self.world).begin(act);
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
        lock(&self.world).figures()
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
type Never<T> = tokio_stream::Pending<Result<T, Status>>;

struct Server {
    world: Arc<Mutex<World>>,
    /// URL of the server that is followed. `None` for a chain of its own.
    of: Option<Arc<str>>,
}

impl Server {
    /// Waits while the server stalls.
    async fn answers(&self) {
        while lock(&self.world).act == Act::Stalls {
            tokio::time::sleep(STEP).await;
        }
    }
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
        self.answers().await;
        let headers = request.metadata().clone();
        lock(&self.world).check_token(&headers)?;
        let mut requests = request.into_inner();
        let first = requests.message().await?.ok_or_else(|| Status::invalid_argument("no subscription"))?;
        let (next, generation) = {
            let world = lock(&self.world);
            if let Some(refusal) = world.refusal(first.from_slot) {
                return Err(refusal);
            }
            (first.from_slot.unwrap_or_else(|| world.tip()), world.generation)
        };
        let source = match &self.of {
            Some(url) => Source::of(url, first, requests).await?,
            None => {
                // Reads the answers to pings, so that the client's window stays open.
                tokio::spawn(async move { while let Ok(Some(_)) = requests.message().await {} });
                Source::own(next)
            }
        };
        let (tx, updates) = mpsc::channel(source.ahead());
        let subscription = {
            let mut world = lock(&self.world);
            world.subscriptions += 1;
            world.headers = ascii(&headers);
            if world.subscriptions == 1 {
                // Slots before the first client's start count as sent, because the client has them.
                world.sent = next.saturating_sub(1);
            }
            let number = world.subscriptions;
            Subscription { world: Arc::clone(&self.world), tx, source, number, generation, slot: Playing::NONE }
        };
        tokio::spawn(subscription.run());
        Ok(Response::new(Box::pin(ReceiverStream::new(updates))))
    }

    async fn subscribe_replay_info(
        &self,
        request: Request<SubscribeReplayInfoRequest>,
    ) -> Result<Response<SubscribeReplayInfoResponse>, Status> {
        self.answers().await;
        let first_available = {
            let world = lock(&self.world);
            world.check_token(request.metadata())?;
            if world.act == Act::Refuses {
                return Err(Status::permission_denied("method not in your plan"));
            }
            // The real server reports this number while it has no slot yet.
            if world.is_starting() { u64::MAX } else { world.first_available() }
        };
        match &self.of {
            Some(url) if first_available < u64::MAX => {
                upstream(url).await?.subscribe_replay_info(request.into_inner()).await
            }
            _ => Ok(Response::new(SubscribeReplayInfoResponse { first_available: Some(first_available) })),
        }
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

    async fn get_slot(&self, request: Request<GetSlotRequest>) -> Result<Response<GetSlotResponse>, Status> {
        self.answers().await;
        if let Some(url) = &self.of {
            return upstream(url).await?.get_slot(request.into_inner()).await;
        }
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
