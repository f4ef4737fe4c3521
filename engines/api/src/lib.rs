//! The contract of every solkv engine: fixed 32-byte keys and values, one writer, many snapshot readers, and a
//! checkpoint that is committed in the same transaction as the data it describes.
//!
//! Owns: the types and traits. Must not: do I/O, know tokio, tonic or Solana, or name a concrete engine.
//! Threads: an [`Engine`] is shared between threads; a [`Reader`] and a [`WriteTxn`] stay on the thread that
//! opened them (an LMDB transaction belongs to its thread).

// Other crates link this one.
#![warn(missing_docs)]

mod checkpoint;
mod code;
mod descriptor;
mod error;
mod traits;
mod words;

pub use checkpoint::{Checkpoint, Durability};
pub use code::Code;
pub use descriptor::{
    Buffered, Column, Count, Descriptor, Note, Open, OpenReadOnly, Options, PairBytes, Repair, Repaired, Settings,
    Share,
};
pub use error::{Error, ErrorKind, Result};
pub use traits::{Engine, Pace, Reader, Resident, Stats, Visitor, Warmed, WriteTxn, one_slot_per_key, scrub_by_scan};
pub use words::{with_causes, words};

/// A Solana pubkey used as key. All-zero (the System program) is a legal key.
pub type Key = [u8; 32];

/// A Solana pubkey used as value. All-zero is a legal value and is not absence.
pub type Value = [u8; 32];

/// Bytes of user data in one pair: the denominator of space and write amplification.
pub const PAIR_BYTES: u64 = 64;
