//! The memory that segments share: who asks first gets it, and gives it back when dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are left.
#[derive(Debug)]
pub(crate) struct Budget {
    left_bytes: AtomicU64,
}

/// Bytes taken from a budget.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    pub(crate) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { left_bytes: AtomicU64::new(bytes) })
    }

    /// Takes `bytes` if that many are left.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Option<Share> {
        // ORDERING: Relaxed: a count that guards no other memory.
        let taken =
            self.left_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok();
        taken.then(|| Share { budget: Arc::clone(self), bytes })
    }

    /// Takes `bytes`, or what is left of them: for what is needed in any case.
    pub(crate) fn take_always(self: &Arc<Self>, bytes: u64) -> Share {
        let mut taken = 0;
        // ORDERING: Relaxed: as above.
        let _ = self.left_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            taken = bytes.min(left);
            Some(left - taken)
        });
        Share { budget: Arc::clone(self), bytes: taken }
    }

    pub(crate) fn left_bytes(&self) -> u64 {
        // ORDERING: Relaxed: a statistic.
        self.left_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // ORDERING: Relaxed: as in `take`.
        self.budget.left_bytes.fetch_add(self.bytes, Ordering::Relaxed);
    }
}
