//! The record cache: pairs that were read from a device lately, each by itself. With uniform keys a page of 65 pairs is
//! 64 parts cold, so pairs are kept and not pages.
//!
//! Owns: chunks of sets of eight slots, each set behind a lock that a get holds for some ten nanoseconds. Must not: outlive
//! the truth: a slot names the segment that it was read from, and segments never change. Used on any thread; made
//! larger and smaller by one at a time.

use std::ptr::NonNull;
use std::sync::Arc;

use arc_swap::ArcSwap;
use engine_api::{Key, Value};
use memmap2::MmapMut;
use parking_lot::Mutex;

use crate::budget::{Budget, Share};
use crate::memory::map_huge;

const WAYS: usize = 8;
/// Hashes are divided into so many parts; each part belongs to a chunk. Chunks differ by one part at most.
const PARTS: usize = 4096;
/// Memory comes and goes in chunks of the part of the store's, one in so many, between these sizes: the table of parts
/// then stays in the processor's caches, and large chunks are huge pages.
const CHUNK_SHARE: u64 = 256;
const CHUNK_BYTES: (u64, u64) = (512 << 10, 64 << 20);

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

/// Some sets in pages of their own, which go back to the system at once.
struct Chunk {
    /// Made in the mapping by `Chunk::new`.
    sets: NonNull<Mutex<Set>>,
    _map: MmapMut,
    _share: Share,
}

// SAFETY: the sets lie in the chunk's own mapping, are made before it is shared, and are used behind their locks.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

/// Which chunk has which part of the hashes.
#[derive(Default)]
struct Table {
    chunks: Vec<Arc<Chunk>>,
    /// By part: the number of its chunk, and that one's sets. Empty without chunks.
    parts: Box<[(u32, NonNull<Mutex<Set>>)]>,
    /// Sets of a chunk.
    sets: usize,
}

// SAFETY: the pointers lead into the mappings of `chunks`, to sets that are used behind their locks.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

/// Pairs by key and segment.
pub(crate) struct RecordCache {
    table: ArcSwap<Table>,
    chunk_bytes: u64,
}

impl Chunk {
    fn new(bytes: u64, budget: &Arc<Budget>) -> Option<Self> {
        let share = budget.take(bytes, 0)?;
        let mut map = map_huge(bytes as usize).ok()?;
        let sets = NonNull::new(map.as_mut_ptr())?.cast::<Mutex<Set>>();
        let empty = Slot { key: [0; 32], value: [0; 32], segment: 0, used: false };
        for at in 0..sets_of(bytes) {
            // SAFETY: as many fit into the mapping, which starts at a page and which nobody else has yet. They need no
            // drop.
            unsafe { sets.add(at).write(Mutex::new(Set { slots: [empty; WAYS], hand: 0 })) };
        }
        Some(Self { sets, _map: map, _share: share })
    }
}

impl Table {
    /// The parts of these chunks: as few as can be change their chunk.
    fn of(chunks: Vec<Arc<Chunk>>, before: &Self, sets: usize) -> Self {
        if chunks.is_empty() {
            return Self::default();
        }
        let quota = |chunk: usize| PARTS / chunks.len() + usize::from(chunk < PARTS % chunks.len());
        let mut counts = vec![0; chunks.len()];
        let mut owners: Vec<Option<usize>> = vec![None; PARTS];
        for (owner, (chunk, _)) in owners.iter_mut().zip(&before.parts) {
            let chunk = *chunk as usize;
            if chunk < chunks.len() && counts[chunk] < quota(chunk) {
                *owner = Some(chunk);
                counts[chunk] += 1;
            }
        }
        let mut short = 0;
        let parts = owners.into_iter().map(|owner| {
            let chunk = owner.unwrap_or_else(|| {
                while counts[short] == quota(short) {
                    short += 1;
                }
                counts[short] += 1;
                short
            });
            (chunk as u32, chunks[chunk].sets)
        });
        Self { parts: parts.collect(), sets, chunks }
    }

    /// The set of a hash.
    #[inline]
    fn set(&self, hash: u64) -> Option<&Mutex<Set>> {
        // Filters and memtables use the hash otherwise.
        let place = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (_, sets) = self.parts.get((place >> (64 - PARTS.ilog2())) as usize)?;
        let at = ((u128::from(place << PARTS.ilog2()) * self.sets as u128) >> 64) as usize;
        // SAFETY: `at` is below `sets`, and so many were made in each chunk; the chunk lives as long as the table.
        Some(unsafe { sets.add(at).as_ref() })
    }
}

fn sets_of(chunk_bytes: u64) -> usize {
    chunk_bytes as usize / size_of::<Mutex<Set>>()
}

impl RecordCache {
    /// Without any memory yet, in a store that has so many bytes.
    pub(crate) fn new(memory_bytes: u64) -> Self {
        let chunk = (memory_bytes / CHUNK_SHARE).clamp(CHUNK_BYTES.0, CHUNK_BYTES.1);
        Self { table: ArcSwap::default(), chunk_bytes: chunk.next_power_of_two() }
    }

    /// Bytes it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.table.load().chunks.len() as u64 * self.chunk_bytes
    }

    /// Takes up to `bytes` more.
    pub(crate) fn grow(&self, bytes: u64, budget: &Arc<Budget>) {
        let before = self.table.load_full();
        let mut chunks = before.chunks.clone();
        let room = (bytes / self.chunk_bytes).min(PARTS.saturating_sub(chunks.len()) as u64);
        chunks.extend((0..room).map_while(|_| Chunk::new(self.chunk_bytes, budget)).map(Arc::new));
        self.table.store(Arc::new(Table::of(chunks, &before, sets_of(self.chunk_bytes))));
    }

    /// Gives up at least `bytes`, if it has as many; how many. What the other chunks hold stays where it is.
    pub(crate) fn shrink(&self, bytes: u64) -> u64 {
        let now = self.table.load_full();
        let mut chunks = now.chunks.clone();
        let count = (bytes.div_ceil(self.chunk_bytes) as usize).min(chunks.len());
        if count == 0 {
            return 0;
        }
        chunks.truncate(chunks.len() - count);
        let after = Table::of(chunks, &now, sets_of(self.chunk_bytes));
        drop(now);
        let mut before = self.table.swap(Arc::new(after));
        // A get holds the table for a moment: the memory is given back here, not by a reader.
        while Arc::get_mut(&mut before).is_none() {
            std::thread::yield_now();
        }
        count as u64 * self.chunk_bytes
    }

    /// The value of `key` as that segment has it; `None` without any memory.
    pub(crate) fn get(&self, key: &Key, hash: u64, segment: u64) -> Option<Option<Value>> {
        let table = self.table.load();
        let mut set = table.set(hash)?.lock();
        let slot = set.slots.iter_mut().find(|slot| slot.segment == segment && slot.key == *key);
        Some(slot.map(|slot| {
            slot.used = true;
            slot.value
        }))
    }

    /// Keeps a pair in place of one that was not asked for lately.
    pub(crate) fn put(&self, key: &Key, hash: u64, segment: u64, value: &Value) {
        let table = self.table.load();
        let Some(set) = table.set(hash) else { return };
        let mut set = set.lock();
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::secret::Seed;

    const CHUNK: u64 = CHUNK_BYTES.0;

    fn key(n: u64) -> Key {
        std::array::from_fn(|at| n.to_be_bytes()[at % 8])
    }

    fn hash(key: &Key) -> u64 {
        Seed::fixed().hash(key)
    }

    #[test]
    fn what_is_asked_for_stays_and_another_segments_is_not_given() {
        let cache = RecordCache::new(0);
        cache.grow(CHUNK, &Budget::new(CHUNK));
        let table = cache.table.load();
        // Ten keys of one set.
        let set = |hash| table.set(hash).map(std::ptr::from_ref);
        let keys: Vec<Key> = (0..).map(key).filter(|key| set(hash(key)) == set(0)).take(10).collect();
        let put = |n: usize| cache.put(&keys[n], hash(&keys[n]), 5, &[n as u8; 32]);
        let get = |n: usize, segment| cache.get(&keys[n], hash(&keys[n]), segment).flatten();
        (0..8).for_each(put);
        assert!((0..8).all(|n| get(n, 5) == Some([n as u8; 32])));
        assert_eq!(get(1, 6), None);
        // All were asked for: the hand takes the marks off and then the first.
        put(8);
        assert_eq!((get(0, 5), get(8, 5)), (None, Some([8; 32])));
        assert_eq!(get(1, 5), Some([1; 32]));
        put(9);
        assert_eq!((get(1, 5), get(2, 5)), (Some([1; 32]), None), "1 and 8 were asked for since");
    }

    #[test]
    fn a_smaller_one_keeps_what_the_other_chunks_hold_and_gives_its_memory_back() {
        let (cache, budget) = (RecordCache::new(0), Budget::new(9 * CHUNK));
        assert_eq!(cache.get(&key(1), hash(&key(1)), 5), None);
        cache.grow(20 * CHUNK, &budget);
        assert_eq!((cache.bytes(), budget.left()), (9 * CHUNK, 0));
        (0..4000).for_each(|n| cache.put(&key(n), hash(&key(n)), 5, &key(n)));
        let found = || (0..4000).filter(|n| cache.get(&key(*n), hash(&key(*n)), 5) == Some(Some(key(*n)))).count();
        let all = found();
        assert!(all > 3990, "found={all}");
        assert_eq!(cache.shrink(CHUNK + 1), 2 * CHUNK);
        assert_eq!((cache.bytes(), budget.left()), (7 * CHUNK, 2 * CHUNK as i64));
        let kept = found();
        assert!((all * 7 / 9).abs_diff(kept) < 200, "kept={kept} of {all}");
        cache.grow(2 * CHUNK, &budget);
        // The parts that come last go first: these were empty.
        assert_eq!(found(), kept);
        assert_eq!(cache.shrink(2 * CHUNK), 2 * CHUNK);
        assert_eq!(cache.shrink(u64::MAX / 2), 7 * CHUNK);
        assert_eq!((found(), cache.bytes(), budget.left()), (0, 0, 9 * CHUNK as i64));
    }

    #[test]
    fn chunks_have_equal_parts_and_few_parts_move() {
        let (cache, budget) = (RecordCache::new(0), Budget::new(1 << 30));
        let owners = || -> Vec<u32> { cache.table.load().parts.iter().map(|(chunk, _)| *chunk).collect() };
        let mut before = owners();
        for (from, to) in [(0, 1), (1, 3), (3, 11), (11, 7), (7, 40), (40, 1)] {
            let bytes = CHUNK * u64::abs_diff(from, to);
            if from < to {
                cache.grow(bytes, &budget)
            } else {
                assert_eq!(cache.shrink(bytes), bytes)
            }
            let after = owners();
            let parts = |chunk| after.iter().filter(|owner| u64::from(**owner) == chunk).count();
            assert!((0..to).all(|chunk| parts(chunk) - PARTS / to as usize <= 1), "from={from} to={to}");
            let moved = before.iter().zip(&after).filter(|(before, after)| before != after).count() as u64;
            let least = PARTS as u64 * u64::abs_diff(from, to) / from.max(to);
            assert!(moved <= least + from.max(to), "from={from} to={to} moved={moved} least={least}");
            before = after;
        }
    }
}
