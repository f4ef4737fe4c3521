//! The reader of snapshot archives, from the outside.
//!
//! Owns: nothing but its modules. Must not: know how the reader works inside.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

// Archives of agave's own making, in every packing and from every place.
mod agave;
// Flipped bits in every packing.
mod damage;
// Archives that are damaged, cut, or made to do harm.
mod hostile;
// Downloads from servers that cut, forget and lie.
mod http;
// Accounts files of any shape, against a simple writer.
mod model;
// Archives of agave, rewritten into the shapes of other writers.
mod rewrite;
mod support;
// Archives whose manifest lists no files.
mod unlisted;
