//! Seeded workloads: which keys exist, what their values are and how often one comes again, which key an event
//! touches, and the digest two tools compare maps by.
//!
//! Owns: every definition that `bootstrap`, `loadgen` and the tests must agree on to the bit. `--pairs N
//! --seed S` names the same pairs in every tool. Must not: do I/O or depend on an engine.
//! Threads: all types are plain values, used where they are.

mod count;
mod digest;
mod pairs;
mod skew;
mod values;

pub use count::count;
pub use digest::Digest;
pub use pairs::{Key, Pairs, Value, source_id};
pub use skew::{Picker, Rng, Skew};
pub use values::Values;
