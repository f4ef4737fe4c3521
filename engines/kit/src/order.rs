//! The order in which a batch of lookups asks a tree for its keys.
//!
//! Owns: that order. Must not: look up a key. Runs on the reader's thread.

use engine_api::Key;

/// Working memory in which a reader sorts the keys of each batch. Neighbours in key order share pages of a tree.
#[derive(Default)]
pub struct KeyOrder(Vec<(u64, usize)>);

impl KeyOrder {
    /// Returns the index of each key in the order of the keys. Keys with the same first eight bytes stay unordered, which
    /// costs only time.
    pub fn of(&mut self, keys: &[Key]) -> impl Iterator<Item = usize> {
        self.0.clear();
        self.0.extend(keys.iter().enumerate().map(|(at, key)| (first_bytes(key), at)));
        self.0.sort_unstable();
        self.0.iter().map(|(_, at)| *at)
    }
}

fn first_bytes(key: &Key) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&key[..8]);
    u64::from_be_bytes(bytes)
}
