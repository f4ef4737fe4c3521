//! The record cache: pairs recently read from a device, each by itself. With uniform keys 64 of the 65 pairs of a page
//! are cold, so pairs are cached and not pages.
//!
//! Owns: chunks of sets of seven pairs, which gets read without a lock. Must not: return outdated pairs (see below).
//! Used on any thread; only one thread at a time resizes it.
//!
//! # Validity of a pair
//!
//! A pair names the segment that it was read from. A pair of a delta run is valid for that segment alone, which never
//! changes. A pair of the base is also valid for every later segment that covers its key, as long as no merge has
//! changed the key. A merge into the base does not empty the cache, but forgets exactly the keys that it changes:
//!
//! 1. It closes the segments that it replaces: from then on pairs read from them are not cached.
//! 2. It forgets each key for which it writes a record of a delta run, or drops one because of a tombstone.
//! 3. It installs the new segments, which inherit the pairs left from the old ones. Readers of an older snapshot ask
//!    the old segments, and are not given pairs of the new ones, because those have higher numbers.
//!
//! A pair must not come back once its key was forgotten. So when the cache grows, it removes pairs from places that
//! lookups no longer search. It does so after every thread has released the table that led there.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use arc_swap::ArcSwap;
use engine_api::{Key, Value};

use crate::budget::{Budget, Share};
use crate::format::secret::Seed;
use crate::huge;
use crate::mapped::Mapped;
use crate::read::set::{Set, Source};

/// Number of parts of the hash space. Each belongs to one chunk, and chunks differ by at most one part.
const PARTS: usize = 4096;
/// The cache grows and shrinks in chunks of 1/CHUNK_SHARE of the store's memory, within [`CHUNK_BYTES`]. The table of
/// parts then stays in the processor's caches, and large chunks are huge pages.
const CHUNK_SHARE: u64 = 256;
/// Least and greatest size of a chunk in bytes.
const CHUNK_BYTES: (u64, u64) = (512 << 10, 64 << 20);

/// A number of sets, whose memory goes back to the system at once when the chunk is dropped.
struct Chunk {
    sets: Mapped<Set>,
    _share: Share,
}

/// Whether pairs read from a segment may no longer be cached, because the segment is being replaced.
#[derive(Debug, Default)]
pub(crate) struct Closed(AtomicBool);

impl Closed {
    /// Stops caching pairs of the segment. Keys that are forgotten from now on stay forgotten.
    pub(crate) fn close(&self) {
        // ORDERING: the fence pairs with the one in `RecordCache::put`. A thread that finds the segment open there has
        // used a table that is not newer than the one that `forget` uses, and so the same sets.
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Allows caching again, because the segment was not replaced after all.
    pub(crate) fn open(&self) {
        // ORDERING: Relaxed: it does no harm if other threads see this late.
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Assignment of parts of the hash space to chunks.
#[derive(Default)]
struct Table {
    chunks: Vec<Arc<Chunk>>,
    /// The number of its chunk and that chunk's sets, by part. Empty without chunks.
    parts: Box<[(u32, NonNull<Set>)]>,
    /// Number of sets in each chunk.
    sets: usize,
}

// SAFETY: the pointers lead into the mappings of `chunks`, to sets that are changed only through atomics.
unsafe impl Send for Table {}
// SAFETY: as for `Send` above.
unsafe impl Sync for Table {}

/// Answer of a [`RecordCache`] for a key of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Cached {
    Value(Value),
    /// The cache does not have the key, so the pair is worth caching once it is read.
    Missing,
    NoMemory,
}

/// A cache of pairs by key and segment.
pub(crate) struct RecordCache {
    table: ArcSwap<Table>,
    chunk_bytes: u64,
    seed: Seed,
}

impl Chunk {
    fn new(bytes: u64, budget: &Arc<Budget>) -> Option<Self> {
        let share = budget.take(bytes, 0)?;
        let mut sets = Mapped::with_room(sets_of(bytes)).ok()?;
        sets.make_huge();
        (0..sets_of(bytes)).try_for_each(|_| sets.push(Set::new())).ok()?;
        Some(Self { sets, _share: share })
    }
}

impl Table {
    /// Assigns parts to these chunks so that as few as possible change their chunk.
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
            (chunk as u32, NonNull::from(&*chunks[chunk].sets).cast())
        });
        Self { parts: parts.collect(), sets, chunks }
    }

    /// Returns the set for a hash; `None` without chunks.
    #[inline]
    fn set(&self, hash: u64) -> Option<&Set> {
        let place = place_of(hash);
        let (_, sets) = self.parts.get(part_of(place))?;
        let at = ((u128::from(place << PARTS.ilog2()) * self.sets as u128) >> 64) as usize;
        // SAFETY: `at` is below `sets`, the number of sets made in each chunk; the chunk lives as long as the table.
        Some(unsafe { sets.add(at).as_ref() })
    }
}

/// Mixes a hash, because filters and memtables use its bits in other ways.
#[inline]
fn place_of(hash: u64) -> u64 {
    hash.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[inline]
fn part_of(place: u64) -> usize {
    (place >> (64 - PARTS.ilog2())) as usize
}

fn sets_of(chunk_bytes: u64) -> usize {
    chunk_bytes as usize / size_of::<Set>()
}

/// Waits until nobody else holds this table. A get holds it only for a moment.
fn wait_for_last(table: &mut Arc<Table>) {
    while Arc::get_mut(table).is_none() {
        std::thread::yield_now();
    }
}

impl RecordCache {
    /// Makes a cache without any chunk, for a store with `memory_bytes` that hashes keys with `seed`.
    pub(crate) fn new(seed: Seed, memory_bytes: u64) -> Self {
        let chunk = (memory_bytes / CHUNK_SHARE).clamp(CHUNK_BYTES.0, CHUNK_BYTES.1);
        Self { table: ArcSwap::default(), chunk_bytes: chunk.next_power_of_two(), seed }
    }

    /// Size of the cache in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.table.load().chunks.len() as u64 * self.chunk_bytes
    }

    /// Grows by up to `bytes`, as far as the budget allows.
    pub(crate) fn grow(&self, bytes: u64, budget: &Arc<Budget>) {
        let before = self.table.load_full();
        let mut chunks = before.chunks.clone();
        let room = (bytes / self.chunk_bytes).min(PARTS.saturating_sub(chunks.len()) as u64);
        chunks.extend((0..room).map_while(|_| Chunk::new(self.chunk_bytes, budget)).map(Arc::new));
        let after = Arc::new(Table::of(chunks, &before, sets_of(self.chunk_bytes)));
        drop(before);
        let mut before = self.table.swap(Arc::clone(&after));
        wait_for_last(&mut before);
        // Remove the pairs that are no longer looked for in their old places. If the cache shrank and these places were
        // used again, such pairs could be older than a key forgotten meanwhile.
        for (number, chunk) in before.chunks.iter().enumerate() {
            let stays = |key: &Key| {
                let part = after.parts.get(part_of(place_of(self.seed.hash(key))));
                part.is_some_and(|(owner, _)| *owner as usize == number)
            };
            chunk.sets.iter().for_each(|set| set.retain(stays));
        }
    }

    /// Shrinks by at least `bytes`, or to nothing, and returns the number of bytes freed. Pairs of the other chunks
    /// stay in place.
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
        // Wait, so that the memory is freed here and not by a reader.
        wait_for_last(&mut before);
        count as u64 * self.chunk_bytes
    }

    /// Prefetches the memory that [`RecordCache::get`] reads first.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        if let Some(set) = self.table.load().set(hash) {
            huge::prefetch(std::ptr::from_ref(set).cast());
        }
    }

    /// Looks `key` up among the pairs that were cached for segment `source`. Takes no lock.
    pub(crate) fn get(&self, key: &Key, hash: u64, source: Source) -> Cached {
        match self.table.load().set(hash) {
            Some(set) => set.get(key, hash, source).map_or(Cached::Missing, Cached::Value),
            None => Cached::NoMemory,
        }
    }

    /// Caches a pair of a segment in place of one that was not asked for recently.
    pub(crate) fn put(&self, key: &Key, hash: u64, source: Source, value: &Value, closed: &Closed) {
        let table = self.table.load();
        let Some(set) = table.set(hash) else { return };
        set.put(key, hash, source, value, || {
            // ORDERING: see `Closed::close`.
            fence(Ordering::SeqCst);
            closed.0.load(Ordering::Relaxed)
        });
    }

    /// Forgets the base's record of `key`, because a merge changes it there. The segments that the merge replaces must
    /// be closed.
    pub(crate) fn forget(&self, key: &Key, hash: u64) {
        if let Some(set) = self.table.load().set(hash) {
            set.forget(key, hash);
        }
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

    const SOURCE: Source = Source { segment: 5, base: true };

    fn put(cache: &RecordCache, n: u64) {
        cache.put(&key(n), hash(&key(n)), SOURCE, &key(n), &Closed::default());
    }

    /// Returns the number of the first 4000 keys that are found.
    fn found(cache: &RecordCache) -> usize {
        (0..4000).filter(|n| cache.get(&key(*n), hash(&key(*n)), SOURCE) == Cached::Value(key(*n))).count()
    }

    #[test]
    fn what_was_forgotten_does_not_come_back_however_the_cache_grows_and_shrinks() {
        let (cache, budget) = (RecordCache::new(Seed::fixed(), 0), Budget::new(9 * CHUNK));
        cache.grow(CHUNK, &budget);
        (0..4000).for_each(|n| put(&cache, n));
        assert!(found(&cache) > 3600);
        for chunks in [1, 3, 4] {
            cache.grow(chunks * CHUNK, &budget);
            (0..4000).for_each(|n| cache.forget(&key(n), hash(&key(n))));
            assert_eq!(found(&cache), 0, "chunks={chunks}");
            cache.shrink(chunks * CHUNK);
            assert_eq!(found(&cache), 0, "chunks={chunks}: parts are again where they were");
            (0..4000).for_each(|n| put(&cache, n));
        }
        let closed = Closed::default();
        closed.close();
        (0..4000).for_each(|n| cache.forget(&key(n), hash(&key(n))));
        (0..4000).for_each(|n| cache.put(&key(n), hash(&key(n)), SOURCE, &key(n), &closed));
        assert_eq!(found(&cache), 0, "its segment is closed");
        closed.open();
        (0..4000).for_each(|n| cache.put(&key(n), hash(&key(n)), SOURCE, &key(n), &closed));
        assert!(found(&cache) > 3600);
    }

    #[test]
    fn a_smaller_one_keeps_what_the_other_chunks_hold_and_gives_its_memory_back() {
        let (cache, budget) = (RecordCache::new(Seed::fixed(), 0), Budget::new(9 * CHUNK));
        assert_eq!(cache.get(&key(1), hash(&key(1)), SOURCE), Cached::NoMemory);
        cache.grow(20 * CHUNK, &budget);
        assert_eq!((cache.bytes(), budget.left()), (9 * CHUNK, 0));
        (0..4000).for_each(|n| put(&cache, n));
        let found = || found(&cache);
        let all = found();
        assert!(all > 3990, "found={all}");
        assert_eq!(cache.shrink(CHUNK + 1), 2 * CHUNK);
        assert_eq!((cache.bytes(), budget.left()), (7 * CHUNK, 2 * CHUNK as i64));
        let kept = found();
        assert!((all * 7 / 9).abs_diff(kept) < 200, "kept={kept} of {all}");
        cache.grow(2 * CHUNK, &budget);
        // The parts assigned last are taken away first, and these were empty.
        assert_eq!(found(), kept);
        assert_eq!(cache.shrink(2 * CHUNK), 2 * CHUNK);
        assert_eq!(cache.shrink(u64::MAX / 2), 7 * CHUNK);
        assert_eq!((found(), cache.bytes(), budget.left()), (0, 0, 9 * CHUNK as i64));
    }

    #[test]
    fn chunks_have_equal_parts_and_few_parts_move() {
        let (cache, budget) = (RecordCache::new(Seed::fixed(), 0), Budget::new(1 << 30));
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
