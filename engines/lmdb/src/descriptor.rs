//! LMDB's description.
//!
//! Owns: the facts, and the options that follow from [`Settings`]. Threads: none.

use engine_api::{Buffered, Column, Count, Descriptor, Error, ErrorKind, PairBytes, Result, Settings};

use crate::{FILE_NAME, LmdbEngine, LmdbOptions, explain_faults};

/// A file that takes at most this many quarters of the memory is read ahead. The last quarter is for the process and
/// for the growth of the file. With readahead, reads of a file larger than the memory are many times slower: see the
/// crate.
const READAHEAD_QUARTERS: u64 = 3;

const MAP_SIZE: &str = "lmdb_map_size";
/// Smallest size of a map in bytes.
const MAP_BYTES_MIN: u64 = 1 << 20;
/// Largest size of a map in bytes: half of the address space of a process on x86-64 or ARM64.
const MAP_BYTES_MAX: u64 = 64 << 40;

pub static DESCRIPTOR: Descriptor = Descriptor {
    line: "Memory-mapped B+tree: the fastest reads while the data fits in memory",
    options: &[MAP_SIZE],
    settings: || LmdbOptions::SETTINGS.to_vec(),
    check: |settings| options(settings).map(drop),
    page_bytes: 4096,
    // Random inserts leave pages two thirds full.
    pair_bytes: PairBytes { shuffled: 145, sorted: 90 },
    page_cache_endings: |_| &[FILE_NAME],
    get_many_waits_in_turn: true,
    main_file: FILE_NAME,
    counts: Count::Exact,
    buffered: Buffered::AllButNewest,
    explain_faults: Some(explain_faults),
    reserve_bytes: |_| LmdbOptions::default().disk_reserve_bytes,
    columns: &[Column {
        name: "lmdb_settings",
        options: &[],
        set: &["readahead=true", "sort_batches=true"],
        torture: None,
    }],
    small: &[(MAP_SIZE, "4194304")],
    open: |dir, settings, _| Ok(Box::new(LmdbEngine::open(dir, &options(settings)?)?)),
    open_read_only: Some(|dir, settings| Ok(Box::new(LmdbEngine::open_read_only(dir, &options(settings)?)?))),
    ..Descriptor::NONE
};

fn options(settings: &Settings) -> Result<LmdbOptions> {
    let readahead_bytes_max = settings.limit_bytes / 4 * READAHEAD_QUARTERS;
    let mut options = LmdbOptions { readahead_bytes_max, ..Default::default() };
    settings.set.iter().try_for_each(|(name, value)| options.set(name, value))?;
    if let Some(size) = settings.options.get(MAP_SIZE) {
        options.map_bytes = Some(map_bytes(size)?);
    }
    Ok(options)
}

/// Reads the size of the map, a number of bytes.
fn map_bytes(size: &str) -> Result<u64> {
    let refuse = |message: String| Err(Error::new(ErrorKind::FixInput, message));
    match size.parse() {
        Ok(bytes @ MAP_BYTES_MIN..=MAP_BYTES_MAX) => Ok(bytes),
        Ok(bytes @ 0..MAP_BYTES_MIN) => {
            refuse(format!("{MAP_SIZE} is too small: bytes={bytes} minimum_bytes={MAP_BYTES_MIN}"))
        }
        Ok(bytes) => refuse(format!("{MAP_SIZE} is too large: bytes={bytes} maximum_bytes={MAP_BYTES_MAX}")),
        Err(_) => refuse(format!("{MAP_SIZE}={size}: give a number of bytes")),
    }
}
