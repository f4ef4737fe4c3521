//! Every buffer of the loader, and the sum that keeps the tool itself under its memory promise.

/// The tool's own memory, engine aside, stays below this whatever the number of pairs.
pub const OWN_MEMORY_BYTES_MAX: usize = 512 << 20;

/// One record on its way: source position, key, value.
pub const RECORD_BYTES: usize = 8 + 64;

/// Buckets of the shuffle: at 1e9 pairs one holds 141 MB. Fewer than the usual 1024 open files.
pub const BUCKETS: usize = 512;
/// Write buffer of each bucket file.
pub const BUCKET_BUFFER_BYTES: usize = 64 << 10;
/// A bucket above this (about 1.4e9 pairs in all) is refused rather than loaded.
pub const BUCKET_BYTES_MAX: usize = 200 << 20;

/// Records sorted in memory at a time by the external sort.
pub const RUN_RECORDS: usize = (192 << 20) / RECORD_BYTES;
/// Buffers of the external sort: one is filled while the other is sorted and written.
pub const SORT_BUFFERS: usize = 2;
/// Sorted runs merged at once: 2.7e9 pairs. Each takes a read buffer.
pub const RUNS_MAX: usize = 1000;
/// Read buffer of each run while merging.
pub const RUN_BUFFER_BYTES: usize = 128 << 10;

/// Pairs handed on at a time by every source.
pub const CHUNK_PAIRS: usize = 4096;
/// Chunks made ahead of the engine: enough that neither side waits for the other's pauses.
pub const CHUNKS_AHEAD: usize = 64;
/// Pairs of one sorted chunk given to an engine's bulk path: one RocksDB file of 64 MB.
pub const BULK_PAIRS: usize = 1 << 20;

/// A bucket is held twice while its bytes become records.
const SHUFFLE_BYTES: usize = 2 * BUCKET_BYTES_MAX;
const SPILL_BYTES: usize = BUCKETS * BUCKET_BUFFER_BYTES;
const SORT_BYTES: usize = SORT_BUFFERS * RUN_RECORDS * RECORD_BYTES;
const MERGE_BYTES: usize = RUNS_MAX * RUN_BUFFER_BYTES + (BULK_PAIRS + CHUNKS_AHEAD * CHUNK_PAIRS) * 64;
/// What the rest takes: histograms (1 MB), the time series, the program itself.
const REST_BYTES: usize = 64 << 20;

const _: () = {
    assert!(SHUFFLE_BYTES + REST_BYTES < OWN_MEMORY_BYTES_MAX);
    assert!(SPILL_BYTES + REST_BYTES < OWN_MEMORY_BYTES_MAX);
    assert!(SORT_BYTES + REST_BYTES < OWN_MEMORY_BYTES_MAX);
    assert!(MERGE_BYTES + REST_BYTES < OWN_MEMORY_BYTES_MAX);
};
