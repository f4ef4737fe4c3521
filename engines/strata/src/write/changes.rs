//! The changes of a transaction until it commits: distinct keys in the order in which they were first written.
//!
//! Owns: the lists, and whether they are kept for the next transaction. Must not: know the store. Runs on the thread of the
//! transaction.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use engine_api::{Key, Result, Value};

use crate::format::secret::Seed;
use crate::format::wal::refuse_too_large;

/// Most changes of a transaction whose lists are kept for the next one: they take some 8 MiB.
const KEPT_OPS_MAX: usize = 1 << 16;
/// Lists are kept only if the transaction has filled 1/KEPT_SHARE of them, because emptying them costs as much as they
/// have room for.
const KEPT_SHARE: usize = 8;

/// The changes of a transaction. The writer keeps the empty lists, so that no put waits for them to grow to the usual
/// size.
pub(crate) struct Changes {
    ops: Vec<(Key, Option<Value>)>,
    /// Index in `ops` of each key.
    places: HashMap<Key, usize, Hashed>,
}

/// A hasher of keys that uses the store's seed, as everything else in this engine does.
#[derive(Clone, Copy)]
struct Hashed {
    seed: Seed,
    hash: u64,
}

impl std::hash::BuildHasher for Hashed {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        *self
    }
}

impl std::hash::Hasher for Hashed {
    fn write(&mut self, bytes: &[u8]) {
        if let Ok(key) = bytes.try_into() {
            self.hash = self.seed.hash(key);
        }
    }

    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        self.hash
    }
}

impl Changes {
    pub(crate) fn new(seed: Seed) -> Self {
        Self { ops: Vec::new(), places: HashMap::with_hasher(Hashed { seed, hash: 0 }) }
    }

    pub(crate) fn set(&mut self, key: &Key, value: Option<Value>) -> Result<()> {
        match self.places.entry(*key) {
            Entry::Occupied(place) => self.ops[*place.get()].1 = value,
            Entry::Vacant(place) => {
                refuse_too_large(self.ops.len() + 1)?;
                place.insert(self.ops.len());
                self.ops.push((*key, value));
            }
        }
        Ok(())
    }

    /// Returns all changes so far.
    pub(crate) fn ops(&self) -> &[(Key, Option<Value>)] {
        &self.ops
    }

    /// Returns the change of a key, if there is one.
    pub(crate) fn get(&self, key: &Key) -> Option<Option<Value>> {
        self.places.get(key).map(|place| self.ops[*place].1)
    }

    /// Removes all changes. Returns whether the lists are worth keeping for another transaction.
    pub(crate) fn empty(&mut self) -> bool {
        let room = self.places.capacity();
        let is_kept = room <= KEPT_OPS_MAX && self.ops.len() * KEPT_SHARE >= room;
        if is_kept {
            self.ops.clear();
            self.places.clear();
        }
        is_kept
    }
}
