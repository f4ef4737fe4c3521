//! redb's description.
//!
//! Owns: the facts, and the options that follow from [`Settings`]. Threads: none.

use engine_api::{Buffered, Column, Count, Descriptor, PairBytes, Result, Settings, Share};

use crate::{FILE_NAME, RedbEngine, RedbOptions, damage};

/// Smallest default size of the cache. Gets under a cap of 128 MB were as fast with 8 MB as with 32 MB, and slower with 64 MB.
/// Between 8 and 32 MB nothing was measured.
const CACHE_MIN_BYTES: u64 = 16 << 20;

pub static DESCRIPTOR: Descriptor = Descriptor {
    line: "B-tree in Rust with its own cache: no C or C++ to build",
    settings: || RedbOptions::SETTINGS.to_vec(),
    check: |settings| options(settings).map(drop),
    // Misses go through the page cache.
    share: |_| Share { cache_eighths: 2, cache_min_bytes: CACHE_MIN_BYTES, rest_bytes: 0, memtables_bytes: 0 },
    page_bytes: 4096,
    page_cache_endings: |_| &[FILE_NAME],
    get_many_waits_in_turn: true,
    // Shuffled loads took 98 bytes a pair. The file is longer, up to twice that, and has holes.
    pair_bytes: PairBytes { shuffled: 115, sorted: 90 },
    main_file: FILE_NAME,
    has_checksums: true,
    counts: Count::Exact,
    buffered: Buffered::All,
    catches_panics: damage::catches_panics,
    reserve_bytes: |_| RedbOptions::default().disk_reserve_bytes,
    columns: &[Column {
        name: "redb_settings",
        options: &[],
        set: &["quick_repair_every=3", "sort_batches=true"],
        torture: None,
    }],
    open: |dir, settings, _| Ok(Box::new(RedbEngine::open(dir, &options(settings)?)?)),
    open_read_only: Some(|dir, settings| Ok(Box::new(RedbEngine::open_read_only(dir, &options(settings)?)?))),
    ..Descriptor::NONE
};

fn options(settings: &Settings) -> Result<RedbOptions> {
    let mut options = RedbOptions { cache_bytes: settings.cache_bytes, ..Default::default() };
    settings.set.iter().try_for_each(|(name, value)| options.set(name, value))?;
    Ok(options)
}
