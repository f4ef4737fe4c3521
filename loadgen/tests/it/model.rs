//! The simplest follower: whole confirmed slots applied to a BTreeMap, and a digest at the end.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use engines::Digest;
use futures::StreamExt;
use solkv_loadgen::stream::account::{Extract, TOKEN_2022_PROGRAM, TOKEN_PROGRAM, is_token_account};
use solkv_loadgen::stream::{Delivery, Final, Stream, Workload};
use workload::Pairs;
use yellowstone_grpc_client::GeyserGrpcClient;
use yellowstone_grpc_proto::geyser::subscribe_update::UpdateOneof;
use yellowstone_grpc_proto::geyser::{
    CommitmentLevel, SlotStatus, SubscribeRequest, SubscribeRequestFilterAccounts, SubscribeRequestFilterBlocksMeta,
    SubscribeRequestFilterSlots, SubscribeUpdate, SubscribeUpdateAccountInfo,
};

/// Parses options as the command line would.
pub(crate) fn options(line: &str) -> (Workload, Delivery) {
    solkv_loadgen::stream::options(line).unwrap()
}

/// Starts a stream on a free port.
pub(crate) fn start(line: &str) -> (Stream, Workload) {
    let (workload, delivery) = options(line);
    (Stream::start(workload.clone(), &delivery, "127.0.0.1:0").unwrap(), workload)
}

pub(crate) async fn connect(stream: &Stream) -> GeyserGrpcClient {
    let builder = GeyserGrpcClient::build_from_shared(format!("http://{}", stream.address())).unwrap();
    builder.connect().await.unwrap()
}

/// Returns a follower's subscription: every account, block meta, all statuses.
pub(crate) fn subscription(from_slot: Option<u64>) -> SubscribeRequest {
    SubscribeRequest {
        accounts: HashMap::from([("all".to_owned(), SubscribeRequestFilterAccounts::default())]),
        blocks_meta: HashMap::from([("meta".to_owned(), SubscribeRequestFilterBlocksMeta::default())]),
        slots: HashMap::from([("slots".to_owned(), SubscribeRequestFilterSlots::default())]),
        commitment: Some(CommitmentLevel::Confirmed as i32),
        from_slot,
        ..Default::default()
    }
}

/// The follower's state over all its connections.
pub(crate) struct Model {
    extract: Extract,
    map: BTreeMap<Vec<u8>, Vec<u8>>,
    open: HashMap<u64, Vec<SubscribeUpdateAccountInfo>>,
    sealed: BTreeMap<u64, (u64, Vec<SubscribeUpdateAccountInfo>)>,
    /// Offset of the 32 bytes that a slice asks for; `None` for whole data.
    pub(crate) slice: Option<usize>,
    /// Newest slot applied in chain order.
    pub(crate) applied: u64,
    /// Number of account updates received, replayed ones included.
    pub(crate) received: u64,
    /// Slots in the order in which their metas came.
    pub(crate) order: Vec<u64>,
}

impl Model {
    pub(crate) fn new(workload: &Workload) -> Self {
        let pairs = Pairs::new(workload.seed);
        let base = if workload.base_empty { 0 } else { workload.pairs };
        Self {
            extract: workload.extract,
            map: (0..base).map(|i| (pairs.key(i).to_vec(), pairs.value(i, 0).to_vec())).collect(),
            open: HashMap::new(),
            sealed: BTreeMap::new(),
            slice: None,
            applied: workload.start_slot - 1,
            received: 0,
            order: Vec::new(),
        }
    }

    /// Puts the follower at `slot`, where its map is that of an archive.
    pub(crate) fn load(&mut self, slot: u64, map: BTreeMap<[u8; 32], [u8; 32]>) {
        self.applied = slot;
        self.map = map.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    }

    /// Forgets the slots that a lost connection has left half received.
    pub(crate) fn disconnected(&mut self) {
        self.open.clear();
    }

    pub(crate) fn take(&mut self, update: SubscribeUpdate) {
        match update.update_oneof {
            Some(UpdateOneof::Account(account)) => {
                self.received += 1;
                self.open.entry(account.slot).or_default().push(account.account.unwrap());
            }
            Some(UpdateOneof::BlockMeta(meta)) => {
                self.order.push(meta.slot);
                let updates = self.open.remove(&meta.slot).unwrap_or_default();
                if meta.slot > self.applied {
                    self.sealed.insert(meta.slot, (meta.parent_slot, updates));
                }
                self.apply();
            }
            Some(UpdateOneof::Slot(slot)) if slot.status == SlotStatus::SlotDead as i32 => {
                self.open.remove(&slot.slot);
            }
            _ => {}
        }
    }

    /// Applies sealed slots whose parent is the newest applied one.
    fn apply(&mut self) {
        while let Some(entry) = self.sealed.first_entry() {
            if entry.get().0 != self.applied {
                return;
            }
            let (slot, (_, updates)) = entry.remove_entry();
            self.applied = slot;
            for account in updates {
                let token = [TOKEN_PROGRAM, TOKEN_2022_PROGRAM].iter().any(|program| account.owner == program);
                // Sliced data do not tell the kind of an account. Tests with accounts that leave the token programs use
                // whole data.
                let left = self.extract != Extract::AccountOwner
                    && !(token && (self.slice.is_some() || is_token_account(&account.data)));
                if account.lamports == 0 || left {
                    self.map.remove(&account.pubkey);
                } else {
                    let offset = match (self.extract, self.slice) {
                        (Extract::AccountOwner, _) => None,
                        (_, Some(_)) => Some(0),
                        (Extract::TokenOwner, None) => Some(32),
                        (Extract::TokenMint, None) => Some(0),
                    };
                    let value = offset.map_or(account.owner, |at| account.data[at..at + 32].to_vec());
                    self.map.insert(account.pubkey, value);
                }
            }
        }
    }

    pub(crate) fn digest(&self) -> String {
        let mut digest = Digest::default();
        for (key, value) in &self.map {
            digest.add(key[..].try_into().unwrap(), value[..].try_into().unwrap());
        }
        digest.to_string()
    }
}

/// Number of connections that no number of cuts explains.
const CONNECTIONS_MAX: u32 = 1_000;

/// Follows a whole stream, and reconnects from the newest applied slot. Returns the number of connections and the end.
pub(crate) async fn follow(stream: &Stream, model: &mut Model, base: SubscribeRequest) -> (u32, Final) {
    let mut connections = 0;
    loop {
        connections += 1;
        assert!(connections < CONNECTIONS_MAX, "no progress: applied={}", model.applied);
        let mut request = base.clone();
        if connections > 1 {
            request.from_slot = Some(model.applied);
        }
        let mut client = connect(stream).await;
        // On a busy machine the connection may be cut even before the answer to the request is read.
        let mut updates = match client.subscribe_once(request).await {
            Ok(updates) => updates,
            Err(error) if format!("{error:?}").contains("transport") => continue,
            Err(error) => panic!("cannot subscribe, connection {connections}: {error:?}"),
        };
        loop {
            match tokio::time::timeout(Duration::from_millis(50), updates.next()).await {
                Ok(Some(Ok(update))) => model.take(update),
                Ok(Some(Err(_)) | None) => break,
                Err(_) => {}
            }
            if let Some(end) = stream.outcome().unwrap()
                && end.slot == model.applied
            {
                return (connections, end.clone());
            }
        }
        model.disconnected();
    }
}

/// Reads one subscription until the meta of `slot` has come and the stream has ended.
pub(crate) async fn drain(
    stream: &Stream,
    model: &mut Model,
    updates: &mut (impl futures::Stream<Item = Result<SubscribeUpdate, tonic::Status>> + Unpin),
    slot: u64,
) -> Final {
    loop {
        match tokio::time::timeout(Duration::from_millis(50), updates.next()).await {
            Ok(Some(update)) => model.take(update.unwrap()),
            Ok(None) => panic!("the subscription ended"),
            Err(_) => {}
        }
        if let Some(end) = stream.outcome().unwrap()
            && model.order.contains(&slot)
        {
            return end.clone();
        }
    }
}
