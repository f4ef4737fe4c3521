//! Pauses between attempts: each is twice the one before, up to a limit.
//!
//! Owns: the length of the pauses. Must not: sleep.

use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};

/// The first pause: a service that restarts is usually back after a few of these.
const FIRST: Duration = Duration::from_millis(10);

/// The longest pause: short enough to notice soon that a service is back, long enough for one that is away for hours.
const MAX: Duration = Duration::from_secs(1);

/// The pauses of one series of attempts, which begins with the shortest.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { next: FIRST }
    }

    /// Returns the next pause and doubles the one after it.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(MAX);
        pause
    }

    /// Returns the pause after an attempt to connect that failed with `error`.
    ///
    /// # Errors
    /// The same error if another attempt cannot mend it, or would come after `deadline`.
    pub(crate) fn after(&mut self, error: Error, deadline: Instant) -> Result<Duration> {
        let pause = self.pause();
        let time = Instant::now() + pause < deadline;
        if error.kind() == ErrorKind::Unavailable && time { Ok(pause) } else { Err(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit() {
        let mut backoff = Backoff::new();
        let pauses: Vec<u128> = (0..9).map(|_| backoff.pause().as_millis()).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
    }
}
