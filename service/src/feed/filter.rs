//! Which changes a subscriber wants.
//!
//! Owns: the checks of a filter and its decision. Must not: know gRPC's status codes.

use std::collections::HashSet;

use engine_api::{Key, Value};
use proto::v1::FILTER_ENTRIES_MAX;

use super::record::Change;

/// Passes what passes each part that says something.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    keys: HashSet<Key>,
    values: HashSet<Value>,
    key_prefixes: Vec<Vec<u8>>,
}

impl Filter {
    /// From the wire.
    ///
    /// # Errors
    /// In words: which part is wrong.
    pub fn new(filter: &proto::v1::Filter) -> Result<Self, String> {
        let entries = filter.keys.len() + filter.values.len() + filter.key_prefixes.len();
        if entries > FILTER_ENTRIES_MAX {
            return Err(format!("too many entries in the filter: got={entries} max={FILTER_ENTRIES_MAX}"));
        }
        let prefix = |(index, prefix): (usize, &bytes::Bytes)| match prefix.len() {
            1..=32 => Ok(prefix.to_vec()),
            len => Err(format!("filter.key_prefixes must be 1 to 32 bytes: got={len} index={index}")),
        };
        Ok(Self {
            keys: exact("keys", &filter.keys)?,
            values: exact("values", &filter.values)?,
            key_prefixes: filter.key_prefixes.iter().enumerate().map(prefix).collect::<Result<_, _>>()?,
        })
    }

    /// Whether a change passes.
    pub fn passes(&self, change: &Change) -> bool {
        self.passes_key(&change.key) && self.passes_value(change.old.as_ref(), change.new.as_ref())
    }

    /// Whether a pair of a snapshot passes.
    pub fn passes_pair(&self, key: &Key, value: &Value) -> bool {
        self.passes_key(key) && self.passes_value(Some(value), None)
    }

    fn passes_key(&self, key: &Key) -> bool {
        (self.keys.is_empty() || self.keys.contains(key))
            && (self.key_prefixes.is_empty() || self.key_prefixes.iter().any(|prefix| key.starts_with(prefix)))
    }

    fn passes_value(&self, old: Option<&Value>, new: Option<&Value>) -> bool {
        let wanted = |value: Option<&Value>| value.is_some_and(|value| self.values.contains(value));
        self.values.is_empty() || wanted(old) || wanted(new)
    }
}

fn exact(part: &str, entries: &[bytes::Bytes]) -> Result<HashSet<[u8; 32]>, String> {
    let one = |(index, bytes): (usize, &bytes::Bytes)| {
        let len = bytes.len();
        bytes[..].try_into().map_err(|_| format!("filter.{part} must be 32 bytes each: got={len} index={index}"))
    };
    entries.iter().enumerate().map(one).collect()
}
