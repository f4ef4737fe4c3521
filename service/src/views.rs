//! Views of the store that are held for longer than a lookup, by dumps and by snapshots of the store.
//!
//! Owns: since when each is held. Must not: hold one itself. Threads: any; the list is locked to add, remove and show.
//!
//! What a view sees stays on disk until it is let go: LMDB and redb use none of the pages again that were freed after the
//! view was opened, strata keeps the runs that were merged since. Lookups are not listed: each renews its view within 200 ms.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The list.
#[derive(Debug, Default)]
pub struct Views {
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    next_id: u64,
    since: BTreeMap<u64, Instant>,
}

/// A view that is held until this is dropped.
#[derive(Debug)]
pub struct HeldView<'v> {
    views: &'v Views,
    id: u64,
}

impl Views {
    /// Notes a view that is opened now. Take it before the view and drop it after.
    pub fn hold(&self) -> HeldView<'_> {
        let mut list = self.list();
        let id = list.next_id;
        list.next_id += 1;
        list.since.insert(id, Instant::now());
        HeldView { views: self, id }
    }

    /// How many are held, and for how long the oldest.
    pub fn held(&self) -> (usize, Duration) {
        let list = self.list();
        // Ids ascend with the time.
        let oldest = list.since.values().next().map_or(Duration::ZERO, Instant::elapsed);
        (list.since.len(), oldest)
    }

    fn list(&self) -> MutexGuard<'_, List> {
        // Every change of it is complete before anything that could panic.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HeldView<'_> {
    fn drop(&mut self) {
        self.views.list().since.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_view_that_is_still_held_counts() {
        let views = Views::default();
        assert_eq!(views.held(), (0, Duration::ZERO));
        let first = views.hold();
        let second = views.hold();
        let (count, oldest) = views.held();
        assert!(count == 2 && oldest > Duration::ZERO);
        drop(first);
        assert_eq!(views.held().0, 1);
        drop(second);
        assert_eq!(views.held(), (0, Duration::ZERO));
    }
}
