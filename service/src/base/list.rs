//! A list of entries, each of which is listed for as long as a value lives.
//!
//! Owns: the list. Must not: know or bound its entries. Threads: any; the list is locked to add, remove and show.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::lock;

/// The list. Ids ascend with time, so the oldest entry comes first.
#[derive(Debug)]
pub struct Registry<T> {
    list: Mutex<List<T>>,
}

#[derive(Debug)]
struct List<T> {
    next_id: u64,
    entries: BTreeMap<u64, T>,
}

/// A place in the list, freed when dropped.
#[derive(Debug)]
pub struct Registered<'r, T> {
    registry: &'r Registry<T>,
    id: u64,
}

impl<T> Registry<T> {
    /// Adds an entry, whose id no other has had.
    pub fn add(&self, entry: T) -> Registered<'_, T> {
        let mut list = lock(&self.list);
        let id = list.next_id;
        list.next_id += 1;
        list.entries.insert(id, entry);
        Registered { registry: self, id }
    }

    /// Returns each id and entry as `show` gives it, the oldest first.
    pub fn show<S>(&self, show: impl Fn(u64, &T) -> S) -> Vec<S> {
        lock(&self.list).entries.iter().map(|(id, entry)| show(*id, entry)).collect()
    }
}

impl<T> Default for Registry<T> {
    fn default() -> Self {
        Self { list: Mutex::new(List { next_id: 0, entries: BTreeMap::new() }) }
    }
}

impl<T> Drop for Registered<'_, T> {
    fn drop(&mut self) {
        lock(&self.registry.list).entries.remove(&self.id);
    }
}
