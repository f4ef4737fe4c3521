//! The undo overlay: the old value of every key that was changed after the newest finalized slot.
//!
//! Owns: those old values, within [`CHANGES_MAX`], and which slot is final. Must not: read the engine. Threads: written
//! by ingest-apply, read by `lookup-N` and `shm-lookup`; the receivers only add numbers, under a lock of their own.
//!
//! The finalized map is the engine's map without the changes after the finalized slot F. The value of a key is the one
//! that it had before its first change after F. Without such a change it is the value in the engine.
//!
//! A slot is final once a provider says so and it is one of the slots that were applied. A number that runs ahead waits
//! until its slot is applied, and is forgotten at the next connection, so a false one has no lasting effect.
//!
//! # Why the two parts agree
//!
//! ingest-apply records a change before it commits it. It moves F, and forgets the old values up to F, only after a
//! commit of F or of a later slot was published. It does both under the write lock. A reader moves its snapshot to the
//! newest commit while it holds the read lock.
//!
//! Under that lock the snapshot therefore holds slot F as a whole, because F was published before the lock was taken.
//! For every change after F in the snapshot the old value is here, because it was recorded before the commit and not
//! forgotten since. A change that is recorded and not yet in the snapshot does no harm: its old value is the value in
//! the snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use engine_api::{Key, Value};

use super::Known;
use crate::base::chain::KeyMap;
use crate::base::lock;

/// Maximum number of changes kept. Each takes at most 288 bytes: its key and its old value twice, its slot and the tables.
/// That is 72 MiB in all. Finality lags by 32 slots, so there is room
/// even if each of the 7000 updates of a mainnet slot changes a value; about one in a hundred does.
pub(crate) const CHANGES_MAX: usize = 1 << 18;

/// Maximum number of slots that are remembered as final and not applied yet, or as applied and not final. Finality lags by
/// 32 slots, and ingest-apply by a queue.
const SLOTS_MAX: usize = 4096;

/// A table is shrunk once it has room for this many times its entries.
const ROOM: usize = 4;

/// A change: its slot, its key, and the value that the key had before.
pub(crate) type Change = (u64, Key, Option<Value>);

/// Old values that were recorded together, of one slot. They never change, so that a reader may keep them.
pub(crate) type Recorded = Arc<[(Key, Option<Value>)]>;

/// Old values of keys that changed after the finalized slot.
#[derive(Debug)]
pub struct Undo {
    /// Slots that the present connections report as final and that are not published yet, at most [`SLOTS_MAX`].
    named: Mutex<BTreeSet<u64>>,
    changes_max: usize,
    inner: RwLock<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// F: the newest final slot that is published.
    finalized: Option<u64>,
    /// The newest slot that is committed and published.
    published: Option<u64>,
    /// Lowest finalized slot for which all old values are known. Changes up to this slot were partly made before the
    /// start, or were forgotten because there were too many. `None` before the first slot since the start.
    known_from: Option<u64>,
    /// Slots of the chain that were begun since the start and are not before F, at most [`SLOTS_MAX`].
    chain: BTreeSet<u64>,
    /// Old values of each key by slot, ascending; no list is empty.
    by_key: KeyMap<Vec<(u64, Option<Value>)>>,
    /// The same by slot, in the order of their recording.
    by_slot: BTreeMap<u64, Vec<Recorded>>,
    changes: usize,
    /// Number of times that changes were recorded.
    records: u64,
}

/// Difference between the finalized map and the engine's. It does not change while this guard is held.
pub struct Reading<'a>(RwLockReadGuard<'a, Inner>);

impl Undo {
    /// Creates the overlay of a store at `published`. It refuses finalized answers until every slot that might not have
    /// been final at the start is final.
    pub fn new(published: Option<u64>, changes_max: usize) -> Self {
        let inner = Inner { published, ..Inner::default() };
        Self { named: Mutex::default(), changes_max, inner: RwLock::new(inner) }
    }

    /// Notes that the stream reports `slot` as final. [`Undo::settle`] moves the finalized slot.
    pub fn name_final(&self, slot: u64) {
        let mut named = lock(&self.named);
        named.insert(slot);
        if named.len() > SLOTS_MAX {
            named.pop_last();
        }
    }

    /// Forgets the slots that earlier connections reported as final and that are not published.
    pub fn forget_named(&self) {
        lock(&self.named).clear();
    }

    /// Notes that `slot` is about to be applied. The first slot since the start may have been applied in part before
    /// the start. Its old values are then unknown, so finality has to reach it first.
    pub fn begin(&self, slot: u64) {
        self.write(|inner| {
            inner.known_from.get_or_insert(slot);
            inner.chain.insert(slot);
            if inner.chain.len() > SLOTS_MAX {
                inner.chain.pop_first();
            }
        });
    }

    /// Records changes that are about to be committed. Recording them again, as after a failed commit, has no effect.
    pub fn record(&self, changes: impl Iterator<Item = Change>) {
        let mut changes = changes.peekable();
        if changes.peek().is_some() {
            self.write(|inner| inner.record_all(changes, self.changes_max));
        }
    }

    /// Notes that everything up to `slot` is committed and published. Returns whether that moved the finalized slot.
    pub fn published(&self, slot: Option<u64>) -> bool {
        self.write(|inner| inner.published = slot);
        self.settle()
    }

    /// Moves the finalized slot to the newest one reported of those that are published, and forgets the old values up to
    /// it. Returns whether it moved.
    pub fn settle(&self) -> bool {
        let mut named = lock(&self.named);
        // Looked at first: this is called for every message, and most find nothing to do.
        let Some(first) = named.first() else { return false };
        let Some(published) = self.read().0.published.filter(|slot| first <= slot) else { return false };
        let later = named.split_off(&published.saturating_add(1));
        let reached = std::mem::replace(&mut *named, later);
        drop(named);
        self.write(|inner| {
            let newest = reached.into_iter().rev().find(|slot| inner.chain.contains(slot));
            let slot = newest.filter(|slot| inner.finalized < Some(*slot));
            slot.inspect(|slot| inner.finalize(*slot)).is_some()
        })
    }

    /// Locks the overlay for reading. Hold the guard while a snapshot is moved and its keys are compared, and no
    /// longer.
    pub fn read(&self) -> Reading<'_> {
        Reading(self.inner.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Number of old values kept, at most [`CHANGES_MAX`] in the service.
    pub fn changes(&self) -> usize {
        self.read().0.changes
    }

    fn write<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        change(&mut self.inner.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Reading<'_> {
    /// The finalized slot; `None` while old values are missing.
    pub fn slot(&self) -> Option<u64> {
        self.0.finalized.filter(|slot| self.0.known_from.is_some_and(|known| *slot >= known))
    }

    /// Returns the value that `key` had at the finalized slot, if it was changed since.
    pub fn old_value(&self, key: &Key) -> Known {
        let first = self.0.by_key.get(key).and_then(|changes| changes.first());
        first.map_or(Known::Nothing, |(_, old)| Known::Value(*old))
    }

    /// Returns all old values, the oldest first. With the same slot and the same number of records they are the same.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Recorded> {
        self.0.by_slot.values().flatten()
    }

    /// Number of times that changes were recorded.
    pub(crate) fn records(&self) -> u64 {
        self.0.records
    }
}

impl Inner {
    fn record_all(&mut self, changes: impl Iterator<Item = Change>, changes_max: usize) {
        let mut new: BTreeMap<u64, Vec<(Key, Option<Value>)>> = BTreeMap::new();
        for (slot, key, old) in changes {
            if Some(slot) <= self.finalized.max(self.known_from) {
                continue;
            }
            if self.changes >= changes_max {
                // Without this change, the other ones kept are useless for any finalized slot before it.
                self.by_key = KeyMap::default();
                self.by_slot.clear();
                new.clear();
                self.changes = 0;
                self.known_from = Some(slot);
                continue;
            }
            let values = self.by_key.entry(key).or_insert_with(|| Vec::with_capacity(1));
            if values.last().is_none_or(|(last, _)| *last < slot) {
                values.push((slot, old));
                new.entry(slot).or_default().push((key, old));
                self.changes += 1;
            }
        }
        self.records += 1;
        for (slot, changes) in new {
            self.by_slot.entry(slot).or_default().push(changes.into());
        }
    }

    fn finalize(&mut self, slot: u64) {
        self.finalized = Some(slot);
        self.chain = self.chain.split_off(&slot);
        while let Some(first) = self.by_slot.first_entry() {
            if *first.key() > slot {
                break;
            }
            for (key, _) in first.remove().iter().flat_map(|recorded| recorded.iter()) {
                self.changes -= 1;
                if let Some(values) = self.by_key.get_mut(key) {
                    // The list ascends and every earlier slot was forgotten before, so the first entry is of this slot.
                    values.remove(0);
                    if values.is_empty() {
                        self.by_key.remove(key);
                    }
                }
            }
        }
        if self.by_key.capacity() / ROOM > self.by_key.len() {
            self.by_key.shrink_to(self.by_key.len() * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Key = [1; 32];
    const B: Key = [2; 32];

    fn started() -> Undo {
        let undo = Undo::new(Some(9), CHANGES_MAX);
        undo.begin(10);
        undo.published(Some(10));
        undo
    }

    fn finalize(undo: &Undo, slot: u64) {
        undo.name_final(slot);
        undo.settle();
    }

    #[test]
    fn the_first_old_value_after_the_finalized_slot_counts() {
        let undo = started();
        finalize(&undo, 10);
        [11, 12].into_iter().for_each(|slot| undo.begin(slot));
        undo.record([(11, A, Some([1; 32])), (12, A, Some([2; 32])), (12, B, None)].into_iter());
        undo.record([(12, A, Some([9; 32]))].into_iter());
        undo.published(Some(12));
        assert_eq!(undo.changes(), 3, "what is recorded again is there already");
        assert_eq!((undo.read().slot(), undo.read().old_value(&A)), (Some(10), Known::Value(Some([1; 32]))));
        finalize(&undo, 11);
        assert_eq!(undo.read().old_value(&A), Known::Value(Some([2; 32])));
        assert_eq!(undo.read().old_value(&B), Known::Value(None));
        finalize(&undo, 12);
        assert_eq!((undo.read().slot(), undo.read().old_value(&A), undo.changes()), (Some(12), Known::Nothing, 0));
    }

    #[test]
    fn nothing_is_final_before_it_is_published_nor_before_what_may_have_been_cut_is_final() {
        let undo = Undo::new(Some(9), CHANGES_MAX);
        finalize(&undo, 9);
        assert_eq!(undo.read().slot(), None, "nothing was applied since the start");
        undo.begin(10);
        undo.begin(11);
        undo.published(Some(11));
        assert_eq!(undo.read().slot(), None, "slot 10 may have been cut by the stop");
        finalize(&undo, 11);
        assert_eq!(undo.read().slot(), Some(11));
    }

    #[test]
    fn a_final_slot_counts_once_it_is_applied_and_no_longer_than_its_connection() {
        let undo = started();
        finalize(&undo, 10);
        [12, 14, 15].into_iter().for_each(|slot| undo.begin(slot));
        undo.published(Some(12));
        for ahead in [14, 15, 1 << 39, u64::MAX] {
            finalize(&undo, ahead);
            assert_eq!(undo.read().slot(), Some(10), "{ahead} is not applied");
        }
        finalize(&undo, 11);
        assert_eq!(undo.read().slot(), Some(10), "the chain has no slot 11");
        finalize(&undo, 12);
        assert_eq!(undo.read().slot(), Some(12), "what runs ahead hides no other");
        undo.published(Some(14));
        assert_eq!(undo.read().slot(), Some(14));
        undo.forget_named();
        undo.published(Some(15));
        assert_eq!(undo.read().slot(), Some(14), "another connection has said nothing yet");
        (16..16 + 3 * SLOTS_MAX as u64).rev().for_each(|slot| undo.name_final(slot));
        let named = lock(&undo.named);
        assert_eq!((named.len(), named.first()), (SLOTS_MAX, Some(&16)));
    }

    #[test]
    fn too_many_changes_are_forgotten_and_refused_until_they_are_final() {
        let undo = Undo::new(Some(9), 2);
        undo.begin(10);
        undo.published(Some(10));
        finalize(&undo, 10);
        [11, 12, 13].into_iter().for_each(|slot| undo.begin(slot));
        undo.record([(11, A, None), (11, B, None), (12, [3; 32], None), (12, A, None), (13, A, None)].into_iter());
        undo.published(Some(13));
        assert_eq!((undo.read().slot(), undo.changes()), (None, 1));
        finalize(&undo, 12);
        assert_eq!((undo.read().slot(), undo.read().old_value(&A)), (Some(12), Known::Value(None)));
    }
}
