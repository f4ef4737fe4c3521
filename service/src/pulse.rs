//! Signs of life of the service's worker threads, for the watchdog of systemd.
//!
//! Owns: one counter a thread. Must not: block; a beat is one relaxed addition. A thread beats when it begins a round
//! of its loop and, in long rounds, after each piece of work. An observer that finds the same number twice has found a
//! thread that is stalled in one piece of work, for example by a deadlock or a device that does not answer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// One thread's counter. Clones share the counter.
#[derive(Clone, Debug, Default)]
pub struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// Records that the thread makes progress.
    pub fn beat(&self) {
        // ORDERING: Relaxed: the number alone counts.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn beats(&self) -> u64 {
        // ORDERING: Relaxed: see `beat`.
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of all threads that must make progress. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Pulses(Arc<Mutex<Vec<(String, Pulse)>>>);

impl Pulses {
    /// Adds a thread and returns its counter. The thread must beat from now on.
    pub fn add(&self, thread: impl Into<String>) -> Pulse {
        let pulse = Pulse::default();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((thread.into(), pulse.clone()));
        pulse
    }

    /// Returns the names of the threads whose counter has not moved since the last call, and updates `seen`. A new
    /// thread counts as alive.
    pub fn still(&self, seen: &mut Vec<u64>) -> Vec<String> {
        let threads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut still = Vec::new();
        for (n, (name, pulse)) in threads.iter().enumerate() {
            let beats = pulse.beats();
            match seen.get_mut(n) {
                Some(seen) if *seen == beats => still.push(name.clone()),
                Some(seen) => *seen = beats,
                None => seen.push(beats),
            }
        }
        still
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_does_not_beat_is_named() {
        let pulses = Pulses::default();
        let (first, second) = (pulses.add("first"), pulses.add("second"));
        let mut seen = Vec::new();
        assert!(pulses.still(&mut seen).is_empty(), "seen for the first time");
        first.beat();
        assert_eq!(pulses.still(&mut seen), ["second"]);
        assert_eq!(pulses.still(&mut seen), ["first", "second"]);
        second.beat();
        first.beat();
        assert!(pulses.still(&mut seen).is_empty());
    }
}
