//! How much a memtable, a segment and a WAL file hold.
//!
//! Owns: the division of a store's work into pieces. Must not: know what the pieces are made of. Computed once, on the
//! thread that opens the store.

use crate::StrataOptions;
use crate::engine::FROZEN_MAX;
use crate::write::mem::ENTRY_BYTES;

/// The part of the memory, one in so many, for the memtables, the active one and those that are frozen.
const MEM_SHARE: u64 = 16;
/// Pairs of a memtable: enough for a run to be worth a file, few enough to be sorted in a second.
const MEM_RECORDS_MIN: u64 = 16 << 10;
const MEM_RECORDS_MAX: u64 = 1 << 20;
/// A segment has a record for this many bytes of memory: what is held while it is written, ten bytes a record, is then
/// a twenty-fifth of it.
const SEGMENT_SHARE: u64 = 256;
const SEGMENT_RECORDS_MIN: u64 = 63 << 12;
/// Most records of a segment: some 250 MiB. A merge needs the space of one group of segments on top.
const SEGMENT_RECORDS_MAX: u64 = 4 << 20;
/// A WAL of batches that change nothing ends at this size, so that it cannot grow for ever.
const WAL_BYTES_MAX: u64 = 256 << 20;

/// The pieces in which a store writes. They follow from the memory; whoever opens a store with others (a test, which
/// wants many merges of few records) leaves files that any other sizes read as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Records of a memtable, and so of a delta run that was just flushed.
    pub mem_records: usize,
    /// Records of a full segment. A merge into the base replaces as many at a time.
    pub segment_records: u64,
    /// Bytes after which a WAL file ends, however few records it has.
    pub wal_bytes: u64,
}

impl Sizes {
    /// Those of a store with this memory.
    pub fn of(options: &StrataOptions) -> Self {
        let per_mem = mem_bytes(options) / ENTRY_BYTES / (FROZEN_MAX as u64 + 1);
        Self {
            mem_records: per_mem.clamp(MEM_RECORDS_MIN, MEM_RECORDS_MAX) as usize,
            segment_records: (options.memory_bytes / SEGMENT_SHARE).clamp(SEGMENT_RECORDS_MIN, SEGMENT_RECORDS_MAX),
            wal_bytes: WAL_BYTES_MAX,
        }
    }
}

/// The part of the memory that memtables have, in bytes.
pub(crate) fn mem_bytes(options: &StrataOptions) -> u64 {
    options.memory_bytes / MEM_SHARE
}
