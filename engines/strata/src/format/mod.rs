//! The bytes of every file: encoding, decoding and checks.
//!
//! Owns: layouts and their checksums, as FORMAT.md describes them, and the reading and writing of the manifest and the
//! WAL. Must not: use a length, an offset or a count before it was checked. No threads.

pub(crate) mod filter;
pub(crate) mod footer;
pub(crate) mod manifest;
pub(crate) mod page;
pub(crate) mod secret;
pub(crate) mod ties;
pub(crate) mod wal;

use engine_api::Value;

/// The newest record of a key in a part of the store: its value, or `None` for a deletion. A part that has no record of
/// the key leaves the answer to older parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record(pub(crate) Option<Value>);

/// Upper bound on numbers of files and batches. They count up one by one from 0 or 1, so no store gets this far.
/// Decoding refuses larger numbers, so that arithmetic on an accepted number cannot overflow.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;
