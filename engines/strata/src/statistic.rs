//! A number for the statistics that any thread changes.
//!
//! Owns: nothing. Must not: guard other memory. Any thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A sum, a latest value or a greatest value since the store was opened.
#[derive(Default)]
pub(crate) struct Statistic(AtomicU64);

/// Number, sum and maximum of times.
#[derive(Default)]
pub(crate) struct Times {
    pub(crate) count: Statistic,
    pub(crate) us: Statistic,
    pub(crate) longest_us: Statistic,
}

// ORDERING: Relaxed in all of this file: numbers that guard no other memory.
impl Statistic {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Sets the value unless it is greater already.
    pub(crate) fn raise(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Times {
    pub(crate) fn add(&self, time: Duration) {
        let us = time.as_micros() as u64;
        self.count.add(1);
        self.us.add(us);
        self.longest_us.raise(us);
    }
}
