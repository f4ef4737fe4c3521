//! Opens snapshot archives within the process's memory, and says when a server of one does not answer.
//!
//! Owns: the limits of an archive's window and files, and the line and the figures of a server's failures. Must not:
//! know accounts. Runs on the thread that reads the source.

use std::time::Instant;

use anyhow::Result;
use probe::MemoryLimit;
use solana::archive::{Archive, Limits};

use crate::out::tell;
use crate::seen::{Seen, Waiting};
use crate::signal::{self, Stopped};

/// One in this number of the bytes that the process may use is the largest window of a packed archive. The buffers of a
/// load take half of them at most, and the engine is not open while an archive is read.
const WINDOW_SHARE: u64 = 8;

/// Smallest limit of the window, in bytes: validators use no more.
const WINDOW_BYTES_MIN: u64 = 8 << 20;

/// One in this number of the bytes that the process may use is for the accounts files of an archive.
const FILES_SHARE: u64 = 4;

/// Bytes that are kept of each accounts file: its sizes, and the places of its slot.
const FILE_BYTES: u64 = 200;

/// Smallest limit of the accounts files: mainnet has 432,000, one for each slot of an epoch.
const FILES_MIN: u64 = 450_000;

/// Opens an archive. Its server is asked again while it fails, until a signal asks to stop; `seen` gets each failure.
pub(super) fn open(location: &str, seen: &Seen) -> Result<Archive> {
    let shown = solana::archive::shown_url(location);
    let mut failing = Failing::new(&shown, seen);
    match Archive::open_telling(location, &mut |now| failing.tell(now)) {
        Err(solana::archive::Error::Stopped(stop)) if stop.is::<Stopped>() => Err(Stopped.into()),
        opened => Ok(opened?.with_limits(limits(&probe::memory_limit()))),
    }
}

/// Returns the limits of an archive for which this memory has room.
fn limits(limit: &MemoryLimit) -> Limits {
    let accounts_files = (limit.bytes / FILES_SHARE / FILE_BYTES).max(FILES_MIN);
    Limits { window_bytes: window_bytes_max(limit), accounts_files: accounts_files as usize }
}

/// Returns the largest window of a packed file for which this memory has room.
pub(super) fn window_bytes_max(limit: &MemoryLimit) -> u64 {
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
            let waiting = Waiting { archive, failures, reason: reason.to_owned(), since, next_try };
            self.seen.change(|numbers| numbers.waiting = Some(waiting));
        } else if self.since.take().is_some() {
            self.seen.change(|numbers| numbers.waiting = None);
        }
        if signal::is_asked() { Err(Stopped.into()) } else { Ok(()) }
    }
}

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        if self.since.is_some() {
            self.seen.change(|numbers| numbers.waiting = None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_may_take_an_eighth_of_the_memory_and_always_that_of_validators() {
        let of = |mib: u64| limits(&MemoryLimit { bytes: mib << 20, cgroup_file: None }).window_bytes >> 20;
        assert_eq!([32, 64, 176, 1024, 65536].map(of), [8, 8, 22, 128, 8192]);
    }

    #[test]
    fn the_accounts_files_may_take_a_quarter_of_the_memory_and_always_as_many_as_mainnet_has() {
        let of = |mib: u64| limits(&MemoryLimit { bytes: mib << 20, cgroup_file: None }).accounts_files;
        assert_eq!([128, 1024, 65536].map(of), [450_000, 1_342_177, 85_899_345]);
    }
}
