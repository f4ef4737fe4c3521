//! LMDB's description.
//!
//! Owns: the facts, and the options that follow from [`Settings`]. Threads: none.

use engine_api::{Buffered, Descriptor, PairBytes, Result, Settings};

use crate::{FILE_NAME, LmdbEngine, LmdbOptions, explain_faults};

/// A file that takes at most this many quarters of the memory is read ahead. The last quarter is for the process and
/// for the growth of the file. With readahead, reads of a file larger than the memory are many times slower: see the
/// crate.
const READAHEAD_QUARTERS: u64 = 3;

pub static DESCRIPTOR: Descriptor = Descriptor {
    line: "Memory-mapped B+tree: the fastest reads while the data fits in memory",
    options: &["lmdb_map_size"],
    settings: || LmdbOptions::SETTINGS.to_vec(),
    check: |settings| options(settings).map(drop),
    page_bytes: 4096,
    // Random inserts leave pages two thirds full.
    pair_bytes: PairBytes { shuffled: 145, sorted: 90 },
    page_cache_endings: |_| &[FILE_NAME],
    get_many_waits_in_turn: true,
    main_file: FILE_NAME,
    buffered: Buffered::AllButNewest,
    explain_faults: Some(explain_faults),
    reserve_bytes: |_| LmdbOptions::default().disk_reserve_bytes,
    open: |dir, settings, _| Ok(Box::new(LmdbEngine::open(dir, &options(settings)?)?)),
    open_read_only: |dir, settings| Ok(Box::new(LmdbEngine::open_read_only(dir, &options(settings)?)?)),
    ..Descriptor::NONE
};

fn options(settings: &Settings) -> Result<LmdbOptions> {
    let readahead_bytes_max = settings.limit_bytes / 4 * READAHEAD_QUARTERS;
    let mut options = LmdbOptions { readahead_bytes_max, ..Default::default() };
    settings.set.iter().try_for_each(|(name, value)| options.set(name, value))?;
    if let Some(bytes) = settings.map_bytes {
        options.map_bytes = bytes;
        options.map_bytes_max = bytes;
    }
    Ok(options)
}
