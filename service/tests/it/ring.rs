//! The feed in shared memory brings the same changes as over gRPC, across kills. A client that was away for too long
//! gets an error, continues over gRPC and comes back.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use client::blocking::Subscription;
use client::{Builder, Change, ErrorKind, Event, Filter, SlotEnd, Start};
use workload::Rng;

use crate::support::{Service, columns, digest, end, load, stream, wait_for};

/// Subscribes to the feed at an address, and waits for the connection.
pub(crate) fn subscribe(address: &str, start: Start, filter: Filter) -> Subscription {
    let builder = Builder::new(address).unwrap().spin(Duration::ZERO);
    let client = wait_for("a connection", || builder.clone().connect_blocking().ok());
    client.subscribe(start, filter).unwrap()
}

/// A subscriber that disconnects at random and comes back with its last sequence number.
pub(crate) struct Follower {
    rng: Rng,
    pub(crate) changes: Vec<Change>,
    pub(crate) ends: Vec<SlotEnd>,
    pub(crate) seq: Option<u64>,
    feed_id: Option<u64>,
    pub(crate) connections: u64,
}

impl Follower {
    /// Follows until the change `last_seq` was seen. `last_seq` is set once it is known.
    pub(crate) fn follow(path: &Path, seed: u64, last_seq: Arc<AtomicU64>) -> JoinHandle<Self> {
        let address = format!("shm://{}", path.display());
        let mut follower = Self {
            rng: Rng::new(seed),
            changes: Vec::new(),
            ends: Vec::new(),
            seq: None,
            feed_id: None,
            connections: 0,
        };
        std::thread::spawn(move || {
            // ORDERING: Relaxed: a number that is set once.
            while follower.seq.is_none_or(|seq| seq < last_seq.load(Ordering::Relaxed)) {
                follower.subscription(&address, &last_seq);
            }
            follower
        })
    }

    fn subscription(&mut self, address: &str, last_seq: &AtomicU64) {
        let start = match (self.seq, self.feed_id) {
            (Some(seq), Some(feed_id)) => Start::From { seq: seq + 1, feed_id },
            _ => Start::Now,
        };
        let mut feed = subscribe(address, start, Filter::default());
        self.connections += 1;
        for _ in 0..1 + self.rng.below(20) {
            // ORDERING: Relaxed: a number that is set once.
            if self.seq.is_some_and(|seq| seq >= last_seq.load(Ordering::Relaxed)) {
                return;
            }
            match feed.next_event_within(Duration::from_millis(50)).unwrap() {
                Some(Event::Started { feed_id, next_seq, .. }) => {
                    assert!(self.feed_id.is_none_or(|id| id == feed_id), "one feed all along");
                    assert!(self.seq.is_none_or(|seq| seq + 1 == next_seq));
                    (self.feed_id, self.seq) = (Some(feed_id), Some(next_seq - 1));
                }
                Some(Event::Changes { changes, slot_end }) => {
                    assert!(changes.iter().all(|change| change.slot == changes[0].slot), "of one slot");
                    self.ends.extend(slot_end);
                    let first = changes.first().unwrap().seq;
                    assert_eq!(Some(first), self.seq.map(|seq| seq + 1), "each change once, in order");
                    self.seq = changes.last().map(|change| change.seq);
                    self.changes.extend(changes);
                }
                Some(other) => panic!("{other:?}"),
                None => {}
            }
            assert_eq!((feed.last_seq(), feed.feed_id()), (self.seq, self.feed_id));
        }
    }
}

/// Returns every change from a subscription's position up to `last_seq`.
fn until(feed: &mut Subscription, last_seq: u64) -> Vec<Change> {
    let mut all = Vec::new();
    while feed.last_seq().is_none_or(|seq| seq < last_seq) {
        if let Event::Changes { changes, .. } = feed.next_event().unwrap() {
            all.extend(changes);
        }
    }
    all
}

#[test]
fn who_was_away_for_too_long_goes_on_over_grpc_and_comes_back() {
    let options = columns().remove(0);
    let temp = tempfile::tempdir().unwrap();
    let (dir, shm, uds) = (temp.path().join("store"), temp.path().join("shm.sock"), temp.path().join("kv.sock"));
    let (stream, workload) = stream(
        "--pairs 5000 --events 100000 --events-per-slot 500 --change-share 0.9 --close-share 0.1 --replay-slots 1000",
    );
    load(&dir, &options, &workload);
    // First without a stream, so that all changes are still to come.
    let more = ["--shm", shm.to_str().unwrap(), "--uds", uds.to_str().unwrap()];
    let service = Service::start(&dir, &options, "http://127.0.0.1:1", &more);
    let (ring, grpc) = (format!("shm://{}", shm.display()), format!("unix://{}", uds.display()));
    let mut away = subscribe(&ring, Start::Now, Filter::default());
    let Event::Started { feed_id, next_seq, .. } = away.next_event().unwrap() else { panic!("not the beginning") };
    assert_eq!(next_seq, workload.pairs + 1);
    let beat = |feed: &mut Subscription| match feed.next_event().unwrap() {
        Event::Heartbeat { seq, unix_ms, .. } => (seq, unix_ms),
        other => panic!("{other:?}"),
    };
    let (seq, first_ms) = beat(&mut away);
    assert!(seq == workload.pairs && first_ms > 0);
    assert!(service.terminate().success());
    let geyser = format!("http://{}", stream.address());
    let mut service = Service::start(&dir, &options, &geyser, &more);
    let end = end(&stream);
    service.wait_for_slot(end.slot);
    let newest = service.metric("solkv_checkpoint_seq").unwrap() as u64;
    // The ring is filled after the checkpoint is published, and before the feed's own figure moves.
    wait_for("the newest change in the ring", || service.metric("solkv_feed_seq").filter(|seq| *seq as u64 == newest));
    assert!(newest > workload.pairs + shm_layout::ring::RING_RECORDS as u64, "newest={newest}");

    let lost = wait_for("the news of the new service", || away.next_event_within(Duration::from_millis(100)).err());
    assert_eq!(lost.kind(), ErrorKind::FellBehind, "{lost}");
    assert_eq!(away.last_seq(), Some(workload.pairs), "nothing is counted as seen");
    let from = |seq| Start::From { seq, feed_id };
    let mut log = subscribe(&grpc, from(workload.pairs + 1), Filter::default());
    let every = until(&mut log, newest);
    assert!(every.len() as u64 == newest - workload.pairs && every[0].seq == workload.pairs + 1);
    // Both transports bring the same changes and pass the same with a filter, also after a restart.
    assert!(service.terminate().success());
    let service = Service::start(&dir, &options, &geyser, &more);
    let from_seq = newest - 60_000;
    let held = &every[(from_seq - workload.pairs - 1) as usize..];
    let mut back = subscribe(&ring, from(from_seq), Filter::default());
    assert!(until(&mut back, newest) == held && back.published_ns().is_none());
    let filter = Filter { key_prefixes: vec![vec![held[0].key[0]]], ..Filter::default() };
    let mut some = subscribe(&ring, from(from_seq), filter);
    let passing: Vec<Change> = held.iter().filter(|change| change.key[0] == held[0].key[0]).cloned().collect();
    assert_eq!(until(&mut some, newest), passing);

    // An impossible start gets an error.
    let kind = |start| subscribe(&ring, start, Filter::default()).next_event().unwrap_err().kind();
    assert_eq!(kind(Start::From { seq: newest, feed_id: feed_id ^ 1 }), ErrorKind::FeedLost);
    assert_eq!(kind(from(newest + 2)), ErrorKind::FeedLost);
    let client = Builder::new(&ring).unwrap().connect_blocking().unwrap();
    assert_eq!(client.subscribe(Start::Dump, Filter::default()).err().unwrap().kind(), ErrorKind::Refused);
    assert!(service.terminate().success());
    let service = Service::start(&dir, &options, &geyser, &[&more[..], &["--feed", "false"]].concat());
    assert_eq!(kind(from(newest)), ErrorKind::Refused);
    assert!(service.terminate().success());
    assert_eq!(digest(&dir, &options), end.digest);
    stream.stop().unwrap();
}
