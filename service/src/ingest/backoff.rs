//! Waits between attempts to connect: they double up to a maximum, with jitter.
//!
//! Owns: the waits. Must not: sleep. Runs on a receiver's task.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// The waits since the last success.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    seed: u64,
    waits: u64,
}

impl Backoff {
    /// Starts with the shortest wait. The jitter follows from `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self { next: FIRST, seed, waits: 0 }
    }

    /// The wait before the next attempt: half of it fixed, half random, so that clients of one server that
    /// restarted do not come back all at once.
    pub(crate) fn next_wait(&mut self) -> Duration {
        let half = self.next / 2;
        self.next = (self.next * 2).min(LONGEST);
        self.waits = self.waits.wrapping_add(1);
        let jitter = BuildHasherDefault::<DefaultHasher>::default().hash_one((self.seed, self.waits));
        let share = (jitter % 1024) as u32;
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
        let mut backoff = Backoff::new(1);
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
