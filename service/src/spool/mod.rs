//! The spool: whole slots of the stream on disk, kept until the store has been loaded and can take them.
//!
//! ```text
//! stream --whole slots--> Writer --append, flush--> DIR/spool/slots --flushed frames--> Reader --> the ingest
//! ```
//! Owns: the file of slots, its bound, its recovery after a crash. Must not: know the stream, the archive or the
//! engine. Threads: `spool` writes; the thread of the replay reads.
//!
//! The file begins with the slot that the spool follows, and then has one frame a slot in the order of the chain. It is
//! only appended to. A crash can leave a part of a frame at its end. The next opening cuts the file after the last whole
//! frame, and the stream is asked for the slots from there.

#[cfg(any(test, fuzzing))]
#[path = "tests/fuzzing.rs"]
pub(crate) mod fuzzing;
mod reader;
mod record;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use serde_json::{Value, json};

pub(crate) use reader::{Reader, look};
pub(crate) use record::{Origin, source_of};
pub(crate) use writer::{Full, Writer, remove, remove_empty};

/// Name of the file in the spool's directory.
pub(crate) const FILE: &str = "slots";

/// Returns the spool's directory in that of a store.
pub(crate) fn dir_of(store: &Path) -> PathBuf {
    store.join(engines::SPOOL)
}

/// Figures of the spool. Writer: the thread `spool`.
#[derive(Debug, Default)]
pub struct SpoolFigures {
    /// Whether there is a spool.
    pub open: AtomicBool,
    /// Length of the file's part that is on the device: a reader may read up to here.
    flushed_bytes: AtomicU64,
    /// Number of slots in that part.
    pub slots: AtomicU64,
    /// The newest of these slots, or the slot that the spool follows.
    pub last_slot: AtomicU64,
    stopped: ArcSwapOption<String>,
}

impl SpoolFigures {
    /// Length of the file's part that is on the device.
    pub fn flushed_bytes(&self) -> u64 {
        // ORDERING: Acquire: pairs with the release in `flushed`, so that the bytes below the length were written.
        self.flushed_bytes.load(Ordering::Acquire)
    }

    /// Reason why the spool takes no more slots; `None` while it does.
    pub fn stopped(&self) -> Option<String> {
        self.stopped.load().as_deref().cloned()
    }

    /// Returns the figures as `/status.json` gives them. Without a spool they are 0.
    pub(crate) fn json(&self) -> Value {
        // ORDERING: Relaxed: statistics.
        let is_open = self.open.load(Ordering::Relaxed);
        let shown = |figure: u64| if is_open { figure } else { 0 };
        json!({
            "under_way": is_open,
            "bytes": shown(self.flushed_bytes()),
            "slots": shown(self.slots.load(Ordering::Relaxed)),
            "last_slot": is_open.then(|| self.last_slot.load(Ordering::Relaxed)),
            "stopped": self.stopped(),
        })
    }

    /// Resets the figures to those of a service without a spool.
    pub fn begin(&self) {
        self.close();
        // ORDERING: Relaxed: nobody reads a spool that is not open.
        self.slots.store(0, Ordering::Relaxed);
        self.flushed_bytes.store(0, Ordering::Relaxed);
    }

    /// Records why the spool takes no more slots.
    pub fn stop(&self, why: String) {
        self.stopped.store(Some(why.into()));
    }

    /// Records that the spool is gone.
    pub fn close(&self) {
        self.stopped.store(None);
        // ORDERING: Relaxed: a statistic.
        self.open.store(false, Ordering::Relaxed);
    }

    fn flushed(&self, bytes: u64, slots: u64, last_slot: u64) {
        // ORDERING: Relaxed: statistics.
        self.slots.store(slots, Ordering::Relaxed);
        self.last_slot.store(last_slot, Ordering::Relaxed);
        self.open.store(true, Ordering::Relaxed);
        // ORDERING: Release: see `flushed_bytes`.
        self.flushed_bytes.store(bytes, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
