//! The write transaction and the sorted bulk path: the only two ways pairs enter the store.
//!
//! Runs on the caller's thread; redb lets one write transaction exist at a time and makes the next wait.

use std::collections::BTreeMap;
use std::ops::Bound;

use engine_api::{BulkLoad, Checkpoint, Durability, Key, Result, Value, WriteTxn};
use redb::{Database, ReadableTable, StorageError, Table, WriteTransaction};
use self_cell::self_cell;

use crate::damage::caught;
use crate::engine::RedbEngine;
use crate::{Bytes32, CHECKPOINT, META, PAIRS, error};

type PairsTable<'txn> = Table<'txn, Bytes32, Bytes32>;

self_cell!(
    /// A write transaction with its pairs table open: the table borrows from the transaction.
    struct OpenTxn {
        owner: WriteTransaction,
        #[not_covariant]
        dependent: PairsTable,
    }
);

pub(crate) struct RedbTxn<'e> {
    engine: &'e RedbEngine,
    open: OpenTxn,
    /// Changes of a batch that is sorted; `None` marks a key to delete. Empty if batches are not sorted.
    held: BTreeMap<Key, Option<Value>>,
}

impl<'e> RedbTxn<'e> {
    pub(crate) fn begin(engine: &'e RedbEngine) -> Result<Self> {
        let txn = begin(engine.db()?)?;
        let open = OpenTxn::try_new(txn, |txn| {
            txn.open_table(PAIRS).map_err(|e| error::table("redb cannot open the pairs table", e))
        })?;
        Ok(Self { engine, open, held: BTreeMap::new() })
    }

    /// Calls `call` with the table of pairs. Damage that redb runs into poisons the engine, because the changes that
    /// the transaction has made in memory are unknown then.
    fn with_pairs<T>(
        &mut self,
        what: &str,
        call: impl FnOnce(&mut PairsTable<'_>) -> Result<T, StorageError>,
    ) -> Result<T> {
        let engine = self.engine;
        let call = || self.open.with_dependent_mut(|_, pairs| call(pairs).map_err(|e| error::storage(what, e)));
        caught(what, call).inspect_err(|error| engine.poison_if_damaged(error))
    }

    /// Puts the pair, or deletes the key if there is no value.
    fn apply(&mut self, key: &Key, value: Option<&Value>) -> Result<()> {
        match value {
            Some(value) => self.with_pairs("redb put failed", |pairs| pairs.insert(key, value).map(drop)),
            None => self.with_pairs("redb delete failed", |pairs| pairs.remove(key).map(drop)),
        }
    }

    /// Applies a change now, or holds it until the commit if batches are sorted.
    fn change(&mut self, key: &Key, value: Option<&Value>) -> Result<()> {
        if self.engine.options().sort_batches {
            self.held.insert(*key, value.copied());
            return Ok(());
        }
        self.apply(key, value)
    }
}

impl WriteTxn for RedbTxn<'_> {
    fn get(&mut self, key: &Key) -> Result<Option<Value>> {
        if let Some(value) = self.held.get(key) {
            return Ok(*value);
        }
        self.with_pairs("redb get failed", |pairs| Ok(pairs.get(key)?.map(|value| *value.value())))
    }

    fn put(&mut self, key: &Key, value: &Value) -> Result<()> {
        self.change(key, Some(value))
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        self.change(key, None)
    }

    /// Ignores `_durability`, because both levels are redb's `Immediate`: see the crate's documentation.
    fn commit(mut self: Box<Self>, checkpoint: &Checkpoint, _durability: Durability) -> Result<()> {
        for (key, value) in std::mem::take(&mut self.held) {
            self.apply(&key, value.as_ref())?;
        }
        let Self { engine, open, .. } = *self;
        // This closes the table, which hands its root back to the transaction.
        caught("redb commit failed", || commit(engine, open.into_owner(), checkpoint))
            .inspect_err(|error| engine.poison_if_damaged(error))
    }
}

impl BulkLoad for RedbEngine {
    fn load_sorted(&self, pairs: &[(Key, Value)], checkpoint: &Checkpoint) -> Result<()> {
        checkpoint.check()?;
        self.check_writable()?;
        let load = || {
            let txn = begin(self.db()?)?;
            append(&txn, pairs.iter().map(|(key, value)| (key, value)))?;
            commit(self, txn, checkpoint)
        };
        caught("redb sorted load failed", load).inspect_err(|error| self.poison_if_damaged(error))
    }
}

/// Begins a write transaction with quick repair. Waits for the one before it to end.
pub(crate) fn begin(db: &Database) -> Result<WriteTransaction> {
    let mut txn = db.begin_write().map_err(|e| error::transaction("redb cannot begin a write", e))?;
    txn.set_quick_repair(true);
    Ok(txn)
}

/// Appends pairs through a cursor at the table's end. This is about three times as fast as inserts, and leaves stay
/// full.
///
/// # Errors
/// `FixInput` if a key is not greater than the one before it, or than the last key in the store.
pub(crate) fn append<'p>(txn: &WriteTransaction, pairs: impl IntoIterator<Item = (&'p Key, &'p Value)>) -> Result<()> {
    const WHAT: &str = "redb sorted load failed";
    let mut table = txn.open_table(PAIRS).map_err(|e| error::table(WHAT, e))?;
    let mut cursor = table.upper_bound_mut(Bound::<Bytes32>::Unbounded).map_err(|e| error::storage(WHAT, e))?;
    for (key, value) in pairs {
        cursor.insert_before(key, value).map_err(|e| error::cursor(WHAT, e))?;
    }
    cursor.close().map_err(|e| error::storage(WHAT, e))
}

pub(crate) fn put_checkpoint(txn: &WriteTransaction, checkpoint: &Checkpoint) -> Result<()> {
    const WHAT: &str = "redb cannot write the checkpoint";
    let encoded = checkpoint.encode()?;
    let mut meta = txn.open_table(META).map_err(|e| error::table(WHAT, e))?;
    meta.insert(CHECKPOINT, encoded.as_slice()).map(drop).map_err(|e| error::storage(WHAT, e))
}

/// Commits `txn` with `checkpoint`. A failed commit poisons the engine, unless redb has rolled the transaction back.
fn commit(engine: &RedbEngine, mut txn: WriteTransaction, checkpoint: &Checkpoint) -> Result<()> {
    put_checkpoint(&txn, checkpoint)?;
    txn.set_quick_repair(engine.options().repairs_quickly(engine.commits.count() + 1));
    match txn.commit() {
        Ok(()) => {
            engine.commits.add();
            Ok(())
        }
        Err(rolled_back @ redb::CommitError::TransactionPoisoned) => Err(error::commit(rolled_back)),
        Err(failed) => {
            engine.poison.set();
            Err(error::commit(failed))
        }
    }
}
