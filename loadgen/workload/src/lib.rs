//! Seeded workloads: the keys and the bytes that they share, their values and how often these repeat, and the key
//! that each event touches.
//!
//! Owns: every definition on which `bootstrap`, `loadgen` and the tests must agree to the bit. `--pairs N --seed S`
//! names the same pairs in every tool, and every tool parses numbers and pubkeys in the same way. Must not: do I/O or
//! depend on an engine. Threads: all types are plain values, used on any thread.

mod count;
mod pairs;
mod pubkey;
mod rng;
mod shape;
mod skew;
mod values;

pub use count::{count, count_within};
pub use pairs::{Key, Pairs, Value};
pub use pubkey::pubkey;
pub use rng::Rng;
pub use shape::Shape;
pub use skew::{Picker, Skew};
pub use values::Values;
