//! Helpers for figures: adding to a counter, and the time of day.
//!
//! Owns: nothing. Must not: hold a figure; each lives with the code that writes it. Any thread; wait-free.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the time of the system's clock, in ms since the Unix epoch.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Adds `by` to a counter.
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    // ORDERING: Relaxed: a statistic, nothing is inferred from it.
    counter.fetch_add(by, Ordering::Relaxed);
}
