//! The changes of a store after an earlier slot, and a scan of the store as it was at that slot.
//!
//! Owns: of each changed key the value before its first change and the value after its last one, in bounded memory.
//! Must not: read a log of changes; the caller does. Threads: main collects; the thread that scans the store takes
//! back.
//!
//! The scan returns the value before the first change. It compares the store's own value with the value after the last
//! one, because otherwise the reverted value would hide a commit that the store has lost.

use std::fmt;

use engine_api::{Key, Value};

/// 1/`COMPACT_SHARE` of the memory has to become free when several changes of a key are joined. With less, joining
/// would take most of the time.
const COMPACT_SHARE: usize = 8;

/// Largest number of keys that are named because the store does not hold their newest value.
pub(crate) const NAMED_MAX: usize = 10;

/// The changes of one key, joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Joined {
    key: Key,
    /// Number of the key's first change. Changes are numbered in the order in which they come.
    number: u64,
    /// Value before the first change.
    old: Option<Value>,
    /// Value after the last change.
    new: Option<Value>,
}

/// The changes that are taken back, at most one for each key.
#[derive(Debug)]
pub struct Undo {
    /// Sorted by key, with one entry for each key, once [`Undo::finish`] was called.
    changes: Vec<Joined>,
    keys_max: usize,
    /// Number of changes that were added.
    added: u64,
}

/// More keys were changed than fit into the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyKeys {
    /// Number of keys that fit.
    pub keys_max: usize,
}

impl Undo {
    /// Memory of one changed key in bytes.
    pub const KEY_BYTES: u64 = size_of::<Joined>() as u64;

    /// Creates a list without changes, for a comparison that takes nothing back.
    pub fn nothing() -> Self {
        Self { changes: Vec::new(), keys_max: 0, added: 0 }
    }

    /// Creates an empty list that takes `bytes_max` bytes at most. `changes` is the number of changes that will be
    /// added; with few of them the list takes less.
    ///
    /// # Errors
    /// [`TooManyKeys`] if the memory cannot be reserved.
    pub fn within(bytes_max: u64, changes: u64) -> Result<Self, TooManyKeys> {
        let keys_max = usize::try_from((bytes_max / Self::KEY_BYTES).min(changes)).unwrap_or(usize::MAX);
        let mut reserved = Vec::new();
        reserved.try_reserve_exact(keys_max).map_err(|_| TooManyKeys { keys_max: 0 })?;
        Ok(Self { changes: reserved, keys_max, added: 0 })
    }

    /// Adds the next change. Changes come in the order in which they were made.
    ///
    /// # Errors
    /// [`TooManyKeys`] if the changed keys take more than the memory. The list is of no use then.
    pub fn add(&mut self, key: Key, old: Option<Value>, new: Option<Value>) -> Result<(), TooManyKeys> {
        if self.changes.len() == self.keys_max {
            self.join();
            if self.changes.len() >= self.keys_max - self.keys_max / COMPACT_SHARE {
                return Err(TooManyKeys { keys_max: self.keys_max });
            }
        }
        self.changes.push(Joined { key, number: self.added, old, new });
        self.added += 1;
        Ok(())
    }

    /// Sorts the list. Call it after the last change.
    pub fn finish(&mut self) {
        self.join();
    }

    /// Number of changed keys, each counted once after [`Undo::finish`].
    pub fn keys(&self) -> u64 {
        self.changes.len() as u64
    }

    /// Returns each changed key with the value before its first change, in ascending order.
    pub fn old_values(&self) -> impl Iterator<Item = (&Key, Option<&Value>)> {
        self.changes.iter().map(|change| (&change.key, change.old.as_ref()))
    }

    /// Memory of the list in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.changes.capacity() as u64 * Self::KEY_BYTES
    }

    /// Sorts the changes by key, and joins those of the same key.
    fn join(&mut self) {
        self.changes.sort_unstable_by_key(|change| (change.key, change.number));
        self.changes.dedup_by(|later, first| {
            let same = later.key == first.key;
            if same {
                first.new = later.new;
            }
            same
        });
    }
}

impl fmt::Display for TooManyKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.keys_max as u64 * Undo::KEY_BYTES;
        write!(f, "more keys were changed than fit into the memory: keys_max={} bytes={bytes}", self.keys_max)
    }
}

impl std::error::Error for TooManyKeys {}

/// A key that the store should hold another value of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) key: Key,
    /// Value after the key's last change.
    pub(crate) expected: Option<Value>,
    /// Value that the store holds instead.
    pub(crate) found: Option<Value>,
}

/// Changed keys whose newest value is not in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LostChanges {
    pub(crate) count: u64,
    /// The first of them, [`NAMED_MAX`] at most.
    pub(crate) named: Vec<Lost>,
}

/// Turns an ascending scan of the store into one of the earlier slot.
///
/// The store's own value of a changed key does not reach the comparison, so it is compared here with the value after
/// the last change. A change that the store has lost would otherwise stay unseen.
pub(crate) struct TakeBack<'a> {
    rest: std::slice::Iter<'a, Joined>,
    lost: LostChanges,
}

impl<'a> TakeBack<'a> {
    pub(crate) fn new(undo: &'a Undo) -> Self {
        Self { rest: undo.changes.iter(), lost: LostChanges::default() }
    }

    /// Takes the store's next pair, and passes on the pairs of the earlier slot up to its key. Returns whether
    /// `pass_on` wants more.
    pub(crate) fn push(&mut self, key: &Key, value: &Value, pass_on: &mut impl FnMut((Key, Value)) -> bool) -> bool {
        while let Some(change) = self.rest.as_slice().first().filter(|change| change.key <= *key) {
            self.rest.next();
            let found = (change.key == *key).then_some(*value);
            let is_wanted = self.take_back(change, found, pass_on);
            if found.is_some() || !is_wanted {
                return is_wanted;
            }
        }
        pass_on((*key, *value))
    }

    /// Passes on the pairs of the earlier slot after the store's last key. Returns the changes that the store has lost.
    pub(crate) fn finish(mut self, pass_on: &mut impl FnMut((Key, Value)) -> bool) -> LostChanges {
        while let Some(change) = self.rest.next() {
            if !self.take_back(change, None, pass_on) {
                break;
            }
        }
        self.lost
    }

    fn take_back(
        &mut self,
        change: &Joined,
        found: Option<Value>,
        pass_on: &mut impl FnMut((Key, Value)) -> bool,
    ) -> bool {
        let Joined { key, old, new: expected, .. } = *change;
        if found != expected {
            self.lost.count += 1;
            if self.lost.named.len() < NAMED_MAX {
                self.lost.named.push(Lost { key, expected, found });
            }
        }
        old.is_none_or(|old| pass_on((key, old)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Map = BTreeMap<u8, u8>;

    fn scan_back(store: &Map, undo: &Undo) -> (Map, LostChanges) {
        let (mut back, mut out) = (TakeBack::new(undo), Vec::new());
        let mut pass_on = |pair| {
            out.push(pair);
            true
        };
        assert!(store.iter().all(|(key, value)| back.push(&[*key; 32], &[*value; 32], &mut pass_on)));
        let lost = back.finish(&mut pass_on);
        assert!(out.is_sorted_by(|a, b| a.0 < b.0));
        (out.iter().map(|(key, value)| (key[0], value[0])).collect(), lost)
    }

    proptest! {
        #[test]
        fn a_scan_gives_the_map_before_the_changes(
            before in prop::collection::btree_map(0u8..40, 0u8..3, 0..30),
            changes in prop::collection::vec((0u8..40, prop::option::of(0u8..3)), 0..200),
            keys_max in 46u64..300,
            damaged in prop::option::of((0u8..40, prop::option::of(9u8..10))),
        ) {
            let mut undo = Undo::within(keys_max * Undo::KEY_BYTES, 1000).unwrap();
            let (mut store, mut newest) = (before.clone(), BTreeMap::new());
            for (key, new) in changes {
                let old = match new {
                    Some(value) => store.insert(key, value),
                    None => store.remove(&key),
                };
                let value = |value: Option<u8>| value.map(|value| [value; 32]);
                undo.add([key; 32], value(old), value(new)).unwrap();
                newest.insert(key, new);
            }
            undo.finish();
            prop_assert_eq!(undo.keys(), newest.len() as u64);
            prop_assert_eq!(scan_back(&store, &undo), (before.clone(), LostChanges::default()));
            let Some((key, value)) = damaged else { return Ok(()) };
            match value {
                Some(value) => store.insert(key, value),
                None => store.remove(&key),
            };
            let expected = newest.get(&key).filter(|new| **new != value).map(|new| (new.map(|v| [v; 32]), [key; 32]));
            let (found, lost) = scan_back(&store, &undo);
            prop_assert_eq!(lost.named.first().map(|lost| (lost.expected, lost.key)), expected);
            // A key that was not changed differs in the scan itself.
            prop_assert!(newest.contains_key(&key) == (found == before) || before.get(&key).copied() == value);
        }
    }

    #[test]
    fn keys_that_do_not_fit_are_refused_and_changes_of_few_keys_fit() {
        let mut undo = Undo::within(16 * Undo::KEY_BYTES, 1000).unwrap();
        for change in 0..1000u64 {
            undo.add([(change % 13) as u8; 32], None, Some([1; 32])).unwrap();
        }
        let refused = (0..20u8).map(|key| undo.add([100 + key; 32], None, None)).find_map(Result::err);
        assert_eq!(refused, Some(TooManyKeys { keys_max: 16 }));
        assert!(TooManyKeys { keys_max: 16 }.to_string().contains("keys_max=16 bytes=1792"));
        // No more memory than the changes need.
        assert_eq!(Undo::within(1 << 40, 3).unwrap().bytes(), 3 * Undo::KEY_BYTES);
    }
}
