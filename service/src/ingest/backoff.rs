//! Waits between attempts to connect: they double up to a maximum, with jitter.
//!
//! Owns: the waits. Must not: sleep. Runs on a receiver's task.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

/// Shortest and longest wait after a connection that broke.
const BROKEN: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

/// Shortest and longest wait after a connection that sent no new slot. These waits start longer, because a server
/// reads its validator's memory for each replay.
const GAP: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// The waits of one subscription, one sequence for each kind of failure.
#[derive(Debug)]
pub(crate) struct Waits {
    /// Waits after a connection that broke.
    pub(crate) broken: Backoff,
    /// Waits after a connection that sent no new slot.
    pub(crate) gap: Backoff,
}

impl Waits {
    /// Creates the waits, both at their shortest. The jitter depends on `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self { broken: Backoff::new(BROKEN, seed), gap: Backoff::new(GAP, seed) }
    }
}

/// A sequence of waits that doubles until the next success.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    first: Duration,
    longest: Duration,
    seed: u64,
    waits: u64,
}

impl Backoff {
    fn new([first, longest]: [Duration; 2], seed: u64) -> Self {
        Self { next: first, first, longest, seed, waits: 0 }
    }

    /// Returns the wait before the next attempt: half of it fixed, half random. The random half keeps the clients of a
    /// restarted server from coming back all at once.
    pub(crate) fn next_wait(&mut self) -> Duration {
        let half = self.next / 2;
        self.next = (self.next * 2).min(self.longest);
        self.waits = self.waits.wrapping_add(1);
        let jitter = BuildHasherDefault::<DefaultHasher>::default().hash_one((self.seed, self.waits));
        let share = (jitter % 1024) as u32;
        half + half * share / 1024
    }

    /// Starts over with the shortest wait, after a success.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_longest_and_start_over() {
        let [first, longest] = BROKEN;
        let mut backoff = Backoff::new(BROKEN, 1);
        let mut base = first;
        for _ in 0..20 {
            let wait = backoff.next_wait();
            assert!(wait >= base / 2 && wait <= base, "wait={wait:?} base={base:?}");
            base = (base * 2).min(longest);
        }
        backoff.reset();
        assert!(backoff.next_wait() <= first);
    }
}
