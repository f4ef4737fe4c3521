//! A batch of gets, read in pieces from one state of the map, so that single gets are answered in between.
//!
//! Owns: the reader for batches, the state that the batch under way is read from, and the batch's keys and values. Must
//! not: move that reader while a batch is under way, because the answer would mix two states. Single gets move a reader
//! of their own. Thread: the one that answers lookups, `lookup-N` or `shm-lookup`.
//!
//! The overlays are asked for all keys when a batch begins, because they change under a lock or with the view. Both are
//! in memory, so this is quick. All later reads of the engine come from the one snapshot that the overlays were
//! compared with.

use engine_api::{Key, Value};
use engine_latency::Measured;

use super::{LookupError, LookupState, Reading};
use crate::base::chain::Commitment;
use crate::base::figure::count;
use crate::base::slow::Parts;
use crate::overlay::Known;

/// Number of keys of one piece, which are read before single gets have their turn. That takes 0.1 ms in memory, and
/// about 1 ms from a flash drive, which keeps 64 reads in flight.
pub(crate) const PIECE_KEYS: usize = 256;

/// Reader of batches, with the batch under way. It opens its snapshot as a [`Reading`] does.
pub(crate) struct BatchReading<'e> {
    reading: Reading<'e>,
    /// Keys of the batch; set them before [`BatchReading::begin`].
    pub(crate) keys: Vec<Key>,
    /// Values of the keys; complete once [`BatchReading::piece`] has returned true.
    pub(crate) values: Vec<Option<Value>>,
    /// Values known from the overlay, one for each key; empty at confirmed, which has no overlay.
    known: Vec<Known>,
    /// Number of keys whose values are read. `None` when no batch is under way.
    done: Option<usize>,
    slot: Option<u64>,
}

impl<'e> BatchReading<'e> {
    /// Creates a reader without opening a snapshot. `source` is the label under which its lookups are recorded.
    pub(crate) fn new(engine: &'e Measured, state: &'e LookupState, source: &'static str) -> Self {
        Self {
            reading: Reading::new(engine, state, source),
            keys: Vec::new(),
            values: Vec::new(),
            known: Vec::new(),
            done: None,
            slot: None,
        }
    }

    /// Fixes the state that [`BatchReading::keys`] are read from: the newest one at `commitment`.
    pub(crate) fn begin(&mut self, commitment: Commitment) -> Result<(), LookupError> {
        self.values.clear();
        self.values.resize(self.keys.len(), None);
        self.done = None;
        self.slot = self.reading.begin(&self.keys, &mut self.known, commitment)?;
        self.done = Some(0);
        Ok(())
    }

    /// Reads the next [`PIECE_KEYS`] values. Returns whether the batch is complete. The batch is also over after an
    /// error.
    pub(crate) fn piece(&mut self) -> Result<bool, LookupError> {
        let Some(from) = self.done.take() else { return Ok(true) };
        let to = self.keys.len().min(from + PIECE_KEYS);
        // Counted piece by piece, because the warm-up makes room for lookups that are under way.
        count(&self.reading.figures.lookups, (to - from) as u64);
        let known = self.known.get(from..to).unwrap_or_default();
        self.reading.read(&self.keys[from..to], known, &mut self.values[from..to])?;
        if to == self.keys.len() {
            return Ok(true);
        }
        self.done = Some(to);
        Ok(false)
    }

    /// The newest slot that the batch's state holds as a whole; `None` before the first.
    pub(crate) fn slot(&self) -> Option<u64> {
        self.slot
    }

    /// Time that the batch spent in each part, without the waits between its pieces.
    pub(crate) fn spent(&self) -> Parts {
        self.reading.spent()
    }

    /// Gives up the batch under way.
    pub(crate) fn abandon(&mut self) {
        self.done = None;
    }

    /// Moves the reader to the newest commit, unless a batch is under way.
    pub(crate) fn refresh_idle(&mut self) {
        if self.done.is_none() {
            self.reading.refresh_idle();
        }
    }

    /// Gives up the batch under way and drops the snapshot until the next batch.
    pub(crate) fn close(&mut self) {
        self.abandon();
        self.reading.close();
    }
}
