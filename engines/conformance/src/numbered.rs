//! Pairs by number, for the tests of one engine: ranges of them committed, sorted and read back.
//!
//! Owns: the naming of pairs and checkpoints. Must not: hide an error; every function panics with the engine's own.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use engine_api::{Checkpoint, Durability, Engine, Key, Value};

use crate::support::{reader, scan};

/// Returns a key that ends with its number and is unrelated in order to those of neighbouring numbers.
pub fn key(number: u64) -> Key {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[24..].copy_from_slice(&number.to_be_bytes());
    key
}

pub fn value(number: u64) -> Value {
    key(!number)
}

pub fn at(seq: u64) -> Checkpoint {
    Checkpoint::new(seq, &[seq as u8; 40])
}

/// Puts the pairs `from..to` in one batch, which ends at the checkpoint `at(to)`.
pub fn commit(engine: &dyn Engine, from: u64, to: u64, durability: Durability) {
    let mut txn = engine.begin().unwrap();
    for number in from..to {
        txn.put(&key(number), &value(number)).unwrap();
    }
    txn.commit(&at(to), durability).unwrap();
}

/// Returns the pairs `from..to` in the order of their keys.
pub fn sorted(from: u64, to: u64) -> Vec<(Key, Value)> {
    let mut pairs: Vec<_> = (from..to).map(|number| (key(number), value(number))).collect();
    pairs.sort_unstable();
    pairs
}

/// Returns all pairs of the newest commit, in the order of a scan.
pub fn all(engine: &dyn Engine) -> Vec<(Key, Value)> {
    scan(&mut *reader(engine)).into_iter().collect()
}
