//! The change feed for a subscriber: its events, and the position from which a subscription continues after a break.
//!
//! Owns: the types of the feed; the check that nothing is missing where a subscription begins or continues. Must not:
//! continue past a gap. Threads: the caller's.

use crate::error::{Error, ErrorKind, Result};
use crate::{Key, Value};

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
    /// Begins with the rest of a dump that was interrupted, at the position that
    /// [`dumped`](crate::blocking::Subscription::dumped) returned then; then every change since follows.
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
    /// only advances [`dumped`](crate::blocking::Subscription::dumped). [`Event::Changes`] of keys that were already
    /// dumped come in between.
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

/// The position from which a subscription continues after a break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) start: Start,
    /// Identifier of the feed that the seqs count in; `None` before the first answer.
    pub(crate) feed_id: Option<u64>,
    /// Everything up to this seq was seen; `None` before the first Started, and during a dump.
    pub(crate) last_seq: Option<u64>,
    /// Position of a dump that is not complete; otherwise `None`.
    pub(crate) dumped: Option<Dumped>,
}

/// The first answer to a subscription, with the fields of [`Event::Started`].
pub(crate) struct Started {
    pub(crate) feed_id: u64,
    pub(crate) next_seq: u64,
    pub(crate) oldest_seq: u64,
    pub(crate) slot: Option<u64>,
}

impl Position {
    pub(crate) fn new(start: Start) -> Self {
        let (feed_id, last_seq, dumped) = match start {
            Start::From { seq, feed_id } => (Some(feed_id), Some(seq.saturating_sub(1)), None),
            Start::DumpFrom { feed_id, dumped } => (Some(feed_id), None, Some(dumped)),
            Start::Now | Start::Dump => (None, None, None),
        };
        Self { start, feed_id, last_seq, dumped }
    }

    /// Records that a subscription begins or continues. Returns the event to report: a caller that continues after a
    /// break gets none.
    pub(crate) fn started(&mut self, started: &Started) -> Result<Option<Event>> {
        let &Started { feed_id, next_seq, oldest_seq, slot } = started;
        let continues = self.last_seq.is_some() || self.dumped.is_some();
        if continues {
            self.belongs_to(feed_id)?;
            self.follows(next_seq)?;
        } else if self.start == Start::Now {
            self.last_seq = Some(next_seq.saturating_sub(1));
        }
        // Report an explicit start only once: later subscriptions continue from here.
        let (named, later) = match self.start {
            Start::From { .. } => (true, Start::Now),
            Start::DumpFrom { .. } => (true, Start::Dump),
            Start::Now => (false, Start::Now),
            Start::Dump => (false, Start::Dump),
        };
        (self.feed_id, self.start) = (Some(feed_id), later);
        Ok((named || !continues).then_some(Event::Started { feed_id, next_seq, oldest_seq, slot }))
    }

    /// Checks that the seqs of this position count in the feed `now`.
    pub(crate) fn belongs_to(&self, now: u64) -> Result<()> {
        match self.feed_id {
            Some(was) if was != now => {
                Err(Error::new(ErrorKind::FeedLost, format!("another feed: was={was:016x} now={now:016x}")))
            }
            _ => Ok(()),
        }
    }

    /// Checks that `seq` is the next after everything that was seen.
    pub(crate) fn follows(&self, seq: u64) -> Result<()> {
        match self.last_seq.or(self.dumped.map(|dumped| dumped.seq)) {
            Some(last) if seq == last.saturating_add(1) => Ok(()),
            last => Err(Error::failed(format!("the feed has a hole: last_seq={last:?} next_seq={seq}"))),
        }
    }
}
