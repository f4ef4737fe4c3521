//! What a store says of the chain: slot, blockhash, source and phase, as the bytes of an engine's checkpoint.
//!
//! Owns: the one layout of these bytes ([`ChainCheckpoint`]) and its version, for all programs that write or read it.
//! Must not: do I/O, know an engine, tokio or the stream. Any thread.

mod checkpoint;

pub use checkpoint::{ChainCheckpoint, MapPhase, SourceId, shown};
