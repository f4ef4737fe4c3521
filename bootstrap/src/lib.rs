//! `bootstrap`: fills a store with hundreds of millions of pairs, resumable and verified.
//!
//! Owns: sources (synthetic, raw records, CSV), their order (shuffled, sorted), duplicates, the load loop, resume,
//! verification, comparison, the move of a store to another engine, and the report. Must not: hold the map in memory, load
//! past an error, or know a concrete engine.
//! Threads: everything runs on the main thread; engines have their own background threads.

pub mod cli;
mod compare;
mod info;
pub mod limits;
mod load;
mod meaning;
mod migrate;
mod order;
mod progress;
mod report;
mod sample;
mod scrub;
mod served;
mod signal;
pub mod source;
mod state;
mod verify;
