//! Divides the memory of a load between the engine, every buffer of the loader, and the rest of the process.
//!
//! Owns: the sums, and the refusal of a limit that is too small. Engine and buffers share the memory of the cgroup or
//! the machine. Nothing is allocated here. Runs on the main thread.

use anyhow::Result;
use bytesize::ByteSize;
use engine_api::Code;
use engines::{EngineKind, EngineOptions};
use probe::MemoryLimit;

use crate::identity::BORDER_RECORDS;
use crate::layout::{BLOCK_BYTES, RECORD_BYTES, SPILLED_RECORD_BYTES};
use crate::rank::Order;
use crate::wrong::Wrong;

/// Upper bound of the tool's own memory in bytes, without the engine, for any number of pairs.
pub(crate) const OWN_MEMORY_BYTES_MAX: usize = 512 << 20;

/// Number of buffers of the external sort: one is filled while another is sorted and a third is written.
pub(crate) const SORT_BUFFERS: usize = 3;
/// Bytes of memory that the sort needs for each record of a buffer: room for the record in every buffer, and eight
/// bytes for its place in the sorted order of each of two buffers, the one being sorted and the one being written.
pub(crate) const SORT_RECORD_BYTES: usize = SORT_BUFFERS * RECORD_BYTES + 2 * size_of::<u64>();

/// Largest number of parts in which a spill is given back to the file system. One part exists twice on the disk, and
/// each part costs a flush of the manifest; with this number both costs are small.
pub(crate) const GIVEN_BACK_PARTS: u64 = 64;
/// Smallest number of chunks in which a spilled source is loaded in sorted order. Chunks must be small because the disk
/// holds the newest one twice, but more of them would cost more flushes.
pub(crate) const BULK_PARTS: u64 = 32;
/// If there are too many runs, 1/COMBINED_PARTS of them are merged at a time, because the disk holds the records twice
/// during the merge. With smaller parts, records would be merged again and again.
pub(crate) const COMBINED_PARTS: usize = 8;

/// Pairs that every source hands on at a time.
pub(crate) const CHUNK_PAIRS: usize = 4096;
/// Largest number of chunks made ahead of the engine: enough that neither side waits for the other's pauses.
pub(crate) const CHUNKS_AHEAD: usize = 64;
/// Largest number of pairs in one sorted chunk for an engine's bulk path: one RocksDB file of 64 MB. The next chunk is
/// made while the engine takes one.
pub(crate) const BULK_PAIRS: usize = 1 << 20;
/// Pairs per commit in shuffled order, if the memory allows it.
pub(crate) const BATCH_PAIRS: u64 = 10_000;

/// Memory of a pair in a commit of an engine that holds no page for it, by calculation: the pair three times, in the
/// load's list, the transaction's and the log's record, and its place in the transaction's map of keys.
const BATCH_PAIR_BYTES: u64 = 280;

/// Largest memory for all buffers. Larger ones make nothing faster.
const BUFFERS_BYTES_MAX: u64 = 448 << 20;
/// Smallest memory for buffers and page cache together.
const BUFFERS_AND_CACHE_BYTES_MIN: u64 = 16 << 20;
/// Memory of the program without its buffers: code, histograms, the time series, and blocks being written.
const PROGRAM_BYTES: u64 = 48 << 20;
/// Memory of reading an archive of mainnet beside the sort: unpacking, and the table of the archive's files.
const READING_BYTES: u64 = 112 << 20;
/// Disk space of pages in a B+tree that the newest shuffled batches have freed. Only later transactions may use them
/// again. It does not depend on the store's size: loads of redb left 33 MB.
const FREED_BYTES: u64 = 64 << 20;
/// Smallest value of --sort-memory in bytes.
pub(crate) const SORT_BYTES_MIN: u64 = 1 << 20;

const _: () = assert!(BUFFERS_BYTES_MAX + PROGRAM_BYTES < OWN_MEMORY_BYTES_MAX as u64);

/// Sizes of a load's buffers. Sorting ends before merging begins, so both use the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffers {
    /// Bytes for collecting and sorting records.
    pub(crate) sort_bytes: usize,
    /// Bytes for the pieces of the runs being merged, a piece of one or more blocks of each. The kernel's copy of the
    /// pieces that come next takes as many bytes of the page cache at most.
    pub(crate) heads_bytes: usize,
    /// Number of chunks of [`CHUNK_PAIRS`] made ready before the engine takes them.
    pub(crate) chunks_ahead: usize,
    /// Number of pairs in a sorted chunk.
    pub(crate) bulk_pairs: usize,
    /// Largest number of pairs in a commit, which has all of them in memory.
    pub(crate) batch_pairs: u64,
}

/// Size and number of the chunks in which pairs go from the thread that orders them to the thread that takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunks {
    /// Number of pairs in a chunk.
    pub(crate) pairs: usize,
    /// Largest number of chunks that wait to be taken.
    pub(crate) ahead: usize,
}

impl Chunks {
    /// Returns the largest number of chunks that exist at a time: one is being made, one is being taken, and the others
    /// wait.
    pub(crate) fn count(self) -> usize {
        self.ahead + 2
    }

    /// Makes the chunks small enough for a spill of this many records that is given back.
    pub(crate) fn for_giving_back(self, records: u64) -> Self {
        let part = usize::try_from(records / BULK_PARTS).unwrap_or(usize::MAX);
        Self { pairs: self.pairs.min(part.max(CHUNK_PAIRS)), ..self }
    }
}

impl Buffers {
    /// Sizes the buffers so that together they take `bytes`.
    fn of(bytes: u64, engine: EngineKind) -> Self {
        let bytes = bytes.min(BUFFERS_BYTES_MAX) as usize;
        // The runs get half. The chunk that the engine takes gets a quarter, and the chunks ahead of it another.
        let quarter = bytes / 4;
        let page_bytes = engine.descriptor().page_bytes;
        Self {
            sort_bytes: bytes,
            heads_bytes: bytes / 2,
            chunks_ahead: (quarter / (CHUNK_PAIRS * 64)).clamp(1, CHUNKS_AHEAD),
            bulk_pairs: (quarter / 64).clamp(CHUNK_PAIRS, BULK_PAIRS),
            // Twice the page: a leaf for each pair, and now and then a branch page. Half of the buffers otherwise.
            batch_pairs: (bytes as u64 / (2 * page_bytes.max(BATCH_PAIR_BYTES))).max(100),
        }
    }

    /// Returns size and number of the chunks for pairs in this order.
    pub(crate) fn chunks(&self, order: Order) -> Chunks {
        match order {
            Order::Shuffled => Chunks { pairs: CHUNK_PAIRS, ahead: self.chunks_ahead },
            // A chunk is as large as the engine wants it, so that it is not copied. The next one is made meanwhile, and
            // more of them would have no room.
            Order::Sorted => Chunks { pairs: self.bulk_pairs, ahead: 0 },
        }
    }

    /// Returns the number of records in a buffer of the sort, and so in a run: a multiple of [`BORDER_RECORDS`],
    /// because reading can be resumed only there.
    pub(crate) fn run_records(&self) -> usize {
        let border = BORDER_RECORDS as usize;
        (self.sort_bytes / SORT_RECORD_BYTES / border).max(1) * border
    }

    /// Returns the number of runs of which a block fits into the memory for merging.
    pub(crate) fn runs_at_once(&self) -> usize {
        (self.heads_bytes / BLOCK_BYTES).max(2)
    }

    /// Replaces the memory for sorting and merging. `options` must be those of the load, after [`divide`].
    ///
    /// # Errors
    /// [`Wrong`], with the maximum, if more is asked for than the process may use.
    pub(crate) fn with_sort_memory(self, bytes: Option<ByteSize>, options: &EngineOptions) -> Result<Self> {
        let Some(asked) = bytes else { return Ok(self) };
        let limit = probe::memory_limit();
        let cache_bytes = options.division_of(limit.clone()).cache_bytes;
        let bytes = asked.as_u64();
        // All of it is used while the source is read and the engine is not open yet, and half of it, beside the chunks,
        // while the engine is open.
        let chunks_bytes =
            [Order::Shuffled, Order::Sorted].map(|order| self.chunks(order)).map(|of| of.count() * of.pairs * 64);
        let chunks_bytes = chunks_bytes.into_iter().max().unwrap_or(0) as u64;
        let own_bytes = limit.bytes.saturating_sub(PROGRAM_BYTES);
        let merged_bytes = own_bytes.saturating_sub(cache_bytes.saturating_add(chunks_bytes)).saturating_mul(2);
        // The default is always right.
        let most_bytes = own_bytes.saturating_sub(READING_BYTES).min(merged_bytes).max(self.sort_bytes as u64);
        if bytes > most_bytes {
            return Err(Wrong::error(
                Code::Memory,
                format!(
                    "--sort-memory is more than this process may use: sort_memory={asked} maximum={} memory_limit={} \
                 engine_memory={}: lower it, or leave it out",
                    ByteSize::b(most_bytes),
                    ByteSize::b(limit.bytes),
                    ByteSize::b(cache_bytes)
                ),
            ));
        }
        let sort_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(Self { sort_bytes, heads_bytes: sort_bytes / 2, ..self })
    }
}

impl Default for Buffers {
    fn default() -> Self {
        Self::of(BUFFERS_BYTES_MAX, EngineKind::Strata)
    }
}

/// Divides the process's memory between the engine of `options` and the buffers, and returns the options with the
/// engine's memory set. `others_bytes`: memory of other stores that are open.
///
/// # Errors
/// [`Wrong`] if the limit is too small, with the limit, its origin, the memory needed, and the way out.
pub(crate) fn divide(options: &EngineOptions, order: Order, others_bytes: u64) -> Result<(EngineOptions, Buffers)> {
    divide_limit(options, order, others_bytes, &probe::memory_limit())
}

fn divide_limit(
    options: &EngineOptions,
    order: Order,
    others_bytes: u64,
    limit: &MemoryLimit,
) -> Result<(EngineOptions, Buffers)> {
    let mut options = options.clone();
    let mut cache_bytes = options.division_of(limit.clone()).cache_bytes;
    let share = options.share();
    // The bulk path uses no memtables.
    let memtables_bytes = if order == Order::Shuffled { share.memtables_bytes } else { 0 };
    let fixed_bytes = others_bytes.saturating_add(PROGRAM_BYTES + memtables_bytes);
    let needed_bytes =
        |cache_bytes: u64| cache_bytes.saturating_add(fixed_bytes).saturating_add(BUFFERS_AND_CACHE_BYTES_MIN);
    // The engine's share makes room for the buffers, unless the user asked for it.
    if options.memory.is_none() && share.cache_eighths > 0 && needed_bytes(cache_bytes) > limit.bytes {
        let room_bytes = limit.bytes.saturating_sub(needed_bytes(0));
        cache_bytes = room_bytes.max(share.cache_min_bytes);
        options.memory = Some(ByteSize::b(cache_bytes));
    }
    if needed_bytes(cache_bytes) > limit.bytes {
        let (from, raise) = match &limit.cgroup_file {
            Some(file) => (file.display().to_string(), "raise the limit (MemoryMax= of the unit)"),
            None => ("machine".to_owned(), "load it on a machine with more memory"),
        };
        let smaller = if cache_bytes > share.cache_min_bytes { ", or set --memory lower" } else { "" };
        let sorted = if memtables_bytes > 0 { ", or load with --order sorted, which needs less" } else { "" };
        return Err(Wrong::error(
            Code::Memory,
            format!(
                "the memory limit is too small for this load: limit={} limit_from={from} needed={} engine={} \
             engine_memory={}: {raise}{smaller}{sorted}",
                ByteSize::b(limit.bytes),
                ByteSize::b(needed_bytes(cache_bytes)),
                options.engine,
                ByteSize::b(cache_bytes)
            ),
        ));
    }
    // The other half stays for the page cache, which is charged too, and for the engine's own copy of a chunk.
    let buffers_bytes = (limit.bytes - cache_bytes - fixed_bytes) / 2;
    let buffers = Buffers::of(buffers_bytes, options.engine);
    Ok((options, buffers))
}

/// Returns the bytes that a store of `pairs` pairs takes on disk at its peak during a load. The engines' factors come
/// from loads of these engines (see the test below), rounded up.
pub(crate) fn store_bytes(engine: EngineKind, order: Order, pairs: u64) -> u64 {
    let engine = engine.descriptor();
    let per_pair = match order {
        Order::Shuffled => engine.pair_bytes.shuffled,
        Order::Sorted => engine.pair_bytes.sorted,
    };
    let is_tree = engine.page_bytes > 0;
    let fixed_bytes = if is_tree && order == Order::Shuffled { FREED_BYTES } else { 0 };
    pairs.saturating_mul(per_pair).saturating_add(fixed_bytes)
}

/// Returns the bytes that a spill of `records` records takes on disk at its peak; 0 if it fits into memory. While runs
/// are merged because there are too many of them, a part is there twice. That part is at most a seventh: one in
/// [`COMBINED_PARTS`], or 2 of the 15 runs that are too many for [`SORT_BYTES_MIN`].
pub(crate) fn spill_bytes(records: u64, buffers: &Buffers) -> u64 {
    let bytes = records.saturating_mul(SPILLED_RECORD_BYTES);
    let run_records = buffers.run_records() as u64;
    if records < run_records {
        0
    } else if records.div_ceil(run_records) <= buffers.runs_at_once() as u64 {
        bytes
    } else {
        bytes.saturating_add(bytes / 7)
    }
}

/// Returns the largest number of bytes that the disk holds twice, as pairs in the store and as records in the spill:
/// one of [`GIVEN_BACK_PARTS`], which is given back only as a whole, and one chunk of [`BULK_PARTS`].
pub(crate) fn twice_bytes(store_bytes: u64) -> u64 {
    store_bytes / GIVEN_BACK_PARTS + store_bytes / BULK_PARTS
}

/// Returns the bytes that store and spill take together on one disk at the peak of a load, if the spill is given back.
///
/// With a part x of the pairs in the store, they take `x * store_bytes + (1 - x) * spill_bytes`, and the pairs that are
/// in both. The sum is linear in x, so it is largest at the beginning or at the end.
pub(crate) fn peak_bytes(store_bytes: u64, spill_bytes: u64) -> u64 {
    let twice_bytes = if spill_bytes > 0 { twice_bytes(store_bytes) } else { 0 };
    store_bytes.max(spill_bytes).saturating_add(twice_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Record;

    fn divided(options: &EngineOptions, order: Order, mib: u64) -> Result<(EngineOptions, Buffers)> {
        let limit = MemoryLimit { bytes: mib << 20, cgroup_file: Some("/sys/fs/cgroup/x/memory.max".into()) };
        divide_limit(options, order, 0, &limit)
    }

    #[test]
    fn engine_and_buffers_stay_below_the_limit_whatever_it_is() {
        for &engine in engines::compiled() {
            for order in [Order::Shuffled, Order::Sorted] {
                for mib in [256, 300, 512, 1024, 4096, 65536] {
                    let (options, buffers) = divided(&EngineOptions::new(engine), order, mib).unwrap();
                    let chunks = buffers.chunks(order);
                    let merge = buffers.heads_bytes + chunks.count() * chunks.pairs * 64;
                    let own = buffers.sort_bytes.max(merge) as u64 + PROGRAM_BYTES;
                    let limit = MemoryLimit { bytes: mib << 20, cgroup_file: None };
                    let engine_bytes = options.division_of(limit).cache_bytes;
                    assert!(own + engine_bytes <= mib << 20, "{engine} {order:?} {mib}: {own} {engine_bytes}");
                    assert!(own < OWN_MEMORY_BYTES_MAX as u64);
                    let batch = buffers.batch_pairs * engine.descriptor().page_bytes.max(BATCH_PAIR_BYTES);
                    assert!(batch <= buffers.sort_bytes as u64 / 2, "{engine} {order:?} {mib}: {batch}");
                }
            }
        }
    }

    #[test]
    fn the_buffers_of_the_sort_fit_into_its_memory_and_fill_most_of_it() {
        for sort_bytes in [SORT_BYTES_MIN as usize, 3 << 20, 64 << 20, BUFFERS_BYTES_MAX as usize] {
            let buffers = Buffers { sort_bytes, ..Buffers::default() };
            let bytes = buffers.run_records() * (SORT_BUFFERS * size_of::<Record>() + 2 * size_of::<u64>());
            assert!(bytes <= sort_bytes && bytes >= sort_bytes / 10 * 9, "{bytes} of {sort_bytes}");
        }
    }

    #[test]
    fn the_disk_is_to_hold_the_larger_of_store_and_spill_and_what_is_in_both() {
        let buffers = Buffers::default();
        let pairs = 300_000_000;
        let (store, spill) = (store_bytes(EngineKind::Strata, Order::Sorted, pairs), spill_bytes(pairs, &buffers));
        assert_eq!((store, spill), (pairs * 75, pairs * 73));
        let peak = peak_bytes(store, spill);
        assert!(peak > store + store / 64 && peak < store + store / 16, "{peak}");
        // Walks through a load, with as many pairs in both as there may be at any time.
        for stored in (0..=300).map(|part| part * (pairs / 300)) {
            let not_given = pairs - stored + (pairs / GIVEN_BACK_PARTS + pairs / BULK_PARTS).min(stored);
            assert!(stored * 75 + not_given * 72 <= peak, "stored={stored}");
        }
        // Nothing is spilled if everything fits into a buffer. If there are too many runs, a part exists twice.
        assert_eq!(
            peak_bytes(store_bytes(EngineKind::Strata, Order::Sorted, 1000), spill_bytes(1000, &buffers)),
            75_000
        );
        let small = Buffers { sort_bytes: 1 << 20, heads_bytes: 1 << 19, ..buffers };
        let run = small.run_records() as u64;
        assert_eq!((spill_bytes(run - 1, &small), spill_bytes(run, &small)), (0, run * 73));
        assert_eq!(spill_bytes(14 * run, &small), 14 * run * 73);
        assert!(spill_bytes(14 * run + 1, &small) > 16 * run * 73);
        assert_eq!(spill_bytes(700_000, &small), 700_000 * 73 + 100_000 * 73);
    }

    /// Disk usage reported by loads: (pairs, bytes).
    #[test]
    fn the_estimate_of_the_disk_is_no_less_than_what_loads_took() {
        for (engine, order, loads) in [
            (EngineKind::Lmdb, Order::Shuffled, &[(1_000_000, 181_000_000), (3_000_000, 397_000_000)][..]),
            (EngineKind::Lmdb, Order::Shuffled, &[(10_000_000, 1_210_000_000)]),
            (EngineKind::Lmdb, Order::Sorted, &[(1_000_000, 75_300_000)]),
            (EngineKind::Redb, Order::Shuffled, &[(1_000_000, 130_900_000), (2_000_000, 232_300_000)]),
            (EngineKind::Redb, Order::Shuffled, &[(3_000_000, 328_900_000), (5_000_000, 523_500_000)]),
            (EngineKind::Redb, Order::Sorted, &[(1_000_000, 66_100_000)]),
            (EngineKind::Strata, Order::Sorted, &[(20_000_000, 1_308_000_000), (50_000_000, 3_260_000_000)]),
        ] {
            for (pairs, bytes) in loads {
                let estimate = store_bytes(engine, order, *pairs);
                assert!(estimate >= *bytes && estimate < bytes * 3 / 2, "{engine} {order:?} {pairs}: {estimate}");
            }
        }
    }

    #[test]
    fn a_limit_that_is_too_small_is_named_with_the_way_out() {
        for (engine, mib) in [(EngineKind::Strata, 127), (EngineKind::Redb, 79), (EngineKind::Lmdb, 63)] {
            let error = divided(&EngineOptions::new(engine), Order::Sorted, mib).unwrap_err();
            assert!(error.is::<Wrong>() && error.to_string().contains("MemoryMax="), "{error}");
            assert!(error.to_string().contains("limit_from=/sys/fs/cgroup/x/memory.max"), "{error}");
            divided(&EngineOptions::new(engine), Order::Sorted, mib + 1).unwrap();
        }
        let set = EngineOptions { memory: Some(ByteSize::gib(1)), ..EngineOptions::new(EngineKind::Redb) };
        let error = divided(&set, Order::Sorted, 1024).unwrap_err().to_string();
        assert!(error.contains("or set --memory lower"), "{error}");
    }
}
