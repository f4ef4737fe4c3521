//! The expected content of a store after a number of batches, and its comparison with the store.
//!
//! Owns: the history (which epoch wrote which batch), and the content that follows from it. Must not: write to a store.
//! The supervisor holds the history; whoever reads a store builds the content from it and compares everything that it
//! reads. Each thread has a model of its own, and those of one process share the history.

use std::ops::ControlFlow;
use std::sync::Arc;

use engine_api::{Checkpoint, Engine, Key, Reader, Value};
use engine_kit::Rng;
use parking_lot::Mutex;

use crate::column::Column;
use crate::plan::{Op, Plan, Work, value};

/// Result of a check. Both an error of the engine and a wrong answer end it.
pub(crate) type Check<T = ()> = std::result::Result<T, Bad>;

/// Reason for which a check failed.
#[derive(Debug)]
pub(crate) enum Bad {
    /// The engine returned an error, which is allowed under a fault if its kind fits.
    Error(engine_api::Error),
    /// The store differs from the model.
    Wrong(String),
}

impl From<engine_api::Error> for Bad {
    fn from(error: engine_api::Error) -> Self {
        Self::Error(error)
    }
}

pub(crate) fn wrong<T>(what: impl Into<String>) -> Check<T> {
    Err(Bad::Wrong(what.into()))
}

/// The epochs of batches. Each entry is the first batch of an epoch, and the epoch. Clones share the entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct History(Arc<Mutex<Vec<(u64, u64)>>>);

impl History {
    pub(crate) fn of(entries: Vec<(u64, u64)>) -> Self {
        Self(Arc::new(Mutex::new(entries)))
    }

    pub(crate) fn entries(&self) -> Vec<(u64, u64)> {
        self.0.lock().clone()
    }

    /// Returns the epoch of batch `seq`.
    pub(crate) fn epoch(&self, seq: u64) -> u64 {
        self.0.lock().iter().rev().find(|(from, _)| *from <= seq).map_or(0, |(_, epoch)| *epoch)
    }

    /// Sets the epoch of all batches from `seq` on, and forgets their earlier epochs.
    pub(crate) fn turn(&self, seq: u64, epoch: u64) {
        let mut entries = self.0.lock();
        entries.retain(|(from, _)| *from < seq);
        if entries.last().is_none_or(|(_, last)| *last != epoch) {
            entries.push((seq, epoch));
        }
    }
}

/// Expected content of a store at a checkpoint.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) column: Column,
    pub(crate) plan: Plan,
    pub(crate) history: History,
    pub(crate) seq: u64,
    /// Number of pairs in the store.
    pub(crate) pairs: u64,
    /// Stamp of each key's value, at the key's [`Plan::place`]; zero if the key is absent.
    stamps: Vec<u64>,
    /// Pairs of a chunk whose load was cut short, in order. Any of them may be there until the chunk is loaded again.
    cut: Vec<Op>,
}

impl Model {
    /// Builds the content after the first `seq` batches of a history. `loading` is the last chunk whose load was tried.
    pub(crate) fn at(column: Column, plan: Plan, history: History, seq: u64, loading: u64) -> Self {
        let mut model = Self { column, plan, history, seq: 0, pairs: 0, stamps: Vec::new(), cut: Vec::new() };
        model.advance_to(seq);
        if loading > seq {
            model.cut(plan.chunk_of(loading).unwrap_or_default());
        }
        model
    }

    fn checkpoint(&self) -> Checkpoint {
        self.plan.checkpoint(self.seq, self.history.epoch(self.seq))
    }

    /// Applies the batches of the history up to number `seq`.
    pub(crate) fn advance_to(&mut self, seq: u64) {
        while self.seq < seq {
            self.seq += 1;
            match self.plan.work(self.seq, self.history.epoch(self.seq)) {
                Work::Chunk(ops) => {
                    self.apply(&ops);
                    self.cut.clear();
                }
                Work::Batch(ops) => self.apply(&ops),
            }
        }
    }

    fn apply(&mut self, ops: &[Op]) {
        for op in ops {
            let place = self.plan.place(op.id);
            if place >= self.stamps.len() {
                self.stamps.resize(place + 1, 0);
            }
            let before = std::mem::replace(&mut self.stamps[place], op.stamp);
            self.pairs = self.pairs + u64::from(op.stamp != 0) - u64::from(before != 0);
        }
    }

    /// Notes that a load of these pairs was tried and has failed.
    pub(crate) fn cut(&mut self, ops: Vec<Op>) {
        if !self.column.engine().loads_whole {
            self.cut = ops;
        }
    }

    /// Whether parts of a chunk may be in the store.
    pub(crate) fn is_cut(&self) -> bool {
        !self.cut.is_empty()
    }

    fn value(&self, id: u64) -> Option<Value> {
        self.stamps.get(self.plan.place(id)).filter(|stamp| **stamp != 0).map(|stamp| value(*stamp))
    }

    fn check(&self, key: &Key, found: Option<Value>) -> Check {
        let id = self.plan.id(key);
        let expected = id.and_then(|id| self.value(id));
        if found == expected {
            return Ok(());
        }
        let cut = id.and_then(|id| self.cut.binary_search_by_key(&id, |op| op.id).ok());
        if found.is_some() && cut.is_some_and(|at| found == self.cut[at].value()) {
            return Ok(());
        }
        let (found, expected) = (found.as_ref().map(|value| hex(value)), expected.map(|value| hex(&value)));
        wrong(format!("seq={} key={} found={found:?} expected={expected:?}", self.seq, hex(key)))
    }

    /// Returns a random key that some batch may have written. One in eight is changed, so that no batch has written it.
    fn any_key(&self, rng: &mut Rng) -> Key {
        let mut key = self.plan.key(self.plan.any_id(rng, self.seq));
        if rng.once_in(8) {
            key[(8 + rng.below(16)) as usize] ^= 1 << rng.below(8);
        }
        key
    }

    /// Compares some keys, by single gets and by one `get_many`.
    pub(crate) fn check_gets(&self, reader: &mut dyn Reader, rng: &mut Rng, count: usize) -> Check {
        self.check_checkpoint(reader.checkpoint()?)?;
        let keys: Vec<Key> = (0..count).map(|_| self.any_key(rng)).collect();
        for key in keys.iter().take(count / 2) {
            self.check(key, reader.get(key)?)?;
        }
        let mut values = vec![Some([7; 32]); keys.len()];
        reader.get_many(&keys, &mut values)?;
        keys.iter().zip(values).try_for_each(|(key, value)| self.check(key, value))
    }

    /// Compares all pairs of a scan: they must ascend, and none may be missing.
    pub(crate) fn check_scan(&self, reader: &mut dyn Reader) -> Check {
        self.check_checkpoint(reader.checkpoint()?)?;
        let mut seen = vec![false; self.stamps.len()];
        let (mut last, mut pairs, mut outcome): (Option<Key>, u64, Check) = (None, 0, Ok(()));
        reader.scan(&mut |key, value| {
            outcome = self.check(key, Some(*value));
            if last.is_some_and(|last| last >= *key) {
                outcome = wrong(format!("a scan does not ascend: key={}", hex(key)));
            }
            last = Some(*key);
            // A pair of a chunk that was cut short has a stamp of zero, or no place yet.
            let place = self.plan.id(key).map_or(usize::MAX, |id| self.plan.place(id));
            if self.stamps.get(place).is_some_and(|stamp| *stamp != 0) {
                (seen[place], pairs) = (true, pairs + 1);
            }
            if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        outcome?;
        if pairs == self.pairs {
            return Ok(());
        }
        let missing = (0..seen.len()).find(|place| self.stamps[*place] != 0 && !seen[*place]);
        let key = missing.map(|place| hex(&self.plan.key_at(place))).unwrap_or_default();
        wrong(format!("seq={} a scan misses pairs: found={pairs} expected={} first={key}", self.seq, self.pairs))
    }

    /// Compares some pairs in a scan from a random key.
    pub(crate) fn check_scan_from(&self, reader: &mut dyn Reader, rng: &mut Rng) -> Check {
        self.check_checkpoint(reader.checkpoint()?)?;
        let (first, most) = (self.any_key(rng), rng.below(300) as usize + 1);
        let mut found = Vec::with_capacity(most);
        reader.scan_from(&first, &mut |key, value| {
            found.push((*key, *value));
            if found.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        for (key, value) in &found {
            self.check(key, Some(*value))?;
        }
        if !found.is_sorted_by(|a, b| a.0 < b.0) || found.first().is_some_and(|(key, _)| *key < first) {
            return wrong(format!("a scan from a key does not ascend from there: first={}", hex(&first)));
        }
        // Up to the last pair of the scan, or to the end of the store.
        let last = found.last().filter(|_| found.len() == most).map_or([0xff; 32], |(key, _)| *key);
        let is_missing = |key: &Key| found.binary_search_by(|(found, _)| found.cmp(key)).is_err();
        let mut keys = self.places().map(|place| self.plan.key_at(place));
        match keys.find(|key| (first..=last).contains(key) && is_missing(key)) {
            Some(key) => wrong(format!("seq={} key={} is missing in a scan from a key", self.seq, hex(&key))),
            None => Ok(()),
        }
    }

    /// Returns the places of all keys in the store.
    fn places(&self) -> impl Iterator<Item = usize> {
        self.stamps.iter().enumerate().filter(|(_, stamp)| **stamp != 0).map(|(place, _)| place)
    }

    /// Compares the whole store by its checkpoint, scans, and gets.
    pub(crate) fn check_store(&self, engine: &dyn Engine, rng: &mut Rng) -> Check {
        self.check_checkpoint(engine.checkpoint()?)?;
        let mut reader = engine.reader()?;
        self.check_scan(&mut *reader)?;
        self.check_scan_from(&mut *reader, rng)?;
        self.check_gets(&mut *reader, rng, 500)?;
        for place in self.places().step_by((self.pairs as usize / 64).max(1)) {
            let key = self.plan.key_at(place);
            self.check(&key, reader.get(&key)?)?;
        }
        Ok(())
    }

    fn check_checkpoint(&self, found: Checkpoint) -> Check {
        let expected = self.checkpoint();
        if found == expected {
            return Ok(());
        }
        wrong(format!("found={found:?} expected={expected:?}"))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
