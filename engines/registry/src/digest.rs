//! The identity of a store's content: the digest of its map, and the id of the source that it was loaded from.
//!
//! Owns: both definitions, on which every program and every store agree to the bit. Must not: open a store. The digest is
//! order-independent and incremental, so that a stream, a scan and a test reach the same digest in different ways. Any
//! thread.

use std::fmt;
use std::ops::ControlFlow;
use std::str::FromStr;

use engine_api::{Engine, Key, Value};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// Sum modulo 2^128 of xxh3-128(key || value) over all pairs, and their number. Equal maps have equal digests. Two
/// different maps have the same digest with a probability of about 2^-128. It is no defence against an adversary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    pairs: u64,
    sum: u128,
}

impl Digest {
    /// Scans the newest commit of a store and returns the digest of all its pairs.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn of(engine: &dyn Engine) -> engine_api::Result<Self> {
        let mut digest = Self::default();
        engine.reader()?.scan(&mut |key, value| {
            digest.add(key, value);
            ControlFlow::Continue(())
        })?;
        Ok(digest)
    }

    /// Adds a pair to the map.
    pub fn add(&mut self, key: &Key, value: &Value) {
        self.pairs += 1;
        self.sum = self.sum.wrapping_add(hash(key, value));
    }

    /// Removes a pair from the map, which was added before.
    pub fn remove(&mut self, key: &Key, value: &Value) {
        self.pairs -= 1;
        self.sum = self.sum.wrapping_sub(hash(key, value));
    }

    /// Returns the number of pairs in the map.
    pub fn pairs(&self) -> u64 {
        self.pairs
    }
}

/// Computes a source's id from its description. It is never zero, which means "no source yet".
pub fn source_id(description: &[u8]) -> u64 {
    xxh3_64(description).max(1)
}

fn hash(key: &Key, value: &Value) -> u128 {
    let mut bytes = [0u8; 64];
    bytes[..32].copy_from_slice(key);
    bytes[32..].copy_from_slice(value);
    xxh3_128(&bytes)
}

/// Writes `PAIRS:HEX`, for example `2000000:00f1…`.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:032x}", self.pairs, self.sum)
    }
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || format!("not a digest: value={text:?} expected=PAIRS:HEX");
        let (pairs, sum) = text.split_once(':').ok_or_else(bad)?;
        let sum = u128::from_str_radix(sum, 16).map_err(|_| bad())?;
        Ok(Self { pairs: pairs.parse().map_err(|_| bad())?, sum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_does_not_matter_and_remove_undoes() {
        let (a, b) = ([1u8; 32], [2u8; 32]);
        let mut one = Digest::default();
        one.add(&a, &b);
        one.add(&b, &a);
        let mut two = Digest::default();
        two.add(&b, &a);
        two.add(&a, &a);
        assert_ne!(one, two);
        two.remove(&a, &a);
        two.add(&a, &b);
        assert_eq!(one, two);
        assert_eq!(one.to_string().parse::<Digest>().unwrap(), one);
    }
}
