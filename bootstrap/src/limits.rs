//! How the memory of a load is divided: the engine's share, every buffer of the loader, and what stays for the rest.
//!
//! Owns: the sums, and the refusal of a limit that is too small. Engine and buffers share what the cgroup or the machine
//! gives; nothing here is allocated. Runs on the main thread.

use anyhow::Result;
use bytesize::ByteSize;
use engines::{EngineKind, EngineOptions, MemoryLimit, Profile};

use crate::order::Order;
use crate::wrong::Wrong;

/// The tool's own memory, engine aside, stays below this whatever the number of pairs.
pub(crate) const OWN_MEMORY_BYTES_MAX: usize = 512 << 20;

/// One record on its way: source position, key, value.
pub(crate) const RECORD_BYTES: usize = 8 + 64;

/// Buffers of the external sort: one is filled while the other is sorted and written.
pub(crate) const SORT_BUFFERS: usize = 2;

/// Pairs handed on at a time by every source.
pub(crate) const CHUNK_PAIRS: usize = 4096;
/// Chunks made ahead of the engine at most: enough that neither side waits for the other's pauses.
pub(crate) const CHUNKS_AHEAD: usize = 64;
/// Pairs of one sorted chunk given to an engine's bulk path at most: one RocksDB file of 64 MB.
pub(crate) const BULK_PAIRS: usize = 1 << 20;
/// Pairs of a commit in shuffled order, where the memory allows.
pub(crate) const BATCH_PAIRS: u64 = 10_000;

/// What buffers get at most: larger ones make nothing faster.
const BUFFERS_BYTES_MAX: u64 = 448 << 20;
/// What buffers and page cache need together.
const BUFFERS_AND_CACHE_BYTES_MIN: u64 = 16 << 20;
/// What the program takes without buffers: itself, histograms, the time series, blocks of what it writes.
const PROGRAM_BYTES: u64 = 48 << 20;
/// RocksDB's two memtables of 64 MiB or eight of 16, which only the tuned profile has within its cache.
const MEMTABLES_BYTES: u64 = 128 << 20;
/// Pages that the newest shuffled batches have freed in a B+tree, whatever the size of the store: only later transactions
/// may use them. Loads of redb left 33 MB.
const FREED_BYTES: u64 = 64 << 20;
/// The smallest that --sort-memory may be.
pub(crate) const SORT_BYTES_MIN: u64 = 1 << 20;

const _: () = assert!(BUFFERS_BYTES_MAX + PROGRAM_BYTES < OWN_MEMORY_BYTES_MAX as u64);

/// The buffers of a load. Sorting is over when merging begins, so both have the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffers {
    /// For collecting and sorting records.
    pub(crate) sort_bytes: usize,
    /// For a block of each run that is merged.
    pub(crate) heads_bytes: usize,
    /// Chunks that are ready before the engine takes them.
    pub(crate) chunks_ahead: usize,
    /// Pairs of a sorted chunk.
    pub(crate) bulk_pairs: usize,
    /// Pairs of a commit at most, for engines that hold a page for each of them.
    pub(crate) batch_pairs: u64,
}

impl Buffers {
    /// The buffers that take `bytes` together.
    fn of(bytes: u64, engine: EngineKind) -> Self {
        let bytes = bytes.min(BUFFERS_BYTES_MAX) as usize;
        // Half for the runs, a quarter each for the chunk that the engine takes and for those ahead of it.
        let quarter = bytes / 4;
        let page_bytes = engine.transaction_page_bytes();
        Self {
            sort_bytes: bytes,
            heads_bytes: bytes / 2,
            chunks_ahead: (quarter / (CHUNK_PAIRS * 64)).clamp(1, CHUNKS_AHEAD),
            bulk_pairs: (quarter / 64).clamp(CHUNK_PAIRS, BULK_PAIRS),
            // A branch page now and then comes on top of each leaf.
            batch_pairs: (bytes as u64).checked_div(2 * page_bytes).map_or(u64::MAX, |pairs| pairs.max(100)),
        }
    }

    /// The same with another memory for sorting and merging, for a load with these options, whose memory was divided.
    ///
    /// # Errors
    /// [`Wrong`]: more than the process may use, naming how much there is.
    pub(crate) fn with_sort_memory(self, bytes: Option<ByteSize>, options: &EngineOptions) -> Result<Self> {
        let Some(asked) = bytes else { return Ok(self) };
        let limit = engines::memory_limit();
        let cache_bytes = options.division_of(limit.clone()).cache_bytes;
        let bytes = asked.as_u64();
        // The engine is not open while all of it is used, and half of it is used while the engine is open.
        let most_bytes = limit.bytes.saturating_sub(PROGRAM_BYTES);
        let most_bytes = most_bytes.min(most_bytes.saturating_sub(cache_bytes).saturating_mul(2));
        if bytes > most_bytes {
            return Err(Wrong::error(format!(
                "--sort-memory is more than this process may use: sort_memory={asked} maximum={} memory_limit={} \
                 engine_memory={}: lower it, or leave it out",
                ByteSize::b(most_bytes),
                ByteSize::b(limit.bytes),
                ByteSize::b(cache_bytes)
            )));
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

/// Divides what the process may use between `options`' engine, whose memory is set in them, and the buffers.
/// `others_bytes` is what other stores that are open take.
///
/// # Errors
/// [`Wrong`], with the limit, where it comes from, what is needed, and the way out.
pub(crate) fn divide(options: &EngineOptions, order: Order, others_bytes: u64) -> Result<(EngineOptions, Buffers)> {
    divide_limit(options, order, others_bytes, &engines::memory_limit())
}

fn divide_limit(
    options: &EngineOptions,
    order: Order,
    others_bytes: u64,
    limit: &MemoryLimit,
) -> Result<(EngineOptions, Buffers)> {
    let mut options = options.clone();
    let mut cache_bytes = options.division_of(limit.clone()).cache_bytes;
    let memtables = options.engine == EngineKind::Rocksdb && options.profile != Profile::Tuned;
    // The bulk path has none.
    let memtables_bytes = if memtables && order == Order::Shuffled { MEMTABLES_BYTES } else { 0 };
    let fixed_bytes = others_bytes.saturating_add(PROGRAM_BYTES + memtables_bytes);
    let needed_bytes =
        |cache_bytes: u64| cache_bytes.saturating_add(fixed_bytes).saturating_add(BUFFERS_AND_CACHE_BYTES_MIN);
    // A share that was not asked for gives way to the buffers.
    if options.memory.is_none() && options.engine != EngineKind::Lmdb && needed_bytes(cache_bytes) > limit.bytes {
        let room_bytes = limit.bytes.saturating_sub(needed_bytes(0));
        cache_bytes = room_bytes.max(engines::MEMORY_MIN);
        options.memory = Some(ByteSize::b(cache_bytes));
    }
    if needed_bytes(cache_bytes) > limit.bytes {
        let (from, raise) = match &limit.cgroup_file {
            Some(file) => (file.display().to_string(), "raise the limit (MemoryMax= of the unit)"),
            None => ("machine".to_owned(), "load it on a machine with more memory"),
        };
        let smaller = if cache_bytes > engines::MEMORY_MIN { ", or set --memory lower" } else { "" };
        let sorted = if memtables_bytes > 0 { ", or load with --order sorted, which needs less" } else { "" };
        return Err(Wrong::error(format!(
            "the memory limit is too small for this load: limit={} limit_from={from} needed={} engine={} \
             engine_memory={}: {raise}{smaller}{sorted}",
            ByteSize::b(limit.bytes),
            ByteSize::b(needed_bytes(cache_bytes)),
            options.engine,
            ByteSize::b(cache_bytes)
        )));
    }
    // Half stays for the page cache, which is charged too, and for what an engine holds of a chunk meanwhile.
    let buffers_bytes = (limit.bytes - cache_bytes - fixed_bytes) / 2;
    let buffers = Buffers::of(buffers_bytes, options.engine);
    Ok((options, buffers))
}

/// Bytes that a store of so many pairs takes on disk at its peak while it is loaded, from what loads of these engines
/// took, rounded up; with room for a compaction of RocksDB, and for the merge of strata's runs. The loads are those of the
/// test below. redb's shuffled ones took 98 bytes a pair beside [`FREED_BYTES`]; its file is longer, up to twice that, and
/// has holes.
pub(crate) fn store_bytes(engine: EngineKind, order: Order, pairs: u64) -> u64 {
    let per_pair = match (engine, order) {
        (EngineKind::Rocksdb, Order::Shuffled) => 120,
        (EngineKind::Rocksdb, Order::Sorted) => 90,
        // Random inserts leave pages two thirds full.
        (EngineKind::Lmdb, Order::Shuffled) => 145,
        (EngineKind::Lmdb, Order::Sorted) => 90,
        (EngineKind::Redb, Order::Shuffled) => 115,
        (EngineKind::Redb, Order::Sorted) => 90,
        (EngineKind::Strata, _) => 140,
    };
    let is_tree = matches!(engine, EngineKind::Lmdb | EngineKind::Redb);
    let fixed_bytes = if is_tree && order == Order::Shuffled { FREED_BYTES } else { 0 };
    pairs.saturating_mul(per_pair).saturating_add(fixed_bytes)
}

/// Bytes of the spill of so many records, most of the time; while runs are combined there are more.
pub(crate) fn spill_bytes(records: u64, buffers: &Buffers) -> u64 {
    let bytes = records.saturating_mul(RECORD_BYTES as u64 + 8);
    if bytes < (buffers.sort_bytes / SORT_BUFFERS) as u64 { 0 } else { bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(options: &EngineOptions, order: Order, mib: u64) -> Result<(EngineOptions, Buffers)> {
        let limit = MemoryLimit { bytes: mib << 20, cgroup_file: Some("/sys/fs/cgroup/x/memory.max".into()) };
        divide_limit(options, order, 0, &limit)
    }

    #[test]
    fn engine_and_buffers_stay_below_the_limit_whatever_it_is() {
        for engine in EngineKind::ALL {
            for order in [Order::Shuffled, Order::Sorted] {
                for mib in [256, 300, 512, 1024, 4096, 65536] {
                    let (options, buffers) = divided(&EngineOptions::new(engine), order, mib).unwrap();
                    let merge = buffers.heads_bytes + (buffers.bulk_pairs + buffers.chunks_ahead * CHUNK_PAIRS) * 64;
                    let own = buffers.sort_bytes.max(merge) as u64 + PROGRAM_BYTES;
                    let limit = MemoryLimit { bytes: mib << 20, cgroup_file: None };
                    let engine_bytes = options.division_of(limit).cache_bytes;
                    assert!(own + engine_bytes <= mib << 20, "{engine} {order:?} {mib}: {own} {engine_bytes}");
                    assert!(own < OWN_MEMORY_BYTES_MAX as u64);
                }
            }
        }
    }

    /// Disk usage that loads have reported: pairs, bytes.
    #[test]
    fn the_estimate_of_the_disk_is_no_less_than_what_loads_took() {
        for (engine, order, loads) in [
            (EngineKind::Lmdb, Order::Shuffled, &[(1_000_000, 181_000_000), (3_000_000, 397_000_000)][..]),
            (EngineKind::Lmdb, Order::Shuffled, &[(10_000_000, 1_210_000_000)]),
            (EngineKind::Lmdb, Order::Sorted, &[(1_000_000, 75_300_000)]),
            (EngineKind::Redb, Order::Shuffled, &[(1_000_000, 130_900_000), (2_000_000, 232_300_000)]),
            (EngineKind::Redb, Order::Shuffled, &[(3_000_000, 328_900_000), (5_000_000, 523_500_000)]),
            (EngineKind::Redb, Order::Sorted, &[(1_000_000, 66_100_000)]),
        ] {
            for (pairs, bytes) in loads {
                let estimate = store_bytes(engine, order, *pairs);
                assert!(estimate >= *bytes && estimate < bytes * 3 / 2, "{engine} {order:?} {pairs}: {estimate}");
            }
        }
    }

    #[test]
    fn a_limit_that_is_too_small_is_named_with_the_way_out() {
        for (engine, mib) in [(EngineKind::Strata, 127), (EngineKind::Redb, 127), (EngineKind::Lmdb, 63)] {
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
