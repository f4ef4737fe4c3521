//! State of gets apart from the runs: a buffer for each reader, and counts of reads and cache hits.
//!
//! Owns: the statistics of reads. A reader has counters of its own and adds them to the store's counters now and then,
//! because updating a shared counter would cost more than many gets do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine_api::Key;

use crate::budget::Budget;
use crate::file::PageBuffer;
use crate::format::secret::Seed;
use crate::huge::Pool;
use crate::read::cache::RecordCache;
use crate::storage::PAGE_BYTES;

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
    gets: AtomicU64,
    get_reads: AtomicU64,
    filter_errors: AtomicU64,
    cache_hits: AtomicU64,
    cache_misses: AtomicU64,
    run_read_bytes: AtomicU64,
    rings_refused: AtomicU64,
}

/// Counts of one reader that were not yet added to the store's.
#[derive(Default)]
pub(crate) struct Counts {
    gets: u64,
    cache_hits: u64,
    cache_misses: u64,
}

/// Buffer and counts of one reader.
pub(crate) struct Lookup {
    pub(crate) buffer: PageBuffer,
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
            gets: AtomicU64::default(),
            get_reads: AtomicU64::default(),
            filter_errors: AtomicU64::default(),
            cache_hits: AtomicU64::default(),
            cache_misses: AtomicU64::default(),
            run_read_bytes: AtomicU64::default(),
            rings_refused: AtomicU64::default(),
        }
    }

    /// Counts an io_uring that the kernel refused, so that reads run one after the other.
    pub(crate) fn count_ring_refused(&self) {
        // ORDERING: Relaxed, here and below: statistics.
        self.rings_refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a page that was read for a get.
    pub(crate) fn count_get_read(&self) {
        self.get_reads.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a key that a filter let through although its segment does not hold it.
    pub(crate) fn count_filter_error(&self) {
        self.filter_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes that were read for a scan or a merge.
    pub(crate) fn count_run_read(&self, bytes: usize) {
        self.run_read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns every count with its name in `Stats`.
    pub(crate) fn details(&self) -> [(&'static str, u64); 8] {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("gets", read(&self.gets)),
            ("get_reads", read(&self.get_reads)),
            ("get_read_bytes", read(&self.get_reads) * PAGE_BYTES as u64),
            ("filter_errors", read(&self.filter_errors)),
            ("record_cache_hits", read(&self.cache_hits)),
            ("record_cache_misses", read(&self.cache_misses)),
            ("run_read_bytes", read(&self.run_read_bytes)),
            ("io_uring_refused", read(&self.rings_refused)),
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
        Self { buffer: PageBuffer::new(1), counts: Counts::default(), seed: reads.seed, reads: Arc::clone(reads) }
    }

    /// Returns the hash of a key with the store's seed.
    pub(crate) fn hash(&self, key: &Key) -> u64 {
        self.seed.hash(key)
    }

    /// Returns the bytes of the buffer, which is one page long.
    pub(crate) fn page_mut(&mut self) -> &mut [u8] {
        self.buffer.bytes_mut()
    }

    /// Counts a page that is read for a get.
    pub(crate) fn count_read(&self) {
        self.reads.count_get_read();
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
        // ORDERING: Relaxed: statistics.
        self.reads.gets.fetch_add(gets, Ordering::Relaxed);
        self.reads.cache_hits.fetch_add(cache_hits, Ordering::Relaxed);
        self.reads.cache_misses.fetch_add(cache_misses, Ordering::Relaxed);
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        self.add();
    }
}
