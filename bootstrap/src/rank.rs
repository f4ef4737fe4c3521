//! The order of pairs: shuffled or sorted, and the number by which records are put into it.
//!
//! Owns: the two orders and the comparison of records. Must not: sort; `order` does. Plain values, used on any thread.

use std::cmp::Ordering;

use engine_api::Key;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::source::Record;

/// The order in which pairs reach the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Order {
    /// Random: the worst case for a B+tree, and the order in which keys arrive in a live stream.
    Shuffled,
    /// Ascending by key, through the engine's bulk path.
    #[default]
    Sorted,
}

impl Order {
    /// The order's name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shuffled => "shuffled",
            Self::Sorted => "sorted",
        }
    }
}

/// The number by which records are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rank {
    /// The key's first eight bytes, which nearly always decide. Ties are decided by the whole key.
    Key,
    /// A seeded hash of the key, which gives a random order.
    Hash(u64),
}

impl Rank {
    /// Returns the number for this order. `seed` shuffles.
    pub(crate) fn new(order: Order, seed: u64) -> Self {
        match order {
            Order::Shuffled => Self::Hash(seed),
            Order::Sorted => Self::Key,
        }
    }

    /// Returns the number by which a record with this key is sorted.
    pub(crate) fn of(self, key: &Key) -> u64 {
        match self {
            Self::Key => u64::from_be_bytes(std::array::from_fn(|i| key[i])),
            Self::Hash(seed) => xxh3_64_with_seed(key, seed),
        }
    }

    /// Compares two records by the numbers and the keys. Records with the same key are ordered by their position in the
    /// source.
    pub(crate) fn compare(self, a: &Record, b: &Record) -> Ordering {
        self.of(&a.1).cmp(&self.of(&b.1)).then_with(|| (a.1, a.0).cmp(&(b.1, b.0)))
    }
}
