//! The write transaction: distinct keys in the order they were first written, applied as one batch.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use engine_api::{Checkpoint, Durability, Key, Result, Value, WriteTxn};
use parking_lot::MutexGuard;

use crate::format::secret::Seed;
use crate::format::wal::refuse_too_large;
use crate::read::lookup::Lookup;
use crate::write::commits::Writer;
use crate::write::shared::Shared;

pub(crate) struct StrataTxn<'e> {
    shared: &'e Shared,
    writer: MutexGuard<'e, Writer>,
    ops: Vec<(Key, Option<Value>)>,
    /// Index in `ops` of each key.
    places: HashMap<Key, usize, Hashed<'e>>,
    lookup: Lookup,
}

/// A hasher of keys that uses the store's seed, as everything else in this engine does.
#[derive(Clone, Copy)]
struct Hashed<'e> {
    seed: &'e Seed,
    hash: u64,
}

impl std::hash::BuildHasher for Hashed<'_> {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        *self
    }
}

impl std::hash::Hasher for Hashed<'_> {
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

impl<'e> StrataTxn<'e> {
    pub(crate) fn new(shared: &'e Shared, writer: MutexGuard<'e, Writer>) -> Self {
        let lookup = Lookup::new(&shared.memory.reads);
        let places = HashMap::with_hasher(Hashed { seed: &shared.memory.reads.seed, hash: 0 });
        Self { shared, writer, ops: Vec::new(), places, lookup }
    }

    fn set(&mut self, key: &Key, value: Option<Value>) -> Result<()> {
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
}

impl WriteTxn for StrataTxn<'_> {
    fn get(&mut self, key: &Key) -> Result<Option<Value>> {
        match self.places.get(key) {
            Some(place) => Ok(self.ops[*place].1),
            None => self.shared.common.newest.load().get(key, &mut self.lookup),
        }
    }

    fn put(&mut self, key: &Key, value: &Value) -> Result<()> {
        self.set(key, Some(*value))
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        self.set(key, None)
    }

    fn commit(mut self: Box<Self>, checkpoint: &Checkpoint, durability: Durability) -> Result<()> {
        let synced = durability == Durability::Synced;
        self.shared.commits.commit(&mut self.writer, &self.ops, checkpoint, synced)
    }
}
