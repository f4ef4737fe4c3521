//! What processed lookups read: the banks of one fork, from its tip down to the engine's map.
//!
//! Owns: which of these banks stand on top of a given snapshot of the engine. Must not: change; a view is replaced by
//! the next one. Made by the `overlay` thread, read by `lookup-N`.

use std::collections::HashMap;
use std::sync::Arc;

use engine_api::{Key, Value};

use crate::ingest::assemble::Base;

/// A blockhash that is not known: a store loaded from outside a stream has one.
const UNKNOWN: [u8; 32] = [0; 32];

/// The last write of each account in a bank, and the write version that makes it the last.
pub type Writes = HashMap<Key, (Option<Value>, u64)>;

/// A bank that is whole.
#[derive(Clone, Debug)]
pub struct Block {
    /// Its slot and blockhash.
    pub base: Base,
    /// Those of its parent.
    pub parent: Base,
    /// What it wrote.
    pub writes: Arc<Writes>,
}

/// The processed fork at one moment.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Each the child of the next; the tip first.
    pub path: Vec<Block>,
    /// Banks were dropped because there were too many: nothing is known above the engine.
    pub overflowed: bool,
}

impl View {
    /// The tip's slot.
    pub fn tip(&self) -> Option<u64> {
        self.path.first().map(|block| block.base.slot)
    }

    /// The banks on top of a snapshot of the engine that stands at `snapshot`, the tip first. `root` is the newest
    /// block that ingest-apply has begun to apply, loaded after the snapshot was taken.
    ///
    /// None apply when a bank in between is missing, or when the fork is not that of `root`: a commit can be read a moment
    /// before its slot is known, so that the snapshot may hold a part of the ancestry of `root` beyond `snapshot`. On that
    /// ancestry the banks cover that part.
    pub fn above(&self, snapshot: Option<Base>, root: Option<Base>) -> &[Block] {
        let Some(snapshot) = snapshot else { return &[] };
        let above = self.path.iter().take_while(|block| block.base.slot > snapshot.slot).count();
        let above = &self.path[..above];
        let stands = above.last().is_some_and(|oldest| is_parent(oldest.parent, snapshot));
        let rooted = root.is_none_or(|root| root.slot <= snapshot.slot || above.iter().any(|block| block.base == root));
        if stands && rooted { above } else { &[] }
    }
}

/// The newest write of `key` in `blocks`, the tip first. `Some(None)`: it was closed there.
pub fn newest_write(blocks: &[Block], key: &Key) -> Option<Option<Value>> {
    blocks.iter().find_map(|block| block.writes.get(key).map(|(value, _)| *value))
}

/// Whether `parent`, as a child names it, is `base`.
pub(super) fn is_parent(parent: Base, base: Base) -> bool {
    parent.slot == base.slot && (parent.blockhash == base.blockhash || base.blockhash == UNKNOWN)
}
