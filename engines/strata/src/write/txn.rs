//! The write transaction: distinct keys in the order they were first written, applied as one batch.

use engine_api::{Checkpoint, Durability, Key, Result, Value, WriteTxn};
use parking_lot::MutexGuard;

use crate::read::lookup::Lookup;
use crate::write::changes::Changes;
use crate::write::commits::Writer;
use crate::write::shared::Shared;

pub(crate) struct StrataTxn<'e> {
    shared: &'e Shared,
    writer: MutexGuard<'e, Writer>,
    changes: Changes,
    lookup: Lookup,
}

impl<'e> StrataTxn<'e> {
    pub(crate) fn new(shared: &'e Shared, mut writer: MutexGuard<'e, Writer>) -> Self {
        let none = Changes::new(shared.memory.reads.seed);
        let changes = std::mem::replace(writer.changes(), none);
        Self { shared, writer, changes, lookup: Lookup::new(&shared.memory.reads) }
    }
}

impl Drop for StrataTxn<'_> {
    fn drop(&mut self) {
        if self.changes.empty() {
            std::mem::swap(self.writer.changes(), &mut self.changes);
        }
    }
}

impl WriteTxn for StrataTxn<'_> {
    fn get(&mut self, key: &Key) -> Result<Option<Value>> {
        match self.changes.get(key) {
            Some(changed) => Ok(changed),
            None => self.shared.common.newest.load().get(key, &mut self.lookup),
        }
    }

    fn put(&mut self, key: &Key, value: &Value) -> Result<()> {
        self.changes.set(key, Some(*value))
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        self.changes.set(key, None)
    }

    fn commit(mut self: Box<Self>, checkpoint: &Checkpoint, durability: Durability) -> Result<()> {
        let synced = durability == Durability::Synced;
        let Self { shared, writer, changes, .. } = &mut *self;
        shared.commits.commit(writer, changes.ops(), checkpoint, synced)
    }
}
