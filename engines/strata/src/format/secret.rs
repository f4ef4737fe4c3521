//! Secrets of a store, so that nobody who chooses keys and values can steer it: the seed of every hash of keys, and the
//! key that the salts of WAL files are made with.
//!
//! Owns: the hash of a key and the salt of a file (FORMAT.md, "Secrets"). Must not: show a secret in a message or a
//! log.
//!
//! The hash is a multilinear one (Lemire and Kaser, "Strongly universal string hashing is fast"): the upper half of
//! `s4 + s0 k0 + s1 k1 + s2 k2 + s3 k3` modulo 2^128, with the key's four words and five secret numbers. It is proven
//! that any two different keys collide with probability 2^-64, whatever their choice, as long as the numbers are
//! secret. XXH3 gives no such promise, because it multiplies words of the key with each other. On the machine of the
//! measurements this hash takes 3.3 ns, XXH3 without a seed 2.3 and SipHash-1-3 11. A get of an absent key takes some
//! 180.

use std::fmt;
use std::hash::Hasher as _;

use engine_api::{Error, ErrorKind, Key, Result};
use siphasher::sip128::{Hasher128 as _, SipHasher24};

/// Length of a [`Seed`] in bytes.
pub(crate) const SEED_BYTES: usize = 80;
/// Numbers of leading key bytes that the filters of a store may be made of: the whole key, or the prefix of a derived
/// store.
const PREFIXES: [usize; 2] = [32, 16];
/// Length of a [`WalKey`] and of a [`Salt`] in bytes.
pub(crate) const SALT_BYTES: usize = 16;

/// Secret numbers of the hash of keys, which memtables, the record cache and transactions share, and the number of
/// leading bytes of a key that the filters hash with them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seed {
    numbers: [u128; 5],
    prefix_bytes: usize,
}

impl Default for Seed {
    fn default() -> Self {
        Self { numbers: [0; 5], prefix_bytes: PREFIXES[0] }
    }
}

/// Secret key of the salts of a store's WAL files. It never leaves the store: a copy has another one.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WalKey([u8; SALT_BYTES]);

/// Random-looking bytes that are in every record of one WAL file and nowhere else.
pub(crate) type Salt = [u8; SALT_BYTES];

impl Seed {
    /// Draws the seed of a new store.
    ///
    /// # Errors
    /// `Internal`: the kernel gives no random bytes. `FixInput`: filters are never made of so many bytes of a key.
    pub(crate) fn random(prefix_bytes: u32) -> Result<Self> {
        let unknown = || Error::new(ErrorKind::FixInput, format!("prefix_bytes={prefix_bytes}: 32 or 16 is possible"));
        random().and_then(|bytes| Self::from_bytes(&bytes, prefix_bytes).ok_or_else(unknown))
    }

    /// Makes a seed of its bytes. `None` if filters are never made of so many bytes of a key.
    pub(crate) fn from_bytes(bytes: &[u8; SEED_BYTES], prefix_bytes: u32) -> Option<Self> {
        let numbers = std::array::from_fn(|n| u128::from_le_bytes(std::array::from_fn(|i| bytes[16 * n + i])));
        let prefix_bytes = PREFIXES.into_iter().find(|possible| *possible == prefix_bytes as usize)?;
        Some(Self { numbers, prefix_bytes })
    }

    /// Number of leading bytes of a key that the filters hash.
    pub(crate) fn prefix_bytes(&self) -> usize {
        self.prefix_bytes
    }

    pub(crate) fn to_bytes(self) -> [u8; SEED_BYTES] {
        let mut bytes = [0; SEED_BYTES];
        bytes.chunks_exact_mut(16).zip(self.numbers).for_each(|(to, number)| to.copy_from_slice(&number.to_le_bytes()));
        bytes
    }

    /// Returns the hash of a key, which only a holder of the seed can predict.
    #[inline]
    pub(crate) fn hash(&self, key: &Key) -> u64 {
        let [s0, s1, s2, s3, s4] = &self.numbers;
        let word = |at: usize| u128::from(u64::from_le_bytes(std::array::from_fn(|i| key[at + i])));
        let products =
            [s0.wrapping_mul(word(0)), s1.wrapping_mul(word(8)), s2.wrapping_mul(word(16)), s3.wrapping_mul(word(24))];
        (products.into_iter().fold(*s4, u128::wrapping_add) >> 64) as u64
    }

    /// Returns the hash of a key for filters: that of the key with zeros after its prefix.
    #[inline]
    pub(crate) fn filter_hash(&self, key: &Key) -> u64 {
        if self.prefix_bytes == key.len() {
            return self.hash(key);
        }
        let mut prefix = [0; 32];
        prefix[..self.prefix_bytes].copy_from_slice(&key[..self.prefix_bytes]);
        self.hash(&prefix)
    }
}

impl WalKey {
    /// Draws the WAL key of a new store or of a copy.
    ///
    /// # Errors
    /// As [`Seed::random`].
    pub(crate) fn random() -> Result<Self> {
        random().map(Self)
    }

    pub(crate) const fn from_bytes(bytes: &[u8; SALT_BYTES]) -> Self {
        Self(*bytes)
    }

    pub(crate) fn to_bytes(self) -> [u8; SALT_BYTES] {
        self.0
    }

    /// Returns the salt of WAL file `file`. A number is never given twice, so each use of a file has a salt of its own.
    pub(crate) fn salt(&self, file: u64) -> Salt {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&file.to_le_bytes());
        hasher.finish128().as_bytes()
    }
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::with_source(ErrorKind::Internal, "cannot get random bytes from the kernel", e))?;
    Ok(bytes)
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed")
    }
}

impl fmt::Debug for WalKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WalKey")
    }
}

#[cfg(test)]
impl Seed {
    /// Returns a seed for tests that is always the same.
    pub(crate) fn fixed() -> Self {
        Self::fixed_with(32)
    }

    /// As [`Seed::fixed`], with filters of so many leading bytes of a key.
    pub(crate) fn fixed_with(prefix_bytes: u32) -> Self {
        let bytes = std::array::from_fn(|n| (n as u8).wrapping_mul(0x9d) ^ 0x5a);
        Self::from_bytes(&bytes, prefix_bytes).expect("32 or 16")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_come_back_from_their_bytes_and_are_never_shown() {
        let (seed, key) = (Seed::random(16).expect("random"), WalKey::random().expect("random"));
        assert!(Seed::from_bytes(&seed.to_bytes(), 16) == Some(seed) && WalKey::from_bytes(&key.to_bytes()) == key);
        assert!(seed != Seed::random(16).expect("random") && key != WalKey::random().expect("random"));
        assert_eq!(format!("{seed:?} {key:?}"), "Seed WalKey");
    }

    #[test]
    fn every_byte_of_a_key_and_every_number_of_the_seed_counts() {
        let (seed, key) = (Seed::fixed(), [0x33; 32]);
        let hash = seed.hash(&key);
        for bit in 0..256 {
            let mut other = key;
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(seed.hash(&other), hash, "bit={bit}");
        }
        for number in 0..5 {
            let mut other = seed;
            // A bit above the half that is cut off.
            other.numbers[number] ^= 1 << 100;
            assert_ne!(other.hash(&key), hash, "number={number}");
        }
        let (short, mut other) = (Seed::fixed_with(16), key);
        other[16..].fill(1);
        assert!(short.filter_hash(&key) == short.filter_hash(&other) && short.hash(&key) == hash);
        other[15] ^= 1;
        assert!(short.filter_hash(&key) != short.filter_hash(&other) && seed.filter_hash(&key) == hash);
        assert!(Seed::from_bytes(&seed.to_bytes(), 8).is_none() && Seed::random(0).is_err());
    }

    #[test]
    fn salts_differ_between_files_and_between_stores() {
        let (one, other) = (WalKey::from_bytes(&[1; 16]), WalKey::from_bytes(&[2; 16]));
        assert_ne!(one.salt(1), one.salt(2));
        assert_ne!(one.salt(1), other.salt(1));
        assert_eq!(one.salt(7), one.salt(7));
    }
}
