//! The synthetic map: key and value of pair `i` are computed from the seed and never stored.
//!
//! Owns: the bytes of every key and value. Must not: do I/O or keep a pair. Plain values, used on any thread.

use crate::rng::{Rng, mix};
use crate::skew::Picker;
use crate::values::Values;

/// A 32-byte key, the same type as in `solkv-engine-api`.
pub type Key = [u8; 32];
/// A 32-byte value, the same type as in `solkv-engine-api`.
pub type Value = [u8; 32];

/// Keys and values by index. Distinct indexes of one seed give distinct keys, because the first eight bytes are a
/// bijection of the index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pairs {
    seed: u64,
    values: Values,
    owners: Option<Picker>,
}

impl Pairs {
    /// Returns the pairs of `seed`, each with a value of its own.
    pub fn new(seed: u64) -> Self {
        Self::with_values(seed, Values::Unique)
    }

    /// Returns the pairs of `seed` with values of this kind. The keys are the same for all kinds.
    pub fn with_values(seed: u64, values: Values) -> Self {
        Self { seed, values, owners: values.owners().map(|(owners, skew)| Picker::new(owners, skew)) }
    }

    /// Returns the key of pair `index`. Index order is the shuffled load order: consecutive keys are unrelated.
    pub fn key(&self, index: u64) -> Key {
        lanes(mix(self.seed ^ 0x6b65_7973), index)
    }

    /// Returns the value of pair `index` after its `version`-th change. Bootstrap loads version 0.
    pub fn value(&self, index: u64, version: u32) -> Value {
        let base = mix(self.seed ^ 0x7661_6c75_6573 ^ (u64::from(version) << 32));
        match &self.owners {
            None => lanes(base, index),
            Some(owners) => {
                let rank = owners.pick(&mut Rng::new(base.wrapping_add(index)));
                lanes(mix(self.seed ^ 0x6f77_6e65_7273), rank)
            }
        }
    }

    /// Returns a key that no pair of this seed has, for negative reads. It comes from another stream of 2^64 keys.
    pub fn absent_key(&self, index: u64) -> Key {
        lanes(mix(self.seed ^ 0x0061_6273_656e_7400), index)
    }

    /// Describes the first `count` pairs. No other pairs have the same description.
    pub fn describe(&self, count: u64) -> String {
        let values = if self.values == Values::Unique { String::new() } else { format!(" values={}", self.values) };
        format!("synthetic pairs={count} seed={}{values}", self.seed)
    }
}

/// Returns four 64-bit lanes, the first of which is a bijection of `index` for a given base.
fn lanes(base: u64, index: u64) -> [u8; 32] {
    let mut out = [0u8; 32];
    let mut state = base.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for lane in out.chunks_exact_mut(8) {
        let word = mix(state);
        lane.copy_from_slice(&word.to_be_bytes());
        state = word.wrapping_add(base | 1);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_are_distinct_and_spread() {
        let pairs = Pairs::new(7);
        let keys: HashSet<Key> = (0..100_000).flat_map(|i| [pairs.key(i), pairs.absent_key(i)]).collect();
        assert_eq!(keys.len(), 200_000);
        let low_half = keys.iter().filter(|key| key[0] < 128).count();
        assert!((98_000..102_000).contains(&low_half), "first byte is uniform: low_half={low_half}");
    }

    #[test]
    fn owners_repeat_as_their_weights_say_and_keys_do_not() {
        let values = Values::Zipfian { exponent: 0.99, owners: 1000 };
        let (unique, pairs) = (Pairs::new(7), Pairs::with_values(7, values));
        assert!((0..100).all(|i| unique.key(i) == pairs.key(i) && unique.value(i, 0) != pairs.value(i, 0)));
        let mut counts = std::collections::HashMap::<Value, u64>::new();
        (0..100_000).for_each(|i| *counts.entry(pairs.value(i, 0)).or_default() += 1);
        let total: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-0.99)).sum();
        let (most, expected) = (*counts.values().max().unwrap() as f64, 100_000.0 / total);
        assert!((most - expected).abs() < expected * 0.05, "most={most} expected={expected}");
        assert!((950..=1000).contains(&counts.len()), "{}", counts.len());
        assert_ne!(pairs.value(1, 0), pairs.value(1, 1), "a change gives another owner, as a rule");
    }

    #[test]
    fn kinds_of_values_are_other_sources() {
        let zipfian = |owners| Pairs::with_values(1, Values::Zipfian { exponent: 0.99, owners }).describe(10);
        let described = HashSet::from([Pairs::new(1).describe(10), zipfian(5), zipfian(6)]);
        assert_eq!(described.len(), 3);
        assert_eq!(Pairs::new(1).describe(10), "synthetic pairs=10 seed=1", "stores of earlier builds are known by it");
    }

    #[test]
    fn seeds_and_versions_differ() {
        assert_ne!(Pairs::new(1).key(0), Pairs::new(2).key(0));
        assert_ne!(Pairs::new(1).value(0, 0), Pairs::new(1).value(0, 1));
        assert_ne!(Pairs::new(1).describe(10), Pairs::new(1).describe(11));
    }
}
