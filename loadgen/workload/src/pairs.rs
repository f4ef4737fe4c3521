//! The synthetic map: key and value of pair `i` are computed from the seed and never stored.
//!
//! Owns: the bytes of every key and value. Must not: do I/O or keep a pair. Plain values, used on any thread.

use crate::rng::{Rng, mix};
use crate::shape::Shape;
use crate::skew::Picker;
use crate::values::Values;

/// A 32-byte key, the same type as in `solkv-engine-api`.
pub type Key = [u8; 32];
/// A 32-byte value, the same type as in `solkv-engine-api`.
pub type Value = [u8; 32];

/// Number of prefixes of keys that share some.
const PREFIXES: u64 = 1000;
/// The lowest 7 bytes of a number.
const SEVEN_BYTES: u64 = (1 << 56) - 1;

/// Keys and values by index. Distinct indexes of one seed give distinct keys, because eight bytes of a random key are a
/// bijection of the index, and so are the bytes of other keys that are not shared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pairs {
    seed: u64,
    values: Values,
    owners: Option<Picker>,
    shape: Shape,
}

impl Pairs {
    /// Returns the pairs of `seed`, each with a value of its own.
    pub fn new(seed: u64) -> Self {
        Self::with_values(seed, Values::Unique)
    }

    /// Returns the pairs of `seed` with values of this kind. The keys are the same for all kinds.
    pub fn with_values(seed: u64, values: Values) -> Self {
        let owners = values.owners().map(|(owners, skew)| Picker::new(owners, skew));
        Self { seed, values, owners, shape: Shape::Random }
    }

    /// Returns the pairs of the same seed with keys of this kind. The values are the same for all kinds.
    pub fn with_shape(self, shape: Shape) -> Self {
        Self { shape, ..self }
    }

    /// Returns the key of pair `index`. Index order is the shuffled load order: consecutive keys are unrelated, unless they
    /// count.
    pub fn key(&self, index: u64) -> Key {
        self.shaped(lanes(mix(self.seed ^ 0x6b65_7973), index), index << 1)
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

    /// Returns a key that no pair of this seed has, for negative reads. It comes from another stream of keys of the same kind.
    pub fn absent_key(&self, index: u64) -> Key {
        self.shaped(lanes(mix(self.seed ^ 0x0061_6273_656e_7400), index), index << 1 | 1)
    }

    /// Returns the number of absent keys to pick from beside `count` pairs. Random ones are so many that none is picked twice.
    /// Of the others there is one for each pair, because numbers from there on would lie after all pairs.
    pub fn absent_count(&self, count: u64) -> u64 {
        if self.shape == Shape::Random { 1 << 63 } else { count }
    }

    /// Puts the bytes that keys share into a random key. `number` differs for all keys, present or absent.
    fn shaped(&self, random: Key, number: u64) -> Key {
        let mut key = random;
        let first = u64::from_be_bytes(std::array::from_fn(|at| random[at]));
        let prefix = |n| lanes(mix(self.seed ^ 0x7072_6566_6978), n);
        match self.shape {
            Shape::Random => {}
            Shape::Alike => {
                key[..25].copy_from_slice(&prefix(0)[..25]);
                key[25..].copy_from_slice(&mix_seven(number, mix(self.seed)).to_be_bytes()[1..]);
            }
            Shape::SomeAlike if first.is_multiple_of(100) => {
                let (of, length) = (first / 100 % PREFIXES, 8 + (first / 100 / PREFIXES % 13) as usize);
                key[..length].copy_from_slice(&prefix(of)[..length]);
            }
            Shape::SomeAlike => {}
            Shape::Counting => {
                key = [0; 32];
                key[24..].copy_from_slice(&number.to_be_bytes());
            }
            Shape::Grouped => key[..16].copy_from_slice(&prefix(first % PREFIXES)[..16]),
        }
        key
    }

    /// Describes the first `count` pairs. No other pairs have the same description.
    pub fn describe(&self, count: u64) -> String {
        let values = if self.values == Values::Unique { String::new() } else { format!(" values={}", self.values) };
        let shape = if self.shape == Shape::Random { String::new() } else { format!(" key_shape={}", self.shape) };
        format!("synthetic pairs={count} seed={}{values}{shape}", self.seed)
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

/// Mixes the lowest 56 bits of a number by a bijection of the seed's.
fn mix_seven(number: u64, seed: u64) -> u64 {
    let mut mixed = (number ^ seed) & SEVEN_BYTES;
    for odd in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        mixed = (mixed ^ (mixed >> 29)).wrapping_mul(odd) & SEVEN_BYTES;
    }
    mixed ^ (mixed >> 28)
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
    fn kinds_of_keys_and_values_are_other_sources() {
        let zipfian = |owners| Pairs::with_values(1, Values::Zipfian { exponent: 0.99, owners }).describe(10);
        let shaped = SHARING.map(|shape| Pairs::new(1).with_shape(shape).describe(10));
        let described: HashSet<String> =
            [Pairs::new(1).describe(10), zipfian(5), zipfian(6)].into_iter().chain(shaped).collect();
        assert_eq!(described.len(), 7);
        assert_eq!(Pairs::new(1).describe(10), "synthetic pairs=10 seed=1", "stores of earlier builds are known by it");
    }

    const SHARING: [Shape; 4] = [Shape::Alike, Shape::SomeAlike, Shape::Counting, Shape::Grouped];

    /// Returns all keys of this kind, present and absent in turn.
    fn keys(shape: Shape, count: u64) -> Vec<Key> {
        let pairs = Pairs::new(7).with_shape(shape);
        (0..count).flat_map(|i| [pairs.key(i), pairs.absent_key(i)]).collect()
    }

    fn shared(one: &Key, other: &Key) -> usize {
        one.iter().zip(other).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn keys_that_share_bytes_are_distinct_too_and_their_values_are_the_same() {
        for shape in SHARING {
            assert_eq!(keys(shape, 100_000).into_iter().collect::<HashSet<Key>>().len(), 200_000, "{shape}");
            let (random, pairs) = (Pairs::new(7), Pairs::new(7).with_shape(shape));
            assert!((0..100).all(|i| random.value(i, 1) == pairs.value(i, 1)), "{shape}");
        }
    }

    #[test]
    fn alike_keys_share_25_bytes_and_the_next_one_is_uniform() {
        let all = keys(Shape::Alike, 100_000);
        assert!(all.iter().all(|key| shared(key, &all[0]) >= 25));
        for of in 0..2 {
            let low_half = all.iter().skip(of).step_by(2).filter(|key| key[25] < 128).count();
            assert!((49_000..51_000).contains(&low_half), "low_half={low_half}");
        }
        assert_ne!(Pairs::new(1).with_shape(Shape::Alike).key(0)[..25], all[0][..25], "seeds differ");
    }

    #[test]
    fn one_key_in_a_hundred_shares_8_to_20_bytes_and_the_others_are_as_random_keys() {
        let (random, some) = (keys(Shape::Random, 500_000), keys(Shape::SomeAlike, 500_000));
        let mut own: Vec<Key> = random.iter().zip(&some).filter(|(a, b)| a != b).map(|(_, some)| *some).collect();
        assert!((9_500..10_500).contains(&own.len()), "{}", own.len());
        own.sort_unstable();
        let lengths: Vec<usize> = own.windows(2).map(|two| shared(&two[0], &two[1])).collect();
        let share = lengths.iter().filter(|length| (8..=21).contains(*length)).count();
        assert!(share > 8_500, "a thousand prefixes have ten each: share={share}");
        assert!(lengths.iter().any(|length| *length >= 18) && lengths.iter().all(|length| *length < 24));
    }

    #[test]
    fn numbers_count_up_and_an_absent_one_lies_between_two() {
        let all = keys(Shape::Counting, 1000);
        assert!(all.is_sorted() && all[0] == [0; 32] && all.iter().all(|key| key[..24] == [0; 24]));
        assert_eq!(all[1999][30..], 1999u16.to_be_bytes());
        let pairs = Pairs::new(7).with_shape(Shape::Counting);
        assert_eq!(pairs.absent_count(1000), 1000, "and none lies after all pairs");
    }

    #[test]
    fn a_thousand_prefixes_have_as_many_keys_each_and_absent_keys_have_the_same() {
        let prefixes = |of: usize| {
            let mut counts = std::collections::BTreeMap::<[u8; 16], u64>::new();
            let all = keys(Shape::Grouped, 100_000);
            all.iter().skip(of).step_by(2).for_each(|key| *counts.entry(*key.first_chunk().unwrap()).or_default() += 1);
            counts
        };
        let (present, absent) = (prefixes(0), prefixes(1));
        assert!(present.len() == 1000 && present.values().all(|count| (50..200).contains(count)));
        assert!(present.keys().eq(absent.keys()));
    }

    /// Stores and results of earlier builds have these keys.
    #[test]
    fn random_keys_and_picks_of_absent_ones_stay_as_they_are() {
        let pairs = Pairs::new(1);
        assert_eq!(pairs.key(0), lanes(mix(1 ^ 0x6b65_7973), 0));
        assert_eq!(pairs.absent_key(9), lanes(mix(1 ^ 0x0061_6273_656e_7400), 9));
        assert_eq!(Rng::new(5).below(pairs.absent_count(10)), Rng::new(5).next_u64() >> 1);
    }

    #[test]
    fn seeds_and_versions_differ() {
        assert_ne!(Pairs::new(1).key(0), Pairs::new(2).key(0));
        assert_ne!(Pairs::new(1).value(0, 0), Pairs::new(1).value(0, 1));
        assert_ne!(Pairs::new(1).describe(10), Pairs::new(1).describe(11));
    }
}
