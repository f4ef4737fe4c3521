//! `bootstrap`: fills a store with hundreds of millions of pairs, resumable and verified.
//!
//! Owns: sources (synthetic, raw records, CSV, archives, stores), their order (shuffled, sorted), duplicates, the load loop, resume,
//! verification, comparison, and the report.
//! Must not: hold the map in memory, load past an error, or know a concrete engine.
//! Threads: the main thread writes; ARCHITECTURE.md lists the others. Engines have background threads of their own.

mod args;
pub mod audit;
pub mod cli;
mod compare;
mod copied;
pub mod create;
mod derive;
mod disk;
mod export;
mod fill;
mod get;
mod identity;
mod info;
mod keys_of;
mod layout;
mod limits;
mod load;
mod meaning;
mod migrate;
mod order;
mod out;
mod past;
mod paths;
mod plan;
mod progress;
mod rank;
mod repair;
mod report;
mod resume;
mod running;
mod sample;
mod scan;
mod scrub;
mod seen;
mod served;
mod setup;
mod side_by_side;
mod sides;
mod signal;
pub mod source;
mod state;
#[cfg(feature = "parquet")]
mod table;
mod uncounted;
mod undo;
mod verify;
mod wrong;

pub use derive::{copy as derived_copy, partial as derived_partial};
pub use meaning::extraction;
pub use out::log_with;
pub use seen::{Numbers, Seen, Waiting};
pub use signal::Stop;
pub use workload::{count, count_within};
pub use wrong::Wrong;
