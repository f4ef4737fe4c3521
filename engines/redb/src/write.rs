//! The write transaction and the sorted bulk path: the only two ways pairs enter the store.
//!
//! Runs on the caller's thread; redb lets one write transaction exist at a time and makes the next wait.

use std::collections::BTreeMap;

use engine_api::{Checkpoint, Durability, Key, Result, Value, WriteTxn};
use redb::{ReadableTable, StorageError, Table, WriteTransaction};
use self_cell::self_cell;

use crate::damage::caught;
use crate::error;
use crate::file::begin;
use crate::store::Store;
use crate::tables::{Bytes32, PAIRS, append, put_checkpoint};

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
    store: &'e Store,
    open: OpenTxn,
    /// Changes of a batch that is sorted; `None` marks a key to delete. Empty if batches are not sorted.
    held: BTreeMap<Key, Option<Value>>,
}

impl<'e> RedbTxn<'e> {
    pub(crate) fn begin(store: &'e Store) -> Result<Self> {
        let txn = begin(store.db()?)?;
        let open = OpenTxn::try_new(txn, |txn| {
            txn.open_table(PAIRS).map_err(|e| error::table("redb cannot open the pairs table", e))
        })?;
        Ok(Self { store, open, held: BTreeMap::new() })
    }

    /// Calls `call` with the table of pairs. Damage that redb runs into poisons the engine, because the changes that
    /// the transaction has made in memory are unknown then.
    fn with_pairs<T>(
        &mut self,
        what: &str,
        call: impl FnOnce(&mut PairsTable<'_>) -> Result<T, StorageError>,
    ) -> Result<T> {
        let store = self.store;
        let call = || self.open.with_dependent_mut(|_, pairs| call(pairs).map_err(|e| error::storage(what, e)));
        caught(what, call).inspect_err(|error| store.poison_if_damaged(error))
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
        if self.store.options.sort_batches {
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
        let Self { store, open, .. } = *self;
        // This closes the table, which hands its root back to the transaction.
        caught("redb commit failed", || commit(store, open.into_owner(), checkpoint))
            .inspect_err(|error| store.poison_if_damaged(error))
    }
}

/// Appends the pairs in one transaction, and commits them with `checkpoint`.
pub(crate) fn load_sorted(store: &Store, pairs: &[(Key, Value)], checkpoint: &Checkpoint) -> Result<()> {
    checkpoint.check()?;
    store.check_writable()?;
    let load = || {
        let txn = begin(store.db()?)?;
        append(&txn, pairs.iter().map(|(key, value)| (key, value)))?;
        commit(store, txn, checkpoint)
    };
    caught("redb sorted load failed", load).inspect_err(|error| store.poison_if_damaged(error))
}

/// Commits `txn` with `checkpoint`. A failed commit poisons the engine, unless redb has rolled the transaction back.
fn commit(store: &Store, mut txn: WriteTransaction, checkpoint: &Checkpoint) -> Result<()> {
    put_checkpoint(&txn, checkpoint)?;
    txn.set_quick_repair(store.options.repairs_quickly(store.commits.count() + 1));
    match txn.commit() {
        Ok(()) => {
            store.commits.add();
            Ok(())
        }
        Err(rolled_back @ redb::CommitError::TransactionPoisoned) => Err(error::commit(rolled_back)),
        Err(failed) => {
            store.poison.set();
            Err(error::commit(failed))
        }
    }
}
