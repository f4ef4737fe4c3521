//! The view that processed lookups read: the banks of one fork, from its tip down to the engine's map.
//!
//! Owns: which of these banks stand on top of a given snapshot of the engine. Must not: change, because a view is
//! replaced by the next one. Made by the `overlay` thread, read by `lookup-N` and `shm-lookup`.

use std::collections::HashMap;
use std::sync::Arc;

use engine_api::{Key, Value};

use super::Known;
use crate::base::chain::Base;

/// Placeholder for an unknown blockhash, which a store loaded from outside a stream has.
const UNKNOWN: [u8; 32] = [0; 32];

/// The last write of each account in a bank, with the write version that makes it the last. `None` as the value means
/// closed.
pub(crate) type Writes = HashMap<Key, (Option<Value>, u64)>;

/// A whole bank: all its writes are known.
#[derive(Clone, Debug)]
pub struct Block {
    /// Slot and blockhash of the bank.
    pub base: Base,
    /// Slot and blockhash of the parent bank.
    pub parent: Base,
    /// The last write of each account in the bank.
    pub writes: Arc<Writes>,
}

/// The processed fork at one moment. It never changes.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Banks of the fork from the tip down; each is the child of the next.
    pub path: Vec<Block>,
    /// Whether banks were dropped because there were too many. No bank on top of the engine is known then.
    pub overflowed: bool,
}

impl View {
    /// Slot of the fork's tip; `None` when no bank is known.
    pub fn tip(&self) -> Option<u64> {
        self.path.first().map(|block| block.base.slot)
    }

    /// Returns the banks on top of a snapshot of the engine at `snapshot`, the tip first. `root` is the newest block
    /// that ingest-apply has begun to apply, loaded after the snapshot was taken.
    ///
    /// Returns none when a bank in between is missing, or when the fork is not that of `root`, which is the chain that
    /// the engine follows. On that chain the banks also cover any part of `root` that a snapshot could hold beyond
    /// `snapshot`. ingest-apply commits whole slots, so there is no such part today.
    pub fn above(&self, snapshot: Option<Base>, root: Option<Base>) -> &[Block] {
        let Some(snapshot) = snapshot else { return &[] };
        let above = self.path.iter().take_while(|block| block.base.slot > snapshot.slot).count();
        let above = &self.path[..above];
        let stands = above.last().is_some_and(|oldest| is_parent(oldest.parent, snapshot));
        let rooted = root.is_none_or(|root| root.slot <= snapshot.slot || above.iter().any(|block| block.base == root));
        if stands && rooted { above } else { &[] }
    }
}

/// Returns the newest write of `key` in `blocks`, which begin with the tip.
pub(crate) fn newest_write(blocks: &[Block], key: &Key) -> Known {
    let newest = blocks.iter().find_map(|block| block.writes.get(key));
    newest.map_or(Known::Nothing, |(value, _)| Known::Value(*value))
}

/// Whether `base` is the parent that a child names. An unknown blockhash of `base` matches any.
pub(super) fn is_parent(parent: Base, base: Base) -> bool {
    parent.slot == base.slot && (parent.blockhash == base.blockhash || base.blockhash == UNKNOWN)
}
