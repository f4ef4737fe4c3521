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

/// Most changes of a transaction whose lists are kept for the next one: they take some 8 MiB.
const KEPT_OPS_MAX: usize = 1 << 16;
/// Lists are kept only if the transaction has filled 1/KEPT_SHARE of them, because emptying them costs as much as they
/// have room for.
const KEPT_SHARE: usize = 8;

pub(crate) struct StrataTxn<'e> {
    shared: &'e Shared,
    writer: MutexGuard<'e, Writer>,
    lists: Lists,
    lookup: Lookup,
}

/// The changes of a transaction. The writer keeps the empty lists, so that no put waits for them to grow to the usual
/// size.
pub(crate) struct Lists {
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

impl Lists {
    pub(crate) fn new(seed: Seed) -> Self {
        Self { ops: Vec::new(), places: HashMap::with_hasher(Hashed { seed, hash: 0 }) }
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

impl<'e> StrataTxn<'e> {
    pub(crate) fn new(shared: &'e Shared, mut writer: MutexGuard<'e, Writer>) -> Self {
        let none = Lists::new(shared.memory.reads.seed);
        let lists = std::mem::replace(writer.lists(), none);
        Self { shared, writer, lists, lookup: Lookup::new(&shared.memory.reads) }
    }
}

impl Drop for StrataTxn<'_> {
    fn drop(&mut self) {
        let room = self.lists.places.capacity();
        if room <= KEPT_OPS_MAX && self.lists.ops.len() * KEPT_SHARE >= room {
            self.lists.ops.clear();
            self.lists.places.clear();
            std::mem::swap(self.writer.lists(), &mut self.lists);
        }
    }
}

impl WriteTxn for StrataTxn<'_> {
    fn get(&mut self, key: &Key) -> Result<Option<Value>> {
        match self.lists.places.get(key) {
            Some(place) => Ok(self.lists.ops[*place].1),
            None => self.shared.common.newest.load().get(key, &mut self.lookup),
        }
    }

    fn put(&mut self, key: &Key, value: &Value) -> Result<()> {
        self.lists.set(key, Some(*value))
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        self.lists.set(key, None)
    }

    fn commit(mut self: Box<Self>, checkpoint: &Checkpoint, durability: Durability) -> Result<()> {
        let synced = durability == Durability::Synced;
        let Self { shared, writer, lists, .. } = &mut *self;
        shared.commits.commit(writer, &lists.ops, checkpoint, synced)
    }
}
