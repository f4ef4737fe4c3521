//! Parts that several engine crates, and the crates that test them, would otherwise each write for themselves.
//!
//! Owns: the refusal of writes after a failure or on a nearly full disk, the count of commits, the size and durability
//! of files, copies, the order of a batch of lookups, the random generator of tests. Must not: know an engine, or the content of a file.
//! Runs on the caller's thread.

mod copy;
mod files;
mod order;
mod rng;
mod writes;

pub use copy::copy_by_scan;
pub use files::{allocated_bytes, copy_to_new, create_dir, disk_bytes, free_bytes, metadata, sync_dir};
pub use order::KeyOrder;
pub use rng::Rng;
pub use writes::{Commits, Poison, check_space, is_final};
