//! The reader: one read transaction with its table kept open, which `refresh` moves to a newer snapshot.
//!
//! Runs on the thread that opened it.

use std::ops::ControlFlow;

use engine_api::{Checkpoint, Key, Reader, Result, Value, Visitor, one_slot_per_key};
use engine_kit::KeyOrder;
use redb::ReadTransaction;

use crate::damage::{caught, uncaught};
use crate::error;
use crate::store::Store;
use crate::tables::{PairsReadOnly, read_checkpoint};

pub(crate) struct RedbReader<'e> {
    store: &'e Store,
    /// Commit count of the store before the snapshot was taken. The snapshot is at least that new.
    commits_seen: u64,
    txn: ReadTransaction,
    pairs: PairsReadOnly,
    order: KeyOrder,
}

impl<'e> RedbReader<'e> {
    pub(crate) fn open(store: &'e Store) -> Result<Self> {
        let commits_seen = store.commits.count();
        let (txn, pairs) = store.open_snapshot()?;
        Ok(Self { store, commits_seen, txn, pairs, order: KeyOrder::default() })
    }
}

impl Reader for RedbReader<'_> {
    fn get(&mut self, key: &Key) -> Result<Option<Value>> {
        const WHAT: &str = "redb get failed";
        caught(WHAT, || {
            let found = self.pairs.get(key).map_err(|e| error::storage(WHAT, e))?;
            Ok(found.map(|value| *value.value()))
        })
    }

    fn get_many(&mut self, keys: &[Key], values: &mut [Option<Value>]) -> Result<()> {
        const WHAT: &str = "redb batch of gets failed";
        one_slot_per_key(keys, values)?;
        let Self { pairs, order, .. } = self;
        caught(WHAT, || {
            for at in order.of(keys) {
                let found = pairs.get(&keys[at]).map_err(|e| error::storage(WHAT, e))?;
                values[at] = found.map(|value| *value.value());
            }
            Ok(())
        })
    }

    fn scan_from(&mut self, first: &Key, visit: &mut Visitor<'_>) -> Result<()> {
        const WHAT: &str = "redb scan failed";
        caught(WHAT, || {
            for pair in self.pairs.range::<&Key>(first..).map_err(|e| error::storage(WHAT, e))? {
                let (key, value) = pair.map_err(|e| error::storage(WHAT, e))?;
                if let ControlFlow::Break(()) = uncaught(|| visit(key.value(), value.value())) {
                    break;
                }
            }
            Ok(())
        })
    }

    fn checkpoint(&mut self) -> Result<Checkpoint> {
        caught("redb cannot read the checkpoint", || read_checkpoint(&self.txn))
    }

    fn refresh(&mut self) -> Result<()> {
        // Taking a snapshot costs a lock and a walk of the table catalogue. Between commits it would return the same
        // one again.
        let commits = self.store.commits.count();
        if commits != self.commits_seen {
            (self.txn, self.pairs) = caught("redb cannot begin a read", || self.store.open_snapshot())?;
            self.commits_seen = commits;
        }
        Ok(())
    }
}
