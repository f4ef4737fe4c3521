//! State of gets apart from the runs: a buffer for each reader, and counts of reads and cache hits.
//!
//! Owns: the statistics of reads. A reader has counters of its own and adds them to the store's counters now and then,
//! because updating a shared counter would cost more than many gets do.

use std::sync::Arc;

use engine_api::Key;

use crate::budget::Budget;
use crate::file::PageBuffer;
use crate::format::secret::Seed;
use crate::huge::Pool;
use crate::read::cache::RecordCache;
use crate::statistic::Statistic;

/// Number of gets after which a reader adds its counts to the store's.
const ADD_EVERY: u64 = 256;

/// State that the segments of a store share: the costs of gets, and the cache of recently read records.
pub(crate) struct Reads {
    /// Seed of the hash of keys.
    pub(crate) seed: Seed,
    /// The record cache, which is empty while all pages fit into memory.
    pub(crate) cache: RecordCache,
    /// Budget that buffers are taken from.
    pub(crate) budget: Arc<Budget>,
    /// Memory that holds filter planes and directories.
    pub(crate) pool: Pool,
    pub(crate) sums: Sums,
}

/// Sums of all readers since the store was opened.
#[derive(Default)]
pub(crate) struct Sums {
    gets: Statistic,
    /// Pages that were read for gets.
    pub(crate) get_reads: Statistic,
    cache_hits: Statistic,
    cache_misses: Statistic,
    /// Bytes that were read for scans and merges.
    pub(crate) run_read_bytes: Statistic,
    /// Pipelines that the kernel refused an io_uring, so that their reads run one after the other.
    pub(crate) rings_refused: Statistic,
}

/// Counts of one reader that were not yet added to the store's.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    gets: u64,
    cache_hits: u64,
    cache_misses: u64,
}

/// The hashes of a key.
#[derive(Clone, Copy)]
pub(crate) struct Hashes {
    /// Hash for memtables and the record cache.
    pub(crate) key: u64,
    /// Hash for filters, of the key or of its prefix.
    pub(crate) filter: u64,
}

/// Buffer and counts of one reader.
pub(crate) struct Lookup {
    /// Taken for the first read: a reader that lives for one get from memory needs none.
    buffer: Option<PageBuffer>,
    pub(crate) counts: Counts,
    seed: Seed,
    reads: Arc<Reads>,
}

impl Reads {
    pub(crate) fn new(seed: Seed, budget: &Arc<Budget>) -> Self {
        Self {
            seed,
            cache: RecordCache::new(seed, budget.all_bytes()),
            budget: Arc::clone(budget),
            pool: Pool::default(),
            sums: Sums::default(),
        }
    }
}

impl Sums {
    /// Returns every sum with its name in `Stats`.
    pub(crate) fn details(&self) -> [(&'static str, u64); 6] {
        [
            ("gets", self.gets.get()),
            ("get_reads", self.get_reads.get()),
            ("record_cache_hits", self.cache_hits.get()),
            ("record_cache_misses", self.cache_misses.get()),
            ("run_read_bytes", self.run_read_bytes.get()),
            ("io_uring_refused", self.rings_refused.get()),
        ]
    }
}

impl Counts {
    pub(crate) fn cached(&mut self, hit: bool) {
        self.cache_hits += u64::from(hit);
        self.cache_misses += u64::from(!hit);
    }
}

impl Lookup {
    pub(crate) fn new(reads: &Arc<Reads>) -> Self {
        Self { buffer: None, counts: Counts::default(), seed: reads.seed, reads: Arc::clone(reads) }
    }

    pub(crate) fn buffer(&mut self) -> &mut PageBuffer {
        self.buffer.get_or_insert_with(|| PageBuffer::new(1))
    }

    /// Returns the hashes of a key with the store's seed.
    #[inline]
    pub(crate) fn hash(&self, key: &Key) -> Hashes {
        let hash = self.seed.hash(key);
        Hashes {
            key: hash,
            filter: if self.seed.prefix_bytes() == key.len() { hash } else { self.seed.filter_hash(key) },
        }
    }

    /// Counts a get. Every [`ADD_EVERY`] gets it adds the counts to the store's.
    pub(crate) fn count_get(&mut self) {
        self.counts.gets += 1;
        if self.counts.gets == ADD_EVERY {
            self.add();
        }
    }

    fn add(&mut self) {
        let Counts { gets, cache_hits, cache_misses } = std::mem::take(&mut self.counts);
        self.reads.sums.gets.add(gets);
        self.reads.sums.cache_hits.add(cache_hits);
        self.reads.sums.cache_misses.add(cache_misses);
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        self.add();
    }
}
