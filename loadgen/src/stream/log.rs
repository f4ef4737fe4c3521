//! The delivery log: the chain's entries, the slots kept for replay, and the position of each subscriber.
//!
//! Owns: the meeting point of the `chain` thread and the subscribers. All waiting and all bounds are here. Must not:
//! encode or filter. The lock is taken once for each slot, never for each event.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prost_types::Timestamp;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tonic::Status;
use yellowstone_grpc_proto::geyser::SlotStatus;

use crate::stream::chain::{Block, Kind};
use crate::stream::filter::Commitment;
use crate::stream::like::Like;

/// Number of entries, three for each slot, by which the chain may be ahead of the slowest subscriber at max rate:
/// enough that neither waits for the other.
const AHEAD_ENTRIES: u64 = 24;
/// Number of slots after which a block is final, as on the real chain.
const FINAL_AFTER_SLOTS: usize = 32;
/// Entries kept for subscribers that lag, in addition to four for each stored slot, because a slot may have two
/// banks.
const SPARE_ENTRIES: usize = 256;
/// Number of recent blockhashes that a server knows. Before it has seen so many, it does not say which are valid.
const BLOCKHASHES: usize = 332;

/// One step of the chain as subscribers see it.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A bank was executed, whatever its fate is.
    Processed(Arc<Block>),
    /// A slot was confirmed, or died if it is of that kind.
    Block(Arc<Block>),
    /// A confirmed slot became final.
    Finalized(Arc<Block>),
}

/// An event, and its times.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) event: Event,
    /// Time at which it was published.
    pub(crate) created_at: Timestamp,
    /// Time at which its block was executed, which the content has at every commitment.
    pub(crate) content_at: Timestamp,
}

/// The newest blocks of the chain, for the calls that answer once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tip {
    /// Newest processed block. `None` until there is one.
    pub(crate) processed: Option<Arc<Block>>,
    /// Newest confirmed block. `None` until there is one.
    pub(crate) confirmed: Option<Arc<Block>>,
    /// Newest final block. `None` until there is one.
    pub(crate) finalized: Option<Arc<Block>>,
}

/// The log, shared by the chain and every feed.
#[derive(Debug)]
pub(crate) struct Log {
    inner: Mutex<Inner>,
    moved: Condvar,
    head: watch::Sender<u64>,
    replay_slots: usize,
    confirm_after: usize,
    like: Like,
}

/// A stored block, ready for replay.
pub(crate) struct Replayed {
    pub(crate) block: Arc<Block>,
    /// Whether it is final, and not only confirmed.
    pub(crate) finalized: bool,
    /// Time at which it was executed, which its content has in a replay as well.
    pub(crate) content_at: Timestamp,
}

impl Replayed {
    /// Returns the statuses that the block has reached.
    pub(crate) fn statuses(&self) -> &'static [SlotStatus] {
        const CONFIRMED: &[SlotStatus] = &[SlotStatus::SlotProcessed, SlotStatus::SlotConfirmed];
        const FINAL: &[SlotStatus] = &[SlotStatus::SlotProcessed, SlotStatus::SlotConfirmed, SlotStatus::SlotFinalized];
        if self.finalized { FINAL } else { CONFIRMED }
    }
}

/// A block, and the time at which it was executed.
#[derive(Clone, Debug)]
struct Timed {
    block: Arc<Block>,
    content_at: Timestamp,
}

#[derive(Debug, Default)]
struct Inner {
    entries: VecDeque<Entry>,
    first: u64,
    /// Confirmed blocks that are kept for replay.
    stored: VecDeque<Timed>,
    blockhashes: VecDeque<Arc<Block>>,
    unconfirmed: VecDeque<Timed>,
    unfinal: VecDeque<Timed>,
    tip: Tip,
    cursors: HashMap<u64, u64>,
    next_id: u64,
    seen_subscriber: bool,
    held: bool,
    stopped: bool,
}

impl Inner {
    fn head(&self) -> u64 {
        self.first + self.entries.len() as u64
    }
}

impl Log {
    /// Creates a log that keeps `replay_slots` slots and begins with the final block `base`. Without a base it is like
    /// a server that has just started. A slot is confirmed once `confirm_after` later ones exist.
    pub(crate) fn new(replay_slots: usize, confirm_after: usize, like: Like, base: Option<Block>) -> Self {
        let (head, _) = watch::channel(0);
        let base = base.map(Arc::new);
        let mut inner = Inner {
            tip: Tip { processed: base.clone(), confirmed: base.clone(), finalized: base.clone() },
            ..Inner::default()
        };
        let content_at = Timestamp::from(SystemTime::now());
        inner.stored.extend(base.filter(|_| replay_slots > 0).map(|block| Timed { block, content_at }));
        Self { inner: Mutex::new(inner), moved: Condvar::new(), head, replay_slots, confirm_after, like }
    }

    /// Returns a receiver that is notified of every new entry.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.head.subscribe()
    }

    /// Publishes a block as it is executed, with the confirmation and finality that follow from it.
    pub(crate) fn publish(&self, block: Arc<Block>) {
        let mut inner = self.lock();
        let created_at = Timestamp::from(SystemTime::now());
        // If every slot is confirmed at once, there is no time for another bank.
        if self.confirm_after == 0 && matches!(block.kind, Kind::Abandoned | Kind::GivenUp) {
            return;
        }
        let content_at = created_at;
        inner.entries.push_back(Entry { event: Event::Processed(Arc::clone(&block)), created_at, content_at });
        if matches!(block.kind, Kind::Sealed | Kind::Abandoned) {
            inner.tip.processed = Some(Arc::clone(&block));
            inner.blockhashes.push_back(Arc::clone(&block));
            if inner.blockhashes.len() > BLOCKHASHES {
                inner.blockhashes.pop_front();
            }
        }
        match block.kind {
            Kind::Sealed => {
                inner.unconfirmed.push_back(Timed { block, content_at });
                if inner.unconfirmed.len() > self.confirm_after {
                    self.confirm_oldest(&mut inner, created_at);
                }
            }
            Kind::Dead => inner.entries.push_back(Entry { event: Event::Block(block), created_at, content_at }),
            // Only subscribers at processed see these.
            Kind::Abandoned | Kind::GivenUp => {}
        }
        self.trim_and_tell(inner);
    }

    /// Makes every slot final, because the chain has ended.
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

    /// Ends all waiting for good.
    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.moved.notify_all();
        self.head.send_modify(|_| ());
    }

    /// Makes [`Log::wait_to_begin`] wait for `false`, however many subscribers come before.
    pub(crate) fn set_held(&self, held: bool) {
        self.lock().held = held;
        self.moved.notify_all();
    }

    /// Waits until a subscriber has come and the log is not held; returns `false` when stopped.
    pub(crate) fn wait_to_begin(&self) -> bool {
        let waiting = |inner: &mut Inner| !inner.stopped && (inner.held || !inner.seen_subscriber);
        let inner = self.moved.wait_while(self.lock(), waiting).unwrap_or_else(PoisonError::into_inner);
        !inner.stopped
    }

    /// Waits until the slowest subscriber is near the head; returns `false` when stopped. `needs_one`: waits for a
    /// subscriber if there is none.
    pub(crate) fn wait_for_room(&self, needs_one: bool) -> bool {
        let waiting = |inner: &mut Inner| {
            let slowest = inner.cursors.values().min();
            !inner.stopped && slowest.map_or(needs_one, |cursor| inner.head() - cursor >= AHEAD_ENTRIES)
        };
        let inner = self.moved.wait_while(self.lock(), waiting).unwrap_or_else(PoisonError::into_inner);
        !inner.stopped
    }

    /// Sleeps, unless stopped first; returns `false` when stopped.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        let waiting = |inner: &mut Inner| !inner.stopped;
        let (inner, _) =
            self.moved.wait_timeout_while(self.lock(), time, waiting).unwrap_or_else(PoisonError::into_inner);
        !inner.stopped
    }

    /// Registers a subscriber at the head. With `from_slot`, also returns the stored slots from there on that have
    /// reached `commitment`, in slot order. `earlier` starts them so many slots earlier, and lets as many entries before the
    /// head follow them.
    pub(crate) fn subscribe(
        &self,
        from_slot: Option<u64>,
        commitment: Commitment,
        earlier: u64,
    ) -> Result<(u64, u64, Vec<Replayed>), Status> {
        let mut inner = self.lock();
        let replay = match from_slot {
            Some(from) => self.replay(&inner, from, commitment, earlier)?,
            None => Vec::new(),
        };
        let again = if replay.is_empty() { 0 } else { earlier };
        let (id, cursor) = (inner.next_id, inner.head().saturating_sub(again).max(inner.first));
        inner.next_id += 1;
        inner.seen_subscriber = true;
        inner.cursors.insert(id, cursor);
        drop(inner);
        self.moved.notify_all();
        Ok((id, cursor, replay))
    }

    /// Returns the entry at `cursor`; `None` if it has not happened yet. The request means that every earlier entry was
    /// sent.
    pub(crate) fn entry(&self, id: u64, cursor: u64) -> Result<Option<Entry>, Status> {
        let mut inner = self.lock();
        if inner.stopped {
            return Err(Status::unavailable("server is shutting down try again later"));
        }
        if cursor < inner.first {
            return Err(self.like.lagged());
        }
        inner.cursors.insert(id, cursor);
        let entry = inner.entries.get((cursor - inner.first) as usize).cloned();
        drop(inner);
        self.moved.notify_all();
        Ok(entry)
    }

    /// Forgets a subscriber, so that the chain no longer waits for it.
    pub(crate) fn unsubscribe(&self, id: u64) {
        self.lock().cursors.remove(&id);
        self.moved.notify_all();
    }

    /// Returns the first slot that `from_slot` may name: 2^64-1 while no slot is stored, and `None` if slots are never
    /// kept.
    pub(crate) fn first_available(&self) -> Option<u64> {
        (self.replay_slots > 0).then(|| first_stored(&self.lock()).unwrap_or(u64::MAX))
    }

    /// Returns the newest block of each commitment.
    pub(crate) fn tip(&self) -> Tip {
        self.lock().tip.clone()
    }

    /// Returns the recent block with this hash, if there is one. Fails before the server has seen enough blocks.
    pub(crate) fn find(&self, hash: &str) -> Result<Option<Arc<Block>>, Status> {
        let inner = self.lock();
        if inner.blockhashes.len() < BLOCKHASHES {
            return Err(Status::internal("startup"));
        }
        Ok(inner.blockhashes.iter().find(|block| block.hash_base58() == hash).cloned())
    }

    fn replay(&self, inner: &Inner, from: u64, commitment: Commitment, earlier: u64) -> Result<Vec<Replayed>, Status> {
        if self.replay_slots == 0 {
            return Err(Status::internal("from_slot is not supported"));
        }
        if let Some(first) = first_stored(inner).filter(|first| from < *first) {
            return Err(self.like.too_old(from, first));
        }
        let replayed = |Timed { block, content_at }: &Timed| Replayed {
            block: Arc::clone(block),
            finalized: !inner.unfinal.iter().any(|unfinal| unfinal.block.slot == block.slot),
            content_at: *content_at,
        };
        let reached = inner.stored.iter().map(replayed);
        let mut reached: Vec<Replayed> =
            reached.filter(|replayed| commitment != Commitment::Finalized || replayed.finalized).collect();
        // The real server fails when it has nothing to send, even before its first slot, so this one does too.
        if !reached.iter().any(|replayed| replayed.block.slot >= from) {
            return Err(self.like.not_yet(from));
        }
        reached.retain(|replayed| replayed.block.slot >= from.saturating_sub(earlier));
        reached.sort_by_key(|replayed| replayed.block.slot);
        Ok(reached)
    }

    fn confirm_oldest(&self, inner: &mut Inner, created_at: Timestamp) {
        let Some(timed) = inner.unconfirmed.pop_front() else { return };
        let Timed { block, content_at } = timed.clone();
        inner.entries.push_back(Entry { event: Event::Block(Arc::clone(&block)), created_at, content_at });
        if inner.tip.confirmed.as_ref().is_none_or(|tip| tip.slot < block.slot) {
            inner.tip.confirmed = Some(block);
        }
        inner.stored.push_back(timed.clone());
        inner.unfinal.push_back(timed);
        if inner.unfinal.len() > FINAL_AFTER_SLOTS {
            finalize_oldest(inner, created_at);
        }
        while inner.stored.len() > self.replay_slots {
            inner.stored.pop_front();
        }
    }

    fn trim_and_tell(&self, mut inner: MutexGuard<'_, Inner>) {
        let keep = self.replay_slots.saturating_mul(4).saturating_add(SPARE_ENTRIES);
        while inner.entries.len() > keep {
            inner.entries.pop_front();
            inner.first += 1;
        }
        let head = inner.head();
        drop(inner);
        self.head.send_replace(head);
    }

    /// Locks the log. A panic under this lock leaves only whole steps, so the data may still be used.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn first_stored(inner: &Inner) -> Option<u64> {
    inner.stored.iter().map(|stored| stored.block.slot).min()
}

fn finalize_oldest(inner: &mut Inner, created_at: Timestamp) {
    if let Some(Timed { block, content_at }) = inner.unfinal.pop_front() {
        inner.tip.finalized = Some(Arc::clone(&block));
        inner.entries.push_back(Entry { event: Event::Finalized(block), created_at, content_at });
    }
}
