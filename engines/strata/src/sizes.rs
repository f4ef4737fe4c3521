//! How much a memtable, a segment and a WAL file hold.
//!
//! Owns: the division of a store's work into pieces. Must not: know what the pieces are made of. Computed once, on the
//! thread that opens the store.

use crate::StrataOptions;
use crate::engine::FROZEN_MAX;
use crate::format::page::RECORD_BYTES;
use crate::write::mem::{ENTRY_BYTES, ORDER_BYTES};
use crate::write::writer::write_bytes;

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
/// The part of the memory, one in so many, that the buffers of a merge have, within bounds: a few runs need few, and
/// more than enough for the device's own time is of no use.
const MERGE_READ_SHARE: u64 = 64;
const MERGE_READ_BYTES: (u64, u64) = (128 << 10, 8 << 20);
/// Bytes a record of a segment while it is written and opened: a hash, the largest plane, and then all planes and the
/// directory beside those of the segments that it replaces.
const SEGMENT_WORK: u64 = 13;
/// The most that is set aside for work, one part in so many.
const WORK_SHARE: u64 = 8;
/// The part of the memory, one in so many, that records get before the second plane does: between a sixty-fourth and a
/// quarter. At a cap of 4% of 50M pairs these meant 0.59 and 0.52 reads a get with zipfian keys (ten seconds from a cold
/// start), and 0.003 and 0.01 reads a get of absent keys, for a quarter leaves no room for the second plane.
const CACHE_LEAST: u64 = 20;
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

/// What the read buffers of a merge take together, in bytes.
pub(crate) fn merge_read_bytes(options: &StrataOptions) -> u64 {
    (options.memory_bytes / MERGE_READ_SHARE).clamp(MERGE_READ_BYTES.0, MERGE_READ_BYTES.1)
}

/// What is left for a flush and a merge at a time, in bytes. What takes more takes it from the record cache and the pages.
pub(crate) fn work_bytes(options: &StrataOptions, sizes: Sizes) -> u64 {
    // A memtable is written while another one, flushed before, may still be held by a reader.
    let writes = sizes.segment_records * SEGMENT_WORK
        + sizes.mem_records as u64 * (SEGMENT_WORK + ORDER_BYTES + ENTRY_BYTES)
        + 2 * write_bytes(options.memory_bytes);
    (writes + merge_read_bytes(options)).min(options.memory_bytes / WORK_SHARE)
}

/// What records get before the second plane does, in bytes.
pub(crate) fn least_cache_bytes(options: &StrataOptions) -> u64 {
    options.memory_bytes / CACHE_LEAST
}

impl StrataOptions {
    /// Free space that `begin` insists on with the sizes that this memory gives, in bytes.
    pub fn reserve_bytes(&self) -> u64 {
        reserve_bytes(self, &Sizes::of(self))
    }
}

/// Room for a WAL and the run that it becomes.
pub(crate) fn reserve_bytes(options: &StrataOptions, sizes: &Sizes) -> u64 {
    options.disk_reserve_bytes.max(3 * sizes.mem_records as u64 * RECORD_BYTES as u64)
}

/// The part of the memory that memtables have, in bytes.
pub(crate) fn mem_bytes(options: &StrataOptions) -> u64 {
    options.memory_bytes / MEM_SHARE
}
