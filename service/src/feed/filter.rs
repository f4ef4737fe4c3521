//! The filter of a subscriber, which selects changes and pairs by key and value.
//!
//! Owns: the checks of a filter and its decision. Must not: know gRPC's status codes, or cost more than a search for
//! each change. A filter may have ten thousand entries, and every change of the map is checked for every subscriber.
//! Threads: made on the network edge, used on `feed-read-N` and `feed-dump-N`.

use std::ops::Range;

use engine_api::{Key, Value};
use proto::v1::FILTER_ENTRIES_MAX;

use super::record::Change;

/// A filter of keys, values and key prefixes. A change passes if it passes each part that has entries.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Keys that pass, ascending, without duplicates.
    keys: Vec<Key>,
    /// Values that pass as the old or the new one, ascending, without duplicates.
    values: Vec<Value>,
    /// Key prefixes that pass, ascending; none begins with another one.
    prefixes: Vec<Prefix>,
}

/// The beginning of a key. Prefixes sort by their padded bytes; of two with the same bytes, the shorter one comes
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Prefix {
    /// The prefix, filled up with zeros: the least key that begins with it.
    padded: Key,
    /// Length of the prefix in bytes, 1 to 32.
    len: u8,
}

impl Prefix {
    fn begins(&self, key: &Key) -> bool {
        let len = usize::from(self.len);
        key[..len] == self.padded[..len]
    }
}

impl Filter {
    /// Decodes and checks a filter as sent by a subscriber.
    ///
    /// # Errors
    /// A description of the defect: too many entries, or an entry of a wrong length, with its part and index.
    pub fn new(filter: &proto::v1::Filter) -> Result<Self, String> {
        let entries = filter.keys.len() + filter.values.len() + filter.key_prefixes.len();
        if entries > FILTER_ENTRIES_MAX {
            return Err(format!("too many entries in the filter: got={entries} max={FILTER_ENTRIES_MAX}"));
        }
        Ok(Self {
            keys: exact("keys", &filter.keys)?,
            values: exact("values", &filter.values)?,
            prefixes: prefixes(&filter.key_prefixes)?,
        })
    }

    /// Whether a change passes: its key, and its old or its new value.
    pub fn passes(&self, change: &Change) -> bool {
        self.passes_key(&change.key) && self.passes_value(change.old.as_ref(), change.new.as_ref())
    }

    /// Whether a pair of a dump passes: its key and its value.
    pub fn passes_pair(&self, key: &Key, value: &Value) -> bool {
        self.passes_key(key) && self.passes_value(Some(value), None)
    }

    /// Whether a pair or a change of `key` can pass with some value.
    pub fn passes_key(&self, key: &Key) -> bool {
        (self.keys.is_empty() || self.keys.binary_search(key).is_ok())
            && (self.prefixes.is_empty() || self.prefix_of(key).is_some())
    }

    /// Whether the filter lists keys, so that only those of [`Filter::wanted_keys`] can pass.
    pub fn names_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Returns up to `most` keys that can pass, from `first` on, ascending. Only for a filter with
    /// [`Filter::names_keys`].
    pub fn wanted_keys(&self, first: &Key, most: usize) -> Vec<Key> {
        let from = self.keys.partition_point(|key| key < first);
        self.keys[from..].iter().filter(|key| self.passes_key(key)).take(most).copied().collect()
    }

    /// Returns the least key from `first` on that the prefixes let pass; `None` when every passing key comes before
    /// `first`.
    pub fn first_wanted(&self, first: &Key) -> Option<Key> {
        if self.prefixes.is_empty() || self.prefix_of(first).is_some() {
            return Some(*first);
        }
        self.prefixes.get(self.prefixes_up_to(first)).map(|prefix| prefix.padded)
    }

    fn passes_value(&self, old: Option<&Value>, new: Option<&Value>) -> bool {
        let wanted = |value: Option<&Value>| value.is_some_and(|value| self.values.binary_search(value).is_ok());
        self.values.is_empty() || wanted(old) || wanted(new)
    }

    /// Returns the prefix that `key` begins with, if any. That can only be the greatest prefix that is not above the
    /// key. If `key` began with a lower prefix, everything between the two would begin with it, that greatest prefix
    /// included. But no prefix begins with another.
    fn prefix_of(&self, key: &Key) -> Option<&Prefix> {
        let up_to = self.prefixes_up_to(key);
        self.prefixes[..up_to].last().filter(|prefix| prefix.begins(key))
    }

    fn prefixes_up_to(&self, key: &Key) -> usize {
        self.prefixes.partition_point(|prefix| prefix.padded <= *key)
    }
}

fn exact(part: &str, entries: &[bytes::Bytes]) -> Result<Vec<[u8; 32]>, String> {
    let one = |(index, bytes): (usize, &bytes::Bytes)| {
        let len = bytes.len();
        bytes[..].try_into().map_err(|_| format!("filter.{part} must be 32 bytes each: got={len} index={index}"))
    };
    let mut entries = entries.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
    entries.sort_unstable();
    entries.dedup();
    Ok(entries)
}

/// Decodes the prefixes in ascending order, without those that begin with another one, because these are redundant.
fn prefixes(entries: &[bytes::Bytes]) -> Result<Vec<Prefix>, String> {
    const LENGTHS: Range<usize> = 1..33;
    let one = |(index, bytes): (usize, &bytes::Bytes)| {
        let len = bytes.len();
        if !LENGTHS.contains(&len) {
            return Err(format!("filter.key_prefixes must be 1 to 32 bytes: got={len} index={index}"));
        }
        let mut padded = [0; 32];
        padded[..len].copy_from_slice(bytes);
        Ok(Prefix { padded, len: len as u8 })
    };
    let mut prefixes = entries.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
    prefixes.sort_unstable();
    // The first of the two stays, because the second one begins with it.
    prefixes.dedup_by(|next, kept| next.len >= kept.len && kept.begins(&next.padded));
    Ok(prefixes)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    /// Keys of few different bytes, so that prefixes match keys, and begin with each other.
    fn key() -> impl Strategy<Value = Key> {
        prop::collection::vec(0u8..3, 4).prop_map(|head| {
            let mut key = [0; 32];
            key[..4].copy_from_slice(&head);
            key[31] = head[0];
            key
        })
    }

    fn prefix() -> impl Strategy<Value = Bytes> {
        (key(), 1usize..6).prop_map(|(key, len)| Bytes::copy_from_slice(&key[..if len == 5 { 32 } else { len }]))
    }

    fn bytes(entries: &[Key]) -> Vec<Bytes> {
        entries.iter().map(|entry| Bytes::copy_from_slice(entry)).collect()
    }

    proptest! {
        /// The searches decide as a comparison with every entry does.
        #[test]
        fn a_filter_decides_as_a_walk_through_its_entries(
            keys in prop::collection::vec(key(), 0..6),
            values in prop::collection::vec(key(), 0..4),
            prefixes in prop::collection::vec(prefix(), 0..8),
            asked in prop::collection::vec((key(), prop::option::of(key()), prop::option::of(key())), 1..40),
        ) {
            let wire = proto::v1::Filter { keys: bytes(&keys), values: bytes(&values), key_prefixes: prefixes.clone() };
            let filter = Filter::new(&wire).unwrap();
            let by_prefix = |key: &Key| prefixes.is_empty() || prefixes.iter().any(|prefix| key.starts_with(prefix));
            let by_key = |key: &Key| (keys.is_empty() || keys.contains(key)) && by_prefix(key);
            for (key, old, new) in &asked {
                let by_value = values.is_empty() || [old, new].into_iter().flatten().any(|value| values.contains(value));
                let change = Change { slot: 0, key: *key, old: *old, new: *new };
                prop_assert_eq!(filter.passes(&change), by_key(key) && by_value);
                prop_assert_eq!(filter.passes_key(key), by_key(key));
                let mut wanted: Vec<Key> = keys.iter().filter(|wanted| *wanted >= key && by_prefix(wanted)).copied().collect();
                wanted.sort_unstable();
                wanted.dedup();
                wanted.truncate(2);
                prop_assert_eq!(filter.wanted_keys(key, 2), wanted);
                // No key between the two passes a prefix, and the second one passes.
                let first = filter.first_wanted(key);
                let between = asked.iter().map(|(other, ..)| other).filter(|other| *other >= key && by_prefix(other));
                prop_assert!(between.into_iter().all(|other| first.is_some_and(|first| first <= *other)));
                prop_assert!(first.is_none_or(|first| first >= *key && by_prefix(&first)));
            }
        }
    }

    #[test]
    fn covered_prefixes_are_dropped_and_wrong_ones_named() {
        let of = |entries: &[&'static [u8]]| {
            prefixes(&entries.iter().map(|entry| Bytes::from_static(entry)).collect::<Vec<_>>())
        };
        let kept = of(&[b"ab", b"a\0", b"abc", b"a\0\0", b"b", b"ab"]).unwrap();
        let kept: Vec<&[u8]> = kept.iter().map(|prefix| &prefix.padded[..usize::from(prefix.len)]).collect();
        assert_eq!(kept, [&b"a\0"[..], b"ab", b"b"]);
        assert!(of(&[b"a", b""]).unwrap_err().contains("got=0 index=1"));
        assert!(of(&[&[1; 33]]).unwrap_err().contains("got=33 index=0"));
    }
}
