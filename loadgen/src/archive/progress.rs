//! Progress of an archive on standard error: a line every few seconds.
//!
//! Owns: these lines. Must not: decide anything. Runs on the main thread.

use std::time::{Duration, Instant};

use engine_latency::table::grouped;
use program::tell;

use super::story::At;

/// Time between two lines of progress.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// The progress of one archive after the other.
pub(super) struct Progress {
    /// The slot of the archive, its accounts that were written, and when, at the last line.
    last: (u64, u64, Instant),
}

impl Progress {
    pub(super) fn new() -> Self {
        Self { last: (0, 0, Instant::now()) }
    }

    /// Shows how far the archive is, if it is time.
    pub(super) fn show(&mut self, At { slot, done, total }: At) {
        let (before, begun, at) = self.last;
        if at.elapsed() < LINE_EVERY {
            return;
        }
        let since = if before == slot { done - begun.min(done) } else { done };
        let rate = grouped((since as f64 / at.elapsed().as_secs_f64()) as u64);
        tell!("archive of slot {slot}: {} of {} accounts, {rate} accounts/s", grouped(done), grouped(total));
        self.last = (slot, done, Instant::now());
    }
}
