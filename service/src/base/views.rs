//! Views of the store that are held for longer than a lookup: by dumps and by snapshots of the store.
//!
//! Owns: the time since which each view is held. Must not: hold a view itself. Threads: any; the list is locked to add,
//! remove and show.
//!
//! The data that a view sees stays on disk until the view is released. LMDB and redb do not reuse pages that were freed
//! after the view was opened; strata keeps the runs that were merged since. Lookups are not listed, because each renews
//! its view within 200 ms.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::lock;

/// The list of held views.
#[derive(Debug, Default)]
pub struct Views {
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    next_id: u64,
    since: BTreeMap<u64, Instant>,
}

/// Entry of a view in the list, for as long as this value lives.
#[derive(Debug)]
pub struct HeldView<'v> {
    views: &'v Views,
    id: u64,
}

impl Views {
    /// Adds a view that is opened now. Call this before opening the view, and drop the result after the view.
    pub fn hold(&self) -> HeldView<'_> {
        let mut list = lock(&self.list);
        let id = list.next_id;
        list.next_id += 1;
        list.since.insert(id, Instant::now());
        HeldView { views: self, id }
    }

    /// Returns the age of the oldest held view; zero without one.
    pub fn oldest(&self) -> Duration {
        // Ids ascend with time, so the first is the oldest.
        lock(&self.list).since.values().next().map_or(Duration::ZERO, Instant::elapsed)
    }
}

impl Drop for HeldView<'_> {
    fn drop(&mut self) {
        lock(&self.views.list).since.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_view_that_is_still_held_counts() {
        let views = Views::default();
        assert_eq!(views.oldest(), Duration::ZERO);
        let first = views.hold();
        let second = views.hold();
        assert!(views.oldest() > Duration::ZERO);
        drop(first);
        assert!(views.oldest() > Duration::ZERO);
        drop(second);
        assert_eq!(views.oldest(), Duration::ZERO);
    }
}
