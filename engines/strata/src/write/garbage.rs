//! Garbage: versions of the runs and memtables that were replaced while readers may still hold them.
//!
//! Owns: the last reference to each, so that a reader that lets go of one never pays for unmapping its memory and
//! removing its files. Must not: know the type of its contents. Any thread may add; `strata-merge` and `strata-flush`
//! empty it, and after they have ended the thread that closes the store.

use std::any::Any;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::budget::Share;
use crate::statistic::Statistic;

/// A replaced object, and its share of the memory if nobody else counts it.
struct Held {
    what: Arc<dyn Any + Send + Sync>,
    _share: Option<Share>,
}

/// Replaced objects that readers may still hold.
#[derive(Default)]
pub(crate) struct Garbage {
    held: Mutex<Vec<Held>>,
    /// Number of objects that were dropped since the opening.
    pub(crate) dropped: Statistic,
}

impl Garbage {
    /// Holds `replaced` and `share` until nobody else holds `replaced`. New readers must not be able to get it any
    /// more.
    pub(crate) fn hold(&self, replaced: Arc<dyn Any + Send + Sync>, share: Option<Share>) {
        self.held.lock().push(Held { what: replaced, _share: share });
    }

    /// Drops the objects that nobody else holds.
    pub(crate) fn sweep(&self) {
        // Only this reference is left, and no other can be made from it, so this thread is the last owner.
        let free: Vec<_> = self.held.lock().extract_if(.., |held| Arc::strong_count(&held.what) == 1).collect();
        self.dropped.add(free.len() as u64);
    }

    /// Shows each object that is held.
    pub(crate) fn each(&self, mut show: impl FnMut(&(dyn Any + Send + Sync))) {
        self.held.lock().iter().for_each(|held| show(&*held.what));
    }

    /// Number of objects that readers still held at the last sweep, and of those added since.
    pub(crate) fn held(&self) -> u64 {
        self.held.lock().len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_goes_with_the_first_sweep_after_its_last_reader() {
        let garbage = Garbage::default();
        let (held, free) = (Arc::new(1), Arc::new(2));
        let reader = Arc::clone(&held);
        garbage.hold(held, None);
        garbage.hold(free, None);
        garbage.sweep();
        assert_eq!((garbage.held(), garbage.dropped.get()), (1, 1));
        drop(reader);
        assert_eq!(garbage.held(), 1, "the reader drops nothing");
        garbage.sweep();
        assert_eq!((garbage.held(), garbage.dropped.get()), (0, 2));
    }
}
