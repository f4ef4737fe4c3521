//! `solkv.v1.Feed`: one task for each subscriber, which reads the feed at the subscriber's own pace.
//!
//! Owns: the checks of a subscription, its place, and the order of its messages: a dump, changes, heartbeats. Must not:
//! read the feed, or wait for a subscriber that does not read; `subscription` does both. Threads: the network edge.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;

use engine_api::{Code, Key};
use futures::{FutureExt as _, Stream, StreamExt as _, stream};
use proto::v1::feed_server::Feed as FeedRpc;
use proto::v1::subscribe_request::Start;
use proto::v1::subscribe_response::Kind;
use proto::v1::{Heartbeat, Started, SubscribeRequest, SubscribeResponse};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::dump::Dump;
use super::peer;
use super::subscription::{CHANGES_PER_MESSAGE, Ended, Subscription, gone};
use crate::ask::budget::Peer;
use crate::ask::places::Taking;
use crate::ask::refusal::{Cause, Refusal};
use crate::ask::refuse_other_map;
use crate::base::figure::unix_ms;
use crate::feed::{DUMPS_MAX, Feed, Filter, Registration, Scope, SubscriberLimits, Tail, Workers};
use crate::net::figures::Place;

/// Messages queued between a subscriber's task and its connection: about two megabytes with [`CHANGES_PER_MESSAGE`]. A
/// longer queue would only cost memory, because the log holds the changes that the subscriber has not read.
const SUBSCRIBER_QUEUE: usize = 16;

/// The methods' implementation, shared by both listeners.
#[derive(Clone)]
pub struct FeedService {
    feed: Option<(Arc<Feed>, Workers)>,
    limits: SubscriberLimits,
}

impl FeedService {
    /// Returns a service of the feed; without a feed it refuses every subscription.
    pub fn new(feed: Option<(Arc<Feed>, Workers)>, limits: SubscriberLimits) -> Self {
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
            let message = "the service keeps no feed: its configuration says feed = false";
            return Err(Refusal::new(Cause::NotOffered, message).with_code(Code::FeedOff).into());
        };
        let caller = Arc::clone(peer(request.extensions())?);
        let request = request.into_inner();
        if let Some(feed_id) = request.feed_id.filter(|id| *id != feed.id()) {
            let message = format!(
                "this is another feed, with seqs of its own: asked={feed_id:016x} feed_id={:016x}; subscribe with \
                 dump_then_tail",
                feed.id()
            );
            return Err(Refusal::new(Cause::NotOffered, message).with_code(Code::FeedOther).into());
        }
        let filter = request.filter.as_ref().map(Filter::new).transpose().map_err(invalid)?;
        let share = Taking::new(&caller, Place::Subscribers, 1, self.limits.subscribers.into())?;
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
        tokio::spawn(async move {
            let _share = share;
            let (transport, address) = match caller.from {
                Some(address) => ("tcp", address.to_string()),
                None => ("uds", "local".to_owned()),
            };
            let place = feed.subscribers().register(transport, address, next_seq.saturating_sub(1));
            if let Err(Some(refusal)) = subscription.run(dump, &place).await {
                tracing::info!(cause = ?refusal.cause, reason = %refusal.message, "a subscriber was refused");
                end.send(Status::from(refusal)).ok();
            }
        });
        let last = ended.map(|status| stream::iter(status.ok().map(Err))).flatten_stream();
        Ok(Response::new(ReceiverStream::new(receiver).map(Ok).chain(last).boxed()))
    }
}

/// Returns the first change wanted, and the dump that precedes it, if one is asked for.
fn begin(feed: &Feed, request: &SubscribeRequest, caller: &Arc<Peer>) -> Result<(u64, Option<Dump>), Refusal> {
    let head = *feed.head().borrow();
    let dump = |after| {
        let _place = Taking::new(caller, Place::Dumps, 1, DUMPS_MAX as u64)?;
        Ok::<_, Refusal>(Some(Dump { after, _place }))
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
                return Err(invalid("dump_from needs the feed_id that its seq counts in"));
            }
            let len = from.after_key.len();
            let after = Key::try_from(&from.after_key[..]);
            let after = after.map_err(|_| invalid(format!("dump_from.after_key must be 32 bytes: got={len}")))?;
            let next_seq = from.seq.saturating_add(1);
            in_range(feed, next_seq, head.seq)?;
            Ok((next_seq, dump(Some(after))?))
        }
        None => Err(invalid("say where to start: from_seq, from_now, dump_then_tail or dump_from")),
    }
}

fn invalid(message: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::new(Cause::Invalid, message)
}

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
                let due = self.sent + self.limits.heartbeat;
                if due <= Instant::now() {
                    self.told_seq = tail.next_seq() - 1;
                    let slot = now.slot.filter(|_| !more);
                    self.send(Kind::Heartbeat(Heartbeat { seq: self.told_seq, slot, unix_ms: unix_ms() })).await?;
                }
            }
            tokio::select! {
                _ = tokio::time::timeout_at(self.sent + self.limits.heartbeat, head.changed()) => {}
                () = self.sender.closed() => return Err(None),
            }
        }
    }
}

fn in_range(feed: &Feed, seq: u64, newest_seq: u64) -> Result<(), Refusal> {
    let oldest_seq = feed.oldest_seq();
    if seq < oldest_seq {
        return Err(gone(seq, oldest_seq));
    }
    if seq > newest_seq + 1 {
        let message = format!(
            "from_seq is ahead of the feed: from_seq={seq} newest_seq={newest_seq}; the seq of another store? subscribe \
             with dump_then_tail"
        );
        return Err(Refusal::new(Cause::OutOfRange, message));
    }
    Ok(())
}
