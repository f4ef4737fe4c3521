//! A Yellowstone server that passes on the messages of another one, until it is told to lie, to withhold a slot, to alter
//! accounts or to stall.
//!
//! Owns: the change or loss of each message on its way. Must not: know the slots before they come. Threads: one of its runtime.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};
use yellowstone_grpc_proto::geyser::geyser_client::GeyserClient;
use yellowstone_grpc_proto::geyser::geyser_server::{Geyser, GeyserServer};
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{
    GetBlockHeightRequest, GetBlockHeightResponse, GetLatestBlockhashRequest, GetLatestBlockhashResponse,
    GetSlotRequest, GetSlotResponse, GetVersionRequest, GetVersionResponse, IsBlockhashValidRequest,
    IsBlockhashValidResponse, PingRequest, PongResponse, SubscribeDeshredRequest, SubscribeGossipRequest,
    SubscribeReplayInfoRequest, SubscribeReplayInfoResponse, SubscribeRequest, SubscribeUpdate, SubscribeUpdateDeshred,
    SubscribeUpdateGossip,
};

/// How late each block comes of a server that lags or alters accounts.
const LATE: Duration = Duration::from_millis(300);

/// Misbehaviour of the server from a moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Each block names another blockhash for its parent.
    Lies,
    /// The next block has another blockhash, on every connection, and the block after it names the right one.
    LiesOnce,
    /// The next slot never comes, on no connection.
    Withholds,
    /// Each account has another owner, and each block comes late.
    Alters,
    /// The server sends each block late.
    Lags,
    /// Nothing comes any more, and no request is answered.
    Stalls,
}

/// A running relay, which ends when it is dropped.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    way: Arc<Mutex<Way>>,
    _runtime: Runtime,
}

/// The way of the messages.
#[derive(Debug)]
struct Way {
    fault: Fault,
    newest_slot: u64,
    withheld_slot: Option<u64>,
    /// The slot whose blockhash is another one.
    lied_slot: Option<u64>,
}

impl Relay {
    /// Begins to pass on the messages of the server at `upstream`.
    pub(crate) fn start(upstream: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let way =
            Arc::new(Mutex::new(Way { fault: Fault::None, newest_slot: 0, withheld_slot: None, lied_slot: None }));
        let service = GeyserServer::new(Server { upstream: format!("http://{upstream}"), way: Arc::clone(&way) });
        let incoming = TcpListenerStream::new(listener);
        runtime.spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
        Self { address, way, _runtime: runtime }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Begins a fault, on the open connections as well.
    pub(crate) fn set(&self, fault: Fault) {
        self.way.lock().unwrap_or_else(PoisonError::into_inner).fault = fault;
    }
}

struct Server {
    upstream: String,
    way: Arc<Mutex<Way>>,
}

impl Server {
    async fn upstream(&self) -> Result<GeyserClient<Channel>, Status> {
        if lock(&self.way).fault == Fault::Stalls {
            return std::future::pending().await;
        }
        GeyserClient::connect(self.upstream.clone()).await.map_err(|error| Status::unavailable(error.to_string()))
    }
}

impl Way {
    /// Returns the update as it is passed on, if it is.
    fn pass(&mut self, mut update: SubscribeUpdate) -> Option<SubscribeUpdate> {
        let slot = match &update.update_oneof {
            Some(UpdateOneof::Account(account)) => account.slot,
            Some(UpdateOneof::BlockMeta(meta)) => meta.slot,
            Some(UpdateOneof::Slot(status)) => status.slot,
            _ => return Some(update),
        };
        if self.fault == Fault::Withholds && self.withheld_slot.is_none() && slot > self.newest_slot {
            self.withheld_slot = Some(slot);
        }
        self.newest_slot = self.newest_slot.max(slot);
        if let (Fault::Lies, Some(UpdateOneof::BlockMeta(meta))) = (self.fault, &mut update.update_oneof) {
            meta.parent_blockhash = bs58::encode([0xee; 32]).into_string();
        }
        if let (Fault::LiesOnce, Some(UpdateOneof::BlockMeta(meta))) = (self.fault, &mut update.update_oneof)
            && *self.lied_slot.get_or_insert(slot) == slot
        {
            meta.blockhash = bs58::encode([0xee; 32]).into_string();
        }
        if let (Fault::Alters, Some(UpdateOneof::Account(account))) = (self.fault, &mut update.update_oneof) {
            account.account.iter_mut().flat_map(|account| account.owner.first_mut()).for_each(|byte| *byte ^= 1);
        }
        (self.withheld_slot != Some(slot)).then_some(update)
    }
}

async fn pass(
    way: Arc<Mutex<Way>>,
    update: Result<SubscribeUpdate, Status>,
) -> Option<Result<SubscribeUpdate, Status>> {
    if lock(&way).fault == Fault::Stalls {
        return std::future::pending().await;
    }
    let is_meta = |update: &SubscribeUpdate| matches!(update.update_oneof, Some(UpdateOneof::BlockMeta(_)));
    if matches!(lock(&way).fault, Fault::Alters | Fault::Lags) && update.as_ref().is_ok_and(is_meta) {
        tokio::time::sleep(LATE).await;
    }
    match update {
        Ok(update) => lock(&way).pass(update).map(Ok),
        Err(status) => Some(Err(status)),
    }
}

fn lock(way: &Mutex<Way>) -> std::sync::MutexGuard<'_, Way> {
    way.lock().unwrap_or_else(PoisonError::into_inner)
}

type Updates<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Geyser for Server {
    type SubscribeStream = Updates<SubscribeUpdate>;
    type SubscribeDeshredStream = Updates<SubscribeUpdateDeshred>;
    type SubscribeGossipStream = Updates<SubscribeUpdateGossip>;

    async fn subscribe(
        &self,
        request: Request<Streaming<SubscribeRequest>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let requests = request.into_inner().filter_map(|request| std::future::ready(request.ok()));
        let updates = self.upstream().await?.subscribe(requests).await?.into_inner();
        let way = Arc::clone(&self.way);
        Ok(Response::new(updates.filter_map(move |update| pass(Arc::clone(&way), update)).boxed()))
    }

    async fn subscribe_replay_info(
        &self,
        request: Request<SubscribeReplayInfoRequest>,
    ) -> Result<Response<SubscribeReplayInfoResponse>, Status> {
        self.upstream().await?.subscribe_replay_info(request.into_inner()).await
    }

    async fn subscribe_deshred(
        &self,
        _: Request<Streaming<SubscribeDeshredRequest>>,
    ) -> Result<Response<Self::SubscribeDeshredStream>, Status> {
        Err(not_passed_on())
    }

    async fn subscribe_gossip(
        &self,
        _: Request<SubscribeGossipRequest>,
    ) -> Result<Response<Self::SubscribeGossipStream>, Status> {
        Err(not_passed_on())
    }

    async fn ping(&self, _: Request<PingRequest>) -> Result<Response<PongResponse>, Status> {
        Err(not_passed_on())
    }

    async fn get_latest_blockhash(
        &self,
        _: Request<GetLatestBlockhashRequest>,
    ) -> Result<Response<GetLatestBlockhashResponse>, Status> {
        Err(not_passed_on())
    }

    async fn get_block_height(
        &self,
        _: Request<GetBlockHeightRequest>,
    ) -> Result<Response<GetBlockHeightResponse>, Status> {
        Err(not_passed_on())
    }

    async fn get_slot(&self, request: Request<GetSlotRequest>) -> Result<Response<GetSlotResponse>, Status> {
        self.upstream().await?.get_slot(request.into_inner()).await
    }

    async fn is_blockhash_valid(
        &self,
        _: Request<IsBlockhashValidRequest>,
    ) -> Result<Response<IsBlockhashValidResponse>, Status> {
        Err(not_passed_on())
    }

    async fn get_version(&self, _: Request<GetVersionRequest>) -> Result<Response<GetVersionResponse>, Status> {
        Err(not_passed_on())
    }
}

fn not_passed_on() -> Status {
    Status::unimplemented("not passed on")
}
