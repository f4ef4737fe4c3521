//! strata's description.
//!
//! Owns: the facts, and the options that follow from [`Settings`]. Threads: none.

use engine_api::{Buffered, Count, Descriptor, PairBytes, Repair, Settings, Share};

use crate::{StrataEngine, StrataOptions};

pub static DESCRIPTOR: Descriptor = Descriptor {
    line: "Sorted immutable runs with filters and directory in memory: one page read a get; in Rust, made for this map",
    // All of the memory is in the cache, and none of it in the page cache.
    share: |_| Share {
        cache_eighths: 5,
        cache_min_bytes: Share::INDEX_CACHE_MIN_BYTES,
        rest_bytes: 0,
        memtables_bytes: 0,
    },
    has_filter_in_memory: |_| true,
    warms_own_memory: true,
    answers_from_memory: true,
    // Chunks in order go into the base run, and nothing is merged. After others there is room for the merge of the runs.
    pair_bytes: PairBytes { shuffled: 140, sorted: 75 },
    main_file: "MANIFEST",
    part_endings: &[".seg", ".wal"],
    log_ending: Some(".wal"),
    checks_reads: true,
    has_checksums: true,
    links_copies: true,
    scrubs_more: true,
    counts: Count::AtMost,
    loads_twice: true,
    buffered: Buffered::AllButNewestOnes,
    repair: Some(Repair {
        run: StrataEngine::repair,
        lost: StrataEngine::lost,
        remember_lost: StrataEngine::remember_lost,
    }),
    reserve_bytes: |settings| options(settings).reserve_bytes(),
    open: |dir, settings, accept| Ok(Box::new(StrataEngine::open_accepted(dir, &options(settings), accept)?)),
    open_read_only: Some(|dir, settings| Ok(Box::new(StrataEngine::open_read_only(dir, &options(settings))?))),
    ..Descriptor::NONE
};

fn options(settings: &Settings) -> StrataOptions {
    StrataOptions { memory_bytes: settings.cache_bytes, prefix_bytes: settings.prefix_bytes, ..Default::default() }
}
