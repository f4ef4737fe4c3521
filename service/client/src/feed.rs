//! The change feed for a subscriber: in order, without gaps, across restarts of the service.
//!
//! Owns: the position from which to continue after a break; the check that nothing is missing between two messages.
//! Must not: continue past a gap. Threads: the caller's.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use proto::v1::feed_client::FeedClient;
use proto::v1::subscribe_request::Start as WireStart;
use proto::v1::subscribe_response::Kind;
use proto::v1::{DumpFrom, DumpPairs, DumpThenTail, FromNow, Started, SubscribeRequest, SubscribeResponse};
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};

use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::grpc::{Connection, Grpc};
use crate::{Key, Value};

/// After this time without any message the client connects again, because the service sends a heartbeat when it has
/// nothing else to send.
const SILENCE: Duration = Duration::from_secs(30);

/// Limit on the time of one attempt to connect.
const CONNECT: Duration = Duration::from_secs(5);

/// The position at which a subscription begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// Begins with this change: the last one seen + 1, of the feed that [`Event::Started`] named then.
    From {
        /// Seq of the first change wanted.
        seq: u64,
        /// Identifier of the feed that `seq` counts in.
        feed_id: u64,
    },
    /// Begins with the first change that is committed from now on.
    Now,
    /// Begins with every pair of the map; then every change since follows.
    Dump,
    /// Begins with the rest of a dump that was interrupted, at the position that [`Subscription::dumped`] returned
    /// then; then every change since follows.
    DumpFrom {
        /// Position at which the dump was interrupted.
        dumped: Dumped,
        /// Identifier of the feed that the position's seq counts in.
        feed_id: u64,
    },
}

/// Position of an incomplete dump: the caller's map has every key up to `key`, in its state after the change `seq`, and
/// no greater key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dumped {
    /// The greatest key that the dump has covered.
    pub key: Key,
    /// Seq of the last change that the dumped keys reflect.
    pub seq: u64,
}

/// Selects changes, and the pairs of a dump; an empty filter selects all. A change passes if it passes each part that
/// is not empty. All parts together hold at most 10,000 entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Passes a change whose key is one of these.
    pub keys: Vec<Key>,
    /// Passes a change whose old or new value is one of these.
    pub values: Vec<Value>,
    /// Passes a change whose key begins with one of these, 1 to 32 bytes each.
    pub key_prefixes: Vec<Vec<u8>>,
}

/// An event of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Always the first event. It comes again if a dump was interrupted and cannot continue, because the service has
    /// begun a new feed. The dump then starts over: discard its pairs so far.
    Started {
        /// Identifier of the feed, for [`Start::From`].
        feed_id: u64,
        /// Seq of the first change that follows; for a dump see [`Event::DumpEnd`].
        next_seq: u64,
        /// Seq of the oldest change that the service keeps.
        oldest_seq: u64,
        /// The last slot applied completely; `None` before the first.
        slot: Option<u64>,
    },
    /// Pairs of the dump, ascending by key: set each key to its value. With a filter there may be none, and the event
    /// only advances [`Subscription::dumped`]. [`Event::Changes`] of keys that were already dumped come in between.
    Pairs(Vec<(Key, Value)>),
    /// The dump is complete: with all pairs and changes so far, in their order, the caller has the map in its state
    /// after the change `seq`.
    DumpEnd {
        /// Seq of the last change in the dump; the next change has this + 1.
        seq: u64,
        /// The last slot that is completely in the dump; `None` before the first.
        slot: Option<u64>,
        /// Number of pairs sent, including those before a break of the connection.
        pairs: u64,
    },
    /// Changes of one slot, in order; with a filter there may be none. In a dump they may belong to several slots.
    Changes {
        /// The changes that pass the filter, ascending by seq.
        changes: Vec<Change>,
        /// Set if the slot ends with these changes, so that all of it was seen.
        slot_end: Option<SlotEnd>,
    },
    /// Nothing happened for a while; everything up to `seq` was seen.
    Heartbeat {
        /// Seq of the newest change examined.
        seq: u64,
        /// The last slot applied completely; `None` before the first.
        slot: Option<u64>,
        /// The service's clock, in milliseconds since the Unix epoch.
        unix_ms: u64,
    },
}

/// The end of a slot that changed something. A slot that changed nothing has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotEnd {
    /// Seq of the slot's last change, whether or not it passes the filter.
    pub seq: u64,
    /// Number of the slot that ends.
    pub slot: u64,
    /// Hash of the slot's block.
    pub blockhash: [u8; 32],
    /// Slot of the block's parent, which may have changed nothing.
    pub parent_slot: u64,
}

/// One change of the map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its number in the feed; the numbers of all changes have no holes.
    pub seq: u64,
    /// The 32-byte key that changed.
    pub key: Key,
    /// Value of the key before the change; `None` if it was not in the map.
    pub old: Option<Value>,
    /// Value of the key after the change; `None` if it was removed.
    pub new: Option<Value>,
    /// The slot whose block made the change.
    pub slot: u64,
}

/// A feed that continues where it was after every break of the connection. Dropping it ends the subscription.
pub struct Subscription {
    grpc: Arc<Grpc>,
    filter: Filter,
    position: Position,
    stream: Option<(Streaming<SubscribeResponse>, Arc<Connection>)>,
    /// Whether the stream's first message, Started, is still to come.
    starting: bool,
    backoff: Backoff,
}

/// The position from which to continue after a break.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Position {
    start: Start,
    feed_id: Option<u64>,
    /// Everything up to this seq was seen; `None` before the first Started, and during a dump.
    last_seq: Option<u64>,
    /// Position of a dump that is not complete; otherwise `None`.
    dumped: Option<Dumped>,
    /// Number of pairs of the dump received so far.
    pairs: u64,
}

impl Subscription {
    pub(crate) fn new(grpc: Arc<Grpc>, start: Start, filter: Filter) -> Self {
        let (feed_id, last_seq) = match start {
            Start::From { seq, feed_id } => (Some(feed_id), Some(seq.saturating_sub(1))),
            Start::DumpFrom { feed_id, .. } => (Some(feed_id), None),
            Start::Now | Start::Dump => (None, None),
        };
        let dumped = match start {
            Start::DumpFrom { dumped, .. } => Some(dumped),
            Start::From { .. } | Start::Now | Start::Dump => None,
        };
        let position = Position { start, feed_id, last_seq, dumped, pairs: 0 };
        Self { grpc, filter, position, stream: None, starting: false, backoff: Backoff::new() }
    }

    /// Returns the seq of the last change seen, from which a later subscription can continue with that + 1. `None`
    /// before the first answer and during a dump.
    pub fn last_seq(&self) -> Option<u64> {
        self.position.last_seq
    }

    /// Returns how far a dump has come, from which a later subscription can continue by [`Start::DumpFrom`]. `None`
    /// before the dump's first pairs, and once it is complete.
    pub fn dumped(&self) -> Option<Dumped> {
        self.position.dumped
    }

    /// Returns the identifier of the feed that the seqs count in; `None` before the first answer.
    pub fn feed_id(&self) -> Option<u64> {
        self.position.feed_id
    }

    /// Returns the next event. Waits without a limit, also for a service that is away. Dropping the future loses
    /// nothing.
    ///
    /// # Errors
    /// Only errors that waiting does not mend: the feed is lost, the request is wrong, the service refuses the caller,
    /// or it broke its contract. Another call tries again.
    pub async fn next(&mut self) -> Result<Event> {
        loop {
            let received = match &mut self.stream {
                Some((stream, _)) => match tokio::time::timeout(SILENCE, stream.message()).await {
                    Ok(Ok(Some(response))) => Ok(response),
                    Ok(Ok(None)) => Err(Status::unavailable("the service ended the feed")),
                    Ok(Err(status)) => Err(status),
                    Err(_) => Err(Status::unavailable("the service is silent")),
                },
                None => {
                    self.open().await?;
                    continue;
                }
            };
            let event = match received {
                Ok(response) => self.take(response),
                Err(status) => {
                    self.broken(&status).await?;
                    continue;
                }
            };
            if event.is_err() {
                self.stream = None;
            }
            if let Some(event) = event? {
                return Ok(event);
            }
        }
    }

    /// Turns the subscription into a stream of events, which ends after the first error.
    pub fn into_stream(self) -> impl Stream<Item = Result<Event>> + Send {
        futures::stream::unfold(Some(self), |state| async move {
            let mut subscription = state?;
            match subscription.next().await {
                Ok(event) => Some((Ok(event), Some(subscription))),
                Err(error) => Some((Err(error), None)),
            }
        })
    }

    /// Subscribes. After a failed attempt it pauses instead.
    async fn open(&mut self) -> Result<()> {
        let connection = self.grpc.connection();
        let mut client = FeedClient::new(connection.authorized());
        match client.subscribe(self.position.request(&self.filter)).await {
            Ok(response) => {
                self.stream = Some((response.into_inner(), connection));
                self.starting = true;
                Ok(())
            }
            Err(status) => {
                self.reconnect(&status, &connection).await?;
                tokio::time::sleep(self.backoff.pause()).await;
                Ok(())
            }
        }
    }

    /// Pauses after a stream broke, or returns an error that no pause mends.
    async fn broken(&mut self, status: &Status) -> Result<()> {
        let Some((_, connection)) = self.stream.take() else { return Ok(()) };
        self.reconnect(status, &connection).await?;
        tokio::time::sleep(self.backoff.pause()).await;
        Ok(())
    }

    async fn reconnect(&mut self, status: &Status, connection: &Arc<Connection>) -> Result<()> {
        if status.code() == Code::Unauthenticated && self.grpc.renew(connection).await?.is_some() {
            return Ok(());
        }
        if self.position.begins_anew(status) {
            return Ok(());
        }
        if is_final(status) {
            return Err(Error::of_feed(status));
        }
        if crate::error::is_broken(status) {
            // Its other errors are met again by the next attempt to subscribe.
            match self.grpc.reconnect(connection, Instant::now() + CONNECT).await {
                Err(error) if error.kind() == ErrorKind::BadInput => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks and records a message. Returns `None` if it holds no news for the caller.
    fn take(&mut self, response: SubscribeResponse) -> Result<Option<Event>> {
        let kind = response.kind.ok_or_else(|| Error::failed("an empty message of the feed"))?;
        if self.starting != matches!(kind, Kind::Started(_)) {
            return Err(Error::failed("Started must be the first message of the feed and come once"));
        }
        self.starting = false;
        let event = self.position.take(kind)?;
        // The subscription works, so the next break starts with a short pause.
        self.backoff = Backoff::new();
        Ok(event)
    }
}

/// Whether the service would give the same answer to another attempt.
fn is_final(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::OutOfRange
            | Code::FailedPrecondition
            | Code::InvalidArgument
            | Code::Unauthenticated
            | Code::PermissionDenied
            | Code::Unimplemented
    )
}

impl Position {
    fn request(&self, filter: &Filter) -> SubscribeRequest {
        let wire = |entries: &[[u8; 32]]| entries.iter().map(|entry| Bytes::copy_from_slice(entry)).collect();
        let start = match (self.last_seq, &self.start) {
            (Some(last), _) => WireStart::FromSeq(last.saturating_add(1)),
            (None, Start::Dump | Start::DumpFrom { .. }) => match self.dumped {
                Some(dumped) => {
                    let after_key = Bytes::copy_from_slice(&dumped.key);
                    WireStart::DumpFrom(DumpFrom { after_key, seq: dumped.seq })
                }
                None => WireStart::DumpThenTail(DumpThenTail {}),
            },
            (None, Start::Now | Start::From { .. }) => WireStart::FromNow(FromNow {}),
        };
        SubscribeRequest {
            start: Some(start),
            feed_id: self.last_seq.or(self.dumped.map(|dumped| dumped.seq)).and(self.feed_id),
            filter: Some(proto::v1::Filter {
                keys: wire(&filter.keys),
                values: wire(&filter.values),
                key_prefixes: filter.key_prefixes.iter().map(|prefix| Bytes::copy_from_slice(prefix)).collect(),
            }),
            map: String::new(),
        }
    }

    fn take(&mut self, kind: Kind) -> Result<Option<Event>> {
        match kind {
            Kind::Started(started) => self.started(&started),
            Kind::DumpPairs(pairs) => self.pairs(&pairs).map(Some),
            Kind::DumpEnd(end) => {
                if let Some(dumped) = self.dumped.filter(|dumped| dumped.seq > end.seq) {
                    return Err(Error::failed(format!(
                        "a dump ends before its pairs: seq={} dumped={}",
                        end.seq, dumped.seq
                    )));
                }
                (self.last_seq, self.dumped) = (Some(end.seq), None);
                Ok(Some(Event::DumpEnd { seq: end.seq, slot: end.slot, pairs: self.pairs }))
            }
            Kind::Changes(changes) => {
                self.follows(changes.first_seq)?;
                let all = changes.changes.into_iter().map(change).collect::<Result<Vec<_>>>()?;
                let range = changes.first_seq..=changes.last_seq;
                let ascending = all.is_sorted_by(|a, b| a.seq < b.seq);
                if range.is_empty() || !ascending || all.iter().any(|change| !range.contains(&change.seq)) {
                    return Err(Error::failed(format!("changes out of order: range={range:?}")));
                }
                let slot_end = changes.slot_end.map(|end| slot_end(&end, changes.last_seq)).transpose()?;
                match &mut self.dumped {
                    Some(dumped) => {
                        if let Some(change) = all.iter().find(|change| change.key > dumped.key) {
                            return Err(Error::failed(format!("a change of a key not dumped yet: seq={}", change.seq)));
                        }
                        dumped.seq = changes.last_seq;
                    }
                    None => self.last_seq = Some(changes.last_seq),
                }
                Ok(Some(Event::Changes { changes: all, slot_end }))
            }
            Kind::Heartbeat(beat) => {
                // During a dump a heartbeat says only that the service is there.
                if let Some(last) = self.last_seq {
                    if beat.seq < last {
                        return Err(Error::failed(format!(
                            "a heartbeat is older than the changes: seq={} last_seq={last}",
                            beat.seq
                        )));
                    }
                    self.last_seq = Some(beat.seq);
                }
                Ok(Some(Event::Heartbeat { seq: beat.seq, slot: beat.slot, unix_ms: beat.unix_ms }))
            }
        }
    }

    fn pairs(&mut self, message: &DumpPairs) -> Result<Event> {
        let (packed, rest) = message.packed_pairs.as_chunks::<64>();
        if !rest.is_empty() {
            return Err(Error::failed("packed_pairs must be 64 bytes a pair"));
        }
        let split = |pair: &[u8; 64]| {
            let (mut key, mut value) = (Key::default(), Value::default());
            key.copy_from_slice(&pair[..32]);
            value.copy_from_slice(&pair[32..]);
            (key, value)
        };
        let pairs: Vec<_> = packed.iter().map(split).collect();
        let len = message.through_key.len();
        let through = Key::try_from(&message.through_key[..])
            .map_err(|_| Error::failed(format!("through_key must be 32 bytes: got={len}")))?;
        let (after, seq) = self.dumped.map_or((None, 0), |dumped| (Some(dumped.key), dumped.seq));
        let first = pairs.first().map(|(key, _)| *key);
        let last = pairs.last().map(|(key, _)| *key);
        let follows = first.is_none_or(|first| after < Some(first)) && last <= Some(through) && after <= Some(through);
        let ascending = pairs.is_sorted_by(|a, b| a.0 < b.0);
        if self.last_seq.is_some() || !follows || !ascending || message.seq < seq {
            return Err(Error::failed(format!("pairs of a dump out of order: seq={} dumped={seq}", message.seq)));
        }
        self.dumped = Some(Dumped { key: through, seq: message.seq });
        self.pairs += pairs.len() as u64;
        Ok(Event::Pairs(pairs))
    }

    fn started(&mut self, started: &Started) -> Result<Option<Event>> {
        let goes_on = self.last_seq.is_some() || self.dumped.is_some();
        let named = matches!(self.start, Start::From { .. } | Start::DumpFrom { .. });
        let first = self.feed_id.is_none() || named;
        if goes_on {
            if self.feed_id.is_some_and(|id| id != started.feed_id) {
                let (was, now) = (self.feed_id.unwrap_or_default(), started.feed_id);
                return Err(Error::new(ErrorKind::FeedLost, format!("another feed: was={was:016x} now={now:016x}")));
            }
            self.follows(started.next_seq)?;
        }
        self.feed_id = Some(started.feed_id);
        if !goes_on && self.start == Start::Now {
            self.last_seq = Some(started.next_seq.saturating_sub(1));
        }
        // Report an explicit start only once: later subscriptions continue from here.
        match self.start {
            Start::From { .. } => self.start = Start::Now,
            Start::DumpFrom { .. } => self.start = Start::Dump,
            Start::Now | Start::Dump => {}
        }
        let tell = !goes_on || first;
        Ok(tell.then_some(Event::Started {
            feed_id: started.feed_id,
            next_seq: started.next_seq,
            oldest_seq: started.oldest_seq,
            slot: started.slot,
        }))
    }

    /// Whether an interrupted dump must start over, because the service now has another feed, which does not continue
    /// the dump. A dump to which the log no longer reaches back is reported as an error instead, because it would be
    /// interrupted again.
    fn begins_anew(&mut self, status: &Status) -> bool {
        let anew = self.start == Start::Dump && self.dumped.is_some() && status.code() == Code::FailedPrecondition;
        if anew {
            (self.feed_id, self.dumped, self.pairs) = (None, None, 0);
        }
        anew
    }

    /// Checks that `seq` is the next after everything that was seen.
    fn follows(&self, seq: u64) -> Result<()> {
        match self.last_seq.or(self.dumped.map(|dumped| dumped.seq)) {
            Some(last) if seq == last.saturating_add(1) => Ok(()),
            last => Err(Error::failed(format!("the feed has a hole: last_seq={last:?} next_seq={seq}"))),
        }
    }
}

fn slot_end(end: &proto::v1::SlotEnd, seq: u64) -> Result<SlotEnd> {
    let blockhash = <[u8; 32]>::try_from(&end.blockhash[..]).map_err(|_| {
        Error::failed(format!("blockhashes must be 32 bytes: got={} slot={}", end.blockhash.len(), end.slot))
    })?;
    Ok(SlotEnd { seq, slot: end.slot, blockhash, parent_slot: end.parent_slot })
}

fn change(change: proto::v1::Change) -> Result<Change> {
    let entry = |bytes: &Bytes| {
        <[u8; 32]>::try_from(&bytes[..]).map_err(|_| {
            Error::failed(format!("keys and values must be 32 bytes: got={} seq={}", bytes.len(), change.seq))
        })
    };
    Ok(Change {
        seq: change.seq,
        key: entry(&change.key)?,
        old: change.old_value.as_ref().map(entry).transpose()?,
        new: change.new_value.as_ref().map(entry).transpose()?,
        slot: change.slot,
    })
}
