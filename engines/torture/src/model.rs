//! The expected content of a store after a number of batches, and its comparison with the store.
//!
//! Owns: the history (which epoch wrote which batch), and the map that follows from it. Must not: write to a store. The
//! supervisor holds the history; an agent builds the map from it and compares everything that it reads.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::str::FromStr;

use engine_api::{Checkpoint, Engine, Key, Reader, Value};

use crate::plan::{Plan, Work};
use crate::rng::Rng;

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

/// The epochs of batches. Each entry is the first batch of an epoch, and the epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History(Vec<(u64, u64)>);

impl History {
    /// Returns the epoch of batch `seq`.
    pub fn epoch(&self, seq: u64) -> u64 {
        self.0.iter().rev().find(|(from, _)| *from <= seq).map_or(0, |(_, epoch)| *epoch)
    }

    /// Sets the epoch of all batches from `seq` on, and forgets their earlier epochs.
    pub fn turn(&mut self, seq: u64, epoch: u64) {
        self.0.retain(|(from, _)| *from < seq);
        if self.0.last().is_none_or(|(_, last)| *last != epoch) {
            self.0.push((seq, epoch));
        }
    }
}

impl std::fmt::Display for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<String> = self.0.iter().map(|(from, epoch)| format!("{from}:{epoch}")).collect();
        f.write_str(&parts.join(","))
    }
}

impl FromStr for History {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let part = |part: &str| {
            let (from, epoch) = part.split_once(':').ok_or("no colon")?;
            Ok((from.parse().map_err(|_| "no number")?, epoch.parse().map_err(|_| "no number")?))
        };
        text.split(',')
            .filter(|part| !part.is_empty())
            .map(part)
            .collect::<Result<_, &str>>()
            .map(Self)
            .map_err(str::to_owned)
    }
}

/// Expected content of a store at a checkpoint.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) plan: Plan,
    pub(crate) history: History,
    pub(crate) seq: u64,
    map: BTreeMap<Key, Value>,
    /// Pairs of a chunk whose load was cut short. Any of them may be there until the chunk is loaded again.
    cut: BTreeMap<Key, Value>,
}

impl Model {
    /// Builds the content after the first `seq` batches of a history. `loading` is the last chunk whose load was tried.
    pub(crate) fn at(plan: Plan, history: History, seq: u64, loading: u64) -> Self {
        let mut model = Self { plan, history, seq: 0, map: BTreeMap::new(), cut: BTreeMap::new() };
        while model.seq < seq {
            model.advance();
        }
        if loading > seq {
            model.cut(plan.chunk_of(loading).unwrap_or_default());
        }
        model
    }

    pub(crate) fn checkpoint(&self) -> Checkpoint {
        self.plan.checkpoint(self.seq, self.history.epoch(self.seq))
    }

    /// Applies the next batch of the history.
    pub(crate) fn advance(&mut self) {
        self.seq += 1;
        match self.plan.work(self.seq, self.history.epoch(self.seq)) {
            Work::Chunk(pairs) => {
                self.map.extend(pairs);
                self.cut.clear();
            }
            Work::Batch(changes) => {
                for (key, value) in changes {
                    match value {
                        Some(value) => self.map.insert(key, value),
                        None => self.map.remove(&key),
                    };
                }
            }
        }
    }

    /// Notes that a load of these pairs was tried and has failed.
    pub(crate) fn cut(&mut self, pairs: Vec<(Key, Value)>) {
        self.cut = pairs.into_iter().collect();
    }

    fn allows(&self, key: &Key, found: Option<Value>) -> bool {
        found == self.map.get(key).copied() || (found.is_some() && found == self.cut.get(key).copied())
    }

    fn check(&self, key: &Key, found: Option<Value>) -> Check {
        if self.allows(key, found) {
            return Ok(());
        }
        let expected = self.map.get(key).map(|value| hex(value));
        let found = found.as_ref().map(|value| hex(value));
        wrong(format!("seq={} key={} found={found:?} expected={expected:?}", self.seq, hex(key)))
    }

    /// Compares some keys, by single gets and by one `get_many`.
    pub(crate) fn check_gets(&self, reader: &mut dyn Reader, rng: &mut Rng, count: usize) -> Check {
        self.check_checkpoint(reader.checkpoint()?)?;
        let keys: Vec<Key> = (0..count).map(|_| self.plan.any_key(rng)).collect();
        for key in keys.iter().take(count / 2) {
            self.check(key, reader.get(key)?)?;
        }
        let mut values = vec![None; keys.len()];
        reader.get_many(&keys, &mut values)?;
        keys.iter().zip(values).try_for_each(|(key, value)| self.check(key, value))
    }

    /// Compares all pairs of a scan: they must ascend, and none may be missing.
    pub(crate) fn check_scan(&self, reader: &mut dyn Reader) -> Check {
        self.check_checkpoint(reader.checkpoint()?)?;
        let mut expected = self.map.iter().peekable();
        let (mut last, mut outcome): (Option<Key>, Check) = (None, Ok(()));
        reader.scan(&mut |key, value| {
            outcome = self.check(key, Some(*value));
            if last.is_some_and(|last| last >= *key) {
                outcome = wrong(format!("a scan does not ascend: key={}", hex(key)));
            }
            last = Some(*key);
            match expected.peek() {
                Some((next, _)) if *next < key => {
                    outcome = wrong(format!("seq={} key={} is missing in a scan", self.seq, hex(&next[..])));
                }
                Some((next, _)) if *next == key => drop(expected.next()),
                _ => {}
            }
            if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        outcome?;
        match expected.next() {
            Some((key, _)) => wrong(format!("seq={} key={} is missing at a scan's end", self.seq, hex(&key[..]))),
            None => Ok(()),
        }
    }

    /// Compares some pairs in a scan from a random key.
    pub(crate) fn check_scan_from(&self, reader: &mut dyn Reader, rng: &mut Rng) -> Check {
        self.check_checkpoint(reader.checkpoint()?)?;
        let (first, most) = (self.plan.any_key(rng), rng.below(300) as usize + 1);
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
        let missing = |key: &&Key| found.binary_search_by(|(found, _)| found.cmp(key)).is_err();
        match self.map.range(first..=last.max(first)).map(|(key, _)| key).find(missing) {
            Some(key) => wrong(format!("seq={} key={} is missing in a scan from a key", self.seq, hex(key))),
            None => Ok(()),
        }
    }

    /// Compares the whole store by its checkpoint, scans, and gets.
    pub(crate) fn check_store(&self, engine: &dyn Engine, rng: &mut Rng) -> Check {
        self.check_checkpoint(engine.checkpoint()?)?;
        let mut reader = engine.reader()?;
        self.check_scan(&mut *reader)?;
        self.check_scan_from(&mut *reader, rng)?;
        self.check_gets(&mut *reader, rng, 64)?;
        let keys: Vec<Key> = self.map.keys().copied().collect();
        for key in keys.iter().step_by((keys.len() / 64).max(1)) {
            self.check(key, reader.get(key)?)?;
        }
        Ok(())
    }

    pub(crate) fn check_checkpoint(&self, found: Checkpoint) -> Check {
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
