//! The sizes of records and of the blocks in a spill's files.
//!
//! Owns: these sizes, from which `order` builds the files and `limits` the sums. Must not: encode or write anything.
//! Constants alone.

/// Bytes of one record in a buffer or spill: source position, key, value.
pub(crate) const RECORD_BYTES: usize = 8 + 64;

/// Number of records in a full block.
pub(crate) const BLOCK_RECORDS: u64 = 512;
/// Bytes of the checksum that ends a block.
pub(crate) const CHECKSUM_BYTES: usize = 8;
/// Bytes of a full block, which is a run's least memory while it is merged.
pub(crate) const BLOCK_BYTES: usize = CHECKSUM_BYTES + BLOCK_RECORDS as usize * RECORD_BYTES;

/// Bytes of one record in a spill. The additional byte pays for the checksum of each block and the header of each run.
pub(crate) const SPILLED_RECORD_BYTES: u64 = RECORD_BYTES as u64 + 1;
