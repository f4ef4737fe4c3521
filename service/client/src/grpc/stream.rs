//! The change feed over gRPC: in order, without gaps, across restarts of the service.
//!
//! Owns: the check that nothing is missing between two messages; the way back after a break. Must not: continue past a
//! gap. Threads: the caller's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::Stream;
use proto::v1::feed_client::FeedClient;
use proto::v1::subscribe_request::Start as WireStart;
use proto::v1::subscribe_response::Kind;
use proto::v1::{Changes, DumpFrom, DumpPairs, DumpThenTail, FromNow, SubscribeRequest, SubscribeResponse};
use tonic::{Code, Status, Streaming};

use super::codes;
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::feed::{Change, Dumped, Event, Filter, Position, SlotEnd, Start, Started};
use crate::grpc::{Connection, Grpc};
use crate::{Key, Value};

/// After this time without any message the client connects again, because the service sends a heartbeat when it has
/// nothing else to send.
const SILENCE: Duration = Duration::from_secs(30);

/// Limit on the time of one attempt to connect.
const CONNECT: Duration = Duration::from_secs(5);

/// A feed that continues where it was after every break of the connection. Dropping it ends the subscription.
pub struct Subscription {
    grpc: Arc<Grpc>,
    filter: Filter,
    pub(crate) position: Position,
    /// Number of pairs of the dump received so far.
    pairs: u64,
    /// The connection of the newest attempt to subscribe.
    connection: Arc<Connection>,
    stream: Option<Streaming<SubscribeResponse>>,
    /// Whether the stream's first message, Started, is still to come.
    starting: bool,
    backoff: Backoff,
}

impl Subscription {
    pub(crate) fn new(grpc: Arc<Grpc>, start: Start, filter: Filter) -> Self {
        let (position, connection) = (Position::new(start), grpc.connection());
        let backoff = Backoff::new();
        Self { grpc, filter, position, pairs: 0, connection, stream: None, starting: false, backoff }
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
            let event = match self.receive().await {
                Ok(response) => self.take(response),
                Err(status) => {
                    self.stream = None;
                    self.mend(&status).await?;
                    tokio::time::sleep(self.backoff.pause()).await;
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

    /// Returns the next message, and subscribes first where there is no stream.
    async fn receive(&mut self) -> Result<SubscribeResponse, Status> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                self.connection = self.grpc.connection();
                let (channel, request) = self.connection.call(request(&self.position, &self.filter));
                let response = FeedClient::new(channel).subscribe(request).await?;
                self.starting = true;
                self.stream.insert(response.into_inner())
            }
        };
        match tokio::time::timeout(SILENCE, stream.message()).await {
            Ok(message) => message?.ok_or_else(|| Status::unavailable("the service ended the feed")),
            Err(_) => Err(Status::unavailable("the service is silent")),
        }
    }

    /// Prepares another attempt to subscribe, or returns an error that no attempt mends.
    async fn mend(&mut self, status: &Status) -> Result<()> {
        if status.code() == Code::Unauthenticated && self.grpc.renew(&self.connection).await?.is_some() {
            return Ok(());
        }
        if self.begins_anew(status) {
            return Ok(());
        }
        if is_final(status) {
            return Err(codes::of_feed(status));
        }
        if codes::is_broken(status) {
            // Its other errors are met again by the next attempt to subscribe.
            match self.grpc.reconnect(&self.connection, Instant::now() + CONNECT).await {
                Err(error) if error.kind() == ErrorKind::BadInput => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether an interrupted dump must start over, because the service now has another feed, which does not continue
    /// the dump. A dump to which the log no longer reaches back is reported as an error instead, because it would be
    /// interrupted again.
    fn begins_anew(&mut self, status: &Status) -> bool {
        let position = &mut self.position;
        let anew = position.start == Start::Dump && position.dumped.is_some();
        let anew = anew && status.code() == Code::FailedPrecondition;
        if anew {
            (position.feed_id, position.dumped, self.pairs) = (None, None, 0);
        }
        anew
    }

    /// Checks and records a message. Returns `None` if it holds no news for the caller.
    fn take(&mut self, response: SubscribeResponse) -> Result<Option<Event>> {
        let kind = response.kind.ok_or_else(|| Error::failed("an empty message of the feed"))?;
        if self.starting != matches!(kind, Kind::Started(_)) {
            return Err(Error::failed("Started must be the first message of the feed and come once"));
        }
        self.starting = false;
        let position = &mut self.position;
        let event = match kind {
            Kind::Started(proto::v1::Started { feed_id, next_seq, oldest_seq, slot }) => {
                position.started(&Started { feed_id, next_seq, oldest_seq, slot })?
            }
            Kind::DumpPairs(message) => {
                let pairs = pairs(position, &message)?;
                self.pairs += pairs.len() as u64;
                Some(Event::Pairs(pairs))
            }
            Kind::DumpEnd(end) => {
                if let Some(dumped) = position.dumped.filter(|dumped| dumped.seq > end.seq) {
                    let (seq, dumped) = (end.seq, dumped.seq);
                    return Err(Error::failed(format!("a dump ends before its pairs: seq={seq} dumped={dumped}")));
                }
                (position.last_seq, position.dumped) = (Some(end.seq), None);
                Some(Event::DumpEnd { seq: end.seq, slot: end.slot, pairs: self.pairs })
            }
            Kind::Changes(message) => Some(changes(position, message)?),
            Kind::Heartbeat(proto::v1::Heartbeat { seq, slot, unix_ms }) => {
                // During a dump a heartbeat says only that the service is there.
                if let Some(last_seq) = &mut position.last_seq {
                    if seq < *last_seq {
                        let why = format!("a heartbeat is older than the changes: seq={seq} last_seq={last_seq}");
                        return Err(Error::failed(why));
                    }
                    *last_seq = seq;
                }
                Some(Event::Heartbeat { seq, slot, unix_ms })
            }
        };
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

/// Returns the request that continues at `position`.
fn request(position: &Position, filter: &Filter) -> SubscribeRequest {
    let wire = |entries: &[[u8; 32]]| entries.iter().map(|entry| Bytes::copy_from_slice(entry)).collect();
    let start = match (position.last_seq, position.dumped, &position.start) {
        (Some(last), ..) => WireStart::FromSeq(last.saturating_add(1)),
        (None, Some(Dumped { key, seq }), _) => {
            WireStart::DumpFrom(DumpFrom { after_key: Bytes::copy_from_slice(&key), seq })
        }
        (None, None, Start::Dump | Start::DumpFrom { .. }) => WireStart::DumpThenTail(DumpThenTail {}),
        (None, None, Start::Now | Start::From { .. }) => WireStart::FromNow(FromNow {}),
    };
    let continues = matches!(start, WireStart::FromSeq(_) | WireStart::DumpFrom(_));
    SubscribeRequest {
        start: Some(start),
        feed_id: position.feed_id.filter(|_| continues),
        filter: Some(proto::v1::Filter {
            keys: wire(&filter.keys),
            values: wire(&filter.values),
            key_prefixes: filter.key_prefixes.iter().map(|prefix| Bytes::copy_from_slice(prefix)).collect(),
        }),
        map: String::new(),
    }
}

fn changes(position: &mut Position, message: Changes) -> Result<Event> {
    position.follows(message.first_seq)?;
    let all = message.changes.iter().map(change).collect::<Result<Vec<_>>>()?;
    let range = message.first_seq..=message.last_seq;
    let ascending = all.is_sorted_by(|a, b| a.seq < b.seq);
    if range.is_empty() || !ascending || all.iter().any(|change| !range.contains(&change.seq)) {
        return Err(Error::failed(format!("changes out of order: range={range:?}")));
    }
    let slot_end = match message.slot_end {
        Some(proto::v1::SlotEnd { slot, blockhash, parent_slot }) => {
            let blockhash = entry(&blockhash, format_args!("the blockhash of slot={slot}"))?;
            Some(SlotEnd { seq: message.last_seq, slot, blockhash, parent_slot })
        }
        None => None,
    };
    match &mut position.dumped {
        Some(dumped) => {
            if let Some(change) = all.iter().find(|change| change.key > dumped.key) {
                return Err(Error::failed(format!("a change of a key not dumped yet: seq={}", change.seq)));
            }
            dumped.seq = message.last_seq;
        }
        None => position.last_seq = Some(message.last_seq),
    }
    Ok(Event::Changes { changes: all, slot_end })
}

fn pairs(position: &mut Position, message: &DumpPairs) -> Result<Vec<(Key, Value)>> {
    let (packed, rest) = message.packed_pairs.as_chunks::<32>();
    let (packed, odd) = packed.as_chunks::<2>();
    if !rest.is_empty() || !odd.is_empty() {
        return Err(Error::failed("packed_pairs must be 64 bytes a pair"));
    }
    let pairs: Vec<(Key, Value)> = packed.iter().map(|[key, value]| (*key, *value)).collect();
    let through = entry(&message.through_key, format_args!("through_key"))?;
    let (after, seq) = position.dumped.map_or((None, 0), |dumped| (Some(dumped.key), dumped.seq));
    let first = pairs.first().map(|(key, _)| *key);
    let last = pairs.last().map(|(key, _)| *key);
    let follows = first.is_none_or(|first| after < Some(first)) && last <= Some(through) && after <= Some(through);
    let ascending = pairs.is_sorted_by(|a, b| a.0 < b.0);
    if position.last_seq.is_some() || !follows || !ascending || message.seq < seq {
        return Err(Error::failed(format!("pairs of a dump out of order: seq={} dumped={seq}", message.seq)));
    }
    position.dumped = Some(Dumped { key: through, seq: message.seq });
    Ok(pairs)
}

fn change(change: &proto::v1::Change) -> Result<Change> {
    let seq = change.seq;
    let entry = |bytes: &Bytes| entry(bytes, format_args!("a key or value of seq={seq}"));
    Ok(Change {
        seq,
        key: entry(&change.key)?,
        old: change.old_value.as_ref().map(entry).transpose()?,
        new: change.new_value.as_ref().map(entry).transpose()?,
        slot: change.slot,
    })
}

/// Returns 32 bytes of a message, which an error calls by `name`.
fn entry(bytes: &[u8], name: std::fmt::Arguments<'_>) -> Result<[u8; 32]> {
    bytes.try_into().map_err(|_| Error::failed(format!("{name} must be 32 bytes: got={}", bytes.len())))
}
