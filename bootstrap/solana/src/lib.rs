//! The chain's position in a store (slot, blockhash, source, phase), kept in the bytes of an engine's checkpoint.
//!
//! Owns: the only layout of these bytes ([`ChainCheckpoint`]) and its version, for every program that reads or writes
//! them. Must not: do I/O, or know an engine, tokio or the stream. Any thread.

mod checkpoint;

pub use checkpoint::{ChainCheckpoint, MapPhase, SourceId, shown};
