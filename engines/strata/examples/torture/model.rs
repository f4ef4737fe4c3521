//! The expected content of a store, and the comparison of a reader with it.
//!
//! Owns: the expected content after a number of changes. Must not: write to a store. Each thread has its own.

use std::fmt;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use engine_api::{Engine, Error, Key, Reader, Value};
use xxhash_rust::xxh3::xxh3_64;

use crate::plan::{Change, Plan, value};
use crate::support::{Rng, at};

/// Reason that ends a round early.
#[derive(Debug)]
pub(crate) enum Bad {
    /// The engine returned an error, which a fault may explain.
    Engine(Error),
    /// An answer that is wrong, whatever the fault.
    Wrong(String),
}

/// Result of a check; the error ends the round.
pub(crate) type Check<T = ()> = Result<T, Bad>;

impl From<Error> for Bad {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

impl From<io::Error> for Bad {
    fn from(error: io::Error) -> Self {
        Self::Wrong(format!("the machine itself failed: {error}"))
    }
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(error) => write!(f, "an error that nothing explains: kind={:?} {error}", error.kind()),
            Self::Wrong(why) => write!(f, "{why}"),
        }
    }
}

/// Returns an error that describes a wrong answer.
pub(crate) fn wrong<T>(why: impl Into<String>) -> Check<T> {
    Err(Bad::Wrong(why.into()))
}

/// Digest of a store's content: number of pairs and a hash that does not depend on their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) pairs: u64,
    hash: u64,
}

impl Sum {
    fn add(&mut self, key: &Key, value: &Value) {
        self.pairs += 1;
        self.hash = self.hash.wrapping_add(pair_hash(key, value));
    }

    fn remove(&mut self, key: &Key, value: &Value) {
        self.pairs -= 1;
        self.hash = self.hash.wrapping_sub(pair_hash(key, value));
    }

    /// Returns the digest of a reader's scan, which must ascend.
    pub(crate) fn of(reader: &mut dyn Reader) -> Check<Self> {
        let mut sum = Self::default();
        let mut last: Option<Key> = None;
        let mut ordered = true;
        reader.scan(&mut |key, value| {
            ordered &= last.is_none_or(|last| last < *key);
            last = Some(*key);
            sum.add(key, value);
            ControlFlow::Continue(())
        })?;
        if ordered { Ok(sum) } else { wrong("a scan does not ascend") }
    }
}

fn pair_hash(key: &Key, value: &Value) -> u64 {
    let mut pair = [0; 64];
    pair[..32].copy_from_slice(key);
    pair[32..].copy_from_slice(value);
    xxh3_64(&pair)
}

/// The content after change `seq`.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) plan: Plan,
    pub(crate) seq: u64,
    pub(crate) sum: Sum,
    /// Number of operations in all changes so far.
    pub(crate) ops: u64,
    /// Stamp of the value by place; zero if there is no pair.
    stamps: Vec<u64>,
}

impl Model {
    pub(crate) fn new(plan: Plan) -> Self {
        Self { plan, seq: 0, sum: Sum::default(), ops: 0, stamps: vec![0; plan.places()] }
    }

    /// Computes the content after `seq` changes.
    pub(crate) fn after(plan: Plan, seq: u64) -> Self {
        let mut model = Self::new(plan);
        model.advance_to(seq);
        model
    }

    pub(crate) fn advance_to(&mut self, seq: u64) {
        while self.seq < seq {
            self.apply(&self.plan.change(self.seq + 1));
        }
    }

    /// Applies `change`, which must be the one after `seq`.
    pub(crate) fn apply(&mut self, change: &Change) {
        for op in change.ops() {
            let place = self.plan.place(op.id);
            if place >= self.stamps.len() {
                self.stamps.resize(place + 1, 0);
            }
            let key = self.plan.key(op.id);
            let before = std::mem::replace(&mut self.stamps[place], op.stamp);
            if before != 0 {
                self.sum.remove(&key, &value(before));
            }
            if op.stamp != 0 {
                self.sum.add(&key, &value(op.stamp));
            }
        }
        self.ops += change.ops().len() as u64;
        self.seq += 1;
    }

    fn value(&self, id: u64) -> Option<Value> {
        let stamp = self.stamps.get(self.plan.place(id)).copied().unwrap_or(0);
        (stamp != 0).then(|| value(stamp))
    }

    /// Returns a random key with its expected value. One in eight is a changed key that was never written.
    pub(crate) fn sample(&self, rng: &mut Rng) -> (Key, Option<Value>) {
        let id = self.plan.any_id(rng, self.seq);
        let mut key = self.plan.key(id);
        if rng.below(8) == 0 {
            key[(8 + rng.below(16)) as usize] ^= 1 << rng.below(8);
            return (key, None);
        }
        (key, self.value(id))
    }

    /// Compares gets of random keys, one by one and many at once.
    pub(crate) fn check_gets(&self, reader: &mut dyn Reader, rng: &mut Rng, count: usize) -> Check {
        let samples: Vec<_> = (0..count).map(|_| self.sample(rng)).collect();
        for sample in &samples {
            let found = reader.get(&sample.0)?;
            self.compare("get", sample, found)?;
        }
        let keys: Vec<Key> = samples.iter().map(|(key, _)| *key).collect();
        let mut values = vec![Some([7; 32]); keys.len()];
        reader.get_many(&keys, &mut values)?;
        samples.iter().zip(values).try_for_each(|(sample, found)| self.compare("get_many", sample, found))
    }

    fn compare(&self, what: &str, (key, expected): &(Key, Option<Value>), found: Option<Value>) -> Check {
        if found == *expected {
            return Ok(());
        }
        wrong(format!("{what} at seq={}: key={} found={found:x?} expected={expected:x?}", self.seq, shown(key)))
    }

    /// Compares a whole scan: every pair must be right, none missing and none twice.
    pub(crate) fn check_scan(&self, reader: &mut dyn Reader) -> Check {
        let mut seen = vec![false; self.stamps.len()];
        let (mut last, mut pairs, mut why) = (None, 0, None);
        reader.scan(&mut |key, value| {
            let expected = self.plan.id(key).and_then(|id| {
                if let Some(seen) = seen.get_mut(self.plan.place(id)) {
                    *seen = true;
                }
                self.value(id)
            });
            if last.is_some_and(|last| last >= *key) {
                why = Some(format!("a scan does not ascend: key={}", shown(key)));
            } else if expected != Some(*value) {
                why = Some(format!("a scan gives key={} value={value:x?} expected={expected:x?}", shown(key)));
            }
            (last, pairs) = (Some(*key), pairs + 1);
            if why.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if let Some(why) = why {
            return wrong(format!("{why} seq={}", self.seq));
        }
        if pairs == self.sum.pairs {
            return Ok(());
        }
        let missing = (0..seen.len()).find(|place| self.stamps[*place] != 0 && !seen[*place]);
        let key = missing.map(|place| shown(&self.plan.key(self.plan.at_place(place)))).unwrap_or_default();
        wrong(format!("a scan misses pairs: seq={} pairs={pairs} of={} first={key}", self.seq, self.sum.pairs))
    }

    /// Checks checkpoint, scan and gets of an open store.
    pub(crate) fn check_store(&self, engine: &dyn Engine, rng: &mut Rng) -> Check {
        let found = engine.checkpoint()?;
        if found != at(self.seq) {
            return wrong(format!("checkpoint={found:?} expected={:?}", at(self.seq)));
        }
        let mut reader = engine.reader()?;
        if reader.checkpoint()? != found {
            return wrong("a reader's checkpoint is not the store's");
        }
        self.check_scan(&mut *reader)?;
        self.check_gets(&mut *reader, rng, 2_000)
    }

    /// Writes the model to a file, so that another process need not compute it.
    pub(crate) fn save(&self, path: &Path) -> io::Result<()> {
        let words = [self.seq, self.sum.pairs, self.sum.hash, self.ops];
        let bytes: Vec<u8> = words.iter().chain(&self.stamps).flat_map(|word| word.to_le_bytes()).collect();
        fs::write(path, bytes)
    }

    /// Reads a model that [`Model::save`] wrote.
    pub(crate) fn load(plan: Plan, path: &Path) -> io::Result<Self> {
        let bytes = fs::read(path)?;
        let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(std::array::from_fn(|i| word[i])));
        let mut word = || words.next().ok_or(io::ErrorKind::UnexpectedEof);
        let (seq, pairs, hash, ops) = (word()?, word()?, word()?, word()?);
        Ok(Self { plan, seq, sum: Sum { pairs, hash }, ops, stamps: words.collect() })
    }
}

/// Formats a key in hex.
pub(crate) fn shown(key: &Key) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}
