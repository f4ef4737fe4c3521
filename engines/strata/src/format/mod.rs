//! The bytes of every file: encoded, decoded, checked.
//!
//! Owns: layouts and their checksums, as FORMAT.md describes them. Must not: open or write files, or trust a length, an
//! offset or a count before it was checked. No threads.

pub(crate) mod filter;
pub(crate) mod footer;
pub(crate) mod manifest;
pub(crate) mod page;
pub(crate) mod secret;
pub(crate) mod wal;

/// Files and batches are numbered from 0 or 1 on, one after the other, so no store comes this far. Whatever is read is
/// refused above it, and whatever counts on from there cannot overflow.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;
