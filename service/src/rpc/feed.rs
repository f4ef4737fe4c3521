//! `solkv.v1.Feed`: one task for each subscriber, which reads the feed at the subscriber's own pace.
//!
//! Owns: the messages to a subscriber, and the decision to cut it off. Must not: make the writer wait, or keep a
//! network thread busy. Long work runs on `feed-read-N` and `feed-dump-N`, in pieces. After each piece the task checks
//! whether the subscriber is still there and whether the service stops.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use engine_api::Key;
use futures::{FutureExt as _, Stream, StreamExt as _, stream};
use proto::v1::feed_server::Feed as FeedRpc;
use proto::v1::subscribe_request::Start;
use proto::v1::subscribe_response::Kind;
use proto::v1::{Change, Changes, Heartbeat, SlotEnd, Started, SubscribeRequest, SubscribeResponse};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::budget::Peer;
use super::places::{Places, Taking};
use super::refuse_other_map;
use crate::feed::{
    DUMPS_MAX, Feed, FeedError, FeedSettings, Filter, Head, NotDone, Registration, Scope, Tail, Workers,
};
use crate::figure::unix_ms;
use crate::net::figures::Place;

/// Messages queued between a subscriber's task and its connection: about two megabytes with [`CHANGES_PER_MESSAGE`]. A
/// longer queue would only cost memory, because the log holds the changes that the subscriber has not read.
const SUBSCRIBER_QUEUE: usize = 16;

/// Maximum number of changes in one message: 150 KB, well below the 4 MiB that clients accept by default.
pub(super) const CHANGES_PER_MESSAGE: usize = 1000;

/// The methods' implementation, shared by both listeners.
#[derive(Clone)]
pub struct FeedService {
    feed: Option<(Arc<Feed>, Workers)>,
    limits: FeedSettings,
}

impl FeedService {
    /// Returns a service of the feed; without a feed it refuses every subscription.
    pub fn new(feed: Option<(Arc<Feed>, Workers)>, limits: FeedSettings) -> Self {
        Self { feed, limits }
    }
}

type Responses = Pin<Box<dyn Stream<Item = Result<SubscribeResponse, Status>> + Send>>;

#[tonic::async_trait]
impl FeedRpc for FeedService {
    type SubscribeStream = Responses;

    async fn subscribe(&self, request: Request<SubscribeRequest>) -> Result<Response<Responses>, Status> {
        refuse_other_map(&request.get_ref().map)?;
        let Some((feed, workers)) = self.feed.clone() else {
            return Err(Status::failed_precondition("the service keeps no feed: its configuration says feed = false"));
        };
        let caller = Arc::clone(Peer::of(request.extensions())?);
        let (transport, peer) = peer(&request);
        let request = request.into_inner();
        if let Some(feed_id) = request.feed_id.filter(|id| *id != feed.id()) {
            let message = format!(
                "this is another feed, with seqs of its own: asked={feed_id:016x} feed_id={:016x}; subscribe with \
                 dump_then_tail",
                feed.id()
            );
            return Err(Status::failed_precondition(message));
        }
        let filter = request.filter.as_ref().map(Filter::new).transpose().map_err(Status::invalid_argument)?;
        let share = Places::take(&caller, Place::Subscribers, 1, self.limits.feed_subscribers.into())?;
        let (next_seq, dump) = begin(&feed, &request, &caller)?;
        let (sender, receiver) = mpsc::channel(SUBSCRIBER_QUEUE);
        let (end, ended) = oneshot::channel();
        let subscription = Subscription {
            sender,
            feed: Arc::clone(&feed),
            filter: Arc::new(filter.unwrap_or_default()),
            workers,
            head: feed.head(),
            limits: self.limits,
            told_seq: next_seq.saturating_sub(1),
            sent: Instant::now(),
        };
        // The place is taken before the answer, so that a refusal becomes the call's own status.
        let most = self.limits.feed_subscribers as usize;
        let (taken, placed) = oneshot::channel();
        tokio::spawn(async move {
            let _share = share;
            let place = feed.subscribers().register(transport, peer, next_seq.saturating_sub(1), most);
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
            if let Err(Some(status)) = subscription.run(dump, &place).await {
                tracing::info!(code = ?status.code(), reason = status.message(), "a subscriber was refused");
                end.send(status).ok();
            }
        });
        placed.await.map_err(|_| Status::internal("a subscriber's task ended early"))??;
        let last = ended.map(|status| stream::iter(status.ok().map(Err))).flatten_stream();
        Ok(Response::new(ReceiverStream::new(receiver).map(Ok).chain(last).boxed()))
    }
}

/// The dump at the beginning of a subscription.
pub(super) struct Dump {
    /// The last key that the subscriber already has; `None` for a dump from the beginning.
    pub(super) after: Option<Key>,
    /// The place among all dumps, released when the dump ends.
    pub(super) _place: OwnedSemaphorePermit,
    /// The place in the subscriber's own share of dumps.
    _share: Taking,
}

/// Returns the first change wanted, and the dump that precedes it, if one is asked for.
fn begin(feed: &Feed, request: &SubscribeRequest, caller: &Arc<Peer>) -> Result<(u64, Option<Dump>), Status> {
    let head = *feed.head().borrow();
    let dump = |after| {
        let busy =
            || Status::resource_exhausted(format!("too many dumps are under way, try again later: max={DUMPS_MAX}"));
        let _share = Places::take(caller, Place::Dumps, 1, DUMPS_MAX as u64)?;
        Ok::<_, Status>(Some(Dump { after, _place: feed.subscribers().begin_dump().ok_or_else(busy)?, _share }))
    };
    match &request.start {
        Some(Start::FromSeq(seq)) => {
            in_range(feed, *seq, head.seq)?;
            Ok((*seq, None))
        }
        Some(Start::FromNow(_)) => Ok((head.seq + 1, None)),
        Some(Start::DumpThenTail(_)) => Ok((head.seq + 1, dump(None)?)),
        Some(Start::DumpFrom(from)) => {
            if request.feed_id.is_none() {
                return Err(Status::invalid_argument("dump_from needs the feed_id that its seq counts in"));
            }
            let len = from.after_key.len();
            let after = Key::try_from(&from.after_key[..]);
            let after = after
                .map_err(|_| Status::invalid_argument(format!("dump_from.after_key must be 32 bytes: got={len}")))?;
            let next_seq = from.seq.saturating_add(1);
            in_range(feed, next_seq, head.seq)?;
            Ok((next_seq, dump(Some(after))?))
        }
        None => Err(Status::invalid_argument("say where to start: from_seq, from_now, dump_then_tail or dump_from")),
    }
}

/// A subscriber's task, with its position in the feed.
pub(super) struct Subscription {
    sender: mpsc::Sender<SubscribeResponse>,
    feed: Arc<Feed>,
    pub(super) filter: Arc<Filter>,
    pub(super) workers: Workers,
    head: watch::Receiver<Head>,
    limits: FeedSettings,
    /// The last change that a message has covered: the next message begins with the one after it.
    pub(super) told_seq: u64,
    /// Time at which the last message was passed on.
    sent: Instant,
}

/// Reason for the end of a subscription: a status, or `None` if the subscriber is gone.
pub(super) type Ended = Option<Status>;

impl Subscription {
    async fn run(mut self, dump: Option<Dump>, place: &Registration<'_>) -> Result<(), Ended> {
        let started = Started {
            feed_id: self.feed.id(),
            next_seq: self.told_seq + 1,
            oldest_seq: self.feed.oldest_seq(),
            slot: self.feed.head().borrow().slot,
        };
        self.send(Kind::Started(started)).await?;
        let mut tail = Tail::new(Arc::clone(&self.feed), Arc::clone(&self.filter), self.told_seq + 1);
        if let Some(dump) = dump {
            tail = self.dump(tail, dump).await?;
        }
        let everything = Scope { last_seq: u64::MAX, last_key: None, most: CHANGES_PER_MESSAGE };
        let mut head = self.feed.head();
        loop {
            let now = *head.borrow_and_update();
            let mut more = true;
            while more {
                (tail, more) = self.piece(tail, everything).await?;
                place.reached(tail.next_seq() - 1);
                // A filter that holds everything back counts as silence too. The slot is sent only to a subscriber that
                // has caught up.
                let due = self.sent + self.limits.feed_heartbeat;
                if due <= Instant::now() {
                    self.told_seq = tail.next_seq() - 1;
                    let slot = now.slot.filter(|_| !more);
                    self.send(Kind::Heartbeat(Heartbeat { seq: self.told_seq, slot, unix_ms: unix_ms() })).await?;
                }
            }
            tokio::select! {
                _ = tokio::time::timeout_at(self.sent + self.limits.feed_heartbeat, head.changed()) => {}
                () = self.sender.closed() => return Err(None),
            }
        }
    }

    /// Reads the next changes within `scope` and sends those that pass. Returns the position after them, and whether
    /// there are more within the scope.
    pub(super) async fn piece(&mut self, mut tail: Tail, scope: Scope) -> Result<(Tail, bool), Ended> {
        if self.head.borrow().closed {
            return Err(Some(closing()));
        }
        if self.sender.is_closed() {
            return Err(None);
        }
        let next_seq = tail.next_seq();
        let found = if let Some(at_hand) = tail.at_hand(&scope) {
            let head_seq = self.head.borrow().seq;
            changes(&mut tail, &at_hand)
                .map(|(changes, end, more)| (changes, end, more || tail.next_seq() <= scope.last_seq.min(head_seq)))
        } else {
            let job = move || {
                let found = changes(&mut tail, &scope);
                (tail, found)
            };
            let found;
            (tail, found) = self.workers.read(job).await.map_err(not_done)?;
            found
        };
        let (changes, slot_end, more) = found.map_err(|error| unreadable(error, next_seq))?;
        if !changes.is_empty() || slot_end.is_some() {
            // The message also covers the changes before, which were examined and did not pass.
            let first_seq = self.told_seq + 1;
            self.told_seq = tail.next_seq() - 1;
            // ORDERING: Relaxed: a statistic.
            self.feed.subscribers().changes_sent.fetch_add(changes.len() as u64, Ordering::Relaxed);
            self.send(Kind::Changes(Changes { first_seq, last_seq: self.told_seq, changes, slot_end })).await?;
        }
        Ok((tail, more))
    }

    /// Waits until the change `seq` is published, because a commit can be read a moment before that.
    pub(super) async fn published(&mut self, seq: u64) -> Result<(), Ended> {
        match self.head.wait_for(|head| head.seq >= seq || head.closed).await {
            Ok(head) if !head.closed => Ok(()),
            _ => Err(Some(closing())),
        }
    }

    /// Passes a message on. If the queue is full, waits for the subscriber to read, but no longer than the limit.
    pub(super) async fn send(&mut self, kind: Kind) -> Result<(), Ended> {
        let message = SubscribeResponse { kind: Some(kind) };
        let place = match self.sender.try_reserve() {
            Ok(place) => place,
            Err(mpsc::error::TrySendError::Closed(())) => return Err(None),
            Err(mpsc::error::TrySendError::Full(())) => {
                let waited = tokio::select! {
                    waited = tokio::time::timeout(self.limits.feed_stall_timeout, self.sender.reserve()) => waited.ok(),
                    closed = self.head.wait_for(|head| head.closed) => {
                        drop(closed);
                        return Err(Some(closing()));
                    }
                };
                match waited {
                    Some(place) => place.map_err(|_| None)?,
                    None => return Err(Some(self.cut_off())),
                }
            }
        };
        place.send(message);
        self.sent = Instant::now();
        Ok(())
    }

    fn cut_off(&self) -> Status {
        // ORDERING: Relaxed: a statistic.
        self.feed.subscribers().cut_off.fetch_add(1, Ordering::Relaxed);
        let stalled = self.limits.feed_stall_timeout;
        Status::resource_exhausted(format!(
            "cut off, because nothing was read for {stalled:?}: reconnect with the last seq, or with dump_from"
        ))
    }
}

/// Returns the next piece of `tail` in wire form, the slot that ends with it, and whether there is more.
fn changes(tail: &mut Tail, scope: &Scope) -> Result<(Vec<Change>, Option<SlotEnd>, bool), FeedError> {
    let piece = tail.piece(scope)?;
    let changes = piece.changes.iter().map(|(seq, change)| wire(*seq, change)).collect();
    Ok((changes, piece.slot_end.as_ref().map(wire_end), piece.more))
}

pub(super) fn closing() -> Status {
    Status::unavailable("the service is shutting down: reconnect with the last seq, or with dump_from")
}

fn not_done(why: NotDone) -> Ended {
    Some(match why {
        NotDone::Busy => Status::resource_exhausted("too many subscribers are behind, try again later"),
        NotDone::Stopped => closing(),
    })
}

fn unreadable(error: FeedError, next_seq: u64) -> Ended {
    Some(match error {
        FeedError::Gone { oldest_seq } => gone(next_seq, oldest_seq),
        FeedError::Log(error) => {
            tracing::error!(%error, "the feed cannot be read");
            Status::data_loss(error.to_string())
        }
    })
}

fn in_range(feed: &Feed, seq: u64, newest_seq: u64) -> Result<(), Status> {
    let oldest_seq = feed.oldest_seq();
    if seq < oldest_seq {
        return Err(gone(seq, oldest_seq));
    }
    if seq > newest_seq + 1 {
        let message = format!(
            "from_seq is ahead of the feed: from_seq={seq} newest_seq={newest_seq}; the seq of another store? subscribe \
             with dump_then_tail"
        );
        return Err(Status::out_of_range(message));
    }
    Ok(())
}

fn gone(seq: u64, oldest_seq: u64) -> Status {
    Status::out_of_range(format!(
        "changes that old are no longer kept: from_seq={seq} oldest_seq={oldest_seq}; subscribe with dump_then_tail"
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

fn wire_end(end: &crate::feed::SlotEnd) -> SlotEnd {
    SlotEnd { slot: end.slot, blockhash: Bytes::copy_from_slice(&end.blockhash), parent_slot: end.parent_slot }
}

/// Returns the transport and the address of a request's caller.
fn peer<T>(request: &Request<T>) -> (&'static str, String) {
    let from = request.extensions().get::<Arc<Peer>>().and_then(|peer| peer.from);
    match from {
        Some(address) => ("tcp", address.to_string()),
        None => ("uds", "local".to_owned()),
    }
}
