//! The record cache: pairs that were read from a device lately, each by itself. With uniform keys a page of 65 pairs is
//! 64 parts cold, so pairs are kept and not pages.
//!
//! Owns: chunks of sets of seven pairs, which gets read without a lock. Must not: outlive the truth (see below). Used on
//! any thread; made larger and smaller by one at a time.
//!
//! # What a pair is true for
//!
//! A pair names the segment that it was read from. Of a delta run it is true for that segment alone, which never changes.
//! Of the base it is also true for every later segment that has the key's place, as long as no merge has changed the key.
//! So that a merge into the base does not empty the cache, it forgets the keys that it changes and no others:
//!
//! 1. It closes the segments that it replaces: from then on nothing that is read from them is kept.
//! 2. It forgets each key of which it writes a record of a delta run, or drops one because of a tombstone.
//! 3. It installs the new segments. They take over what is left of the old ones. Readers of an older snapshot, which ask
//!    the old segments, are not given what was read from the new ones, because their numbers are higher.
//!
//! A pair must not come back once its key was forgotten. A larger cache therefore removes the pairs that are no longer
//! where they would be looked for, after every thread has let go of the table that led there.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use arc_swap::ArcSwap;
use engine_api::{Key, Value};
use memmap2::MmapMut;

use crate::budget::{Budget, Share};
use crate::format::secret::Seed;
use crate::memory::{self, map_huge};
use crate::read::set::{Set, Source};

/// Hashes are divided into so many parts; each part belongs to a chunk. Chunks differ by one part at most.
const PARTS: usize = 4096;
/// Memory comes and goes in chunks of the part of the store's, one in so many, between these sizes: the table of parts
/// then stays in the processor's caches, and large chunks are huge pages.
const CHUNK_SHARE: u64 = 256;
const CHUNK_BYTES: (u64, u64) = (512 << 10, 64 << 20);

/// Some sets in pages of their own, which go back to the system at once.
struct Chunk {
    /// Made in the mapping by `Chunk::new`.
    sets: NonNull<Set>,
    count: usize,
    _map: MmapMut,
    _share: Share,
}

// SAFETY: the sets lie in the chunk's own mapping, are made before it is shared, and are changed through atomics alone.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

/// Whether what is read from a segment is kept: not once it is being replaced.
#[derive(Debug, Default)]
pub(crate) struct Closed(AtomicBool);

impl Closed {
    /// Nothing more of the segment is kept. Keys that are forgotten from now on stay forgotten.
    pub(crate) fn close(&self) {
        // ORDERING: the fence pairs with the one in `RecordCache::put`: who finds it open there has used a table that is
        // not newer than the one that `forget` uses, and so the same sets.
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The segment stays after all.
    pub(crate) fn open(&self) {
        // ORDERING: Relaxed: it may be seen late.
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Which chunk has which part of the hashes.
#[derive(Default)]
struct Table {
    chunks: Vec<Arc<Chunk>>,
    /// By part: the number of its chunk, and that one's sets. Empty without chunks.
    parts: Box<[(u32, NonNull<Set>)]>,
    /// Sets of a chunk.
    sets: usize,
}

// SAFETY: the pointers lead into the mappings of `chunks`, to sets that are changed through atomics alone.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

/// Pairs by key and segment.
pub(crate) struct RecordCache {
    table: ArcSwap<Table>,
    chunk_bytes: u64,
    seed: Seed,
}

impl Chunk {
    fn new(bytes: u64, budget: &Arc<Budget>) -> Option<Self> {
        let share = budget.take(bytes, 0)?;
        let mut map = map_huge(bytes as usize).ok()?;
        let (sets, count) = (NonNull::new(map.as_mut_ptr())?.cast::<Set>(), sets_of(bytes));
        for at in 0..count {
            // SAFETY: as many fit into the mapping, which starts at a page and which nobody else has yet. They need no
            // drop.
            unsafe { sets.add(at).write(Set::new()) };
        }
        Some(Self { sets, count, _map: map, _share: share })
    }

    fn sets(&self) -> &[Set] {
        // SAFETY: so many were made in the mapping, which lives as long as the chunk.
        unsafe { std::slice::from_raw_parts(self.sets.as_ptr(), self.count) }
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
    fn set(&self, hash: u64) -> Option<&Set> {
        let place = place_of(hash);
        let (_, sets) = self.parts.get(part_of(place))?;
        let at = ((u128::from(place << PARTS.ilog2()) * self.sets as u128) >> 64) as usize;
        // SAFETY: `at` is below `sets`, and so many were made in each chunk; the chunk lives as long as the table.
        Some(unsafe { sets.add(at).as_ref() })
    }
}

/// Filters and memtables use the hash otherwise.
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

/// Waits until nobody has this table any more: a get has it for a moment.
fn wait_for_last(table: &mut Arc<Table>) {
    while Arc::get_mut(table).is_none() {
        std::thread::yield_now();
    }
}

impl RecordCache {
    /// Without any memory yet, in a store that has so many bytes and hashes keys with `seed`.
    pub(crate) fn new(seed: Seed, memory_bytes: u64) -> Self {
        let chunk = (memory_bytes / CHUNK_SHARE).clamp(CHUNK_BYTES.0, CHUNK_BYTES.1);
        Self { table: ArcSwap::default(), chunk_bytes: chunk.next_power_of_two(), seed }
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
        let after = Arc::new(Table::of(chunks, &before, sets_of(self.chunk_bytes)));
        drop(before);
        let mut before = self.table.swap(Arc::clone(&after));
        wait_for_last(&mut before);
        // Nobody finds these where they are. If a smaller cache led there again, they could be older than what was
        // forgotten meanwhile.
        for (number, chunk) in before.chunks.iter().enumerate() {
            let stays = |key: &Key| {
                let part = after.parts.get(part_of(place_of(self.seed.hash(key))));
                part.is_some_and(|(owner, _)| *owner as usize == number)
            };
            chunk.sets().iter().for_each(|set| set.retain(stays));
        }
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
        // The memory is given back here, not by a reader.
        wait_for_last(&mut before);
        count as u64 * self.chunk_bytes
    }

    /// Fetches what [`RecordCache::get`] reads first.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        if let Some(set) = self.table.load().set(hash) {
            memory::prefetch(std::ptr::from_ref(set).cast());
        }
    }

    /// The value of `key` as that segment has it; `None` without any memory. Takes no lock.
    pub(crate) fn get(&self, key: &Key, hash: u64, source: Source) -> Option<Option<Value>> {
        Some(self.table.load().set(hash)?.get(key, hash, source))
    }

    /// Keeps a pair of a segment in place of one that was not asked for lately.
    pub(crate) fn put(&self, key: &Key, hash: u64, source: Source, value: &Value, closed: &Closed) {
        let table = self.table.load();
        let Some(set) = table.set(hash) else { return };
        set.put(key, hash, source, value, || {
            // ORDERING: see `Closed::close`.
            fence(Ordering::SeqCst);
            closed.0.load(Ordering::Relaxed)
        });
    }

    /// Forgets what the base has said of `key`, because a merge changes it there. The segments that it replaces are closed.
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

    /// How many of the first 4000 are there.
    fn found(cache: &RecordCache) -> usize {
        (0..4000).filter(|n| cache.get(&key(*n), hash(&key(*n)), SOURCE) == Some(Some(key(*n)))).count()
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
        assert_eq!(cache.get(&key(1), hash(&key(1)), SOURCE), None);
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
        // The parts that come last go first: these were empty.
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
