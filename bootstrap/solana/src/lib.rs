//! The chain's own formats: snapshot archives ([`archive`]), the accounts that have a value ([`extract`]), and the
//! chain's position in a store (slot, blockhash, source, phase) in the bytes of an engine's checkpoint.
//!
//! Owns: the only layout of the checkpoint's bytes ([`ChainCheckpoint`]) and its version, for every program that reads
//! or writes them; the only reader of archives; the only meaning of each extraction. Must not: know an engine, tokio
//! or the stream; do I/O outside of [`archive`]. Any thread.

pub mod archive;
mod checkpoint;
pub mod extract;
pub mod token;

pub use checkpoint::{ChainCheckpoint, MapPhase, SourceId, shown, shown_of_copy};
pub use extract::Extract;
