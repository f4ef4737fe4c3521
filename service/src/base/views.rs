//! Views of the store that are held for longer than a lookup: by dumps and by snapshots of the store.
//!
//! Owns: the time since which each view is held. Must not: hold a view itself. Threads: any.
//!
//! The data that a view sees stays on disk until the view is released. LMDB and redb do not reuse pages that were freed
//! after the view was opened; strata keeps the runs that were merged since. Lookups are not listed, because each renews
//! its view within 200 ms.

use std::time::{Duration, Instant};

use super::list::{List, Listed};

/// The list of held views: when each was opened.
pub(crate) type Views = List<Instant>;

impl List<Instant> {
    /// Adds a view that is opened now. Call this before opening the view, and drop the result after the view.
    pub fn hold(&self) -> Listed<'_, Instant> {
        self.add(Instant::now())
    }

    /// Returns the age of the oldest held view; zero without one.
    pub fn oldest(&self) -> Duration {
        self.show(|_, opened| opened.elapsed()).first().copied().unwrap_or_default()
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
