//! A feed that breaks, ends, lies and comes back.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use client::{Builder, Change, Client, ErrorKind, Event, Filter, Start, Subscription};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use proto::v1::feed_server::{Feed, FeedServer};
use proto::v1::subscribe_request::Start as Asked;
use proto::v1::subscribe_response::Kind;
use proto::v1::{Changes, Heartbeat, SnapshotEnd, SnapshotPairs, Started, SubscribeRequest, SubscribeResponse};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, Request, Response, Status};

type Line = Result<SubscribeResponse, Status>;

/// What each subscription is told, one after another; the last one's end is followed by refusals. Keeps what was asked.
#[derive(Clone, Default)]
struct Script {
    told: Arc<Mutex<VecDeque<Vec<Line>>>>,
    asked: Arc<Mutex<Vec<SubscribeRequest>>>,
    /// A subscription that was told everything goes on in silence, instead of ending.
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
        self.asked.lock().unwrap().iter().map(|asked| (asked.start, asked.feed_id)).collect()
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
    Kind::Changes(Changes { first_seq, last_seq, changes: (first_seq..=last_seq).map(change).collect() })
}

fn heartbeat(seq: u64) -> Kind {
    Kind::Heartbeat(Heartbeat { seq, slot: Some(9), unix_ms: 5 })
}

fn told(feed_id: u64, next_seq: u64) -> Event {
    Event::Started { feed_id, next_seq, oldest_seq: 1, slot: Some(9) }
}

fn changed(first: u64, last: u64) -> Event {
    let change = |seq| Change { seq, key: [1; 32], old: None, new: Some([2; 32]), slot: 9 };
    Event::Changes((first..=last).map(change).collect())
}

#[tokio::test]
async fn a_feed_goes_on_where_it_broke() {
    let script = Script::new(vec![
        vec![started(7, 5), changes(5, 6)],
        vec![],
        vec![started(7, 7), heartbeat(8), changes(9, 9)],
        vec![started(7, 10), changes(10, 12)],
    ]);
    script.told.lock().unwrap()[1].push(Err(Status::resource_exhausted("too slow")));
    let (mut feed, _dir) = script.subscribe(Start::Now).await;
    let beat = Event::Heartbeat { seq: 8, slot: Some(9), unix_ms: 5 };
    for event in [told(7, 5), changed(5, 6), beat, changed(9, 9), changed(10, 12)] {
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
    // Its connections end with its runtime, as with a process.
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

#[tokio::test]
async fn a_snapshot_cut_short_begins_anew() {
    let pairs = Kind::SnapshotPairs(SnapshotPairs { packed_pairs: vec![4; 128].into() });
    let end = Kind::SnapshotEnd(SnapshotEnd { seq: 20, slot: Some(9), pairs: 2 });
    let script = Script::new(vec![
        vec![started(7, 1), pairs.clone(), heartbeat(3)],
        vec![started(8, 1), pairs, end],
        vec![started(8, 21), changes(21, 21)],
    ]);
    let (mut feed, _dir) = script.subscribe(Start::Snapshot).await;
    let pairs = Event::Pairs(vec![([4; 32], [4; 32]); 2]);
    assert_eq!(feed.next().await.unwrap(), told(7, 1));
    assert_eq!(feed.next().await.unwrap(), pairs);
    assert!(matches!(feed.next().await.unwrap(), Event::Heartbeat { .. }));
    assert_eq!(feed.last_seq(), None, "a part of a snapshot is nothing to go on from");
    assert_eq!(feed.next().await.unwrap(), told(8, 1), "another feed may have taken its place: all begins anew");
    assert_eq!(feed.next().await.unwrap(), pairs);
    assert_eq!(feed.next().await.unwrap(), Event::SnapshotEnd { seq: 20, slot: Some(9), pairs: 2 });
    assert_eq!(feed.next().await.unwrap(), changed(21, 21));
    let asked = script.asked();
    assert!(matches!(asked[1], (Some(Asked::SnapshotThenTail(_)), None)), "{asked:?}");
    assert_eq!(asked[2], (Some(Asked::FromSeq(21)), Some(8)));
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
