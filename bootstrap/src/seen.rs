//! Progress of a load, for the program that runs it.
//!
//! Owns: the numbers. Must not: print, or decide anything. The load writes on the main thread; any thread reads.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Progress of a load. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Seen(Arc<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    read_bytes: AtomicU64,
    /// 0 while the length is not known.
    archive_bytes: AtomicU64,
    versions: AtomicU64,
    pairs: AtomicU64,
    waiting: Mutex<Option<Waiting>>,
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

// ORDERING: Relaxed: the numbers are only shown.
impl Seen {
    /// Packed bytes of the archives that were read so far.
    pub fn read_bytes(&self) -> u64 {
        self.0.read_bytes.load(Ordering::Relaxed)
    }

    /// Packed bytes of the archives in all; `None` while their length is not known.
    pub fn archive_bytes(&self) -> Option<u64> {
        Some(self.0.archive_bytes.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }

    /// Number of versions of accounts that were read from the archives so far.
    pub fn versions(&self) -> u64 {
        self.0.versions.load(Ordering::Relaxed)
    }

    /// Number of pairs that were written to the store so far.
    pub fn pairs(&self) -> u64 {
        self.0.pairs.load(Ordering::Relaxed)
    }

    /// The wait for the archive's server; `None` while it answers.
    pub fn waiting(&self) -> Option<Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_waiting(&self, waiting: Option<Waiting>) {
        *self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner) = waiting;
    }

    pub(crate) fn set_read(&self, read_bytes: u64, archive_bytes: Option<u64>) {
        self.0.read_bytes.store(read_bytes, Ordering::Relaxed);
        self.0.archive_bytes.store(archive_bytes.unwrap_or(0), Ordering::Relaxed);
    }

    pub(crate) fn set_versions(&self, versions: u64) {
        self.0.versions.store(versions, Ordering::Relaxed);
    }

    pub(crate) fn set_pairs(&self, pairs: u64) {
        self.0.pairs.store(pairs, Ordering::Relaxed);
    }
}
