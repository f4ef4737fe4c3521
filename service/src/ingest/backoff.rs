//! Waits between attempts to connect: they double up to a maximum, with jitter.
//!
//! Owns: the waits. Must not: sleep. Runs on a receiver's task.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// The waits since the last success.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    jitter: RandomState,
    waits: u64,
}

impl Backoff {
    /// Starts with the shortest wait.
    pub(crate) fn new() -> Self {
        Self { next: FIRST, jitter: RandomState::new(), waits: 0 }
    }

    /// The wait before the next attempt: half of it fixed, half random, so that clients of one server that
    /// restarted do not come back all at once.
    pub(crate) fn next_wait(&mut self) -> Duration {
        let half = self.next / 2;
        self.next = (self.next * 2).min(LONGEST);
        self.waits = self.waits.wrapping_add(1);
        // The standard hasher's random keys are all the randomness this needs.
        let share = (self.jitter.hash_one(self.waits) % 1024) as u32;
        half + half * share / 1024
    }

    /// After a success.
    pub(crate) fn reset(&mut self) {
        self.next = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_longest_and_start_over() {
        let mut backoff = Backoff::new();
        let mut base = FIRST;
        for _ in 0..20 {
            let wait = backoff.next_wait();
            assert!(wait >= base / 2 && wait <= base, "wait={wait:?} base={base:?}");
            base = (base * 2).min(LONGEST);
        }
        backoff.reset();
        assert!(backoff.next_wait() <= FIRST);
    }
}
