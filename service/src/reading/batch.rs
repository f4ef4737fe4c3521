//! A batch of gets, read in pieces from one state of the map, so that single gets are answered in between.
//!
//! Owns: the reader that batches are read with, the state that the batch under way is read from, and its keys and values.
//! Must not: move that reader while a batch is under way, because the answer would mix two states. Single gets move a
//! reader of their own. Thread: the one that answers lookups.
//!
//! The overlays are asked for all keys when a batch begins: they change under a lock or with the view, and both are memory
//! alone. What is read from the engine afterwards comes from the one snapshot that the overlays were compared with.

use engine_api::{Key, Reader as _, Value};
use engine_latency::Measured;

use super::{Reading, Spent};
use crate::lookups::LookupError;
use crate::overlay::Commitment;
use crate::status::{Shared, count};

/// Keys that are read before single gets have their turn: 0.1 ms in memory, about 1 ms from a flash drive, which keeps 64
/// reads in flight.
pub(crate) const PIECE_KEYS: usize = 256;

/// The reader of batches and the batch that it is at. Opened by the first batch and again after any failure.
pub(crate) struct BatchReading<'e> {
    reading: Reading<'e>,
    /// The batch's keys; set them before [`BatchReading::begin`].
    pub(crate) keys: Vec<Key>,
    /// Their values, whole once [`BatchReading::piece`] has said so.
    pub(crate) values: Vec<Option<Value>>,
    /// What the overlay says of each key; empty at confirmed, where nothing lies over the engine.
    known: Vec<Option<Option<Value>>>,
    /// Keys whose values are there. `None`: no batch is under way.
    done: Option<usize>,
    slot: Option<u64>,
    spent: Spent,
}

impl<'e> BatchReading<'e> {
    /// Opens nothing yet.
    pub(crate) fn new(engine: &'e Measured, shared: &'e Shared, source: &'static str) -> Self {
        Self {
            reading: Reading::new(engine, shared, source),
            keys: Vec::new(),
            values: Vec::new(),
            known: Vec::new(),
            done: None,
            slot: None,
            spent: Spent::default(),
        }
    }

    /// Fixes the state that [`BatchReading::keys`] are read from: the newest at `commitment`.
    pub(crate) fn begin(&mut self, commitment: Commitment) -> Result<(), LookupError> {
        let reading = &mut self.reading;
        count(&reading.shared.counters.lookups, self.keys.len() as u64);
        self.values.clear();
        self.values.resize(self.keys.len(), None);
        self.known.clear();
        (self.done, self.spent) = (None, Spent::default());
        self.slot = match commitment {
            Commitment::Confirmed => {
                let slot = reading.refresh().map(|snapshot| snapshot.slot());
                slot.map_err(|error| reading.failed(error))?
            }
            Commitment::Processed | Commitment::Finalized => {
                let clock = reading.engine.latency().clock();
                let start = clock.raw();
                self.known.resize(self.keys.len(), None);
                let slot = reading.overlaid(&self.keys, &mut self.known, commitment)?;
                self.spent.overlay_ns = clock.delta_as_nanos(start, clock.raw());
                slot
            }
        };
        self.done = Some(0);
        Ok(())
    }

    /// Reads the next [`PIECE_KEYS`] values. True when they were the last: the batch is over then, as it is after an
    /// error.
    pub(crate) fn piece(&mut self) -> Result<bool, LookupError> {
        let Some(from) = self.done.take() else { return Ok(true) };
        let to = self.keys.len().min(from + PIECE_KEYS);
        let Some(snapshot) = &mut self.reading.snapshot else { return Err(LookupError::Stopped) };
        let reader = &mut snapshot.reader;
        let (keys, values) = (&self.keys[from..to], &mut self.values[from..to]);
        let read = match self.known.get(from..to) {
            Some(known) if !known.is_empty() => read_unknown(reader, keys, known, values),
            _ => read(reader, keys, values),
        };
        let read_ns = reader.last_ns();
        match read {
            Ok(asked) => self.spent.read_ns += if asked { read_ns } else { 0 },
            Err(error) => return Err(self.reading.failed(error)),
        }
        if to == self.keys.len() {
            return Ok(true);
        }
        self.done = Some(to);
        Ok(false)
    }

    /// The newest slot that is wholly in what the batch was read from.
    pub(crate) fn slot(&self) -> Option<u64> {
        self.slot
    }

    /// Where the batch's time went, without the waits between its pieces.
    pub(crate) fn spent(&self) -> Spent {
        self.spent
    }

    /// Gives the batch under way up.
    pub(crate) fn abandon(&mut self) {
        self.done = None;
    }

    /// Moves the reader to the newest commit, unless a batch is under way.
    pub(crate) fn refresh_idle(&mut self) {
        if self.done.is_none() {
            self.reading.refresh_idle();
        }
    }

    /// Gives the batch under way up and closes the reader until the next one.
    pub(crate) fn close(&mut self) {
        self.abandon();
        self.reading.close();
    }
}

/// Reads all of `keys`. True when the engine was asked.
fn read(
    reader: &mut engine_latency::MeasuredReader<'_>,
    keys: &[Key],
    values: &mut [Option<Value>],
) -> engine_api::Result<bool> {
    match (keys, values) {
        ([], _) => return Ok(false),
        ([key], [value]) => *value = reader.get(key)?,
        (keys, values) => reader.get_many(keys, values)?,
    }
    Ok(true)
}

/// Reads those of `keys` of which the overlay does not know. True when the engine was asked.
fn read_unknown(
    reader: &mut engine_latency::MeasuredReader<'_>,
    keys: &[Key],
    known: &[Option<Option<Value>>],
    values: &mut [Option<Value>],
) -> engine_api::Result<bool> {
    let missing: Vec<Key> = keys.iter().zip(known).filter(|(_, known)| known.is_none()).map(|(key, _)| *key).collect();
    let mut rest = vec![None; missing.len()];
    let asked = read(reader, &missing, &mut rest)?;
    let mut rest = rest.into_iter();
    for (value, known) in values.iter_mut().zip(known) {
        *value = known.unwrap_or_else(|| rest.next().flatten());
    }
    Ok(asked)
}
