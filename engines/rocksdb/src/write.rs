//! The write transaction: one RocksDB batch, and a map of its changes by key, so that it reads its own writes.

use std::collections::HashMap;

use engine_api::{Checkpoint, Durability, Key, Result, Value, WriteTxn};
use foldhash::fast::RandomState;
use parking_lot::MutexGuard;
use rocksdb::{ReadOptions, WriteBatch, WriteOptions};

use crate::store::Store;
use crate::{CHECKPOINT_KEY, error, reader};

/// Number of pairs in an ordinary batch. Room for them is allocated at once.
const BATCH_PAIRS: usize = 1024;

pub(crate) struct RocksdbTxn<'e> {
    store: &'e Store,
    /// Empty until the commit if batches are sorted.
    batch: WriteBatch,
    /// Changes of this batch; `None` marks a deleted key. The standard library's hasher would cost as much as the batch
    /// itself; this one has a seed of its own in each map.
    pending: HashMap<Key, Option<Value>, RandomState>,
    options: ReadOptions,
    _writer: MutexGuard<'e, ()>,
}

impl<'e> RocksdbTxn<'e> {
    pub(crate) fn new(store: &'e Store, writer: MutexGuard<'e, ()>) -> Self {
        Self {
            store,
            batch: WriteBatch::default(),
            pending: HashMap::with_capacity_and_hasher(BATCH_PAIRS, RandomState::default()),
            options: ReadOptions::default(),
            _writer: writer,
        }
    }
}

impl WriteTxn for RocksdbTxn<'_> {
    fn get(&mut self, key: &Key) -> Result<Option<Value>> {
        match self.pending.get(key) {
            Some(value) => Ok(*value),
            None => reader::get(&self.store.db, key, &self.options),
        }
    }

    fn put(&mut self, key: &Key, value: &Value) -> Result<()> {
        if !self.store.sorts_batches {
            self.batch.put(key, value);
        }
        self.pending.insert(*key, Some(*value));
        Ok(())
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        if !self.store.sorts_batches {
            self.batch.delete(key);
        }
        self.pending.insert(*key, None);
        Ok(())
    }

    fn commit(self: Box<Self>, checkpoint: &Checkpoint, durability: Durability) -> Result<()> {
        let Self { store, mut batch, pending, _writer, .. } = *self;
        if store.sorts_batches {
            add_sorted(&mut batch, pending);
        }
        batch.put(CHECKPOINT_KEY, checkpoint.encode()?);
        write(store, batch, durability)
    }
}

/// Adds the changes in key order, so that each is inserted into the memtable near the one before it.
fn add_sorted(batch: &mut WriteBatch, pending: HashMap<Key, Option<Value>, RandomState>) {
    let mut changes: Vec<_> = pending.into_iter().collect();
    changes.sort_unstable_by_key(|(key, _)| *key);
    for (key, value) in &changes {
        match value {
            Some(value) => batch.put(key, value),
            None => batch.delete(key),
        }
    }
}

/// Writes `batch` to the log and the memtable, and poisons the engine if that fails. The caller holds the writer's
/// lock.
pub(crate) fn write(store: &Store, batch: WriteBatch, durability: Durability) -> Result<()> {
    let mut options = WriteOptions::default();
    options.set_sync(durability == Durability::Synced);
    store.db.write_opt(batch, &options).map_err(|e| {
        store.poison.set();
        error::write("RocksDB cannot commit", e)
    })
}
