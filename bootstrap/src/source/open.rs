//! Opens snapshot archives within the process's memory, and says when a server of one does not answer.
//!
//! Owns: the limit of a packed archive's window, and the line and the figures of a server's failures. Must not: know
//! accounts.
//! Runs on the thread that reads the source.

use std::time::Instant;

use anyhow::Result;
use probe::MemoryLimit;
use solana::archive::Archive;

use crate::out::tell;
use crate::seen::{Seen, Waiting};
use crate::signal::{self, Stopped};

/// One in this number of the bytes that the process may use is the largest window of a packed archive. The buffers of a
/// load take half of them at most, and the engine is not open while an archive is read.
const WINDOW_SHARE: u64 = 8;

/// Smallest limit of the window, in bytes: validators use no more.
const WINDOW_BYTES_MIN: u64 = 8 << 20;

/// Opens an archive. Its server is asked again while it fails, until a signal asks to stop; `seen` is told so.
pub(super) fn open(location: &str, seen: &Seen) -> Result<Archive> {
    let shown = solana::archive::shown_url(location);
    let mut failing = Failing::new(&shown, seen);
    match Archive::open_telling(location, &mut |now| failing.tell(now)) {
        Err(solana::archive::Error::Stopped(stop)) if stop.is::<Stopped>() => Err(Stopped.into()),
        opened => Ok(opened?.with_window_limit(window_bytes_max(&probe::memory_limit()))),
    }
}

/// Returns the largest window of a packed archive, in bytes, for which this limit leaves room.
fn window_bytes_max(limit: &MemoryLimit) -> u64 {
    (limit.bytes / WINDOW_SHARE).max(WINDOW_BYTES_MIN)
}

/// The lines and the figures about a server that fails.
pub(super) struct Failing<'a> {
    shown: &'a str,
    seen: &'a Seen,
    failures: u32,
    /// Time of the first failure after the last byte; `None` while there is none.
    since: Option<Instant>,
}

impl<'a> Failing<'a> {
    pub(super) fn new(shown: &'a str, seen: &'a Seen) -> Self {
        Self { shown, seen, failures: 0, since: None }
    }

    /// Prints a line for each failure, and keeps `seen` up to date.
    ///
    /// # Errors
    /// [`Stopped`] after a signal.
    pub(super) fn tell(&mut self, now: solana::archive::Progress) -> Result<(), solana::archive::Stop> {
        let reason = now.last_failure.as_deref().unwrap_or_default();
        if now.failures > self.failures {
            tell!(
                "the archive's server does not answer as it should, and is asked again: archive={} failures={}: {}",
                self.shown,
                now.failures,
                reason
            );
        }
        self.failures = now.failures;
        if now.failures > 0 {
            let since = *self.since.get_or_insert_with(Instant::now);
            let (archive, failures, next_try) = (self.shown.to_owned(), now.failures, now.next_try);
            self.seen.set_waiting(Some(Waiting { archive, failures, reason: reason.to_owned(), since, next_try }));
        } else if self.since.take().is_some() {
            self.seen.set_waiting(None);
        }
        if signal::is_asked() { Err(Stopped.into()) } else { Ok(()) }
    }
}

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        if self.since.is_some() {
            self.seen.set_waiting(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_may_take_an_eighth_of_the_memory_and_always_that_of_validators() {
        let of = |mib: u64| window_bytes_max(&MemoryLimit { bytes: mib << 20, cgroup_file: None }) >> 20;
        assert_eq!([32, 64, 176, 1024, 65536].map(of), [8, 8, 22, 128, 8192]);
    }
}
