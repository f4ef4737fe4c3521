//! How the map at a commitment differs from a view of the map on disk, found by key and by value.
//!
//! Owns: [`Patch`], and the parts of it that other requests can take: the writes of each bank by their values, and the old values.
//! Must not: hold up the ingest: old values are copied without its lock. Threads: those that read derived stores.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use engine_api::{Key, Value};
use solana::ChainCheckpoint;

use super::undo::{CHANGES_MAX, Recorded};
use super::view::{Block, View, Writes, newest_write};
use super::{Known, Overlay};
use crate::base::chain::Base;
use crate::base::lock;

/// The keys whose values differ.
#[derive(Debug)]
pub(crate) struct Patch {
    /// The slot of the map at the commitment.
    pub(crate) slot: Option<u64>,
    changed: Changed,
}

#[derive(Debug)]
enum Changed {
    Nothing,
    /// Old values, ascending by key, and their indexes, ascending by value.
    Old(Vec<(Key, Option<Value>)>, Vec<u32>),
    /// Banks from the tip down, and the writes of each one by their values.
    Banks(Vec<Block>, Vec<Arc<ByValue>>),
}

/// The writes of a bank, ascending by value; without those that close an account.
type ByValue = Vec<(Value, Key)>;

/// The parts of patches that several requests need.
#[derive(Debug, Default)]
pub(crate) struct Patches {
    /// The banks of the newest view that was asked for: a new bank costs only its own writes.
    banks: Mutex<Vec<(Weak<Writes>, Arc<ByValue>)>>,
    /// The newest old values, with the slot and the number of records.
    finalized: Mutex<Option<(u64, u64, Arc<Patch>)>>,
}

impl Patch {
    /// Returns the patch of the map on disk itself.
    pub(crate) fn none(slot: Option<u64>) -> Self {
        Self { slot, changed: Changed::Nothing }
    }

    fn old(slot: u64, values: HashMap<Key, Option<Value>>) -> Self {
        let mut changed: Vec<_> = values.into_iter().collect();
        changed.sort_unstable_by_key(|(key, _)| *key);
        let mut by_value: Vec<u32> = (0..changed.len() as u32).collect();
        by_value.sort_unstable_by_key(|at| changed[*at as usize].1);
        Self { slot: Some(slot), changed: Changed::Old(changed, by_value) }
    }

    /// Number of keys whose values differ, or more: a key counts for each bank that writes it.
    pub(crate) fn len(&self) -> usize {
        match &self.changed {
            Changed::Nothing => 0,
            Changed::Old(changed, _) => changed.len(),
            Changed::Banks(blocks, _) => blocks.iter().map(|block| block.writes.len()).sum(),
        }
    }

    /// Returns the value of a key, if it differs.
    pub(crate) fn value(&self, key: &Key) -> Known {
        match &self.changed {
            Changed::Nothing => Known::Nothing,
            Changed::Old(changed, _) => {
                let at = changed.binary_search_by_key(key, |(key, _)| *key);
                at.map_or(Known::Nothing, |at| Known::Value(changed[at].1))
            }
            Changed::Banks(blocks, _) => newest_write(blocks, key),
        }
    }

    /// Returns those keys that have the value.
    pub(crate) fn keys_of(&self, value: &Value) -> Vec<Key> {
        match &self.changed {
            Changed::Nothing => Vec::new(),
            Changed::Old(changed, by_value) => {
                let (at, wanted) = (|n: &u32| &changed[*n as usize], Some(*value));
                let first = by_value.partition_point(|n| at(n).1 < wanted);
                let equal = by_value[first..].iter().map(at).take_while(|(_, value)| *value == wanted);
                equal.map(|(key, _)| *key).collect()
            }
            Changed::Banks(blocks, by_value) => {
                let of_bank = |(at, writes): (usize, &Arc<ByValue>)| {
                    let first = writes.partition_point(|(of, _)| of < value);
                    let equal = writes[first..].iter().take_while(|(of, _)| of == value).map(|(_, key)| *key);
                    // Those that no later bank has written again.
                    equal.filter(|key| newest_write(&blocks[..at], key) == Known::Nothing).collect::<Vec<_>>()
                };
                by_value.iter().enumerate().flat_map(of_bank).collect()
            }
        }
    }
}

impl Patches {
    /// Returns the banks of `view` above a view of the map at `base`, which was taken after `view` was loaded. `None` if they have
    /// too many writes.
    pub(crate) fn processed(&self, overlay: &Overlay, view: &View, base: Option<Base>) -> Option<Arc<Patch>> {
        // Loaded after the view of the map was taken.
        let root = overlay.processed().and_then(super::Processed::root);
        let blocks = view.above(base, root);
        let Some(tip) = blocks.first() else { return Some(Arc::new(Patch::none(base.map(|base| base.slot)))) };
        if blocks.iter().map(|block| block.writes.len()).sum::<usize>() > CHANGES_MAX {
            return None;
        }
        let mut known = lock(&self.banks);
        let by_value: Vec<Arc<ByValue>> = blocks.iter().map(|block| by_value(&known, &block.writes)).collect();
        *known = blocks.iter().map(|block| Arc::downgrade(&block.writes)).zip(by_value.iter().cloned()).collect();
        let changed = Changed::Banks(blocks.to_vec(), by_value);
        Some(Arc::new(Patch { slot: Some(tip.base.slot), changed }))
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
        let patch = Arc::new(Patch::old(slot, newest_first.copied().collect()));
        *newest = Some((slot, records, Arc::clone(&patch)));
        Some(patch)
    }
}

/// Returns the writes of a bank by their values: those that are known, or new ones. Writes that have changed are others.
fn by_value(known: &[(Weak<Writes>, Arc<ByValue>)], writes: &Arc<Writes>) -> Arc<ByValue> {
    let wanted = Arc::downgrade(writes);
    if let Some((_, by_value)) = known.iter().find(|(of, _)| Weak::ptr_eq(of, &wanted)) {
        return Arc::clone(by_value);
    }
    let mut by_value: ByValue = writes.iter().filter_map(|(key, (value, _))| Some(((*value)?, *key))).collect();
    by_value.sort_unstable();
    Arc::new(by_value)
}
