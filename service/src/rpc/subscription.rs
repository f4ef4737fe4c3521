//! A subscriber's task: its position in the feed, its messages, and the reasons for its end.
//!
//! Owns: sending changes, and the decision to cut a subscriber off. Must not: make the writer wait, or keep a network
//! thread busy. Long work runs on `feed-read-N`, in pieces. After each piece the task checks whether the subscriber is
//! still there and whether the service stops. Threads: the subscriber's task on the network edge.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use engine_api::Code;
use proto::v1::subscribe_response::Kind;
use proto::v1::{Change, Changes, SlotEnd, SubscribeResponse};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::ask::refusal::{Cause, Refusal};
use crate::feed::{Feed, FeedError, Filter, Head, Scope, SubscriberLimits, Tail, Workers};

/// Maximum number of changes in one message: 150 KB, well below the 4 MiB that clients accept by default.
pub(super) const CHANGES_PER_MESSAGE: usize = 1000;

/// A subscriber's task, with its position in the feed.
pub(super) struct Subscription {
    pub(super) sender: mpsc::Sender<SubscribeResponse>,
    pub(super) feed: Arc<Feed>,
    pub(super) filter: Arc<Filter>,
    pub(super) workers: Workers,
    pub(super) head: watch::Receiver<Head>,
    pub(super) limits: SubscriberLimits,
    /// The last change that a message has covered: the next message begins with the one after it.
    pub(super) told_seq: u64,
    /// Time at which the last message was passed on.
    pub(super) sent: Instant,
}

/// Reason for the end of a subscription: a refusal, or `None` if the subscriber is gone.
pub(super) type Ended = Option<Refusal>;

impl Subscription {
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
            (tail, found) = self.workers.read(job).await.ok_or_else(closing)?;
            found
        };
        let (changes, slot_end, more) = found.map_err(|error| unreadable(error, next_seq))?;
        if !changes.is_empty() || slot_end.is_some() {
            // The message also covers the changes before, which were examined and did not pass.
            let first_seq = self.told_seq + 1;
            self.told_seq = tail.next_seq() - 1;
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
                    waited = tokio::time::timeout(self.limits.stall_timeout, self.sender.reserve()) => waited.ok(),
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

    fn cut_off(&self) -> Refusal {
        // ORDERING: Relaxed: a statistic.
        self.feed.subscribers().cut_off.fetch_add(1, Ordering::Relaxed);
        let stalled = self.limits.stall_timeout;
        let message = format!(
            "cut off, because nothing was read for {stalled:?}: reconnect with the last seq, or with dump_from"
        );
        Refusal::new(Cause::Full, message).with_code(Code::FeedStalled)
    }
}

/// Returns the next piece of `tail` in wire form, the slot that ends with it, and whether there is more.
fn changes(tail: &mut Tail, scope: &Scope) -> Result<(Vec<Change>, Option<SlotEnd>, bool), FeedError> {
    let piece = tail.piece(scope)?;
    let changes = piece.changes.iter().map(|(seq, change)| wire(*seq, change)).collect();
    Ok((changes, piece.slot_end.as_ref().map(wire_end), piece.more))
}

pub(super) fn closing() -> Refusal {
    let message = "the service is shutting down: reconnect with the last seq, or with dump_from";
    Refusal::stopping(message)
}

fn unreadable(error: FeedError, next_seq: u64) -> Ended {
    Some(match error {
        FeedError::Gone { oldest_seq } => gone(next_seq, oldest_seq),
        FeedError::Log(error) => {
            tracing::error!(%error, "the feed cannot be read");
            Refusal::new(Cause::Damaged, error.to_string())
        }
    })
}

pub(super) fn gone(seq: u64, oldest_seq: u64) -> Refusal {
    let message = format!(
        "changes that old are no longer kept: from_seq={seq} oldest_seq={oldest_seq}; subscribe with dump_then_tail"
    );
    Refusal::new(Cause::OutOfRange, message)
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
