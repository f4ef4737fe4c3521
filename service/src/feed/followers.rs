//! The derived stores that follow the feed within the process.
//!
//! Owns: how far each of them is. Must not: wait for one. A derived store holds up the removal of the log's oldest segments, but
//! only for so long. Written by the threads `derived`, read by ingest-apply.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::base::lock;

/// Bytes of the log that are kept beyond the retention for a derived store: two million changes, which one takes in seconds.
pub(crate) const FOLLOWERS_BYTES_MAX: u64 = 256 << 20;

/// The holds of all followers: how far each is.
#[derive(Debug, Default)]
pub(super) struct Followers {
    holds: Mutex<Vec<Arc<AtomicU64>>>,
}

/// Holds the changes in the log that one follower lacks, until this is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    seq: Arc<AtomicU64>,
}

impl Followers {
    pub(super) fn add(&self, seq: u64) -> Hold {
        let seq = Arc::new(AtomicU64::new(seq));
        let mut holds = lock(&self.holds);
        holds.retain(|hold| Arc::strong_count(hold) > 1);
        holds.push(Arc::clone(&seq));
        Hold { seq }
    }

    /// Returns the seq of the slowest follower; the largest number without one.
    pub(super) fn slowest(&self) -> u64 {
        let holds = lock(&self.holds);
        let held = holds.iter().filter(|hold| Arc::strong_count(hold) > 1);
        // ORDERING: Relaxed: a bound for what is kept; the log itself has a lock.
        held.map(|hold| hold.load(Ordering::Relaxed)).min().unwrap_or(u64::MAX)
    }
}

impl Hold {
    /// Says that the follower has the changes up to `seq`.
    pub(crate) fn reach(&self, seq: u64) {
        // ORDERING: Relaxed: see `Followers::slowest`.
        self.seq.store(seq, Ordering::Relaxed);
    }
}
