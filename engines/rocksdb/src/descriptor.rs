//! RocksDB's description.
//!
//! Owns: the facts, and the options that follow from [`Settings`]. Threads: none.

use engine_api::{Buffered, Column, Descriptor, PairBytes, Settings, Share};

use crate::options::{BLOOM, PROFILE, bloom_bits, check, kept, label, profile};
use crate::{Profile, RocksdbEngine, RocksdbOptions, notes, set, settings};

/// Memtables: two of 64 MiB or eight of 16 MiB. Only the tuned profile charges them to its cache.
const MEMTABLES_BYTES: u64 = 128 << 20;

/// RocksDB accepts no memtable below 64 KiB. With it several logs are alive at any time, and files come and go.
const SMALLEST_MEMTABLE: &str = "write_buffer_size=65536";

const COLUMNS: [Column; 4] = [
    Column { name: "rocksdb_bloom", options: &[(BLOOM, "20")], set: &[], torture: Some(&[]) },
    Column { name: "rocksdb_memory", options: &[(PROFILE, "memory")], set: &[], torture: None },
    Column { name: "rocksdb_tuned", options: &[(PROFILE, "tuned")], set: &[], torture: Some(&[SMALLEST_MEMTABLE]) },
    Column {
        name: "rocksdb_settings",
        options: &[],
        set: &[
            "sort_batches=true",
            "prefix_extractor=capped:2",
            "memtable=hash_linkedlist:1024",
            "allow_concurrent_memtable_write=false",
            "index_type=kHashSearch",
            "compaction_style=kCompactionStyleUniversal",
        ],
        torture: None,
    },
];

pub static DESCRIPTOR: Descriptor = Descriptor {
    line: "Log-structured merge tree: the fastest writes, reads depend on filters and cache",
    options: &[BLOOM, PROFILE],
    kept,
    settings: || settings().collect(),
    check,
    label: |options| Some(label(profile(options), bloom_bits(options) > 0)),
    share: |options| {
        let (cache_eighths, rest_bytes, memtables_bytes) = match profile(options) {
            // Memtables, filters and indexes are outside of the cache.
            Profile::Vanilla => (2, 0, MEMTABLES_BYTES),
            Profile::Memory => (4, 0, MEMTABLES_BYTES),
            // All of the memory is in the cache, and none of it in the page cache.
            Profile::Tuned => (5, notes::REST_TUNED_BYTES, 0),
        };
        Share { cache_eighths, cache_min_bytes: Share::INDEX_CACHE_MIN_BYTES, rest_bytes, memtables_bytes }
    },
    page_cache_endings: |settings| if set::reads_directly(&settings.set) { &[] } else { &[".sst"] },
    has_filter_in_memory: |options| bloom_bits(options) > 0,
    get_many_waits_in_turn: true,
    // With room for a compaction.
    pair_bytes: PairBytes { shuffled: 120, sorted: 90 },
    loads_sorted: false,
    main_file: "CURRENT",
    log_ending: Some(".log"),
    checks_reads: true,
    has_checksums: true,
    links_copies: true,
    loads_whole: false,
    // It removes files that the manifest may name if it could not flush the manifest, and then refuses the store.
    loses_failed_loads: true,
    // It renames `CURRENT` to name a manifest that it has flushed, and does not flush the directory.
    needs_flushed_names: true,
    buffered: Buffered::AllButNewestOnes,
    notes: notes::notes,
    reserve_bytes: |settings| options(settings).disk_reserve_bytes,
    columns: &COLUMNS,
    open: |dir, settings, _| Ok(Box::new(RocksdbEngine::open(dir, &options(settings))?)),
    open_read_only: Some(|dir, settings| Ok(Box::new(RocksdbEngine::open_read_only(dir, &options(settings))?))),
    ..Descriptor::NONE
};

fn options(settings: &Settings) -> RocksdbOptions {
    RocksdbOptions {
        profile: profile(&settings.options),
        bloom_bits: Some(bloom_bits(&settings.options)).filter(|bits| *bits > 0),
        cache_bytes: settings.cache_bytes,
        memory_limit_bytes: settings.limit_bytes,
        prefix_bytes: settings.prefix_bytes,
        set: settings.set.clone(),
        ..Default::default()
    }
}
