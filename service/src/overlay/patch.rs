//! How the map at a commitment differs from a view of the map on disk, found by key and by value.
//!
//! Owns: [`Patch`], and the newest one of each commitment, which the next request takes if nothing has changed. Must not: hold up
//! the ingest: old values are copied without its lock. Threads: those that read derived stores.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use engine_api::{Key, Value};
use solana::ChainCheckpoint;

use super::undo::Recorded;
use super::view::View;
use super::{Known, Overlay};
use crate::base::chain::Base;
use crate::base::lock;

/// The keys whose values differ.
#[derive(Debug, Default)]
pub(crate) struct Patch {
    /// The slot of the map at the commitment.
    pub(crate) slot: Option<u64>,
    /// The values of these keys, ascending by key.
    changed: Vec<(Key, Option<Value>)>,
    /// Indexes of `changed`, ascending by value.
    by_value: Vec<u32>,
}

/// The newest patch of each commitment.
#[derive(Debug, Default)]
pub(crate) struct Patches {
    /// With the view, and the number of its banks in the patch.
    processed: Mutex<Option<(Weak<View>, usize, Arc<Patch>)>>,
    /// With the slot, and the number of records.
    finalized: Mutex<Option<(u64, u64, Arc<Patch>)>>,
}

impl Patch {
    fn new(slot: Option<u64>, values: HashMap<Key, Option<Value>>) -> Self {
        let mut changed: Vec<_> = values.into_iter().collect();
        changed.sort_unstable_by_key(|(key, _)| *key);
        let mut by_value: Vec<u32> = (0..changed.len() as u32).collect();
        by_value.sort_unstable_by_key(|at| changed[*at as usize].1);
        Self { slot, changed, by_value }
    }

    /// Returns the patch of the map on disk itself.
    pub(crate) fn none(slot: Option<u64>) -> Self {
        Self { slot, ..Self::default() }
    }

    /// Number of keys whose values differ.
    pub(crate) fn len(&self) -> usize {
        self.changed.len()
    }

    /// Returns the value of a key, if it differs.
    pub(crate) fn value(&self, key: &Key) -> Known {
        let at = self.changed.binary_search_by_key(key, |(key, _)| *key);
        at.map_or(Known::Nothing, |at| Known::Value(self.changed[at].1))
    }

    /// Returns those keys that have the value.
    pub(crate) fn keys_of(&self, value: &Value) -> impl Iterator<Item = &Key> {
        let (at, wanted) = (|n: &u32| &self.changed[*n as usize], Some(*value));
        let first = self.by_value.partition_point(|n| at(n).1 < wanted);
        self.by_value[first..].iter().map(at).take_while(move |(_, value)| *value == wanted).map(|(key, _)| key)
    }
}

impl Patches {
    /// Returns the banks of `view` above a view of the map at `base`, which was taken after `view` was loaded.
    pub(crate) fn processed(&self, overlay: &Overlay, view: &Arc<View>, base: Option<Base>) -> Arc<Patch> {
        // Loaded after the view of the map was taken.
        let root = overlay.processed().and_then(super::Processed::root);
        let blocks = view.above(base, root);
        let Some(tip) = blocks.first() else { return Arc::new(Patch::none(base.map(|base| base.slot))) };
        let mut newest = lock(&self.processed);
        let is_it = |(of, banks, _): &&_| Weak::ptr_eq(of, &Arc::downgrade(view)) && *banks == blocks.len();
        if let Some((.., patch)) = newest.as_ref().filter(is_it) {
            return Arc::clone(patch);
        }
        let writes = blocks.iter().rev().flat_map(|block| block.writes.iter());
        let patch = Arc::new(Patch::new(Some(tip.base.slot), writes.map(|(key, (value, _))| (*key, *value)).collect()));
        *newest = Some((Arc::downgrade(view), blocks.len(), Arc::clone(&patch)));
        patch
    }

    /// Returns the old values of all keys that have changed after the finalized slot; `None` while some are missing. The view of the map was
    /// taken before, and serves if it holds the slot of the patch. Needs no patch where the map holds only final slots.
    pub(crate) fn finalized(&self, overlay: &Overlay, at: &ChainCheckpoint) -> Option<Arc<Patch>> {
        let Some(undo) = overlay.undo() else { return Some(Arc::new(Patch::none(at.slot))) };
        let mut newest = lock(&self.finalized);
        let reading = undo.read();
        let (slot, records) = (reading.slot()?, reading.records());
        if let Some((.., patch)) = newest.as_ref().filter(|(of, count, _)| (*of, *count) == (slot, records)) {
            return Some(Arc::clone(patch));
        }
        let all: Vec<Recorded> = reading.all().cloned().collect();
        drop(reading);
        // The first change after the slot counts.
        let newest_first = all.iter().rev().flat_map(|recorded| recorded.iter().rev());
        let patch = Arc::new(Patch::new(Some(slot), newest_first.copied().collect()));
        *newest = Some((slot, records, Arc::clone(&patch)));
        Some(patch)
    }
}
