//! The batch: the changes of the next commit, collected slot by slot.
//!
//! Owns: reading each key, leaving out events that change nothing, when a commit is due and how large it may be. Must
//! not: write to the engine, or keep a part of a slot. Runs on the ingest-apply thread.
//!
//! Keys are read when their slot is taken in, from the newest commit and from the batch itself. A batch therefore holds
//! only changes, and its size shows the cost of a commit: of ten thousand events that change nothing it holds none.
//!
//! A batch ends where a slot ends, regardless of the limits, because readers see every commit. A lookup, a copy of the
//! store or a restart then never finds a part of a slot. The price is memory for the largest slot, which
//! [`BatchLimits::most`] bounds. One block of the chain cannot write-lock more than some 330 thousand accounts (100 million
//! compute units a block, 300 for each lock), so that bound matters only under a small memory limit.

use engine_api::Result;
use engine_latency::MeasuredReader;
use engines::EngineKind;

use super::reads::Reads;
use crate::base::chain::{Base, Gap, KeyMap, WholeSlot};
use crate::base::pulse::Pulse;
use crate::feed::{Change, FRAME_CHANGES_MAX, SlotEnd};

/// Number of changes after which a commit is due while more messages are queued. The two flushes of a commit cost next
/// to nothing compared with this many changes. A commit of this size still fits whole into the feed's memory and into
/// its ring, so that followers do not fall back to the disk.
pub const CHANGES_DUE: usize = 1 << 16;

/// Lower bound of [`CHANGES_DUE`] under a small memory limit. With fewer changes a commit, flushes would take most of
/// the time.
const CHANGES_DUE_MIN: usize = 1000;

/// A batch of several slots may fill 1/`DUE_SHARE` of the memory limit, its commit included.
const DUE_SHARE: u64 = 16;

/// A single slot may fill 1/`SLOT_SHARE` of the memory limit, its commit included. With more, the kernel would kill the
/// process.
const SLOT_SHARE: u64 = 2;

/// Number of changes that a slot may always make, even under a small memory limit: nearly every update of a mainnet
/// slot changes something.
const SLOT_CHANGES_MIN: usize = 8192;

/// Memory of one change until it is committed, in bytes, rounded up: in the batch with its index, in the feed's frame
/// and its bytes, and in the engine's transaction.
const CHANGE_BYTES: u64 = 768;

/// Bounds on the size of a batch, in changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Number of changes after which a commit is due at the end of a slot, while more messages are queued.
    pub due: usize,
    /// Maximum number of changes of one commit. A slot with more cannot be applied.
    pub most: usize,
}

/// The changes of the next commit. Holds whole slots only.
#[derive(Debug)]
pub struct Batch {
    limits: BatchLimits,
    changes: Vec<Change>,
    /// Ends of the slots that change something. `seq` counts the batch's changes from 1.
    ends: Vec<SlotEnd>,
    /// Index in `changes` of the newest change of each key.
    newest: KeyMap<usize>,
    events: u64,
}

impl BatchLimits {
    /// Returns the limits for a process that may use `limit_bytes` of memory. `due` is the operator's setting for
    /// [`BatchLimits::due`], if any.
    pub fn within(limit_bytes: u64, engine: EngineKind, due: Option<usize>) -> Self {
        let bytes = CHANGE_BYTES + engine.descriptor().page_bytes;
        let fit = |share: u64| usize::try_from(limit_bytes / share / bytes).unwrap_or(usize::MAX);
        let most = fit(SLOT_SHARE).clamp(SLOT_CHANGES_MIN, FRAME_CHANGES_MAX);
        let due = due.unwrap_or_else(|| fit(DUE_SHARE).clamp(CHANGES_DUE_MIN, CHANGES_DUE));
        Self { due: due.min(most), most }
    }
}

impl Batch {
    /// Creates an empty batch with these limits.
    pub fn new(limits: BatchLimits) -> Self {
        Self { limits, changes: Vec::new(), ends: Vec::new(), newest: KeyMap::default(), events: 0 }
    }

    /// The changes, in the order of the chain.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Returns the ends of the slots that change something. `seq` is the sequence number before the batch's first
    /// change.
    pub fn ends(&self, seq: u64) -> Vec<SlotEnd> {
        self.ends.iter().map(|end| SlotEnd { seq: seq + end.seq, ..*end }).collect()
    }

    /// Number of events taken in, including those that change nothing.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Whether the batch should be committed although more messages are queued.
    pub fn is_due(&self) -> bool {
        self.changes.len() >= self.limits.due
    }

    /// Whether a slot of `events` events fits into the batch in addition to its changes. An empty batch takes any slot.
    pub fn has_room(&self, events: usize) -> bool {
        self.changes.is_empty() || self.changes.len() + events <= self.limits.most
    }

    /// Adds the changes of `slot`. `reader` must see the newest commit. Returns a gap when the slot changes more keys
    /// than one commit can hold; the batch then holds nothing of the slot, as after an error.
    ///
    /// # Errors
    /// Any error of the reader.
    pub fn take(
        &mut self,
        slot: &WholeSlot,
        reads: &mut Reads,
        reader: &mut MeasuredReader<'_>,
        pulse: &Pulse,
    ) -> Result<Option<Gap>> {
        let before = self.changes.len();
        let mut events = &slot.events[..];
        while !events.is_empty() {
            pulse.beat();
            let stored = match reads.stored(reader, events, |key| self.newest.contains_key(key)) {
                Ok(stored) => stored,
                Err(failed) => {
                    self.forget_after(before);
                    return Err(failed);
                }
            };
            let (together, later) = events.split_at(stored.len());
            for (event, stored) in together.iter().zip(stored) {
                // A change of the batch is newer than the store, also one of a key that was looked up with this one.
                let old = self.newest.get(&event.key).map_or(*stored, |&at| self.changes[at].new);
                if old == event.value {
                    continue;
                }
                if self.changes.len() == self.limits.most {
                    self.forget_after(before);
                    return Ok(Some(self.too_large(slot)));
                }
                self.newest.insert(event.key, self.changes.len());
                self.changes.push(Change { slot: slot.slot, key: event.key, old, new: event.value });
            }
            events = later;
        }
        if self.changes.len() > before {
            let WholeSlot { slot, blockhash, parent: Base { slot: parent_slot, .. }, .. } = *slot;
            self.ends.push(SlotEnd { seq: self.changes.len() as u64, slot, blockhash, parent_slot, is_healed: false });
        }
        self.events += slot.own_events().len() as u64;
        Ok(None)
    }

    /// Fills an empty batch with changes that lead to the slot of an archive, and the end of that slot if it is reached.
    pub fn heal(&mut self, changes: Vec<Change>, end: Option<SlotEnd>) {
        debug_assert!(self.changes.is_empty(), "a heal follows a commit");
        self.events = changes.len() as u64;
        self.ends.extend(end.map(|end| SlotEnd { seq: changes.len() as u64, ..end }).filter(|end| end.seq > 0));
        self.changes = changes;
    }

    /// Empties the batch after a commit.
    pub fn clear(&mut self) {
        // Free the memory of a batch that grew while catching up.
        if self.changes.capacity() > self.limits.due {
            (self.changes, self.newest) = (Vec::new(), KeyMap::default());
        }
        self.changes.clear();
        self.ends.clear();
        self.newest.clear();
        self.events = 0;
    }

    fn forget_after(&mut self, changes: usize) {
        self.changes.truncate(changes);
        self.newest = self.changes.iter().enumerate().map(|(at, change)| (change.key, at)).collect();
    }

    fn too_large(&self, slot: &WholeSlot) -> Gap {
        let (slot, most) = (slot.slot, self.limits.most);
        let detail = format!(
            "slot={slot} changes more keys than one commit can hold here: most={most}; give the service more memory"
        );
        Gap { first_slot: slot, last_slot: slot, detail, contradicts: false }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use engine_api::Durability;
    use engine_latency::{Latency, Measured};
    use engines::{EngineOptions, OpenMode};
    use solana::ChainCheckpoint;

    use super::*;
    use crate::base::chain::Event;
    use crate::base::pulse::Pulses;

    const FEW: BatchLimits = BatchLimits { due: 3, most: 4 };

    fn slot(slot: u64, writes: &[(u8, Option<u8>)]) -> WholeSlot {
        let event = |(key, value): &(u8, Option<u8>)| Event {
            key: [*key; 32],
            value: value.map(|value| [value; 32]),
            write_version: 0,
        };
        let (blockhash, events) = ([slot as u8; 32], writes.iter().map(event).collect());
        let parent = Base { slot: slot - 1, blockhash: [slot as u8 - 1; 32] };
        WholeSlot { slot, blockhash, parent, created_unix_ms: 0, events, late: 0 }
    }

    /// A store in which key 1 holds value 1.
    fn store(dir: &std::path::Path) -> Arc<Measured> {
        let engine = engines::open(dir, &EngineOptions::new(engines::default_engine()), OpenMode::Create).unwrap();
        let mut txn = engine.begin().unwrap();
        txn.put(&[1; 32], &[1; 32]).unwrap();
        txn.commit(&ChainCheckpoint::default().write(), Durability::Buffered).unwrap();
        Arc::new(Measured::new(engine, Latency::new("test"), "ingest"))
    }

    #[test]
    fn a_commit_is_due_by_changes_and_a_change_is_counted_once() {
        let (dir, pulse) = (tempfile::tempdir().unwrap(), Pulses::default().add("test"));
        let engine = store(&dir.path().join("store"));
        let mut reader = engine.own_reader().unwrap();
        let mut reads = Reads::new(&engine, 64, false, 0);
        let mut batch = Batch::new(FEW);
        for n in 2..50 {
            assert_eq!(
                batch.take(&slot(n, &[(1, Some(1)), (9, None)]), &mut reads, &mut reader, &pulse).unwrap(),
                None
            );
        }
        assert!(!batch.is_due() && batch.changes().is_empty(), "nothing changed: {:?}", batch.changes());
        assert_eq!(batch.events(), 96);
        // A second event on a key is compared with the batch's newest value of that key.
        batch.take(&slot(50, &[(1, Some(2)), (2, Some(5))]), &mut reads, &mut reader, &pulse).unwrap();
        batch.take(&slot(51, &[(1, Some(2)), (2, None)]), &mut reads, &mut reader, &pulse).unwrap();
        let seen: Vec<_> = batch.changes().iter().map(|c| (c.slot, c.key[0], c.old.map(|v| v[0]))).collect();
        assert_eq!(seen, [(50, 1, Some(1)), (50, 2, None), (51, 2, Some(5))]);
        assert!(batch.is_due());
        let ends: Vec<_> = batch.ends(100).iter().map(|end| (end.seq, end.slot, end.parent_slot)).collect();
        assert_eq!(ends, [(102, 50, 49), (103, 51, 50)], "slots that change nothing have no end");
        batch.clear();
        assert_eq!((batch.changes().len(), batch.events(), batch.is_due()), (0, 0, false));
    }

    #[test]
    fn a_key_that_the_batch_has_changed_is_compared_with_that_change() {
        let (dir, pulse) = (tempfile::tempdir().unwrap(), Pulses::default().add("test"));
        let engine = store(&dir.path().join("store"));
        let mut reader = engine.own_reader().unwrap();
        let of = |key: u8, old: Option<u8>, new: Option<u8>| (key, old, new);
        for depth in [1, 2, 3, 64] {
            let mut reads = Reads::new(&engine, depth, false, 0);
            let mut batch = Batch::new(BatchLimits { due: 100, most: 100 });
            // Within a slot, looked up together or not, and from one slot to the next.
            let first = slot(10, &[(1, Some(2)), (1, Some(1)), (1, Some(1)), (2, Some(4)), (1, None), (2, None)]);
            let second = slot(11, &[(2, Some(4)), (1, None), (1, Some(1)), (3, None)]);
            batch.take(&first, &mut reads, &mut reader, &pulse).unwrap();
            batch.take(&second, &mut reads, &mut reader, &pulse).unwrap();
            let changes: Vec<_> =
                batch.changes().iter().map(|c| of(c.key[0], c.old.map(|v| v[0]), c.new.map(|v| v[0]))).collect();
            let expected = [
                of(1, Some(1), Some(2)),
                of(1, Some(2), Some(1)),
                of(2, None, Some(4)),
                of(1, Some(1), None),
                of(2, Some(4), None),
                of(2, None, Some(4)),
                of(1, None, Some(1)),
            ];
            assert_eq!(changes, expected, "depth={depth}");
        }
    }

    #[test]
    fn a_slot_is_taken_whole_or_not_at_all() {
        let (dir, pulse) = (tempfile::tempdir().unwrap(), Pulses::default().add("test"));
        let engine = store(&dir.path().join("store"));
        let mut reader = engine.own_reader().unwrap();
        let mut reads = Reads::new(&engine, 64, false, 0);
        let mut batch = Batch::new(FEW);
        let five = [2, 3, 4, 5, 6].map(|key| (key, Some(key)));
        batch.take(&slot(10, &five[..1]), &mut reads, &mut reader, &pulse).unwrap();
        assert!(batch.has_room(3) && !batch.has_room(4) && Batch::new(FEW).has_room(5));
        let gap = batch.take(&slot(11, &five), &mut reads, &mut reader, &pulse).unwrap().unwrap();
        assert_eq!((gap.first_slot, gap.last_slot), (11, 11));
        assert!(gap.detail.contains("most=4") && gap.detail.contains("memory"), "{gap:?}");
        assert_eq!((batch.changes().len(), batch.changes()[0].slot, batch.ends(0).len()), (1, 10, 1));
        // The batch has forgotten the keys of the slot that it refused.
        batch.take(&slot(12, &[(3, None), (2, Some(2))]), &mut reads, &mut reader, &pulse).unwrap();
        assert_eq!(batch.changes().len(), 1);
    }

    #[test]
    fn memory_bounds_what_waits_and_what_a_slot_may_be() {
        let of = |mib: u64, engine, due| BatchLimits::within(mib << 20, engine, due);
        let roomy = of(64 << 10, EngineKind::Strata, None);
        assert_eq!(roomy, BatchLimits { due: CHANGES_DUE, most: FRAME_CHANGES_MAX });
        let small = of(128, EngineKind::Strata, None);
        assert!(small.due > 7000 && small.due < CHANGES_DUE && small.most > 80_000, "{small:?}");
        // LMDB holds a page in memory for each change.
        let tree = of(128, EngineKind::Lmdb, None);
        assert!(tree.due >= CHANGES_DUE_MIN && tree.due < 2000 && tree.most > 10_000, "{tree:?}");
        assert_eq!(of(64 << 10, EngineKind::Redb, Some(10)).due, 10);
        assert_eq!(
            of(1, EngineKind::Redb, Some(1 << 20)),
            BatchLimits { due: SLOT_CHANGES_MIN, most: SLOT_CHANGES_MIN }
        );
    }
}
