//! A list of entries, each of which is listed for as long as a value lives.
//!
//! Owns: the list. Must not: know or bound its entries. Threads: any; the list is locked to add, remove and show.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::lock;

/// The list. Ids ascend with time, so the oldest entry comes first.
#[derive(Debug)]
pub struct List<T> {
    inner: Mutex<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    next_id: u64,
    entries: BTreeMap<u64, T>,
}

/// A place in the list, freed when dropped.
#[derive(Debug)]
pub struct Listed<'l, T> {
    list: &'l List<T>,
    id: u64,
}

impl<T> List<T> {
    /// Adds an entry, whose id no other has had.
    pub fn add(&self, entry: T) -> Listed<'_, T> {
        let mut list = lock(&self.inner);
        let id = list.next_id;
        list.next_id += 1;
        list.entries.insert(id, entry);
        Listed { list: self, id }
    }

    /// Returns each id and entry as `show` gives it, the oldest first.
    pub fn show<S>(&self, show: impl Fn(u64, &T) -> S) -> Vec<S> {
        lock(&self.inner).entries.iter().map(|(id, entry)| show(*id, entry)).collect()
    }
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self { inner: Mutex::new(Inner { next_id: 0, entries: BTreeMap::new() }) }
    }
}

impl<T> Drop for Listed<'_, T> {
    fn drop(&mut self) {
        lock(&self.list.inner).entries.remove(&self.id);
    }
}
