//! Progress of a load, for the program that runs it.
//!
//! Owns: the numbers. Must not: print, or decide anything. The load writes on the main thread; any thread reads.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Progress of a load. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Seen(Arc<Mutex<Numbers>>);

/// How far a load is.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    /// Packed bytes of the archives that were read so far.
    pub read_bytes: u64,
    /// Packed bytes of the archives in all; `None` while their length is not known.
    pub archive_bytes: Option<u64>,
    /// Number of versions of accounts that were read from the archives so far.
    pub versions: u64,
    /// Number of pairs that were written to the store so far.
    pub pairs: u64,
    /// The wait for the archive's server; `None` while it answers.
    pub waiting: Option<Waiting>,
}

/// The wait for an archive's server that does not answer as it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Location of the archive, without the secrets of a URL.
    pub archive: String,
    /// Number of the server's failures since its last byte.
    pub failures: u32,
    /// Text of the last of them.
    pub reason: String,
    /// Time of the first of them.
    pub since: Instant,
    /// Time of the next request; `None` once the archive's bytes are being read.
    pub next_try: Option<Instant>,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { archive, failures, reason, since, next_try } = self;
        let seconds = since.elapsed().as_secs();
        write!(
            f,
            "waiting for the archive's server: archive={archive} failures={failures} since_seconds={seconds} reason={reason:?}"
        )?;
        let Some(next_try) = next_try else { return Ok(()) };
        write!(f, " next_try_seconds={}", next_try.saturating_duration_since(Instant::now()).as_secs())
    }
}

impl Seen {
    /// Returns the numbers as they are now.
    pub fn now(&self) -> Numbers {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the numbers. Not for every pair: it takes a lock.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Numbers)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
