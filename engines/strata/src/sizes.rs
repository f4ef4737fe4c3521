//! Capacities of a memtable, a segment and a WAL file, and the memory set aside for work.
//!
//! Owns: the division of a store's work into pieces. Must not: know the layout of the pieces. Computed on the thread
//! that opens the store, and the size of a write also on each thread that writes a segment.

use crate::StrataOptions;
use crate::format::page::RECORD_BYTES;
use crate::memtable::{ENTRY_BYTES, ORDER_BYTES};

/// Number of memtables that may wait for their flush before commits have to wait: one is being written, one is next.
pub(crate) const FROZEN_MAX: usize = 2;
/// Memtables, the active and the frozen ones, together have 1/MEM_SHARE of the memory.
const MEM_SHARE: u64 = 16;
/// Fewest pairs of a memtable: enough for a run to be worth a file.
const MEM_RECORDS_MIN: u64 = 16 << 10;
/// Most pairs of a memtable: few enough to be sorted in a second.
const MEM_RECORDS_MAX: u64 = 1 << 20;
/// A memtable has at most 1/STORE_SHARE of the records of the store. Otherwise the WAL files, of which there are five at
/// full speed, and the delta runs would be several times as large as a small store. The share makes a merge into the base
/// due at a quarter of the base also where the number of memtables decides.
const STORE_SHARE: u64 = 32;
/// Fewest pairs of a memtable that is kept small for the store's size.
const SMALL_MEM_RECORDS_MIN: u64 = 64 << 10;
/// A segment has a record for each SEGMENT_SHARE bytes of memory. Writing a segment holds eleven bytes a record, which is
/// then a twenty-fifth of the memory.
const SEGMENT_SHARE: u64 = 256;
/// Fewest records of a full segment, however small the memory is: 4096 pages of keys that share nothing.
const SEGMENT_RECORDS_MIN: u64 = 63 << 12;
/// Largest number of records in a segment: some 250 MiB. A merge needs free disk space for one group of segments.
const SEGMENT_RECORDS_MAX: u64 = 4 << 20;
/// A merge writes segments of 1/BASE_SEGMENTS of the base, because a delta is dropped segment by segment, and a group of
/// the base exists twice while it is written.
const BASE_SEGMENTS: u64 = 64;
/// Fewest records of a full segment that is kept small for the store's size: 4 MiB.
const SMALL_SEGMENT_RECORDS_MIN: u64 = 63 << 10;
/// The buffers of a merge have 1/MERGE_READ_SHARE of the memory, within [`MERGE_READ_BYTES`]: a few runs need few
/// buffers, and buffers that exceed the device's own time are useless.
const MERGE_READ_SHARE: u64 = 64;
/// Least and greatest size of all buffers of a merge, in bytes.
const MERGE_READ_BYTES: (u64, u64) = (128 << 10, 8 << 20);
/// Bytes collected before a write: 1/WRITE_SHARE of the memory, within [`WRITE_BYTES`].
const WRITE_SHARE: u64 = 256;
/// Fewest and most bytes collected before a write. Larger writes gain nothing.
const WRITE_BYTES: (u64, u64) = (64 << 10, 1 << 20);
/// Memory for each record of a segment that is written and opened, in bytes: a hash and all planes while it is written,
/// and the planes and the directory that stay, while those of the replaced segments are still held.
const SEGMENT_WORK: u64 = 14;
/// At most 1/WORK_SHARE of the memory is set aside for work.
const WORK_SHARE: u64 = 8;
/// Records get 1/CACHE_LEAST of the memory before the second filter plane gets any: between a sixty-fourth and a
/// quarter. At a cap of 4% of 50M pairs, those two shares led to 0.59 and 0.52 reads a get with zipfian keys (ten
/// seconds from a cold start). Absent keys took 0.003 and 0.01 reads a get, because a quarter leaves no room for the
/// second plane.
const CACHE_LEAST: u64 = 20;
/// Size at which a WAL of batches that change nothing ends, so that it cannot grow without end.
const WAL_BYTES_MAX: u64 = 256 << 20;

/// Capacities of the pieces in which a store writes. They follow from the memory. A test may open a store with others
/// to get many merges of few records; such files can be read with any other sizes as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Number of records in a memtable, and so in a delta run that was just flushed.
    pub mem_records: usize,
    /// Number of records in a full segment. A merge into the base replaces as many at a time.
    pub segment_records: u64,
    /// Size in bytes after which a WAL file ends, however few records it has.
    pub wal_bytes: u64,
}

impl Sizes {
    /// Returns the sizes of a store with these options.
    pub fn of(options: &StrataOptions) -> Self {
        let per_mem = mem_bytes(options) / ENTRY_BYTES / (FROZEN_MAX as u64 + 1);
        Self {
            mem_records: per_mem.clamp(MEM_RECORDS_MIN, MEM_RECORDS_MAX) as usize,
            segment_records: (options.memory_bytes / SEGMENT_SHARE).clamp(SEGMENT_RECORDS_MIN, SEGMENT_RECORDS_MAX),
            wal_bytes: WAL_BYTES_MAX,
        }
    }
}

/// Number of records in a usual memtable of a store with so many records in its base and in all runs. `mem_records` is
/// the largest number.
pub(crate) fn usual_mem_records(mem_records: u64, base_records: u64, all_records: u64) -> u64 {
    // Before the first merge into the base all records are in deltas.
    let store_records = base_records.max(all_records / 4);
    (store_records / STORE_SHARE).max(SMALL_MEM_RECORDS_MIN).min(mem_records)
}

/// Number of records in a usual segment of a store with so many records in its base. `segment_records` is the largest
/// number.
pub(crate) fn usual_segment_records(segment_records: u64, base_records: u64) -> u64 {
    (base_records / BASE_SEGMENTS).max(SMALL_SEGMENT_RECORDS_MIN).min(segment_records)
}

/// Size of all read buffers of a merge together, in bytes.
pub(crate) fn merge_read_bytes(options: &StrataOptions) -> u64 {
    (options.memory_bytes / MERGE_READ_SHARE).clamp(MERGE_READ_BYTES.0, MERGE_READ_BYTES.1)
}

/// Number of bytes that a writer collects before a write, in a store with this much memory.
pub(crate) fn write_bytes(memory_bytes: u64) -> u64 {
    (memory_bytes / WRITE_SHARE).clamp(WRITE_BYTES.0, WRITE_BYTES.1)
}

/// Memory left free for one flush and one merge, in bytes. Work that needs more takes it from the record cache and the
/// pages.
pub(crate) fn work_bytes(options: &StrataOptions, sizes: Sizes) -> u64 {
    // A memtable is written while a reader may still hold another one that was flushed before.
    let writes = sizes.segment_records * SEGMENT_WORK
        + sizes.mem_records as u64 * (SEGMENT_WORK + ORDER_BYTES + ENTRY_BYTES)
        + 2 * write_bytes(options.memory_bytes);
    (writes + merge_read_bytes(options)).min(options.memory_bytes / WORK_SHARE)
}

/// Memory that records get before the second filter plane does, in bytes.
pub(crate) fn least_cache_bytes(options: &StrataOptions) -> u64 {
    options.memory_bytes / CACHE_LEAST
}

impl StrataOptions {
    /// Free disk space in bytes that `begin` demands, with the sizes that follow from this memory.
    pub fn reserve_bytes(&self) -> u64 {
        reserve_bytes(self, &Sizes::of(self))
    }
}

/// Free disk space in bytes that `begin` demands: room for a WAL and the run that is written of it.
pub(crate) fn reserve_bytes(options: &StrataOptions, sizes: &Sizes) -> u64 {
    options.disk_reserve_bytes.max(3 * sizes.mem_records as u64 * RECORD_BYTES as u64)
}

/// Memory of all memtables together, in bytes.
pub(crate) fn mem_bytes(options: &StrataOptions) -> u64 {
    options.memory_bytes / MEM_SHARE
}
