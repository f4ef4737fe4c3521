//! The write transaction and the sorted bulk path: the only two ways pairs enter the store.
//!
//! Runs on the thread that began it, because LMDB's writer lock is a mutex that belongs to its thread.

use std::collections::BTreeMap;

use engine_api::{BulkLoad, Checkpoint, Durability, Error, ErrorKind, Key, Result, Value, WriteTxn};
use lmdb::{RwTransaction, Transaction, WriteFlags};
use parking_lot::MutexGuard;

use crate::engine::{CHECKPOINT, LmdbEngine};
use crate::map::MapGuard;
use crate::reader::get;

pub(crate) struct LmdbTxn<'e> {
    engine: &'e LmdbEngine,
    txn: RwTransaction<'e>,
    /// Changes of a batch that is sorted; `None` marks a key to delete. Empty if batches are not sorted.
    held: BTreeMap<Key, Option<Value>>,
    // Rust drops these two after `txn`, in this order. The map may move, and the next writer may begin, only once `txn`
    // has ended.
    _map: MapGuard<'e>,
    _writer: MutexGuard<'e, ()>,
}

impl<'e> LmdbTxn<'e> {
    /// Waits for the previous writer, grows the map if it is short, and begins the transaction.
    pub(crate) fn begin(engine: &'e LmdbEngine) -> Result<Self> {
        let writer = engine.lock_writer();
        engine.check_writable()?;
        engine.map().grow_when_short(engine.env())?;
        let map = engine.map().hold();
        let txn = engine.env().begin_rw_txn().map_err(|e| engine.failed("LMDB cannot begin a write", e))?;
        // A file that has grown too large never becomes smaller.
        if engine.readahead().is_on() {
            engine.read_ahead_while_small(&txn)?;
        }
        Ok(Self { engine, txn, held: BTreeMap::new(), _map: map, _writer: writer })
    }

    /// Puts the pair, or deletes the key if there is no value.
    fn apply(&mut self, key: &Key, value: Option<&Value>) -> Result<()> {
        let (engine, pairs) = (self.engine, self.engine.pairs());
        if let Some(value) = value {
            let put = self.txn.put(pairs, key, value, WriteFlags::empty());
            return put.map_err(|e| engine.failed("LMDB put failed", e));
        }
        match self.txn.del(pairs, key, None) {
            Ok(()) | Err(lmdb::Error::NotFound) => Ok(()),
            Err(e) => Err(engine.failed("LMDB delete failed", e)),
        }
    }

    /// Applies a change now, or holds it until the commit if batches are sorted.
    fn change(&mut self, key: &Key, value: Option<&Value>) -> Result<()> {
        if self.engine.sorts_batches() {
            self.held.insert(*key, value.copied());
            return Ok(());
        }
        self.apply(key, value)
    }

    /// Writes the held changes and `checkpoint`, and commits.
    fn finish(mut self, checkpoint: &Checkpoint, durability: Durability) -> Result<()> {
        let engine = self.engine;
        for (key, value) in std::mem::take(&mut self.held) {
            self.apply(&key, value.as_ref())?;
        }
        let encoded = checkpoint.encode()?;
        self.txn
            .put(engine.meta(), CHECKPOINT, &encoded, WriteFlags::empty())
            .map_err(|e| engine.failed("LMDB cannot write the checkpoint", e))?;
        engine.set_meta_sync(&self.txn, durability == Durability::Synced)?;
        let Self { txn, _map, _writer, .. } = self;
        txn.commit().map_err(|e| engine.commit_failed(e))?;
        engine.commits.add();
        Ok(())
    }
}

impl WriteTxn for LmdbTxn<'_> {
    fn get(&mut self, key: &Key) -> Result<Option<Value>> {
        match self.held.get(key) {
            Some(value) => Ok(*value),
            None => get(&self.txn, self.engine.pairs(), key),
        }
    }

    fn put(&mut self, key: &Key, value: &Value) -> Result<()> {
        self.change(key, Some(value))
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        self.change(key, None)
    }

    fn commit(self: Box<Self>, checkpoint: &Checkpoint, durability: Durability) -> Result<()> {
        (*self).finish(checkpoint, durability)
    }
}

impl BulkLoad for LmdbEngine {
    /// Appends with `MDB_APPEND`, which searches for no key and fills every leaf.
    fn load_sorted(&self, pairs: &[(Key, Value)], checkpoint: &Checkpoint) -> Result<()> {
        checkpoint.check()?;
        let mut open = LmdbTxn::begin(self)?;
        let mut cursor =
            open.txn.open_rw_cursor(self.pairs()).map_err(|e| self.failed("LMDB cannot open a cursor", e))?;
        for (key, value) in pairs {
            cursor.put(key, value, WriteFlags::APPEND).map_err(|e| match e {
                lmdb::Error::KeyExist => Error::with_source(
                    ErrorKind::FixInput,
                    "LMDB sorted load failed: keys must ascend strictly and be greater than every key in the store",
                    e,
                ),
                e => self.failed("LMDB sorted load failed", e),
            })?;
        }
        drop(cursor);
        open.finish(checkpoint, Durability::Synced)
    }
}
