//! RocksDB's description.
//!
//! Owns: the facts, and the options that follow from [`Settings`]. Threads: none.

use engine_api::{Buffered, Descriptor, PairBytes, Settings, Share};

use crate::{Profile, RocksdbEngine, RocksdbOptions, notes, set, settings};

/// Memtables: two of 64 MiB or eight of 16 MiB. Only the tuned profile charges them to its cache.
const MEMTABLES_BYTES: u64 = 128 << 20;

pub static DESCRIPTOR: Descriptor = Descriptor {
    line: "Log-structured merge tree: the fastest writes, reads depend on filters and cache",
    options: &["bloom", "profile"],
    settings: || settings().collect(),
    check: |settings| set::check(Profile::of(settings.profile), &settings.set),
    label: |profile, bloom_bits| match (Profile::of(profile), bloom_bits) {
        (Profile::Memory, _) => Some("rocksdb_memory"),
        (Profile::Tuned, _) => Some("rocksdb_tuned"),
        (Profile::Vanilla, 0) => None,
        (Profile::Vanilla, _) => Some("rocksdb_bloom"),
    },
    // Filters: none for RocksDB's defaults, one false positive in 6000 for a store in memory, one in a hundred under a
    // memory cap.
    share: |profile| match Profile::of(profile) {
        // Memtables, filters and indexes are outside of the cache.
        Profile::Vanilla => Share {
            cache_eighths: 2,
            cache_min_bytes: Share::INDEX_CACHE_MIN_BYTES,
            rest_bytes: 0,
            memtables_bytes: MEMTABLES_BYTES,
            bloom_bits: 0,
        },
        Profile::Memory => Share {
            cache_eighths: 4,
            cache_min_bytes: Share::INDEX_CACHE_MIN_BYTES,
            rest_bytes: 0,
            memtables_bytes: MEMTABLES_BYTES,
            bloom_bits: 20,
        },
        // All of the memory is in the cache, and none of it in the page cache.
        Profile::Tuned => Share {
            cache_eighths: 5,
            cache_min_bytes: Share::INDEX_CACHE_MIN_BYTES,
            rest_bytes: notes::REST_TUNED_BYTES,
            memtables_bytes: 0,
            bloom_bits: 10,
        },
    },
    page_cache_endings: |settings| if set::reads_directly(&settings.set) { &[] } else { &[".sst"] },
    get_many_waits_in_turn: true,
    // With room for a compaction.
    pair_bytes: PairBytes { shuffled: 120, sorted: 90 },
    loads_sorted: false,
    main_file: "CURRENT",
    log_ending: Some(".log"),
    checks_reads: true,
    has_checksums: true,
    buffered: Buffered::AllButNewestOnes,
    notes: notes::notes,
    reserve_bytes: |settings| options(settings).disk_reserve_bytes,
    open: |dir, settings, _| Ok(Box::new(RocksdbEngine::open(dir, &options(settings))?)),
    open_read_only: |dir, settings| Ok(Box::new(RocksdbEngine::open_read_only(dir, &options(settings))?)),
    ..Descriptor::NONE
};

fn options(settings: &Settings) -> RocksdbOptions {
    RocksdbOptions {
        profile: Profile::of(settings.profile),
        bloom_bits: (settings.bloom_bits > 0).then_some(settings.bloom_bits),
        cache_bytes: settings.cache_bytes,
        memory_limit_bytes: settings.limit_bytes,
        set: settings.set.clone(),
        ..Default::default()
    }
}
