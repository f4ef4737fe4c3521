//! Translates [`RocksdbOptions`] into RocksDB's own options.

use std::path::Path;

use engine_api::{Error, Result};
use rocksdb::{
    BlockBasedOptions, BlockBasedTablePinningTier, Cache, DBCompressionType, DBRecoveryMode, DataBlockIndexType,
    Options, WriteBufferManager,
};
use rustix::process::{Resource, getrlimit};

use crate::{Profile, RocksdbOptions, set};

/// Length of a key in bytes.
pub(crate) const PUBKEY_BYTES: u32 = 32;
const LOG_FILES: usize = 3;
const LOG_FILE_BYTES: usize = 8 << 20;
/// Size of a memtable. One that fits in a processor's cache takes a put in half the time of one of 64 MiB.
const MEMTABLE_BYTES: usize = 16 << 20;
/// Number of memtables. Four are flushed as one file, so that compactions have no more to do than with one of 64 MiB,
/// while another four fill.
const MEMTABLES: i32 = 8;
const MEMTABLES_OF_A_FLUSH: i32 = 4;
/// Share of a memtable's bytes for its own filter, so that a get does not search eight memtables: some 20 bits per
/// pair.
const MEMTABLE_FILTER_SHARE: f64 = 0.02;
/// Limit of background jobs in the tuned profile. More compactions of one store would only compete for the device.
const BACKGROUND_JOBS_MAX: usize = 4;
const MIB: usize = 1 << 20;
/// Largest size of a file in the tuned profile, and the share of the memory outside of the cache that a file may take.
/// A file's Ribbon filter takes about half of the file's size while it is made.
const FILE_BYTES_MAX: u64 = 256 << 20;
const FILE_BYTES_MIN: u64 = 16 << 20;
const FILE_PART_OF_REST: u64 = 4;
/// RocksDB's own read-ahead of a compaction, and the share of the memory outside of the cache that it may take. A
/// compaction of level 0 has one for each of its files, which may be 20 and more.
const READ_AHEAD_BYTES_MAX: u64 = 2 << 20;
const READ_AHEAD_BYTES_MIN: u64 = 64 << 10;
const READ_AHEAD_PART_OF_REST: u64 = 384;
/// Number of keys in a data block's hash index divided by its slots: RocksDB's own value for lookups of single keys.
const DATA_BLOCK_HASH_RATIO: f64 = 0.75;
/// Bytes of RocksDB's files per pair on a settled store, filters and index included. 50M pairs took 3.8 GB.
pub(crate) const FILE_BYTES_A_PAIR: u64 = 76;
/// Bytes of RocksDB's index per pair, times 100.
pub(crate) const INDEX_CENTIBYTES_A_PAIR: u64 = 29;
/// Eighths of the cache that pinned filters and index may take. Measured with 50M pairs under a cap of 128 MB: gets
/// were fastest when the pinned filters and index filled the cache of 80 MB. Every setting that left more of the cache
/// to data blocks was slower.
pub(crate) const PINNED_EIGHTHS: u64 = 7;
/// Part of its cache that the tuned profile gives to a cache of pairs. It keeps more popular pairs in the same memory than a
/// cache of blocks. Measured with 50M pairs under a cap of 576 MB and zipfian gets; half of the cache was no better.
const ROW_CACHE_PART: u64 = 6;
/// If the process may open this many files, RocksDB keeps all of its files open: with 64 MiB each, so many hold 4 TB.
const OPEN_FILES_ENOUGH: u64 = 1 << 16;

/// Returns RocksDB's options for the store in `dir`. Sorted files for loads are written with the same options.
pub(crate) fn rocksdb_options(dir: &Path, options: &RocksdbOptions) -> Result<Options> {
    let cache_bytes = usize::try_from(options.cache_bytes).unwrap_or(usize::MAX);
    let mut out = Options::default();
    out.create_if_missing(true);
    out.set_compression_type(DBCompressionType::None);
    out.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    out.set_keep_log_file_num(LOG_FILES);
    out.set_max_log_file_size(LOG_FILE_BYTES);
    out.set_max_open_files(max_open_files());
    let out = match options.profile {
        Profile::Vanilla | Profile::Memory => {
            let is_memory = options.profile == Profile::Memory;
            let mut table = BlockBasedOptions::default();
            set::give_cache(&mut table, cache_bytes, &options.set)?;
            if let Some(bits) = options.bloom_bits {
                table.set_bloom_filter(f64::from(bits), false);
            }
            if is_memory {
                index_by_hash(&mut table);
                memtables(&mut out, MEMTABLE_BYTES);
            }
            out.set_block_based_table_factory(&table);
            if is_memory { set::interpolate(out)? } else { out }
        }
        Profile::Tuned => {
            let store_bytes = disk_bytes(dir)?;
            let pairs_bytes = row_cache_bytes(store_bytes, options);
            let block_cache_bytes = options.cache_bytes - pairs_bytes;
            let cache_bytes = usize::try_from(block_cache_bytes).unwrap_or(usize::MAX);
            let cache = set::cache(cache_bytes, &options.set)?;
            tuned_tables(&mut out, &cache, options, is_pinned(store_bytes, block_cache_bytes, options.bloom_bits));
            tuned_tree(&mut out, &cache, cache_bytes);
            if pairs_bytes > 0 {
                out.set_row_cache(&Cache::new_lru_cache(usize::try_from(pairs_bytes).unwrap_or(usize::MAX)));
            }
            let work = CompactionBytes::of(options.memory_limit_bytes.saturating_sub(options.cache_bytes));
            out.set_target_file_size_base(work.file);
            out.set_compaction_readahead_size(work.read_ahead);
            out.set_use_direct_reads(store_bytes > options.memory_limit_bytes);
            set::interpolate(out)?
        }
    };
    let out = set::apply(out, &options.set)?;
    // After the settings, because another prefix would end a scan of a prefix too early.
    if options.prefix_bytes < PUBKEY_BYTES { set::prefixes(out, options.prefix_bytes) } else { Ok(out) }
}

/// Returns the allocated bytes of the files in `dir` and below.
pub(crate) fn disk_bytes(dir: &Path) -> Result<u64> {
    engine_kit::disk_bytes(dir)
        .map_err(|e| Error::io(format!("cannot size the store's files: dir={} reason={e}", dir.display()), e))
}

/// Returns the bytes of filters and index of a tuned store with these pairs.
pub(crate) fn pinned_bytes(pairs: u64, bloom_bits: u32) -> u64 {
    // A Ribbon filter takes three quarters of a Bloom filter's bits.
    let centibytes_a_pair = u64::from(bloom_bits) * 75 / 8 + INDEX_CENTIBYTES_A_PAIR;
    pairs.saturating_mul(centibytes_a_pair) / 100
}

fn index_by_hash(table: &mut BlockBasedOptions) {
    table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    table.set_data_block_hash_ratio(DATA_BLOCK_HASH_RATIO);
}

/// Whether filters and index of a store of this size are pinned in the cache. In a new store nothing is pinned, because
/// it may grow to any size. Pinned blocks cannot be evicted, so the pinned blocks of a growing store may exceed the
/// cache. The default cache is at most five eighths of the limit, and direct reads leave the rest unused. So a store
/// whose blocks fit at its opening may grow by half before it reaches the limit.
fn is_pinned(store_bytes: u64, cache_bytes: u64, bloom_bits: Option<u32>) -> bool {
    let pinned_bytes = pinned_bytes(store_bytes / FILE_BYTES_A_PAIR, bloom_bits.unwrap_or(0));
    pinned_bytes > 0 && pinned_bytes <= cache_bytes / 8 * PINNED_EIGHTHS
}

/// Returns the part of the cache for pairs. There is none if the cache has room for the whole store, or none for filters and
/// index in the rest. Nor is there one if a size is set, which is then taken in addition.
fn row_cache_bytes(store_bytes: u64, options: &RocksdbOptions) -> u64 {
    let bytes = options.cache_bytes / ROW_CACHE_PART;
    let rest_bytes = options.cache_bytes - bytes;
    let is_useful = store_bytes > options.cache_bytes && is_pinned(store_bytes, rest_bytes, options.bloom_bits);
    if is_useful && !set::has_row_cache(&options.set) { bytes } else { 0 }
}

fn tuned_tables(out: &mut Options, cache: &Cache, options: &RocksdbOptions, is_pinned: bool) {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    if let Some(bits) = options.bloom_bits {
        // Files of level 0, which flushes write, get Bloom filters, because these are built in a quarter of the time.
        // Deeper levels get Ribbon filters.
        table.set_hybrid_ribbon_filter(f64::from(bits), 0);
    }
    table.set_cache_index_and_filter_blocks(true);
    table.set_cache_index_and_filter_blocks_with_high_priority(true);
    if is_pinned {
        table.set_unpartitioned_pinning_tier(BlockBasedTablePinningTier::All);
        // Files that an earlier version wrote have partitions.
        table.set_partition_pinning_tier(BlockBasedTablePinningTier::All);
    } else {
        table.set_unpartitioned_pinning_tier(BlockBasedTablePinningTier::FlushAndSimilar);
    }
    table.set_top_level_index_pinning_tier(BlockBasedTablePinningTier::All);
    index_by_hash(&mut table);
    table.set_optimize_filters_for_memory(true);
    out.set_block_based_table_factory(&table);
}

fn tuned_tree(out: &mut Options, cache: &Cache, cache_bytes: usize) {
    // All memtables together take at most a third of the cache.
    let memtable_bytes = (cache_bytes / 24).clamp(2 * MIB, MEMTABLE_BYTES);
    memtables(out, memtable_bytes);
    out.set_write_buffer_manager(&WriteBufferManager::new_write_buffer_manager_with_cache(
        MEMTABLES as usize * memtable_bytes,
        false,
        cache.clone(),
    ));
    out.set_level_compaction_dynamic_level_bytes(true);
    out.set_wal_bytes_per_sync(1 << 20);
    out.set_bytes_per_sync(1 << 20);
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    out.set_max_background_jobs(if cores >= BACKGROUND_JOBS_MAX { 4 } else { 2 });
}

/// Sizes that decide how much memory a compaction takes outside of the cache.
#[derive(Debug, PartialEq, Eq)]
struct CompactionBytes {
    file: u64,
    read_ahead: usize,
}

impl CompactionBytes {
    /// Returns the sizes for `rest_bytes` of memory outside of the cache. With 1 GiB or more they are the largest.
    fn of(rest_bytes: u64) -> Self {
        let read_ahead = (rest_bytes / READ_AHEAD_PART_OF_REST).clamp(READ_AHEAD_BYTES_MIN, READ_AHEAD_BYTES_MAX);
        Self {
            file: (rest_bytes / FILE_PART_OF_REST).clamp(FILE_BYTES_MIN, FILE_BYTES_MAX),
            read_ahead: usize::try_from(read_ahead).unwrap_or(usize::MAX),
        }
    }
}

fn memtables(out: &mut Options, memtable_bytes: usize) {
    out.set_write_buffer_size(memtable_bytes);
    out.set_max_write_buffer_number(MEMTABLES);
    out.set_min_write_buffer_number_to_merge(MEMTABLES_OF_A_FLUSH);
    out.set_memtable_whole_key_filtering(true);
    out.set_memtable_prefix_bloom_ratio(MEMTABLE_FILTER_SHARE);
}

/// Returns RocksDB's limit of open files. Normally there is none, as in RocksDB's default, because any limit makes each
/// get search for its file's reader. If the process may open only few files, the limit is half of those, so that
/// connections have the rest.
fn max_open_files() -> i32 {
    match getrlimit(Resource::Nofile).current {
        Some(files) if files / 2 < OPEN_FILES_ENOUGH => i32::try_from(files / 2).unwrap_or(-1).max(64),
        _ => -1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compaction_takes_less_where_little_memory_is_beside_the_cache() {
        let largest = CompactionBytes { file: FILE_BYTES_MAX, read_ahead: 2 * MIB };
        assert_eq!(
            [CompactionBytes::of(u64::MAX), CompactionBytes::of(1 << 30)],
            [largest, CompactionBytes::of(2 << 30)]
        );
        assert_eq!(CompactionBytes::of(96 << 20), CompactionBytes { file: 24 << 20, read_ahead: MIB / 4 });
        assert_eq!(CompactionBytes::of(0), CompactionBytes { file: FILE_BYTES_MIN, read_ahead: MIB / 16 });
    }

    #[test]
    fn pairs_have_a_cache_where_filters_and_index_are_pinned_and_blocks_are_not_all_cached() {
        let options = |mb: u64, set: &[(&str, &str)]| RocksdbOptions {
            cache_bytes: mb * 1_000_000,
            bloom_bits: Some(10),
            set: set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            ..RocksdbOptions::default()
        };
        // 50M pairs, whose filters and index take 61 MB.
        let store_bytes = 50_000_000 * FILE_BYTES_A_PAIR;
        let of = |mb| row_cache_bytes(store_bytes, &options(mb, &[])) / 1_000_000;
        assert_eq!([72, 80, 90, 360, 3_600, 4_000].map(of), [0, 0, 15, 60, 600, 0]);
        assert_eq!(row_cache_bytes(store_bytes, &options(360, &[("row_cache", "1")])), 0);
        assert_eq!(row_cache_bytes(0, &options(360, &[])), 0, "a new store, which may grow to any size");
    }
}
