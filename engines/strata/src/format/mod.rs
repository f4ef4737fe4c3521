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
