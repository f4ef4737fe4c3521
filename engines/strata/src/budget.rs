//! The memory of a store: what everything in it takes, and gives back when it is dropped.
//!
//! Owns: the sums. Must not: decide who gets what; the writing side does. Any thread.
//!
//! What can be done without is taken while there is some left. What cannot is taken in any case: there may be a debt then.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Bytes that are left.
#[derive(Debug)]
pub(crate) struct Budget {
    left_bytes: AtomicI64,
}

/// Bytes taken from a budget.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

// ORDERING: Relaxed in all of this file: sums that guard no other memory.
impl Budget {
    pub(crate) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { left_bytes: AtomicI64::new(i64::try_from(bytes).unwrap_or(i64::MAX)) })
    }

    /// Takes `bytes` if that leaves at least `leave_bytes`.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64, leave_bytes: u64) -> Option<Share> {
        let enough = i64::try_from(bytes.saturating_add(leave_bytes)).unwrap_or(i64::MAX);
        let taken = self
            .left_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| (left >= enough).then(|| left - bytes as i64))
            .is_ok();
        taken.then(|| Share { budget: Arc::clone(self), bytes })
    }

    /// Takes `bytes`, which cannot be done without; there may be a debt afterwards.
    pub(crate) fn take_always(self: &Arc<Self>, bytes: u64) -> Share {
        self.left_bytes.fetch_sub(bytes as i64, Ordering::Relaxed);
        Share { budget: Arc::clone(self), bytes }
    }

    /// What is left; less than nothing is a debt.
    pub(crate) fn left(&self) -> i64 {
        self.left_bytes.load(Ordering::Relaxed)
    }

    /// What is left, in bytes.
    pub(crate) fn left_bytes(&self) -> u64 {
        self.left().max(0) as u64
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.left_bytes.fetch_add(self.bytes as i64, Ordering::Relaxed);
    }
}
