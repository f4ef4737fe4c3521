//! The memory budget of a store: everything that the store holds takes its bytes here and gives them back when dropped.
//!
//! Owns: the sums. Must not: decide who gets how much; `write/divide.rs` does. Any thread.
//!
//! Optional memory (caches, filters, pages) is taken only while some is left. Memory that the store cannot do without
//! is always granted. The budget may then be in debt, and the flushing and the merging thread take bytes back from the
//! optional holders (`write/memory.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Number of bytes left in the budget and number of bytes taken for temporary work.
#[derive(Debug)]
pub(crate) struct Budget {
    all_bytes: u64,
    left_bytes: AtomicI64,
    /// Bytes taken by flushes, merges and scans. They come back when that work ends.
    work_bytes: AtomicI64,
}

/// A number of bytes taken from a budget, given back when it is dropped.
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

    /// Takes `bytes` if at least `leave_bytes` are left afterwards.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64, leave_bytes: u64) -> Option<Share> {
        let enough = i64::try_from(bytes.saturating_add(leave_bytes)).unwrap_or(i64::MAX);
        let taken = self
            .left_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| (left >= enough).then(|| left - bytes as i64))
            .is_ok();
        taken.then(|| Share { budget: Arc::clone(self), bytes, work: false })
    }

    /// Takes `bytes` for memory that the store cannot do without. The budget may be in debt afterwards.
    pub(crate) fn take_always(self: &Arc<Self>, bytes: u64) -> Share {
        self.left_bytes.fetch_sub(bytes as i64, Ordering::Relaxed);
        Share { budget: Arc::clone(self), bytes, work: false }
    }

    /// Takes `bytes` for a flush, a merge or a scan, as [`Budget::take_always`] does, and counts them as work until
    /// they come back.
    pub(crate) fn take_for_work(self: &Arc<Self>, bytes: u64) -> Share {
        self.left_bytes.fetch_sub(bytes as i64, Ordering::Relaxed);
        self.work_bytes.fetch_add(bytes as i64, Ordering::Relaxed);
        Share { budget: Arc::clone(self), bytes, work: true }
    }

    /// Size of the whole budget in bytes.
    pub(crate) fn all_bytes(&self) -> u64 {
        self.all_bytes
    }

    /// Returns the number of bytes left; a negative number is a debt.
    pub(crate) fn left(&self) -> i64 {
        self.left_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes left, 0 when the budget is in debt.
    pub(crate) fn left_bytes(&self) -> u64 {
        self.left().max(0) as u64
    }

    /// Returns the debt in bytes, 0 when there is none.
    pub(crate) fn owed_bytes(&self) -> u64 {
        (-self.left()).max(0) as u64
    }

    /// Returns the number of bytes that flushes, merges and scans have taken.
    pub(crate) fn work_bytes(&self) -> u64 {
        self.work_bytes.load(Ordering::Relaxed).max(0) as u64
    }
}

impl Share {
    /// Gives back all but `bytes` of this share.
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
