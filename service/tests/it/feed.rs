//! Subscribers of the change feed. Across kills and disconnects each gets every change once, in order. A slow one is
//! cut off and comes back. A subscriber that asks for changes no longer kept is told so.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use engines::{Digest, EngineOptions, OpenMode};
use proto::v1::feed_client::FeedClient;
use proto::v1::subscribe_request::Start;
use proto::v1::subscribe_response::Kind;
use proto::v1::{
    Change, Changes, DumpFrom, DumpThenTail, Filter, FromNow, SlotEnd, SubscribeRequest, SubscribeResponse,
};
use tonic::{Code, Status, Streaming};
use workload::{Pairs, Rng};

use crate::ring;
use crate::support::{BASE_SLOT, Service, client_runtime, columns, digest, end, load, stream, uds_channel, wait_for};

const KILLS: u64 = 20;
const EVENTS_PER_SLOT: u64 = 400;
/// Stands for an unknown sequence number.
pub(crate) const UNKNOWN: u64 = u64::MAX;

pub(crate) type Map = BTreeMap<Vec<u8>, Vec<u8>>;

pub(crate) fn request(start: Start) -> SubscribeRequest {
    SubscribeRequest { start: Some(start), ..SubscribeRequest::default() }
}

pub(crate) async fn subscribe(uds: &Path, request: SubscribeRequest) -> Result<Streaming<SubscribeResponse>, Status> {
    let channel = uds_channel(uds).await.map_err(|error| Status::unavailable(error.to_string()))?;
    Ok(FeedClient::new(channel).subscribe(request).await?.into_inner())
}

/// A subscriber that disconnects at random and comes back with its last sequence number.
pub(crate) struct Follower {
    uds: PathBuf,
    rng: Rng,
    start: Start,
    /// The whole map, or the changed keys since the start for a subscriber that began in the middle.
    pub(crate) map: Map,
    whole: bool,
    pub(crate) seq: u64,
    /// Progress of the dump: the last key, and the change after which all keys up to it stand.
    dumped: Option<(Bytes, u64)>,
    /// Time that the subscriber takes over each message.
    pub(crate) pause: Duration,
    feed_id: Option<u64>,
    pub(crate) connections: u64,
    changes: Vec<client::Change>,
    pub(crate) ends: Vec<client::SlotEnd>,
    /// Slot of the last change, unless that slot has ended.
    open: Option<u64>,
    /// Whether a slot may lack its end. A heal that continues with a newer archive leaves such a slot.
    pub(crate) may_leave_open: bool,
}

impl Follower {
    /// Creates a subscriber that holds `map` after the change `seq`. With [`UNKNOWN`] it begins as `start` says.
    pub(crate) fn new(uds: &Path, seed: u64, start: Start, (map, seq): (Map, u64)) -> Self {
        let (whole, rng) = (!matches!(start, Start::FromNow(_)), Rng::new(seed));
        let (uds, changes) = (uds.to_owned(), Vec::new());
        let (dumped, pause, feed_id, connections) = (None, Duration::ZERO, None, 0);
        Self {
            uds,
            rng,
            start,
            map,
            whole,
            seq,
            dumped,
            pause,
            feed_id,
            connections,
            changes,
            ends: Vec::new(),
            open: None,
            may_leave_open: false,
        }
    }

    /// Follows until the change `last_seq` was seen. `last_seq` is set once it is known.
    pub(crate) fn follow(mut self, last_seq: Arc<AtomicU64>) -> JoinHandle<Self> {
        std::thread::spawn(move || {
            let runtime = client_runtime();
            // ORDERING: Relaxed: a number that is set once.
            while self.seq == UNKNOWN || self.seq < last_seq.load(Ordering::Relaxed) {
                if runtime.block_on(self.connection(&last_seq)).is_err() {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            self
        })
    }

    async fn connection(&mut self, last_seq: &AtomicU64) -> Result<(), Status> {
        let start = match &self.dumped {
            _ if self.seq != UNKNOWN => Start::FromSeq(self.seq + 1),
            Some((key, seq)) => Start::DumpFrom(DumpFrom { after_key: key.clone(), seq: *seq }),
            None => self.start.clone(),
        };
        let request = SubscribeRequest { feed_id: self.feed_id, ..request(start.clone()) };
        let mut messages = subscribe(&self.uds, request).await.inspect_err(|status| {
            let away = [Code::Unavailable, Code::Unknown, Code::Cancelled].contains(&status.code());
            // The place of the dump that was just left is freed in a moment.
            assert!(away || status.message().contains("too many dumps"), "{status:?}");
        })?;
        self.connections += 1;
        let mut left = 1 + self.rng.below(60);
        let mut pairs_sent = 0;
        while let Some(message) = messages.message().await? {
            if !self.pause.is_zero() {
                tokio::time::sleep(self.pause).await;
            }
            match message.kind.unwrap() {
                Kind::Started(started) => {
                    assert!(self.feed_id.is_none_or(|id| id == started.feed_id), "one feed all along");
                    self.feed_id = Some(started.feed_id);
                    if matches!(start, Start::FromNow(_)) {
                        self.seq = started.next_seq - 1;
                    }
                }
                Kind::DumpPairs(pairs) => {
                    for pair in pairs.packed_pairs.chunks_exact(64) {
                        assert!(self.dumped.as_ref().is_none_or(|(key, _)| key[..] < pair[..32]), "keys ascend");
                        assert!(self.map.insert(pair[..32].to_vec(), pair[32..].to_vec()).is_none());
                        pairs_sent += 1;
                    }
                    assert!(self.dumped.as_ref().is_none_or(|(_, seq)| *seq <= pairs.seq));
                    self.dumped = Some((pairs.through_key, pairs.seq));
                }
                Kind::DumpEnd(end) => {
                    assert_eq!(end.pairs, pairs_sent);
                    assert!(self.dumped.as_ref().is_some_and(|(_, seq)| *seq == end.seq));
                    (self.dumped, self.seq) = (None, end.seq);
                }
                Kind::Changes(changes) if self.dumped.is_some() => self.dumped_changes(&changes),
                Kind::Changes(changes) => {
                    assert_eq!((changes.first_seq, changes.changes[0].seq), (self.seq + 1, self.seq + 1));
                    changes.changes.iter().for_each(|change| self.apply(change));
                    assert_eq!(changes.last_seq, self.seq);
                    changes.slot_end.iter().for_each(|end| self.end(end));
                }
                Kind::Heartbeat(heartbeat) => assert_eq!(heartbeat.seq, self.seq, "nothing is skipped in silence"),
            }
            left -= 1;
            // ORDERING: Relaxed: a number that is set once.
            if left == 0 || (self.seq != UNKNOWN && self.seq >= last_seq.load(Ordering::Relaxed)) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Changes within a dump are only of keys already dumped, so their old values are known.
    fn dumped_changes(&mut self, changes: &Changes) {
        let Some((last_key, mut seq)) = self.dumped.take() else { return };
        assert_eq!(changes.first_seq, seq + 1);
        for change in &changes.changes {
            assert!(change.seq > seq && change.key <= last_key, "in order, of keys that are there");
            seq = change.seq;
            let held = match &change.new_value {
                Some(value) => self.map.insert(change.key.to_vec(), value.to_vec()),
                None => self.map.remove(&change.key[..]),
            };
            assert_eq!(held.as_deref(), change.old_value.as_deref(), "seq={seq}");
        }
        self.dumped = Some((last_key, changes.last_seq));
    }

    fn apply(&mut self, change: &Change) {
        assert_eq!(change.seq, self.seq + 1, "each change once, in order");
        self.seq = change.seq;
        let held = match &change.new_value {
            Some(value) => self.map.insert(change.key.to_vec(), value.to_vec()),
            None => self.map.remove(&change.key[..]),
        };
        if self.whole {
            assert_eq!(held.as_deref(), change.old_value.as_deref(), "seq={}", change.seq);
        }
        assert_ne!(change.old_value, change.new_value);
        let entry = |bytes: &Bytes| <[u8; 32]>::try_from(&bytes[..]).unwrap();
        let (old, new) = (change.old_value.as_ref().map(entry), change.new_value.as_ref().map(entry));
        let (seq, key, slot) = (change.seq, entry(&change.key), change.slot);
        let before = self.open.replace(slot);
        let is_open = before.is_none_or(|before| before == slot || self.may_leave_open);
        assert!(is_open, "slot={slot} begins before {before:?} has ended");
        self.changes.push(client::Change { seq, key, old, new, slot });
    }
}

impl Follower {
    fn end(&mut self, end: &SlotEnd) {
        assert_eq!(self.open.take(), Some(end.slot), "a slot ends once, after its changes");
        let earlier = self.ends.last().map_or(BASE_SLOT, |end| end.slot);
        assert!(end.parent_slot < end.slot && earlier < end.slot, "{end:?} after slot={earlier}");
        let (blockhash, parent_slot) = (end.blockhash[..].try_into().unwrap(), end.parent_slot);
        self.ends.push(client::SlotEnd { seq: self.seq, slot: end.slot, blockhash, parent_slot });
    }
}

pub(crate) fn held(dir: &Path, options: &EngineOptions) -> Map {
    let engine = engines::open(dir, options, OpenMode::Existing).unwrap();
    let mut map = Map::new();
    let mut add = |key: &[u8; 32], value: &[u8; 32]| {
        map.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    };
    engine.reader().unwrap().scan(&mut add).unwrap();
    engine.close().unwrap();
    map
}

#[test]
fn killed_twenty_times_every_subscriber_has_every_change_once() {
    for options in columns() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, uds, shm) = (temp.path().join("store"), temp.path().join("solkv.sock"), temp.path().join("shm.sock"));
        let events = 120_000;
        let (stream, workload) = stream(&format!(
            "--pairs 20000 --events {events} --events-per-slot {EVENTS_PER_SLOT} --rate 8000 --replay-slots 1000000 \
             --unknown-share 0.05 --change-share 0.3 --close-share 0.05 --skew zipfian:0.9 --dead-every 9 \
             --skip-every 11 --out-of-order-every 7 --disconnect-every 25000 --duplicates"
        ));
        load(&dir, &options, &workload);
        let pairs = Pairs::new(workload.seed);
        let base: Map = (0..workload.pairs).map(|n| (pairs.key(n).to_vec(), pairs.value(n, 0).to_vec())).collect();
        let last_seq = Arc::new(AtomicU64::new(UNKNOWN));
        let followers = [
            Follower::new(&uds, 1, Start::FromSeq(workload.pairs + 1), (base, workload.pairs)),
            Follower::new(&uds, 2, Start::DumpThenTail(DumpThenTail {}), (Map::new(), UNKNOWN)),
            Follower::new(&uds, 3, Start::FromNow(FromNow {}), (Map::new(), UNKNOWN)),
        ]
        .map(|follower| follower.follow(Arc::clone(&last_seq)));
        let rings = [4, 5].map(|n| ring::Follower::follow(&shm, n, Arc::clone(&last_seq)));
        let geyser = format!("http://{}", stream.address());
        let more = ["--uds", uds.to_str().unwrap(), "--shm", shm.to_str().unwrap()];
        let last_slot = BASE_SLOT + events / EVENTS_PER_SLOT;
        let (mut rng, mut reached, mut midway) = (Rng::new(options.engine as u64), BASE_SLOT, 0);
        for kill in 0..KILLS {
            let mut service = Service::start(&dir, &options, &geyser, &more);
            let part = (last_slot - BASE_SLOT) * (kill + 1) / (KILLS + 1);
            reached = service.wait_for_slot((BASE_SLOT + part).saturating_sub(rng.below(9)).max(reached));
            midway += u64::from(reached < last_slot);
            service.kill();
        }
        assert!(midway > KILLS / 2, "kills after the last slot prove nothing: midway={midway}");
        let mut service = Service::start(&dir, &options, &geyser, &more);
        let end = end(&stream);
        service.wait_for_slot(end.slot);
        // The feed's own figure may be old for a moment.
        let seq = service.metric("solkv_checkpoint_seq").unwrap() as u64;
        // ORDERING: Relaxed: a number that is set once.
        last_seq.store(seq, Ordering::Relaxed);
        let followers = followers.map(|thread| thread.join().unwrap());
        assert!(service.terminate().success());
        let map = held(&dir, &options);
        let mut sum = Digest::default();
        map.iter().for_each(|(key, value)| sum.add(key[..].try_into().unwrap(), value[..].try_into().unwrap()));
        assert_eq!(sum.to_string(), end.digest, "{options:?}");
        for follower in &followers {
            assert_eq!((follower.seq, follower.open), (seq, None));
            assert!(
                followers[0].ends.ends_with(&follower.ends) && follower.ends.len() > 100,
                "{}",
                follower.ends.len()
            );
            assert!(follower.connections > KILLS / 2, "connections={}", follower.connections);
            if follower.whole {
                assert!(follower.map == map, "{options:?}: the followed map is another one");
            } else {
                assert!(
                    !follower.map.is_empty() && follower.map.iter().all(|(key, value)| map.get(key) == Some(value))
                );
            }
        }
        for ring in rings.map(|thread| thread.join().unwrap()) {
            assert!(ring.seq == Some(seq) && ring.connections > KILLS / 2, "connections={}", ring.connections);
            let same = followers[0].changes.ends_with(&ring.changes) && ring.changes.len() > KILLS as usize * 100;
            assert!(followers[0].ends.ends_with(&ring.ends) && !ring.ends.is_empty(), "{options:?}: other slot ends");
            assert!(same, "{options:?}: other changes in shared memory: changes={}", ring.changes.len());
        }
        stream.stop().unwrap();
    }
}

#[test]
fn slow_late_and_mistaken_subscribers_are_told() {
    let options = columns().remove(0);
    let temp = tempfile::tempdir().unwrap();
    let (dir, uds) = (temp.path().join("store"), temp.path().join("solkv.sock"));
    let (stream, workload) = stream(
        "--pairs 5000 --events 250000 --events-per-slot 500 --change-share 1.0 --close-share 0 --replay-slots 1000",
    );
    load(&dir, &options, &workload);
    let geyser = format!("http://{}", stream.address());
    let more = ["--uds", uds.to_str().unwrap(), "--feed-retention-bytes", "16MiB"];
    let more = [&more[..], &["--max-connections", "64"]].concat();
    let mut service = Service::start(&dir, &options, &geyser, &more);
    let end = end(&stream);
    service.wait_for_slot(end.slot);
    let newest = service.metric("solkv_checkpoint_seq").unwrap() as u64;
    let oldest = service.metric("solkv_feed_oldest_seq").unwrap() as u64;
    // In the worst case every frame takes just more than half of a segment. One segment in eight was removed, so 70,000
    // changes are left.
    assert!(workload.pairs + 1 < oldest && oldest + 60_000 < newest, "oldest={oldest} newest={newest}");
    assert!(service.metric("solkv_feed_log_bytes").unwrap() <= f64::from(18 << 20));

    client_runtime().block_on(async {
        let refused = async |request| refused(&uds, request).await;
        let mut first = subscribe(&uds, request(Start::FromSeq(newest))).await.unwrap();
        let Kind::Started(started) = first.message().await.unwrap().unwrap().kind.unwrap() else { panic!("first") };
        let feed_id = started.feed_id;
        drop(first);
        let (code, message) = refused(request(Start::FromSeq(oldest - 1))).await;
        assert_eq!(code, Code::OutOfRange);
        assert!(message.contains(&format!("oldest_seq={oldest}")) && message.contains("dump_then_tail"), "{message}");
        assert_eq!(refused(request(Start::FromSeq(newest + 2))).await.0, Code::OutOfRange);
        let other = SubscribeRequest { feed_id: Some(1), ..request(Start::FromSeq(newest)) };
        assert_eq!(refused(other).await.0, Code::FailedPrecondition);
        assert_eq!(refused(SubscribeRequest::default()).await.0, Code::InvalidArgument);
        let dump_from = |after_key: &[u8], seq| {
            let start = Start::DumpFrom(DumpFrom { after_key: Bytes::copy_from_slice(after_key), seq });
            SubscribeRequest { feed_id: Some(feed_id), ..request(start) }
        };
        assert_eq!(refused(dump_from(&[1; 31], newest)).await.0, Code::InvalidArgument);
        let nameless = SubscribeRequest { feed_id: None, ..dump_from(&[1; 32], newest) };
        assert_eq!(refused(nameless).await.0, Code::InvalidArgument);
        let (code, message) = refused(dump_from(&[1; 32], oldest - 2)).await;
        assert!(code == Code::OutOfRange && message.contains("dump_then_tail"), "{message}");
        assert_eq!(refused(dump_from(&[1; 32], newest + 1)).await.0, Code::OutOfRange);
        assert_eq!(refused(dump_from(&[1; 32], u64::MAX)).await.0, Code::OutOfRange);
        let filter = Filter { keys: vec![vec![1; 31].into()], ..Filter::default() };
        let wrong = SubscribeRequest { filter: Some(filter), ..request(Start::FromSeq(newest)) };
        assert_eq!(refused(wrong).await.0, Code::InvalidArgument);
        slow_is_cut_off(&mut service, &uds, oldest, newest).await;
        filtered(&uds, oldest, newest).await;
    });
    wait_for("the end of all subscriptions", || {
        service.metric("solkv_feed_subscribers").filter(|subscribers| *subscribers == 0.0)
    });
    assert!(service.terminate().success());
    assert_eq!(digest(&dir, &options), end.digest);
    stream.stop().unwrap();
}

/// A subscriber that does not read is cut off, and its position is shown. When it comes back it misses nothing.
async fn slow_is_cut_off(service: &mut Service, uds: &Path, oldest: u64, newest: u64) {
    let mut slow = subscribe(uds, request(Start::FromSeq(oldest))).await.unwrap();
    let mut idle = subscribe(uds, request(Start::FromSeq(newest + 1))).await.unwrap();
    let mut others = Vec::new();
    for _ in 2..8 {
        others.push(subscribe(uds, request(Start::FromSeq(newest + 1))).await.unwrap());
    }
    let (code, message) = refused(uds, request(Start::FromSeq(newest))).await;
    assert_eq!(code, Code::ResourceExhausted, "one user has half of 16");
    assert!(message.starts_with("E-BUSY: too many subscribers") && message.ends_with("max=8"), "{message}");
    drop(others);
    while service.metric("solkv_feed_cut_off_total") != Some(1.0) {
        let heartbeat = idle.message().await.unwrap().unwrap();
        assert!(matches!(heartbeat.kind, Some(Kind::Started(_) | Kind::Heartbeat(_))), "{heartbeat:?}");
    }
    let mut seq = oldest - 1;
    let status = loop {
        match slow.message().await {
            Ok(Some(message)) => seq = changes(message, seq),
            Ok(None) => panic!("ended without a word"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(status.message().contains("cut off") && seq < newest, "{status:?}");
    let mut back = subscribe(uds, request(Start::FromSeq(seq + 1))).await.unwrap();
    while seq < newest {
        seq = changes(back.message().await.unwrap().unwrap(), seq);
    }
    drop((idle, back, slow));
}

/// Returns the status of a subscription that is refused.
async fn refused(uds: &Path, request: SubscribeRequest) -> (Code, String) {
    match subscribe(uds, request).await {
        Err(status) => (status.code(), status.message().to_owned()),
        Ok(_) => panic!("not refused"),
    }
}

/// Returns the sequence number after a message to a subscriber without a filter.
fn changes(message: SubscribeResponse, seq: u64) -> u64 {
    match message.kind.unwrap() {
        Kind::Changes(changes) => {
            assert_eq!(changes.first_seq, seq + 1);
            assert_eq!(changes.changes.len() as u64, changes.last_seq - seq);
            changes.last_seq
        }
        Kind::Heartbeat(heartbeat) => heartbeat.seq,
        Kind::Started(_) => seq,
        other => panic!("{other:?}"),
    }
}

/// A filter withholds the changes that do not pass. Heartbeats tell how far the service has searched.
async fn filtered(uds: &Path, oldest: u64, newest: u64) {
    let all = async |filter| {
        let request = SubscribeRequest { filter: Some(filter), ..request(Start::FromSeq(oldest)) };
        // The places of the previous subscriptions are freed in a moment.
        let mut messages = loop {
            match subscribe(uds, request.clone()).await {
                Err(full) if full.code() == Code::ResourceExhausted => tokio::task::yield_now().await,
                subscribed => break subscribed.unwrap(),
            }
        };
        let mut found: Vec<Change> = Vec::new();
        loop {
            match messages.message().await.unwrap().unwrap().kind.unwrap() {
                Kind::Changes(changes) => found.extend(changes.changes),
                Kind::Heartbeat(heartbeat) if heartbeat.seq == newest => return found,
                _ => {}
            }
        }
    };
    let every = all(Filter::default()).await;
    assert_eq!(every.len() as u64, newest - oldest + 1);
    let sample = &every[every.len() / 2];
    let by = |keep: &dyn Fn(&Change) -> bool| every.iter().filter(|change| keep(change)).cloned().collect::<Vec<_>>();
    let keys = Filter { keys: vec![sample.key.clone()], ..Filter::default() };
    assert_eq!(all(keys).await, by(&|change| change.key == sample.key));
    let value = sample.new_value.clone().unwrap();
    let values = Filter { values: vec![value.clone()], ..Filter::default() };
    let holds = |change: &Change| [&change.old_value, &change.new_value].contains(&&Some(value.clone()));
    assert_eq!(all(values).await, by(&holds));
    let prefix = sample.key.slice(..1);
    let prefixes = Filter { key_prefixes: vec![prefix.clone()], ..Filter::default() };
    assert_eq!(all(prefixes).await, by(&|change| change.key.starts_with(&prefix)));
    // Each message continues at the end of the previous one, even where changes between them were withheld.
    let rare = Filter { keys: vec![sample.key.clone(), every[0].key.clone()], ..Filter::default() };
    let request = SubscribeRequest { filter: Some(rare), ..request(Start::FromSeq(oldest)) };
    let mut messages = loop {
        match subscribe(uds, request.clone()).await {
            Err(full) if full.code() == Code::ResourceExhausted => tokio::task::yield_now().await,
            subscribed => break subscribed.unwrap(),
        }
    };
    let mut seq = oldest - 1;
    while seq < newest {
        match messages.message().await.unwrap().unwrap().kind.unwrap() {
            Kind::Changes(changes) => {
                assert_eq!(changes.first_seq, seq + 1);
                seq = changes.last_seq;
            }
            Kind::Heartbeat(heartbeat) => seq = heartbeat.seq,
            _ => {}
        }
    }
}
