//! A Yellowstone server that plays a script of slots, with the filters of `loadgen stream`.
//!
//! Owns: the messages that a real server sends of a slot at each commitment. At processed it sends every write as it
//! happens, at confirmed the last write of each account. It sends a write only where a filter matches the account after
//! it. Must not: generate slots.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use loadgen::stream::account::Account;
use loadgen::stream::filter::{Commitment, Filter};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};
use yellowstone_grpc_proto::geyser::geyser_server::{Geyser, GeyserServer};
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{
    GetBlockHeightRequest, GetBlockHeightResponse, GetLatestBlockhashRequest, GetLatestBlockhashResponse,
    GetSlotRequest, GetSlotResponse, GetVersionRequest, GetVersionResponse, IsBlockhashValidRequest,
    IsBlockhashValidResponse, PingRequest, PongResponse, SlotStatus, SubscribeDeshredRequest, SubscribeGossipRequest,
    SubscribeReplayInfoRequest, SubscribeReplayInfoResponse, SubscribeRequest, SubscribeUpdate, SubscribeUpdateAccount,
    SubscribeUpdateAccountInfo, SubscribeUpdateBlockMeta, SubscribeUpdateDeshred, SubscribeUpdateGossip,
    SubscribeUpdatePing, SubscribeUpdateSlot,
};

/// One slot of the script; its parent is the slot before it.
#[derive(Clone)]
pub(crate) struct Slot {
    pub(crate) number: u64,
    pub(crate) confirmed: bool,
    /// Writes in the order of their write versions.
    pub(crate) writes: Vec<([u8; 32], Account)>,
}

/// A scripted server that runs until it is dropped.
pub(crate) struct Scripted {
    pub(crate) address: SocketAddr,
    _runtime: Runtime,
}

/// How a server differs from a stock one.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    /// Changes the messages of a slot.
    pub(crate) order: fn(Vec<SubscribeUpdate>) -> Vec<SubscribeUpdate>,
    /// Number of slots whose confirmations are sent before everything else.
    pub(crate) confirmed_ahead: u64,
    /// Time from one slot to the next one.
    pub(crate) pace: Duration,
    /// Whether it sends the same slots whatever is asked for, does not say which ones it keeps, and then ends the stream.
    pub(crate) forgets: bool,
}

impl Default for Manner {
    fn default() -> Self {
        Self { order: |messages| messages, confirmed_ahead: 0, pace: Duration::ZERO, forgets: false }
    }
}

impl Scripted {
    pub(crate) fn start(slots: Vec<Slot>) -> Self {
        Self::start_as(slots, Manner::default())
    }

    pub(crate) fn start_as(slots: Vec<Slot>, manner: Manner) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let service = GeyserServer::new(Script { slots: Arc::new(slots), manner });
        let incoming = TcpListenerStream::new(listener);
        runtime.spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
        Self { address, _runtime: runtime }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

struct Script {
    slots: Arc<Vec<Slot>>,
    manner: Manner,
}

/// Slot of agave's full archive, which some scripts continue from.
const ARCHIVE_SLOT: u64 = 351_000_355;

/// Blockhash of that slot. A store of the archive refuses a stream that has another one.
const ARCHIVE_BLOCKHASH: &str = "DwoLY1vBXCYkiP3skMdvmSPgNobUGMKCMdnh4J8rc9dH";

/// Returns the blockhash of a slot, in base58.
fn hash(slot: u64) -> String {
    if slot == ARCHIVE_SLOT {
        return ARCHIVE_BLOCKHASH.to_owned();
    }
    let mut hash = [3; 32];
    hash[..8].copy_from_slice(&slot.to_be_bytes());
    bs58::encode(hash).into_string()
}

impl Slot {
    /// Returns all messages of the slot for a subscription with `filter`.
    fn messages(&self, filter: &Filter) -> Vec<SubscribeUpdate> {
        let processed = filter.commitment() == Commitment::Processed;
        let mut out = vec![self.status(SlotStatus::SlotCreatedBank)];
        if !processed {
            out.push(self.status(SlotStatus::SlotProcessed));
            if !self.confirmed {
                return out;
            }
        }
        for (at, (key, account)) in self.writes.iter().enumerate() {
            let last = !self.writes[at + 1..].iter().any(|(later, _)| later == key);
            if processed || last {
                out.extend(self.account(filter, key, account, at as u64 + 1));
            }
        }
        out.push(update(UpdateOneof::BlockMeta(SubscribeUpdateBlockMeta {
            slot: self.number,
            blockhash: hash(self.number),
            parent_slot: self.number - 1,
            parent_blockhash: hash(self.number - 1),
            bank_id: self.number,
            ..Default::default()
        })));
        if processed {
            out.push(self.status(SlotStatus::SlotProcessed));
        }
        if self.confirmed {
            out.push(self.status(SlotStatus::SlotConfirmed));
        }
        out
    }

    fn account(&self, filter: &Filter, key: &[u8; 32], account: &Account, version: u64) -> Option<SubscribeUpdate> {
        let mut filters = Vec::new();
        filter.matching_accounts(key, account, true, |name| filters.push(name.to_owned()));
        let info = SubscribeUpdateAccountInfo {
            pubkey: key.to_vec(),
            lamports: account.lamports,
            owner: account.owner.to_vec(),
            data: filter.sliced(account.data()),
            write_version: version,
            ..Default::default()
        };
        let one = UpdateOneof::Account(SubscribeUpdateAccount {
            account: Some(info),
            slot: self.number,
            bank_id: Some(self.number),
            ..Default::default()
        });
        (!filters.is_empty()).then(|| SubscribeUpdate { filters, ..update(one) })
    }

    fn status(&self, status: SlotStatus) -> SubscribeUpdate {
        update(UpdateOneof::Slot(SubscribeUpdateSlot {
            slot: self.number,
            parent: Some(self.number - 1),
            status: status as i32,
            bank_id: Some(self.number),
            ..Default::default()
        }))
    }
}

/// Whether the message confirms a slot.
pub(crate) fn is_confirmation(message: &SubscribeUpdate) -> bool {
    matches!(&message.update_oneof, Some(UpdateOneof::Slot(status)) if status.status == SlotStatus::SlotConfirmed as i32)
}

/// Returns the slot of a message about its status.
pub(crate) fn slot_of(message: &SubscribeUpdate) -> Option<u64> {
    let Some(UpdateOneof::Slot(status)) = &message.update_oneof else { return None };
    Some(status.slot)
}

fn update(one: UpdateOneof) -> SubscribeUpdate {
    SubscribeUpdate { update_oneof: Some(one), ..Default::default() }
}

type Updates<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Geyser for Script {
    type SubscribeStream = Updates<SubscribeUpdate>;
    type SubscribeDeshredStream = Updates<SubscribeUpdateDeshred>;
    type SubscribeGossipStream = Updates<SubscribeUpdateGossip>;

    async fn subscribe(
        &self,
        request: Request<Streaming<SubscribeRequest>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let (slots, manner, mut requests) = (Arc::clone(&self.slots), self.manner, request.into_inner());
        let (updates, sent) = mpsc::channel(64);
        tokio::spawn(async move {
            updates.send(Ok(update(UpdateOneof::Ping(SubscribeUpdatePing {})))).await.ok();
            // The channel closes with the subscriber, which ends this task.
            while let Ok(Some(request)) = requests.message().await {
                if request.ping.is_some() {
                    continue;
                }
                let filter = Filter::compile(&request).expect("the service asks for what there is");
                let from_slot = request.from_slot.filter(|_| !manner.forgets).unwrap_or(0);
                let asked: Vec<_> = slots.iter().filter(|slot| slot.number >= from_slot).collect();
                let first = asked.first().map_or(0, |slot| slot.number);
                for number in first..first + manner.confirmed_ahead {
                    let slot = Slot { number, confirmed: true, writes: Vec::new() };
                    updates.send(Ok(slot.status(SlotStatus::SlotConfirmed))).await.ok();
                }
                for slot in asked {
                    for message in (manner.order)(slot.messages(&filter)) {
                        updates.send(Ok(message)).await.ok();
                    }
                    tokio::time::sleep(manner.pace).await;
                }
                if manner.forgets {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(sent).boxed()))
    }

    async fn subscribe_replay_info(
        &self,
        _: Request<SubscribeReplayInfoRequest>,
    ) -> Result<Response<SubscribeReplayInfoResponse>, Status> {
        if self.manner.forgets {
            return Err(Status::unimplemented("not in the script"));
        }
        Ok(Response::new(SubscribeReplayInfoResponse { first_available: Some(0) }))
    }

    async fn subscribe_deshred(
        &self,
        _: Request<Streaming<SubscribeDeshredRequest>>,
    ) -> Result<Response<Self::SubscribeDeshredStream>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn subscribe_gossip(
        &self,
        _: Request<SubscribeGossipRequest>,
    ) -> Result<Response<Self::SubscribeGossipStream>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn ping(&self, _: Request<PingRequest>) -> Result<Response<PongResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn get_latest_blockhash(
        &self,
        _: Request<GetLatestBlockhashRequest>,
    ) -> Result<Response<GetLatestBlockhashResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn get_block_height(
        &self,
        _: Request<GetBlockHeightRequest>,
    ) -> Result<Response<GetBlockHeightResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn get_slot(&self, _: Request<GetSlotRequest>) -> Result<Response<GetSlotResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn is_blockhash_valid(
        &self,
        _: Request<IsBlockhashValidRequest>,
    ) -> Result<Response<IsBlockhashValidResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn get_version(&self, _: Request<GetVersionRequest>) -> Result<Response<GetVersionResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }
}
