//! The memory of a store: what everything in it takes, and gives back when it is dropped.
//!
//! Owns: the sums. Must not: decide who gets what; `write/divide.rs` does. Any thread.
//!
//! What can be done without is taken while there is some left. What cannot is taken in any case: the budget is in debt
//! then, and the flushing and the merging thread take from those who can do with less (`write/balance.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Bytes that are left, and bytes that work has taken.
#[derive(Debug)]
pub(crate) struct Budget {
    all_bytes: u64,
    left_bytes: AtomicI64,
    /// Taken by flushes, merges and scans: it comes back when they end.
    work_bytes: AtomicI64,
}

/// Bytes taken from a budget.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: u64,
    work: bool,
}

// ORDERING: Relaxed in all of this file: sums that guard no other memory.
impl Budget {
    pub(crate) fn new(bytes: u64) -> Arc<Self> {
        let left_bytes = AtomicI64::new(i64::try_from(bytes).unwrap_or(i64::MAX));
        Arc::new(Self { all_bytes: bytes, left_bytes, work_bytes: AtomicI64::new(0) })
    }

    /// Takes `bytes` if that leaves at least `leave_bytes`.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64, leave_bytes: u64) -> Option<Share> {
        let enough = i64::try_from(bytes.saturating_add(leave_bytes)).unwrap_or(i64::MAX);
        let taken = self
            .left_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| (left >= enough).then(|| left - bytes as i64))
            .is_ok();
        taken.then(|| Share { budget: Arc::clone(self), bytes, work: false })
    }

    /// Takes `bytes`, which cannot be done without; there may be a debt afterwards.
    pub(crate) fn take_always(self: &Arc<Self>, bytes: u64) -> Share {
        self.left_bytes.fetch_sub(bytes as i64, Ordering::Relaxed);
        Share { budget: Arc::clone(self), bytes, work: false }
    }

    /// The same for a flush, a merge or a scan, which gives it back soon.
    pub(crate) fn take_for_work(self: &Arc<Self>, bytes: u64) -> Share {
        self.left_bytes.fetch_sub(bytes as i64, Ordering::Relaxed);
        self.work_bytes.fetch_add(bytes as i64, Ordering::Relaxed);
        Share { budget: Arc::clone(self), bytes, work: true }
    }

    /// All of it, in bytes.
    pub(crate) fn all_bytes(&self) -> u64 {
        self.all_bytes
    }

    /// What is left; less than nothing is a debt.
    pub(crate) fn left(&self) -> i64 {
        self.left_bytes.load(Ordering::Relaxed)
    }

    /// What is left, in bytes.
    pub(crate) fn left_bytes(&self) -> u64 {
        self.left().max(0) as u64
    }

    /// What is taken beyond the budget, in bytes.
    pub(crate) fn owed_bytes(&self) -> u64 {
        (-self.left()).max(0) as u64
    }

    /// What work has taken, in bytes.
    pub(crate) fn work_bytes(&self) -> u64 {
        self.work_bytes.load(Ordering::Relaxed).max(0) as u64
    }
}

impl Share {
    /// Gives back what is more than `bytes`.
    pub(crate) fn keep(&mut self, bytes: u64) {
        let more = self.bytes.saturating_sub(bytes);
        self.give(more);
        self.bytes -= more;
    }

    fn give(&self, bytes: u64) {
        self.budget.left_bytes.fetch_add(bytes as i64, Ordering::Relaxed);
        if self.work {
            self.budget.work_bytes.fetch_sub(bytes as i64, Ordering::Relaxed);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back_and_a_debt_is_told() {
        let budget = Budget::new(100);
        let mut kept = budget.take(60, 10).expect("enough is left");
        assert!(budget.take(31, 10).is_none() && budget.take(41, 0).is_none());
        let work = budget.take_for_work(70);
        assert_eq!((budget.left(), budget.left_bytes(), budget.owed_bytes(), budget.work_bytes()), (-30, 0, 30, 70));
        kept.keep(20);
        assert_eq!(budget.left(), 10);
        drop(work);
        drop(kept);
        drop(budget.take_always(500));
        assert_eq!((budget.left(), budget.work_bytes()), (100, 0));
    }
}
