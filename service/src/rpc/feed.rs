//! `solkv.v1.Feed`: one task a subscriber, which reads the feed at the subscriber's own pace.
//!
//! Owns: what a subscriber is sent and when it is cut off. Must not: make the writer wait, or block a tokio worker; the
//! disk is read on the blocking pool.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt as _, Stream, StreamExt as _, stream};
use proto::v1::feed_server::Feed as FeedRpc;
use proto::v1::subscribe_request::Start;
use proto::v1::subscribe_response::Kind;
use proto::v1::{Change, Changes, Heartbeat, SnapshotEnd, SnapshotPairs, Started, SubscribeRequest, SubscribeResponse};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::budget::Peer;
use crate::feed::{Cursor, Feed, FeedError, Filter, Frame, Part, Refused, Registration, Snapshots};
use crate::status::unix_ms;

/// Messages between a subscriber's task and its connection: with [`CHANGES_PER_MESSAGE`] some two megabytes. More would
/// only be memory: the log holds what the subscriber has not read.
const SUBSCRIBER_QUEUE: usize = 16;

/// Most changes of one message: 150 KB, well below the 4 MiB that clients take by default.
const CHANGES_PER_MESSAGE: usize = 1000;

/// What subscribers are granted.
#[derive(Clone, Copy, Debug)]
pub struct FeedLimits {
    /// Subscribers at a time.
    pub subscribers: usize,
    /// A heartbeat is sent when nothing else was for this long.
    pub heartbeat: Duration,
    /// A subscriber that takes nothing for this long is cut off.
    pub stall_timeout: Duration,
}

/// The service behind both listeners.
#[derive(Clone)]
pub struct FeedService {
    feed: Option<Arc<Feed>>,
    snapshots: Snapshots,
    limits: FeedLimits,
}

impl FeedService {
    /// Serves `feed`; without one every subscription is refused.
    pub fn new(feed: Option<Arc<Feed>>, snapshots: Snapshots, limits: FeedLimits) -> Self {
        Self { feed, snapshots, limits }
    }
}

type Responses = Pin<Box<dyn Stream<Item = Result<SubscribeResponse, Status>> + Send>>;

#[tonic::async_trait]
impl FeedRpc for FeedService {
    type SubscribeStream = Responses;

    async fn subscribe(&self, request: Request<SubscribeRequest>) -> Result<Response<Responses>, Status> {
        let Some(feed) = self.feed.clone() else {
            return Err(Status::failed_precondition("the service keeps no feed: its configuration says feed = false"));
        };
        let (transport, peer) = peer(&request);
        let request = request.into_inner();
        if let Some(feed_id) = request.feed_id.filter(|id| *id != feed.id()) {
            let message = format!(
                "this is another feed, its seqs are not continued: asked={feed_id} feed_id={}; subscribe with \
                 snapshot_then_tail",
                feed.id()
            );
            return Err(Status::failed_precondition(message));
        }
        let filter = request.filter.as_ref().map(Filter::new).transpose().map_err(Status::invalid_argument)?;
        let start = request
            .start
            .ok_or_else(|| Status::invalid_argument("say where to start: from_seq, from_now or snapshot_then_tail"))?;
        let head = *feed.head().borrow();
        let next_seq = match start {
            Start::FromSeq(seq) => {
                in_range(&feed, seq, head.seq)?;
                seq
            }
            Start::FromNow(_) | Start::SnapshotThenTail(_) => head.seq + 1,
        };
        let (sender, receiver) = mpsc::channel(SUBSCRIBER_QUEUE);
        let (end, ended) = oneshot::channel();
        let subscription = Subscription {
            sender,
            filter: filter.unwrap_or_default(),
            snapshots: matches!(start, Start::SnapshotThenTail(_)).then(|| self.snapshots.clone()),
            limits: self.limits,
            next_seq,
            sent: Instant::now(),
        };
        // The place is taken before the answer, so that a refusal is the call's own status.
        let limits = self.limits;
        let (taken, placed) = oneshot::channel();
        tokio::spawn(async move {
            let place = feed.subscribers().register(transport, peer, next_seq.saturating_sub(1), limits.subscribers);
            let place = match place {
                Ok(place) => {
                    taken.send(Ok(())).ok();
                    place
                }
                Err(full) => {
                    let message = format!("too many subscribers, try again later: max={}", full.max);
                    taken.send(Err(Status::resource_exhausted(message))).ok();
                    return;
                }
            };
            if let Err(Some(status)) = subscription.run(&feed, &place).await {
                tracing::info!(code = ?status.code(), reason = status.message(), "a subscriber was sent away");
                end.send(status).ok();
            }
        });
        placed.await.map_err(|_| Status::internal("a subscriber's task ended early"))??;
        let last = ended.map(|status| stream::iter(status.ok().map(Err))).flatten_stream();
        Ok(Response::new(ReceiverStream::new(receiver).map(Ok).chain(last).boxed()))
    }
}

/// One subscriber.
struct Subscription {
    sender: mpsc::Sender<SubscribeResponse>,
    filter: Filter,
    /// For one that starts with a snapshot.
    snapshots: Option<Snapshots>,
    limits: FeedLimits,
    next_seq: u64,
    /// When the last message was handed over.
    sent: Instant,
}

/// Why a subscription ends: with a status, or `None` when the subscriber is gone.
type Ended = Option<Status>;

impl Subscription {
    async fn run(mut self, feed: &Arc<Feed>, place: &Registration<'_>) -> Result<(), Ended> {
        let started = Started {
            feed_id: feed.id(),
            next_seq: self.next_seq,
            oldest_seq: feed.oldest_seq(),
            slot: feed.head().borrow().slot,
        };
        self.send(feed, Kind::Started(started)).await?;
        if let Some(snapshots) = self.snapshots.take() {
            self.snapshot(feed, &snapshots).await?;
        }
        let mut head = feed.head();
        let mut cursor = Cursor::new(self.next_seq);
        loop {
            let now = *head.borrow_and_update();
            if now.closed {
                return Err(Some(Status::unavailable("the service is shutting down: come back with the last seq")));
            }
            loop {
                let (frames, behind) = next(feed, cursor).await?;
                cursor = behind;
                for frame in &frames {
                    self.changes(feed, frame).await?;
                }
                place.reached(self.next_seq - 1);
                if frames.is_empty() {
                    break;
                }
            }
            // Everything there is was looked at, which is what a heartbeat says. What a filter keeps back is silence too.
            let due = self.sent + self.limits.heartbeat;
            if due <= Instant::now() {
                let heartbeat = Heartbeat { seq: self.next_seq - 1, slot: now.slot, unix_ms: unix_ms() };
                self.send(feed, Kind::Heartbeat(heartbeat)).await?;
                continue;
            }
            tokio::select! {
                _ = tokio::time::timeout_at(due, head.changed()) => {}
                () = self.sender.closed() => return Err(None),
            }
        }
    }

    async fn snapshot(&mut self, feed: &Feed, snapshots: &Snapshots) -> Result<(), Ended> {
        let (sender, mut parts) = mpsc::channel(SUBSCRIBER_QUEUE);
        snapshots.start(self.filter.clone(), sender, self.limits.stall_timeout).map_err(|refused| match refused {
            Refused::Busy => Status::resource_exhausted("too many snapshots are under way, try again later"),
            Refused::Stopped => Status::unavailable("the service is shutting down"),
        })?;
        while let Some(part) = parts.recv().await {
            match part {
                Part::Pairs(packed_pairs) => {
                    let packed_pairs = Bytes::from(packed_pairs);
                    self.send(feed, Kind::SnapshotPairs(SnapshotPairs { packed_pairs })).await?;
                }
                Part::End { seq, slot, pairs } => {
                    self.next_seq = seq + 1;
                    return self.send(feed, Kind::SnapshotEnd(SnapshotEnd { seq, slot, pairs })).await;
                }
                Part::Failed(reason) => return Err(Some(Status::internal(reason))),
            }
        }
        Err(Some(Status::unavailable("the snapshot was cut short: the service is shutting down")))
    }

    /// The part of a frame that is not sent yet, in messages.
    async fn changes(&mut self, feed: &Feed, frame: &Frame) -> Result<(), Ended> {
        let sent = (self.next_seq - frame.first_seq) as usize;
        for chunk in frame.changes[sent..].chunks(CHANGES_PER_MESSAGE) {
            let first_seq = self.next_seq;
            self.next_seq += chunk.len() as u64;
            let numbered = (first_seq..).zip(chunk);
            let passing = numbered.filter(|(_, change)| self.filter.passes(change));
            let changes: Vec<Change> = passing.map(|(seq, change)| wire(seq, change)).collect();
            if !changes.is_empty() {
                // ORDERING: Relaxed: a statistic.
                feed.subscribers().changes_sent.fetch_add(changes.len() as u64, Ordering::Relaxed);
                let changes = Changes { first_seq, last_seq: self.next_seq - 1, changes };
                self.send(feed, Kind::Changes(changes)).await?;
            }
        }
        Ok(())
    }

    async fn send(&mut self, feed: &Feed, kind: Kind) -> Result<(), Ended> {
        let sent = self.sender.send(SubscribeResponse { kind: Some(kind) });
        match tokio::time::timeout(self.limits.stall_timeout, sent).await {
            Ok(Ok(())) => {
                self.sent = Instant::now();
                Ok(())
            }
            Ok(Err(_)) => Err(None),
            Err(_) => {
                // ORDERING: Relaxed: a statistic.
                feed.subscribers().cut_off.fetch_add(1, Ordering::Relaxed);
                let message = format!(
                    "cut off, nothing was read for {:?}: come back with the last seq",
                    self.limits.stall_timeout
                );
                Err(Some(Status::resource_exhausted(message)))
            }
        }
    }
}

/// What comes next, from memory or from disk, and the cursor behind it; empty when there is nothing newer.
async fn next(feed: &Arc<Feed>, mut cursor: Cursor) -> Result<(Vec<Arc<Frame>>, Cursor), Ended> {
    if let Some(frames) = feed.recent(cursor.next_seq) {
        let behind = frames.last().map_or(cursor.next_seq, |frame| frame.last_seq() + 1);
        return Ok((frames, Cursor::new(behind)));
    }
    let feed = Arc::clone(feed);
    let read = tokio::task::spawn_blocking(move || (feed.read(&mut cursor), cursor)).await;
    match read {
        Ok((Ok(frames), cursor)) => Ok((frames.into_iter().map(Arc::new).collect(), cursor)),
        Ok((Err(FeedError::Gone { oldest_seq }), cursor)) => Err(Some(gone(cursor.next_seq, oldest_seq))),
        Ok((Err(FeedError::Log(error)), _)) => {
            tracing::error!(%error, "the feed cannot be read");
            Err(Some(Status::data_loss(error.to_string())))
        }
        Err(error) => Err(Some(Status::internal(format!("reading the feed failed: {error}")))),
    }
}

fn in_range(feed: &Feed, seq: u64, newest_seq: u64) -> Result<(), Status> {
    let oldest_seq = feed.oldest_seq();
    if seq < oldest_seq {
        return Err(gone(seq, oldest_seq));
    }
    if seq > newest_seq + 1 {
        let message = format!(
            "from_seq is ahead of the feed: from_seq={seq} newest_seq={newest_seq}; the seq of another store? subscribe \
             with snapshot_then_tail"
        );
        return Err(Status::out_of_range(message));
    }
    Ok(())
}

fn gone(seq: u64, oldest_seq: u64) -> Status {
    Status::out_of_range(format!(
        "changes that old are no longer kept: from_seq={seq} oldest_seq={oldest_seq}; subscribe with snapshot_then_tail"
    ))
}

fn wire(seq: u64, change: &crate::feed::Change) -> Change {
    let value = |value: &[u8; 32]| Bytes::copy_from_slice(value);
    Change {
        seq,
        key: value(&change.key),
        old_value: change.old.as_ref().map(value),
        new_value: change.new.as_ref().map(value),
        slot: change.slot,
    }
}

/// Transport and address of a request's caller.
fn peer<T>(request: &Request<T>) -> (&'static str, String) {
    let from = request.extensions().get::<Arc<Peer>>().and_then(|peer| peer.from);
    match from {
        Some(address) => ("tcp", address.to_string()),
        None => ("uds", "local".to_owned()),
    }
}
