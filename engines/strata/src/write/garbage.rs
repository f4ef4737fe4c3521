//! What was replaced while readers may still hold it: versions of the runs, and memtables.
//!
//! Owns: the last reference to each, so that a reader that lets go of one never pays for unmapping its memory and
//! removing its files. Must not: know what it holds. Anyone may give it something; it is emptied on `strata-merge` and
//! `strata-flush`, and by the thread that closes the store once those have ended.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::budget::Share;

/// Something that was replaced, and what it takes of the memory meanwhile, if nobody else counts it.
struct Held {
    what: Arc<dyn Any + Send + Sync>,
    _share: Option<Share>,
}

/// Things that were replaced.
#[derive(Default)]
pub(crate) struct Garbage {
    held: Mutex<Vec<Held>>,
    dropped: AtomicU64,
}

impl Garbage {
    /// Holds `replaced`, which no new reader can get any more, until nobody else holds it, and `share` as long.
    pub(crate) fn hold(&self, replaced: Arc<dyn Any + Send + Sync>, share: Option<Share>) {
        self.held.lock().push(Held { what: replaced, _share: share });
    }

    /// Drops what nobody else holds.
    pub(crate) fn sweep(&self) {
        // Only this reference is left, and nothing can make another from it: this thread is the last owner.
        let free: Vec<_> = self.held.lock().extract_if(.., |held| Arc::strong_count(&held.what) == 1).collect();
        // ORDERING: Relaxed: a statistic.
        self.dropped.fetch_add(free.len() as u64, Ordering::Relaxed);
    }

    /// Things that readers still hold, as far as is known.
    pub(crate) fn held(&self) -> u64 {
        self.held.lock().len() as u64
    }

    /// Things that were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        // ORDERING: Relaxed: a statistic.
        self.dropped.load(Ordering::Relaxed)
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
        assert_eq!((garbage.held(), garbage.dropped()), (1, 1));
        drop(reader);
        assert_eq!(garbage.held(), 1, "the reader drops nothing");
        garbage.sweep();
        assert_eq!((garbage.held(), garbage.dropped()), (0, 2));
    }
}
