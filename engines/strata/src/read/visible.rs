//! The state that readers see: the memtables and the version of one moment.
//!
//! Owns: the order in which a key is looked for, and the lock `publish` (see `write/shared.rs`), under which a writing
//! thread replaces the newest state. Must not: change a state; each new moment is a new value. Any thread.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use engine_api::{Checkpoint, Key, Resident, Result, Value};
use parking_lot::Mutex;

use crate::format::Record;
use crate::memtable::Mem;
use crate::read::cursor::Cursor;
use crate::read::find::WouldRead;
use crate::read::lookup::Lookup;
use crate::read::segment::Segment;
use crate::read::version::Version;

/// The state that a reader sees. It holds whole batches only.
#[derive(Clone)]
pub(crate) struct Visible {
    pub(crate) active: Arc<Mem>,
    /// Number of committed entries in the active memtable.
    pub(crate) length: usize,
    /// Memtables that wait for their flush, newest first.
    pub(crate) frozen: Vec<Arc<Frozen>>,
    pub(crate) version: Arc<Version>,
    pub(crate) checkpoint: Checkpoint,
    /// Largest number of records in a memtable of this store, except that a large batch gets a larger one.
    pub(crate) mem_records: u64,
}

/// A memtable that is complete and waits for its flush.
pub(crate) struct Frozen {
    pub(crate) mem: Arc<Mem>,
    pub(crate) length: usize,
    pub(crate) wal_id: u64,
    pub(crate) batch: u64,
    pub(crate) checkpoint: Checkpoint,
}

/// The newest state of a store. Readers load it without a lock, and keep it.
pub(crate) struct Newest {
    visible: ArcSwap<Visible>,
    /// Held while `visible` is replaced.
    publish: Mutex<()>,
}

impl Newest {
    pub(crate) fn new(visible: Visible) -> Self {
        Self { visible: ArcSwap::from_pointee(visible), publish: Mutex::new(()) }
    }

    /// Returns the newest state for a look at it.
    pub(crate) fn load(&self) -> Guard<Arc<Visible>> {
        self.visible.load()
    }

    /// Returns the newest state to keep.
    pub(crate) fn load_full(&self) -> Arc<Visible> {
        self.visible.load_full()
    }

    /// Replaces the state that new readers see. The caller holds the writer lock or the install lock.
    pub(crate) fn publish(&self, change: impl FnOnce(&mut Visible)) {
        let _one = self.publish.lock();
        let mut next = Visible::clone(&self.visible.load());
        change(&mut next);
        self.visible.store(Arc::new(next));
    }
}

impl Visible {
    /// Returns the value of `key` in this snapshot.
    pub(crate) fn get(&self, key: &Key, lookup: &mut Lookup) -> Result<Option<Value>> {
        lookup.count_get();
        let hash = lookup.hash(key);
        self.fetch_memtables(hash.key);
        let ask = |segment: &Segment| segment.get(key, hash, lookup);
        self.version.get(key, hash, || self.in_memtables(key, hash.key), ask)
    }

    /// Looks `key` up in memory.
    pub(crate) fn get_resident(&self, key: &Key, lookup: &mut Lookup) -> Resident {
        let before = lookup.counts;
        let hash = lookup.hash(key);
        self.fetch_memtables(hash.key);
        let ask = |segment: &Segment| segment.get_resident(key, hash, lookup);
        let found = match self.version.get(key, hash, || self.in_memtables(key, hash.key), ask) {
            Ok(Some(value)) => Resident::Found(value),
            Ok(None) => Resident::Absent,
            Err(WouldRead) => {
                // The get that reads the device counts.
                lookup.counts = before;
                return Resident::WouldRead;
            }
        };
        lookup.count_get();
        found
    }

    /// Whether no memtable has an entry.
    pub(crate) fn memtables_are_empty(&self) -> bool {
        self.length == 0 && self.frozen.is_empty()
    }

    /// Prefetches the memory that [`Visible::in_memtables`] reads first.
    #[inline]
    pub(crate) fn fetch_memtables(&self, hash: u64) {
        if self.length > 0 {
            self.active.prefetch(hash);
        }
        self.frozen.iter().for_each(|frozen| frozen.mem.prefetch(hash));
    }

    /// Returns the memtables' newest record of `key`.
    pub(crate) fn in_memtables(&self, key: &Key, hash: u64) -> Option<Record> {
        // Skip an empty memtable, because a look at its table would miss every cache.
        let active = if self.length > 0 { self.active.get(self.length, hash, key) } else { None };
        active.or_else(|| self.frozen.iter().find_map(|frozen| frozen.mem.get(frozen.length, hash, key)))
    }

    /// Returns the memtables' records from key `first` on in order, newest memtable first. Memtables without such
    /// records are left out.
    ///
    /// # Errors
    /// `Retry`: there is no memory for the lists.
    pub(crate) fn lists_from(&self, first: &Key) -> Result<Vec<Cursor>> {
        let frozen = self.frozen.iter().map(|frozen| (&frozen.mem, frozen.length));
        let mems = std::iter::once((&self.active, self.length)).chain(frozen);
        let lists: Vec<_> = mems.map(|(mem, length)| mem.ascending(length, first)).collect::<Result<_>>()?;
        Ok(lists.into_iter().filter(|list| !list.is_empty()).map(Cursor::Mem).collect())
    }

    /// Number of records in a usual memtable of the store as it is now.
    pub(crate) fn usual_mem_records(&self) -> u64 {
        self.version.usual_mem_records(self.mem_records)
    }

    /// Number of entries in memtables.
    pub(crate) fn unflushed(&self) -> u64 {
        (self.length + self.frozen.iter().map(|frozen| frozen.length).sum::<usize>()) as u64
    }
}
