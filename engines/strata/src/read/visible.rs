//! What readers see: the memtables and the version of one moment.
//!
//! Owns: the order in which a key is looked for. Must not: change; a new moment is a new value.

use std::sync::Arc;

use engine_api::{Checkpoint, Key, Result, Value};

use crate::read::cursor::Cursor;
use crate::read::lookup::Lookup;
use crate::read::version::Version;
use crate::write::mem::Mem;

/// What a reader sees: whole batches, nothing else.
#[derive(Clone)]
pub(crate) struct Visible {
    pub(crate) active: Arc<Mem>,
    /// Entries of it that are committed.
    pub(crate) length: usize,
    /// Newest first.
    pub(crate) frozen: Vec<Arc<Frozen>>,
    pub(crate) version: Arc<Version>,
    pub(crate) checkpoint: Checkpoint,
}

/// A memtable that is complete and waits for its flush.
pub(crate) struct Frozen {
    pub(crate) mem: Arc<Mem>,
    pub(crate) length: usize,
    pub(crate) wal_id: u64,
    pub(crate) batch: u64,
    pub(crate) checkpoint: Checkpoint,
}

impl Visible {
    /// The value of `key` in this snapshot.
    pub(crate) fn get(&self, key: &Key, lookup: &mut Lookup) -> Result<Option<Value>> {
        lookup.count_get();
        let hash = lookup.hash(key);
        self.fetch_memtables(hash);
        self.version.get(key, hash, lookup, || self.in_memtables(key, hash))
    }

    /// Whether there is nothing in any memtable.
    pub(crate) fn memtables_are_empty(&self) -> bool {
        self.length == 0 && self.frozen.is_empty()
    }

    /// Fetches what [`Visible::in_memtables`] reads first.
    #[inline]
    pub(crate) fn fetch_memtables(&self, hash: u64) {
        if self.length > 0 {
            self.active.prefetch(hash);
        }
        self.frozen.iter().for_each(|frozen| frozen.mem.prefetch(hash));
    }

    /// What the memtables say of `key`: `Some(None)` is a deletion.
    pub(crate) fn in_memtables(&self, key: &Key, hash: u64) -> Option<Option<Value>> {
        // An empty one is not asked: its table would be a miss of every cache.
        let active = if self.length > 0 { self.active.get(self.length, hash, key) } else { None };
        active.or_else(|| self.frozen.iter().find_map(|frozen| frozen.mem.get(frozen.length, hash, key)))
    }

    /// The memtables' records from `first` on in order, newest memtable first; those without any are left out.
    ///
    /// # Errors
    /// `Retry`: there is no memory for the lists.
    pub(crate) fn lists_from(&self, first: &Key) -> Result<Vec<Cursor>> {
        let frozen = self.frozen.iter().map(|frozen| (&frozen.mem, frozen.length));
        let mems = std::iter::once((&self.active, self.length)).chain(frozen);
        let lists: Vec<_> = mems.map(|(mem, length)| mem.ascending(length, first)).collect::<Result<_>>()?;
        Ok(lists.into_iter().filter(|list| !list.is_empty()).map(Cursor::Mem).collect())
    }

    /// Records in memtables.
    pub(crate) fn unflushed(&self) -> u64 {
        (self.length + self.frozen.iter().map(|frozen| frozen.length).sum::<usize>()) as u64
    }
}
