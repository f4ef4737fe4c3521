//! A feed that breaks, ends, lies and comes back.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use proto::v1::feed_server::{Feed, FeedServer};
use proto::v1::subscribe_request::Start as Asked;
use proto::v1::subscribe_response::Kind;
use proto::v1::{Changes, DumpEnd, DumpFrom, DumpPairs, Heartbeat, Started, SubscribeRequest, SubscribeResponse};
use solkv_client::{Builder, Change, Client, Dumped, ErrorKind, Event, Filter, SlotEnd, Start, Subscription};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, Request, Response, Status};

type Line = Result<SubscribeResponse, Status>;

/// A server that sends each subscription its list of messages; it refuses subscriptions after the last list. It keeps
/// the requests.
#[derive(Clone, Default)]
struct Script {
    told: Arc<Mutex<VecDeque<Vec<Line>>>>,
    asked: Arc<Mutex<Vec<SubscribeRequest>>>,
    /// Whether a subscription stays open in silence after its last message, instead of ending.
    stays: bool,
}

#[tonic::async_trait]
impl Feed for Script {
    type SubscribeStream = BoxStream<'static, Line>;

    async fn subscribe(&self, request: Request<SubscribeRequest>) -> Result<Response<Self::SubscribeStream>, Status> {
        self.asked.lock().unwrap().push(request.into_inner());
        let lines = self.told.lock().unwrap().pop_front();
        let lines = lines.ok_or_else(|| Status::invalid_argument("the script is over"))?;
        let lines = futures::stream::iter(lines);
        Ok(Response::new(if self.stays { lines.chain(futures::stream::pending()).boxed() } else { lines.boxed() }))
    }
}

impl Script {
    fn new(told: Vec<Vec<Kind>>) -> Self {
        let lines =
            |kinds: Vec<Kind>| kinds.into_iter().map(|kind| Ok(SubscribeResponse { kind: Some(kind) })).collect();
        Self { told: Arc::new(Mutex::new(told.into_iter().map(lines).collect())), ..Self::default() }
    }

    fn serve(&self, path: &Path) {
        let listener = UnixListenerStream::new(UnixListener::bind(path).unwrap());
        let server = tonic::transport::Server::builder().add_service(FeedServer::new(self.clone()));
        tokio::spawn(async move { server.serve_with_incoming(listener).await.unwrap() });
    }

    async fn subscribe(&self, start: Start) -> (Subscription, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kv.sock");
        self.serve(&path);
        let client = Client::connect(&format!("unix://{}", path.display())).await.unwrap();
        (client.subscribe(start, Filter::default()).unwrap(), dir)
    }

    fn asked(&self) -> Vec<(Option<Asked>, Option<u64>)> {
        self.asked.lock().unwrap().iter().map(|asked| (asked.start.clone(), asked.feed_id)).collect()
    }
}

fn started(feed_id: u64, next_seq: u64) -> Kind {
    Kind::Started(Started { feed_id, next_seq, oldest_seq: 1, slot: Some(9) })
}

fn changes(first_seq: u64, last_seq: u64) -> Kind {
    let change = |seq| proto::v1::Change {
        seq,
        key: Bytes::from_static(&[1; 32]),
        old_value: None,
        new_value: Some(Bytes::from_static(&[2; 32])),
        slot: 9,
    };
    let changes = (first_seq..=last_seq).map(change).collect();
    Kind::Changes(Changes { first_seq, last_seq, changes, slot_end: None })
}

/// Returns a message as [`changes`] does, with which slot 9 ends.
fn last_changes(first_seq: u64, last_seq: u64, blockhash: &'static [u8]) -> Kind {
    let Kind::Changes(changes) = changes(first_seq, last_seq) else { panic!("changes") };
    let slot_end = proto::v1::SlotEnd { slot: 9, blockhash: Bytes::from_static(blockhash), parent_slot: 7 };
    Kind::Changes(Changes { slot_end: Some(slot_end), ..changes })
}

fn heartbeat(seq: u64) -> Kind {
    Kind::Heartbeat(Heartbeat { seq, slot: Some(9), unix_ms: 5 })
}

fn told(feed_id: u64, next_seq: u64) -> Event {
    Event::Started { feed_id, next_seq, oldest_seq: 1, slot: Some(9) }
}

fn changed(first: u64, last: u64) -> Event {
    let change = |seq| Change { seq, key: [1; 32], old: None, new: Some([2; 32]), slot: 9 };
    Event::Changes { changes: (first..=last).map(change).collect(), slot_end: None }
}

#[tokio::test]
async fn a_feed_goes_on_where_it_broke() {
    let script = Script::new(vec![
        vec![started(7, 5), changes(5, 6)],
        vec![],
        vec![started(7, 7), heartbeat(8), changes(9, 9)],
        vec![started(7, 10), last_changes(10, 12, &[8; 32])],
    ]);
    script.told.lock().unwrap()[1].push(Err(Status::resource_exhausted("too slow")));
    let (mut feed, _dir) = script.subscribe(Start::Now).await;
    let beat = Event::Heartbeat { seq: 8, slot: Some(9), unix_ms: 5 };
    let Event::Changes { changes, .. } = changed(10, 12) else { panic!("changes") };
    let slot_end = Some(SlotEnd { seq: 12, slot: 9, blockhash: [8; 32], parent_slot: 7 });
    for event in [told(7, 5), changed(5, 6), beat, changed(9, 9), Event::Changes { changes, slot_end }] {
        assert_eq!(feed.next().await.unwrap(), event);
    }
    assert_eq!((feed.feed_id(), feed.last_seq()), (Some(7), Some(12)));
    assert_eq!(feed.next().await.unwrap_err().kind(), ErrorKind::BadInput, "what waiting does not mend is told");
    let from = |seq| (Some(Asked::FromSeq(seq)), Some(7));
    let asked = script.asked();
    assert!(matches!(asked[0], (Some(Asked::FromNow(_)), None)), "{asked:?}");
    assert_eq!(asked[1..], [from(7), from(7), from(10), from(13)]);
}

#[tokio::test]
async fn a_server_that_comes_back_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kv.sock");
    let first = Script { stays: true, ..Script::new(vec![vec![started(7, 1), changes(1, 2)]]) };
    // The server's connections end with its runtime, as they do with a process.
    let server = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let own = path.clone();
    server.spawn(async move { first.serve(&own) }).await.unwrap();
    let client = Builder::new(&format!("unix://{}", path.display())).unwrap().connect().await.unwrap();
    let mut feed = client.subscribe(Start::From { seq: 1, feed_id: 7 }, Filter::default()).unwrap();
    assert_eq!(feed.next().await.unwrap(), told(7, 1));
    assert_eq!(feed.next().await.unwrap(), changed(1, 2));
    server.shutdown_background();
    std::fs::remove_file(&path).unwrap();
    let second = Script::new(vec![vec![started(7, 3), changes(3, 3)]]);
    let waiting = tokio::spawn(async move { feed.next().await });
    second.serve(&path);
    assert_eq!(waiting.await.unwrap().unwrap(), changed(3, 3));
}

fn pairs(bytes: std::ops::Range<u8>, seq: u64, through: u8) -> Kind {
    let packed_pairs = bytes.flat_map(|byte| [byte; 64]).collect::<Vec<_>>().into();
    Kind::DumpPairs(DumpPairs { packed_pairs, seq, through_key: vec![through; 32].into() })
}

fn paired(bytes: std::ops::Range<u8>) -> Event {
    Event::Pairs(bytes.map(|byte| ([byte; 32], [byte; 32])).collect())
}

fn dump_end(seq: u64) -> Kind {
    Kind::DumpEnd(DumpEnd { seq, slot: Some(9), pairs: 2 })
}

fn asked_from(key: u8, seq: u64) -> Option<Asked> {
    Some(Asked::DumpFrom(DumpFrom { after_key: vec![key; 32].into(), seq }))
}

#[tokio::test]
async fn a_dump_that_was_cut_goes_on_where_it_was() {
    let script = Script::new(vec![
        vec![started(7, 5), pairs(1..4, 6, 5)],
        vec![started(7, 7), changes(7, 8)],
        vec![started(7, 9), changes(9, 9), pairs(6..8, 12, 8), pairs(0..0, 12, 20)],
        vec![started(7, 13), pairs(30..31, 14, 255), dump_end(14)],
        vec![started(7, 15), changes(15, 15)],
    ]);
    let (mut feed, _dir) = script.subscribe(Start::Dump).await;
    for event in [told(7, 5), paired(1..4), changed(7, 8), changed(9, 9), paired(6..8), paired(0..0)] {
        assert_eq!(feed.next().await.unwrap(), event);
        assert_eq!(feed.last_seq(), None, "a part of a dump is no place in the feed");
    }
    assert_eq!(feed.dumped(), Some(Dumped { key: [20; 32], seq: 12 }));
    assert_eq!(feed.next().await.unwrap(), paired(30..31));
    assert_eq!(feed.next().await.unwrap(), Event::DumpEnd { seq: 14, slot: Some(9), pairs: 6 });
    assert_eq!((feed.dumped(), feed.last_seq()), (None, Some(14)));
    assert_eq!(feed.next().await.unwrap(), changed(15, 15));
    let asked = script.asked();
    assert!(matches!(asked[0], (Some(Asked::DumpThenTail(_)), None)), "{asked:?}");
    let named = |start| (start, Some(7));
    assert_eq!(asked[1..4], [named(asked_from(5, 6)), named(asked_from(5, 8)), named(asked_from(20, 12))]);
    assert_eq!(asked[4], named(Some(Asked::FromSeq(15))));
    // A program that was itself restarted continues from the position that it has saved.
    let script = Script::new(vec![vec![started(7, 9), pairs(6..8, 9, 255), dump_end(9)]]);
    let kept = Start::DumpFrom { dumped: Dumped { key: [5; 32], seq: 8 }, feed_id: 7 };
    let (mut feed, _dir) = script.subscribe(kept).await;
    assert_eq!(feed.next().await.unwrap(), told(7, 9));
    assert_eq!(feed.next().await.unwrap(), paired(6..8));
    assert_eq!(script.asked(), [named(asked_from(5, 8))]);
}

#[tokio::test]
async fn a_dump_of_a_feed_that_is_gone_begins_anew_and_one_too_late_is_told() {
    let script = Script::new(vec![
        vec![started(7, 1), pairs(4..5, 2, 4)],
        vec![],
        vec![started(8, 1), pairs(1..2, 1, 1)],
        vec![],
    ]);
    script.told.lock().unwrap()[1].push(Err(Status::failed_precondition("another feed")));
    script.told.lock().unwrap()[3].push(Err(Status::out_of_range("oldest_seq=9")));
    let (mut feed, _dir) = script.subscribe(Start::Dump).await;
    for event in [told(7, 1), paired(4..5), told(8, 1), paired(1..2)] {
        assert_eq!(feed.next().await.unwrap(), event);
    }
    assert_eq!(feed.next().await.unwrap_err().kind(), ErrorKind::FeedLost);
    let asked = script.asked();
    assert_eq!(asked[1], (asked_from(4, 2), Some(7)));
    assert!(matches!(asked[2], (Some(Asked::DumpThenTail(_)), None)), "{asked:?}");
    assert_eq!(asked[3], (asked_from(1, 1), Some(8)));
}

#[tokio::test]
async fn what_would_spoil_a_dump_is_an_error() {
    let other_key = |key: u8| {
        let Kind::Changes(mut other) = changes(3, 3) else { panic!("changes") };
        other.changes[0].key = vec![key; 32].into();
        Kind::Changes(other)
    };
    let short = Kind::DumpPairs(DumpPairs { through_key: vec![9; 31].into(), ..DumpPairs::default() });
    for (name, wrong) in [
        ("a key again", pairs(4..6, 2, 9)),
        ("a key beyond the range", pairs(6..9, 2, 7)),
        ("an older range", pairs(6..7, 1, 9)),
        ("a range that ends before", pairs(0..0, 2, 3)),
        ("a short key", short),
        ("a hole in the changes", changes(4, 4)),
        ("a change of a key to come", other_key(6)),
        ("an end from before", dump_end(1)),
    ] {
        let (mut feed, _dir) =
            Script::new(vec![vec![started(7, 1), pairs(4..5, 2, 5), wrong]]).subscribe(Start::Dump).await;
        assert_eq!(feed.next().await.unwrap(), told(7, 1));
        assert_eq!(feed.next().await.unwrap(), paired(4..5));
        assert_eq!(feed.next().await.unwrap_err().kind(), ErrorKind::Failed, "{name}");
        assert_eq!(feed.dumped(), Some(Dumped { key: [5; 32], seq: 2 }), "{name}: what was refused was not taken in");
    }
}

#[tokio::test]
async fn what_would_lose_or_repeat_a_change_is_an_error() {
    let from = || Start::From { seq: 5, feed_id: 7 };
    let wrong = |value: &'static [u8]| {
        let Kind::Changes(mut wrong) = changes(5, 5) else { panic!("changes") };
        wrong.changes[0].new_value = Some(Bytes::from_static(value));
        Kind::Changes(wrong)
    };
    let twice = {
        let Kind::Changes(mut twice) = changes(5, 6) else { panic!("changes") };
        twice.changes[1].seq = 5;
        Kind::Changes(twice)
    };
    for (name, lines, kind) in [
        ("another feed", vec![started(8, 5)], ErrorKind::FeedLost),
        ("a later start", vec![started(7, 6)], ErrorKind::Failed),
        ("a hole", vec![started(7, 5), changes(6, 6)], ErrorKind::Failed),
        ("a repetition", vec![started(7, 5), changes(4, 6)], ErrorKind::Failed),
        ("a number twice", vec![started(7, 5), twice], ErrorKind::Failed),
        (
            "an empty range",
            vec![started(7, 5), Kind::Changes(Changes { first_seq: 5, ..Changes::default() })],
            ErrorKind::Failed,
        ),
        ("a step back", vec![started(7, 5), heartbeat(3)], ErrorKind::Failed),
        ("a short value", vec![started(7, 5), wrong(&[1])], ErrorKind::Failed),
        ("a short blockhash", vec![started(7, 5), last_changes(5, 5, &[1])], ErrorKind::Failed),
        ("no start", vec![changes(5, 5)], ErrorKind::Failed),
        ("two starts", vec![started(7, 5), started(7, 5)], ErrorKind::Failed),
    ] {
        let (mut feed, _dir) = Script::new(vec![lines]).subscribe(from()).await;
        let mut outcome = feed.next().await;
        if matches!(outcome, Ok(Event::Started { .. })) {
            outcome = feed.next().await;
        }
        assert_eq!(outcome.unwrap_err().kind(), kind, "{name}");
        assert_eq!(feed.last_seq(), Some(4), "{name}: what was refused was not taken in");
    }
    for code in [Code::OutOfRange, Code::FailedPrecondition] {
        let script = Script::new(vec![vec![]]);
        script.told.lock().unwrap()[0].push(Err(Status::new(code, "oldest_seq=9")));
        let (mut feed, _dir) = script.subscribe(from()).await;
        let lost = feed.next().await.unwrap_err();
        assert_eq!((lost.kind(), lost.to_string().as_str()), (ErrorKind::FeedLost, "oldest_seq=9"));
    }
}
