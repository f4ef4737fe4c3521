//! RocksDB's settings by name: which of them may be set, and how they are passed to RocksDB.
//!
//! Owns: the list of names. Must not: accept a setting that changes the durability of a commit, the set of the store's
//! files, or the coverage of its checks. Runs on the thread that opens the store.

use engine_api::{Error, ErrorKind, Result};
use rocksdb::{BlockBasedOptions, Cache, Options};

use crate::{Profile, error};

/// Settings of the store and its one column family. All settings that change how a log's file is created are left out,
/// because `replay` depends on it. [`refusal`] names values that are left out.
const TREE: &[&str] = &[
    "advise_random_on_open",
    "allow_concurrent_memtable_write",
    "allow_mmap_reads",
    "arena_block_size",
    "bottommost_compression",
    "bottommost_compression_opts",
    "bytes_per_sync",
    "compaction_options_universal",
    "compaction_pri",
    "compaction_readahead_size",
    "compaction_style",
    "compression",
    "compression_opts",
    "delayed_write_rate",
    "enable_pipelined_write",
    "enable_write_thread_adaptive_yield",
    "hard_pending_compaction_bytes_limit",
    "level0_file_num_compaction_trigger",
    "level0_slowdown_writes_trigger",
    "level0_stop_writes_trigger",
    "level_compaction_dynamic_level_bytes",
    "max_background_jobs",
    "max_bytes_for_level_base",
    "max_bytes_for_level_multiplier",
    "max_compaction_bytes",
    "max_file_opening_threads",
    "max_open_files",
    "max_subcompactions",
    "max_total_wal_size",
    "max_write_buffer_number",
    "memtable",
    "memtable_huge_page_size",
    "memtable_insert_with_hint_prefix_extractor",
    "memtable_prefix_bloom_size_ratio",
    "memtable_whole_key_filtering",
    "min_write_buffer_number_to_merge",
    "optimize_filters_for_hits",
    "periodic_compaction_seconds",
    "prefix_extractor",
    "rate_limiter_bytes_per_sec",
    "skip_stats_update_on_db_open",
    "soft_pending_compaction_bytes_limit",
    "strict_bytes_per_sync",
    "table_cache_numshardbits",
    "target_file_size_base",
    "target_file_size_multiplier",
    "uncache_aggressiveness",
    "use_adaptive_mutex",
    "use_direct_io_for_compaction_reads",
    "use_direct_io_for_flush_and_compaction",
    "use_direct_reads",
    "wal_bytes_per_sync",
    "write_buffer_size",
];

/// Settings of the files' format and of the cache. `checksum` is left out, because it could be set to none.
const TABLE: &[&str] = &[
    "block_align",
    "block_restart_interval",
    "block_size",
    "cache_index_and_filter_blocks",
    "cache_index_and_filter_blocks_with_high_priority",
    "data_block_hash_table_util_ratio",
    "data_block_index_type",
    "decouple_partitioned_filters",
    "filter_policy",
    "format_version",
    "index_block_restart_interval",
    "index_block_search_type",
    "index_shortening",
    "index_type",
    "metadata_block_size",
    "metadata_cache_options",
    "optimize_filters_for_memory",
    "partition_filters",
    "pin_l0_filter_and_index_blocks_in_cache",
    "prepopulate_block_cache",
    "separate_key_value_in_data_block",
    "uniform_cv_threshold",
    "use_delta_encoding",
];

/// Name of the setting for the kind of block cache, `lru`, `hyper_clock` or `none`. RocksDB has no name for it in its
/// options files, and its name for none has no effect on a table that has a cache.
pub(crate) const CACHE: &str = "cache";

/// Name of the setting for a cache of pairs in addition to the block cache, in bytes. RocksDB's options files do not
/// take it, because it is an object.
pub(crate) const ROW_CACHE: &str = "row_cache";

/// Name of this crate's own setting that holds a batch's changes until its commit and then applies them in key order.
const SORT_BATCHES: &str = "sort_batches";

/// Returns the names that [`RocksdbOptions::set`](crate::RocksdbOptions::set) accepts.
pub fn settings() -> impl Iterator<Item = &'static str> {
    TREE.iter().chain(TABLE).copied().chain([CACHE, ROW_CACHE, SORT_BATCHES])
}

/// Whether `set` has a cache of pairs.
pub(crate) fn has_row_cache(set: &[(String, String)]) -> bool {
    last(set, ROW_CACHE).is_some()
}

/// Gives `table` a block cache of the kind that `set` names, or none, otherwise a HyperClockCache.
pub(crate) fn give_cache(table: &mut BlockBasedOptions, bytes: usize, set: &[(String, String)]) -> Result<()> {
    if last(set, CACHE) == Some("none") {
        table.disable_cache();
    } else {
        table.set_block_cache(&cache(bytes, set)?);
    }
    Ok(())
}

/// Builds a block cache of the kind that `set` names, otherwise a HyperClockCache.
pub(crate) fn cache(bytes: usize, set: &[(String, String)]) -> Result<Cache> {
    match last(set, CACHE) {
        None | Some("hyper_clock") => Ok(Cache::new_hyper_clock_cache(bytes, 0)),
        Some("lru") => Ok(Cache::new_lru_cache(bytes)),
        Some(other) => {
            let kinds = "lru or hyper_clock, or none in any profile but tuned";
            let message = format!("no kind of RocksDB's cache: {CACHE}={other}: give {kinds}");
            Err(Error::new(ErrorKind::FixInput, message))
        }
    }
}

/// Refuses settings that an opening would refuse, before a directory is made.
///
/// # Errors
/// `FixInput` naming the setting.
pub(crate) fn check(profile: Profile, set: &[(String, String)]) -> Result<()> {
    if profile == Profile::Tuned || last(set, CACHE) != Some("none") {
        cache(1 << 20, set)?;
    }
    apply(Options::default(), set).map(drop)
}

/// Applies `set` to the profile's options, none of which partitions the index.
pub(crate) fn apply(mut options: Options, set: &[(String, String)]) -> Result<Options> {
    if set.is_empty() {
        return Ok(options);
    }
    if let Some((name, _)) = set.iter().find(|(name, _)| !settings().any(|known| known == name)) {
        return Err(Error::new(ErrorKind::FixInput, format!("no setting of RocksDB that may be set: name={name}")));
    }
    if let Some((name, value)) = set.iter().find(|(_, value)| !is_one_value(value)) {
        let message = format!("not one value: name={name} value={value:?}: give each setting by itself");
        return Err(Error::new(ErrorKind::FixInput, message));
    }
    if let Some((name, value, why)) = set.iter().find_map(|(name, value)| Some((name, value, refusal(name, value)?))) {
        let message = format!("this value must not be set: {name}={value}: {why}");
        return Err(Error::new(ErrorKind::FixInput, message));
    }
    // Refused before anything is opened.
    sorts_batches(set)?;
    check_hash_index(set)?;
    let text = text(set, whole_filters(set)?);
    let mut options = options.get_options_from_string(&text).map_err(|e| {
        let is_taken = |one: &(String, String)| {
            let text = self::text(std::slice::from_ref(one), "");
            Options::default().get_options_from_string(&text).is_ok()
        };
        // Without a value that is wrong by itself, they do not go together.
        let wrong = set.iter().find(|one| !is_taken(one)).map_or(set, std::slice::from_ref);
        let named: Vec<String> = wrong.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let what = format!("RocksDB does not take this value: {}: correct it", named.join(" "));
        Error::with_source(ErrorKind::FixInput, format!("{what}: {e}"), e)
    })?;
    if let Some(bytes) = last(set, ROW_CACHE) {
        let bytes = bytes
            .parse()
            .map_err(|_| Error::new(ErrorKind::FixInput, format!("not a number of bytes: {ROW_CACHE}={bytes}")))?;
        options.set_row_cache(&Cache::new_lru_cache(bytes));
    }
    Ok(options)
}

/// Returns the settings as RocksDB's options files have them, with these of the table in addition.
fn text(set: &[(String, String)], more: &str) -> String {
    let joined = |names: &[&str]| {
        let named = set.iter().filter(|(name, _)| names.contains(&name.as_str()));
        named.map(|(name, value)| format!("{name}={value};")).collect::<String>()
    };
    let table = joined(TABLE) + more;
    // A nested string adds to the table's options that are set already.
    let table = if table.is_empty() { table } else { format!("block_based_table_factory={{{table}}};") };
    joined(TREE) + &table
}

/// Returns the reason for which a value is refused that RocksDB would take; `None` if it may be set.
fn refusal(name: &str, value: &str) -> Option<&'static str> {
    match name {
        "compaction_style" if !matches!(value, "kCompactionStyleLevel" | "kCompactionStyleUniversal") => {
            Some("pairs would be removed or never compacted: give kCompactionStyleLevel or kCompactionStyleUniversal")
        }
        // A fixed prefix may be longer than that key, and RocksDB's hash tables would read on past its end.
        "prefix_extractor" if !value.starts_with("capped:") => {
            Some("a prefix must not be longer than the checkpoint's key, of one byte: give capped:BYTES")
        }
        "rate_limiter_bytes_per_sec" if value.bytes().all(|digit| digit == b'0') => {
            Some("nothing would ever be flushed: give a number of bytes")
        }
        _ => None,
    }
}

/// Whether `set` asks for batches in key order.
pub(crate) fn sorts_batches(set: &[(String, String)]) -> Result<bool> {
    let Some(value) = last(set, SORT_BATCHES) else { return Ok(false) };
    value.parse().map_err(|_| Error::new(ErrorKind::FixInput, format!("{SORT_BATCHES}={value}: give true or false")))
}

/// Whether `set` asks for reads past the page cache.
pub(crate) fn reads_directly(set: &[(String, String)]) -> bool {
    last(set, "use_direct_reads") == Some("true")
}

/// Returns the last value that `set` has for `name`, which is the one that holds.
fn last<'a>(set: &'a [(String, String)], name: &str) -> Option<&'a str> {
    set.iter().rev().find(|(named, _)| named == name).map(|(_, value)| value.as_str())
}

/// Whether `value` is a single value, without a part that RocksDB would take for another setting.
fn is_one_value(value: &str) -> bool {
    let mut depth = 0i32;
    let within = value.chars().all(|letter| {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        depth > 0 || letter != ';' && depth == 0
    });
    within && depth == 0
}

/// Returns the setting that turns partitioned filters off if the index is not partitioned, and refuses the combination
/// if it was asked for. RocksDB corrects it for its own files, but its writer of sorted files does not and follows a
/// null pointer.
fn whole_filters(set: &[(String, String)]) -> Result<&'static str> {
    let partitioned = last(set, "index_type") == Some("kTwoLevelIndexSearch");
    match last(set, "partition_filters") {
        _ if partitioned => Ok(""),
        None => Ok("partition_filters=false;"),
        Some("false") => Ok(""),
        Some(_) => Err(Error::new(
            ErrorKind::FixInput,
            "partition_filters=true needs a partitioned index: set index_type=kTwoLevelIndexSearch as well",
        )),
    }
}

/// Refuses a hash index whose entries are not all restarts: RocksDB takes the number of an entry for that of a restart,
/// and would not find keys. It corrects such options only where they are not given as a string.
fn check_hash_index(set: &[(String, String)]) -> Result<()> {
    let is_hash = last(set, "index_type") == Some("kHashSearch");
    if is_hash && last(set, "index_block_restart_interval").is_some_and(|interval| interval != "1") {
        let message = "index_type=kHashSearch needs a restart at every entry: leave index_block_restart_interval out";
        return Err(Error::new(ErrorKind::FixInput, message));
    }
    Ok(())
}

/// Sets that filters have entries for prefixes of so many bytes. The checkpoint's key, of one byte, is its own prefix.
pub(crate) fn prefixes(mut options: Options, prefix_bytes: u32) -> Result<Options> {
    options
        .get_options_from_string(format!("prefix_extractor=capped:{prefix_bytes}"))
        .map_err(|e| error::rocks("cannot set RocksDB's prefixes", e))
}

/// Sets interpolation in the search of an index whose keys are uniform, for which the crate has no setters.
pub(crate) fn interpolate(mut options: Options) -> Result<Options> {
    options
        .get_options_from_string("block_based_table_factory={index_block_search_type=kAuto;uniform_cv_threshold=0.2}")
        .map_err(|e| error::rocks("cannot set RocksDB's interpolation search", e))
}
