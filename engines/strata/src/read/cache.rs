//! The record cache: pairs that were read from a device lately, each by itself. With uniform keys a page of 65 pairs is
//! 64 parts cold, so pairs are kept and not pages.
//!
//! Owns: sets of eight slots behind a lock each; a get holds one for some ten nanoseconds. Must not: outlive the truth:
//! a slot names the segment that it was read from, and segments never change.

use engine_api::{Key, Value};
use parking_lot::Mutex;

use crate::budget::Share;

const WAYS: usize = 8;

/// What a slot takes, its share of the lock included, in bytes.
pub(crate) const SLOT_BYTES: u64 = (size_of::<Mutex<Set>>() / WAYS) as u64;

#[derive(Clone, Copy)]
struct Slot {
    key: Key,
    value: Value,
    /// The segment it was read from; 0 is no segment's number.
    segment: u64,
    /// Asked for since the hand last passed.
    used: bool,
}

struct Set {
    slots: [Slot; WAYS],
    hand: usize,
}

/// Pairs by key and segment.
pub(crate) struct RecordCache {
    sets: Box<[Mutex<Set>]>,
    _share: Share,
}

impl RecordCache {
    /// A cache of as many sets as `bytes` hold.
    pub(crate) fn new(bytes: u64, share: Share) -> Self {
        let sets = (bytes / (SLOT_BYTES * WAYS as u64)).max(1);
        let empty = Slot { key: [0; 32], value: [0; 32], segment: 0, used: false };
        let sets = (0..sets).map(|_| Mutex::new(Set { slots: [empty; WAYS], hand: 0 })).collect();
        Self { sets, _share: share }
    }

    /// Bytes it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.sets.len() as u64 * WAYS as u64 * SLOT_BYTES
    }

    pub(crate) fn get(&self, key: &Key, hash: u64, segment: u64) -> Option<Value> {
        let mut set = self.set(hash).lock();
        let slot = set.slots.iter_mut().find(|slot| slot.segment == segment && slot.key == *key)?;
        slot.used = true;
        Some(slot.value)
    }

    /// Keeps a pair in place of one that was not asked for lately.
    pub(crate) fn put(&self, key: &Key, hash: u64, segment: u64, value: &Value) {
        let mut set = self.set(hash).lock();
        let Set { slots, hand } = &mut *set;
        // Another thread may have brought it in meanwhile; its place is the best one.
        let place = slots.iter().position(|slot| slot.segment == 0 || (slot.segment == segment && slot.key == *key));
        let place = place.unwrap_or_else(|| {
            while slots[*hand].used {
                slots[*hand].used = false;
                *hand = (*hand + 1) % WAYS;
            }
            let place = *hand;
            *hand = (*hand + 1) % WAYS;
            place
        });
        slots[place] = Slot { key: *key, value: *value, segment, used: false };
    }

    fn set(&self, hash: u64) -> &Mutex<Set> {
        // The high half, as a share of the sets: memtables use the low bits.
        &self.sets[((u128::from(hash) * self.sets.len() as u128) >> 64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::format::secret::Seed;

    #[test]
    fn what_is_asked_for_stays_and_another_segments_is_not_given() {
        let cache = RecordCache::new(1, Budget::new(0).take_always(0));
        let key = |n: u8| [n; 32];
        let hash = |key: &Key| Seed::fixed().hash(key);
        let put = |n: u8| cache.put(&key(n), hash(&key(n)), 5, &[n; 32]);
        let get = |n: u8, segment| cache.get(&key(n), hash(&key(n)), segment);
        (0..8).for_each(put);
        assert!((0..8).all(|n| get(n, 5) == Some([n; 32])));
        assert_eq!(get(1, 6), None);
        // All were asked for: the hand takes the marks off and then the first.
        put(8);
        assert_eq!((get(0, 5), get(8, 5)), (None, Some([8; 32])));
        assert_eq!(get(1, 5), Some([1; 32]));
        put(9);
        assert_eq!((get(1, 5), get(2, 5)), (Some([1; 32]), None), "1 and 8 were asked for since");
    }
}
