//! The delivery log: what the chain has delivered, what is kept for replay, and where each subscriber is.
//!
//! Owns: the meeting point of the `chain` thread and the subscribers; all waiting and all bounds are here. Must not:
//! encode or filter. The lock is taken per slot, never per event.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prost_types::Timestamp;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tonic::Status;

use crate::stream::chain::{Block, Kind};
use crate::stream::filter::Commitment;

/// Slots the chain may be ahead of the slowest subscriber at max rate: enough that neither waits for the other.
const AHEAD_ENTRIES: u64 = 16;
/// Slots until a block is final, as on the real chain.
const FINAL_AFTER_SLOTS: usize = 32;
/// Entries kept for subscribers that are behind, besides three or four for each stored slot.
const SPARE_ENTRIES: usize = 256;

/// One step of the chain as subscribers see it.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A bank was executed. Only where blocks are confirmed later.
    Processed(Arc<Block>),
    /// A slot was sealed and confirmed (or died, if it is of that kind).
    Block(Arc<Block>),
    /// A slot became final.
    Finalized(Arc<Block>),
}

/// An event and when it happened.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// What happened.
    pub(crate) event: Event,
    /// When it was published.
    pub(crate) created_at: Timestamp,
}

/// The tips of the chain, for the unary calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tip {
    /// The newest sealed block.
    pub(crate) confirmed: Option<Arc<Block>>,
    /// The newest final block.
    pub(crate) finalized: Option<Arc<Block>>,
}

/// Shared by the chain and every feed.
#[derive(Debug)]
pub(crate) struct Log {
    inner: Mutex<Inner>,
    moved: Condvar,
    head: watch::Sender<u64>,
    replay_slots: usize,
    confirm_after: usize,
    start_parent: u64,
}

#[derive(Debug, Default)]
struct Inner {
    entries: VecDeque<Entry>,
    first: u64,
    stored: VecDeque<Arc<Block>>,
    evicted: bool,
    unconfirmed: VecDeque<Arc<Block>>,
    unfinal: VecDeque<Arc<Block>>,
    tip: Tip,
    cursors: HashMap<u64, u64>,
    next_id: u64,
    seen_subscriber: bool,
    stopped: bool,
}

impl Inner {
    fn head(&self) -> u64 {
        self.first + self.entries.len() as u64
    }
}

impl Log {
    /// An empty log that keeps `replay_slots` slots of a chain that starts on top of `start_parent`. A slot is confirmed
    /// once `confirm_after` later ones are there.
    pub(crate) fn new(replay_slots: usize, confirm_after: usize, start_parent: u64) -> Self {
        let (head, _) = watch::channel(0);
        Self { inner: Mutex::default(), moved: Condvar::new(), head, replay_slots, confirm_after, start_parent }
    }

    /// Tells of every new entry.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.head.subscribe()
    }

    /// Publishes a block as it is executed, and the confirmation and finality that follow from it.
    pub(crate) fn publish(&self, block: Arc<Block>) {
        let mut inner = self.lock();
        let created_at = Timestamp::from(SystemTime::now());
        if self.confirm_after > 0 {
            inner.entries.push_back(Entry { event: Event::Processed(Arc::clone(&block)), created_at });
        }
        match block.kind {
            Kind::Sealed => {
                inner.unconfirmed.push_back(block);
                if inner.unconfirmed.len() > self.confirm_after {
                    self.confirm_oldest(&mut inner, created_at);
                }
            }
            Kind::Dead => inner.entries.push_back(Entry { event: Event::Block(block), created_at }),
            // Told of at processed alone.
            Kind::Abandoned | Kind::GivenUp => {}
        }
        self.trim_and_tell(inner);
    }

    /// Makes every slot final: the chain has ended.
    pub(crate) fn finish(&self) {
        let mut inner = self.lock();
        let created_at = Timestamp::from(SystemTime::now());
        while !inner.unconfirmed.is_empty() {
            self.confirm_oldest(&mut inner, created_at);
        }
        while !inner.unfinal.is_empty() {
            finalize_oldest(&mut inner, created_at);
        }
        self.trim_and_tell(inner);
    }

    /// Wakes everyone for good.
    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.moved.notify_all();
        self.head.send_modify(|_| ());
    }

    /// Waits until a subscriber has been there; false when stopped.
    pub(crate) fn wait_first_subscriber(&self) -> bool {
        let waiting = |inner: &mut Inner| !inner.stopped && !inner.seen_subscriber;
        let inner = self.moved.wait_while(self.lock(), waiting).unwrap_or_else(PoisonError::into_inner);
        !inner.stopped
    }

    /// Waits until the slowest subscriber is near; false when stopped. With no subscriber, waits for one.
    pub(crate) fn wait_for_room(&self) -> bool {
        let waiting = |inner: &mut Inner| {
            let slowest = inner.cursors.values().min();
            !inner.stopped && slowest.is_none_or(|cursor| inner.head() - cursor >= AHEAD_ENTRIES)
        };
        let inner = self.moved.wait_while(self.lock(), waiting).unwrap_or_else(PoisonError::into_inner);
        !inner.stopped
    }

    /// Sleeps, unless stopped first; false when stopped.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        let waiting = |inner: &mut Inner| !inner.stopped;
        let (inner, _) =
            self.moved.wait_timeout_while(self.lock(), time, waiting).unwrap_or_else(PoisonError::into_inner);
        !inner.stopped
    }

    /// Registers a subscriber at the head. With `from_slot`, also gives the stored slots from there on that have
    /// reached `commitment`, in slot order; `earlier` widens that by as many slots.
    pub(crate) fn subscribe(
        &self,
        from_slot: Option<u64>,
        commitment: Commitment,
        earlier: u64,
    ) -> Result<(u64, u64, Vec<Arc<Block>>), Status> {
        let mut inner = self.lock();
        let replay = match from_slot {
            Some(from) => self.replay(&inner, from, commitment, earlier)?,
            None => Vec::new(),
        };
        let (id, head) = (inner.next_id, inner.head());
        inner.next_id += 1;
        inner.seen_subscriber = true;
        inner.cursors.insert(id, head);
        drop(inner);
        self.moved.notify_all();
        Ok((id, head, replay))
    }

    /// The entry at `cursor`, none if it has not happened yet. Being asked for it means that all before was sent.
    pub(crate) fn entry(&self, id: u64, cursor: u64) -> Result<Option<Entry>, Status> {
        let mut inner = self.lock();
        if inner.stopped {
            return Err(Status::unavailable("server is shutting down try again later"));
        }
        if cursor < inner.first {
            return Err(Status::internal("lagged to send an update"));
        }
        inner.cursors.insert(id, cursor);
        let entry = inner.entries.get((cursor - inner.first) as usize).cloned();
        drop(inner);
        self.moved.notify_all();
        Ok(entry)
    }

    /// Forgets a subscriber.
    pub(crate) fn unsubscribe(&self, id: u64) {
        self.lock().cursors.remove(&id);
        self.moved.notify_all();
    }

    /// The first slot that from_slot can name.
    pub(crate) fn first_available(&self) -> Option<u64> {
        self.lock().stored.iter().map(|block| block.slot).min()
    }

    /// The newest blocks.
    pub(crate) fn tip(&self) -> Tip {
        self.lock().tip.clone()
    }

    /// The stored block of a hash.
    pub(crate) fn find(&self, hash: &str) -> Option<Arc<Block>> {
        self.lock().stored.iter().find(|block| block.hash_base58() == hash).cloned()
    }

    fn replay(
        &self,
        inner: &Inner,
        from: u64,
        commitment: Commitment,
        earlier: u64,
    ) -> Result<Vec<Arc<Block>>, Status> {
        if self.replay_slots == 0 {
            return Err(Status::internal("from_slot is not supported"));
        }
        let first = inner.stored.iter().map(|block| block.slot).min().unwrap_or(self.start_parent);
        let first = if inner.evicted { first } else { first.min(self.start_parent) };
        if from < first {
            let text = format!("broadcast from {from} is not available, last available: {first}");
            return Err(Status::out_of_range(text));
        }
        let newest = inner.tip.confirmed.as_ref().map_or(self.start_parent, |block| block.slot);
        if from > newest {
            return Err(Status::internal("failed to get replay response"));
        }
        let unfinal = |slot: u64| inner.unfinal.iter().any(|block| block.slot == slot);
        let wanted = |block: &&Arc<Block>| {
            block.slot >= from.saturating_sub(earlier) && (commitment != Commitment::Finalized || !unfinal(block.slot))
        };
        let mut blocks: Vec<Arc<Block>> = inner.stored.iter().filter(wanted).cloned().collect();
        blocks.sort_by_key(|block| block.slot);
        Ok(blocks)
    }

    fn confirm_oldest(&self, inner: &mut Inner, created_at: Timestamp) {
        let Some(block) = inner.unconfirmed.pop_front() else { return };
        inner.entries.push_back(Entry { event: Event::Block(Arc::clone(&block)), created_at });
        if inner.tip.confirmed.as_ref().is_none_or(|tip| tip.slot < block.slot) {
            inner.tip.confirmed = Some(Arc::clone(&block));
        }
        inner.stored.push_back(Arc::clone(&block));
        inner.unfinal.push_back(block);
        if inner.unfinal.len() > FINAL_AFTER_SLOTS {
            finalize_oldest(inner, created_at);
        }
        while inner.stored.len() > self.replay_slots {
            inner.stored.pop_front();
            inner.evicted = true;
        }
    }

    fn trim_and_tell(&self, mut inner: MutexGuard<'_, Inner>) {
        let each = if self.confirm_after > 0 { 4 } else { 3 };
        let keep = self.replay_slots.saturating_mul(each).saturating_add(SPARE_ENTRIES);
        while inner.entries.len() > keep {
            inner.entries.pop_front();
            inner.first += 1;
        }
        let head = inner.head();
        drop(inner);
        self.head.send_replace(head);
    }

    /// A panic under this lock leaves only whole steps behind, so that the data may still be used.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn finalize_oldest(inner: &mut Inner, created_at: Timestamp) {
    if let Some(block) = inner.unfinal.pop_front() {
        inner.tip.finalized = Some(Arc::clone(&block));
        inner.entries.push_back(Entry { event: Event::Finalized(block), created_at });
    }
}
