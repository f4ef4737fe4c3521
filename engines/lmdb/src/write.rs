//! The write transaction and the sorted bulk path: the only two ways pairs enter the store.
//!
//! Runs on the thread that began it, because LMDB's writer lock is a mutex that belongs to its thread.

use std::collections::BTreeMap;

use engine_api::{Checkpoint, Durability, Error, ErrorKind, Key, Result, Value, WriteTxn};
use lmdb::{RwTransaction, Transaction, WriteFlags};
use parking_lot::MutexGuard;

use crate::store::Store;
use crate::tables::{CHECKPOINT, get};

pub(crate) struct LmdbTxn<'e> {
    store: &'e Store,
    txn: RwTransaction<'e>,
    /// Changes of a batch that is sorted; `None` marks a key to delete. Empty if batches are not sorted.
    held: BTreeMap<Key, Option<Value>>,
    // Rust drops it after `txn`. The next writer may begin only once `txn` has ended.
    _writer: MutexGuard<'e, ()>,
}

impl<'e> LmdbTxn<'e> {
    /// Waits for the previous writer and begins the transaction.
    pub(crate) fn begin(store: &'e Store) -> Result<Self> {
        let writer = store.writer.lock();
        store.check_writable()?;
        let txn = store.env.begin_rw_txn().map_err(|e| store.failed("LMDB cannot begin a write", e))?;
        // A file that has grown too large never becomes smaller.
        if store.readahead.is_on() {
            store.readahead.switch(&store.env, store.main, &txn)?;
        }
        Ok(Self { store, txn, held: BTreeMap::new(), _writer: writer })
    }

    /// Puts the pair, or deletes the key if there is no value.
    fn apply(&mut self, key: &Key, value: Option<&Value>) -> Result<()> {
        let (store, pairs) = (self.store, self.store.pairs);
        if let Some(value) = value {
            let put = self.txn.put(pairs, key, value, WriteFlags::empty());
            return put.map_err(|e| store.failed("LMDB put failed", e));
        }
        match self.txn.del(pairs, key, None) {
            Ok(()) | Err(lmdb::Error::NotFound) => Ok(()),
            Err(e) => Err(store.failed("LMDB delete failed", e)),
        }
    }

    /// Applies a change now, or holds it until the commit if batches are sorted.
    fn change(&mut self, key: &Key, value: Option<&Value>) -> Result<()> {
        if self.store.options.sort_batches {
            self.held.insert(*key, value.copied());
            return Ok(());
        }
        self.apply(key, value)
    }

    /// Writes the held changes and `checkpoint`, and commits.
    fn finish(mut self, checkpoint: &Checkpoint, durability: Durability) -> Result<()> {
        let store = self.store;
        for (key, value) in std::mem::take(&mut self.held) {
            self.apply(&key, value.as_ref())?;
        }
        let encoded = checkpoint.encode()?;
        self.txn
            .put(store.meta, CHECKPOINT, &encoded, WriteFlags::empty())
            .map_err(|e| store.failed("LMDB cannot write the checkpoint", e))?;
        store.set_meta_sync(&self.txn, durability == Durability::Synced)?;
        let Self { txn, _writer, .. } = self;
        txn.commit().map_err(|e| store.commit_failed(e))?;
        store.commits.add();
        Ok(())
    }
}

impl WriteTxn for LmdbTxn<'_> {
    fn get(&mut self, key: &Key) -> Result<Option<Value>> {
        match self.held.get(key) {
            Some(value) => Ok(*value),
            None => get(&self.txn, self.store.pairs, key),
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

/// Appends pairs with `MDB_APPEND`, which searches for no key and fills every leaf, and commits them with `checkpoint`.
pub(crate) fn load_sorted(store: &Store, pairs: &[(Key, Value)], checkpoint: &Checkpoint) -> Result<()> {
    checkpoint.check()?;
    let mut open = LmdbTxn::begin(store)?;
    let mut cursor = open.txn.open_rw_cursor(store.pairs).map_err(|e| store.failed("LMDB cannot open a cursor", e))?;
    for (key, value) in pairs {
        cursor.put(key, value, WriteFlags::APPEND).map_err(|e| match e {
            lmdb::Error::KeyExist => Error::with_source(
                ErrorKind::FixInput,
                "LMDB sorted load failed: keys must ascend strictly and be greater than every key in the store",
                e,
            ),
            e => store.failed("LMDB sorted load failed", e),
        })?;
    }
    drop(cursor);
    open.finish(checkpoint, Durability::Synced)
}
