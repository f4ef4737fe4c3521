//! `values`: the keys of a value. The key of an entry is a hash of the value and then one of the key, and its value is the key.
//!
//! Owns: the entries, the changes that follow from a change of the map, and a page of a value's keys. Must not: look into the
//! map: an entry says all.

use std::ops::ControlFlow;

use engine_api::{Durability, Engine, Key, Reader, Result, Value};

use crate::{PREFIX_BYTES, Position, Secret};

/// Name of the derived store that finds the keys of a value.
pub const NAME: &str = "values";

/// A place among the keys of a value: the hash of the last key that was seen.
pub type Place = [u8; PREFIX_BYTES];

/// A change of the map: a key with its value before and after.
pub type Change = (Key, Option<Value>, Option<Value>);

/// Keys of a value, in the order of their hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub keys: Vec<Key>,
    /// The place of the last key, if there are more.
    pub more: Option<Place>,
}

/// How a map differs from the one that a store has the entries of.
pub struct Differences<'a> {
    /// Whether the value of a key differs.
    pub is_changed: &'a dyn Fn(&Key) -> bool,
    /// All keys of those that have the value which is asked for.
    pub keys: &'a mut dyn Iterator<Item = Key>,
}

/// Returns the entry of a pair.
pub fn entry(secret: &Secret, key: &Key, value: &Value) -> (Key, Value) {
    (joined(&secret.hash(value), &secret.hash(key)), *key)
}

/// Returns a number that tells the entries of a value from those of others, nearly always.
pub fn tag(secret: &Secret, value: &Value) -> u64 {
    let hash = secret.hash(value);
    u64::from_le_bytes(std::array::from_fn(|n| hash[n]))
}

/// Commits the entries that follow from these changes, in their order, and the position after them. The changes of a feed may be
/// applied again. Flushed, because the feed may drop changes that the store has.
///
/// # Errors
/// Those of the engine.
pub fn apply(engine: &dyn Engine, changes: &mut dyn Iterator<Item = Change>, seq: u64, to: &Position) -> Result<()> {
    let mut txn = engine.begin()?;
    for (key, old, new) in changes {
        if old == new {
            continue;
        }
        if let Some(old) = old {
            txn.delete(&entry(&to.secret, &key, &old).0)?;
        }
        if let Some(new) = new {
            let (at, key) = entry(&to.secret, &key, &new);
            txn.put(&at, &key)?;
        }
    }
    txn.commit(&to.write(seq), Durability::Synced)
}

/// Reads at most `limit` keys of a value, those after `after`, in the store's map or in one that differs from it.
///
/// # Errors
/// Those of the engine.
pub fn page(
    reader: &mut dyn Reader,
    secret: &Secret,
    value: &Value,
    after: Option<&Place>,
    limit: usize,
    differences: Option<Differences<'_>>,
) -> Result<Page> {
    let mut more: Vec<(Place, Key)> = Vec::new();
    let mut is_changed: &dyn Fn(&Key) -> bool = &|_| false;
    if let Some(differences) = differences {
        more.extend(differences.keys.map(|key| (secret.hash(&key), key)));
        is_changed = differences.is_changed;
    }
    more.retain(|(place, _)| after.is_none_or(|after| place > after));
    more.sort_unstable();
    let mut more = more.into_iter().peekable();

    let first = joined(&secret.hash(value), after.unwrap_or(&[0; PREFIX_BYTES]));
    let (mut page, mut last) = (Page::default(), [0; PREFIX_BYTES]);
    let mut push = |place: Place, key: Key| {
        if page.keys.len() == limit {
            page.more = Some(last);
            return ControlFlow::Break(());
        }
        page.keys.push(key);
        last = place;
        ControlFlow::Continue(())
    };
    let mut is_full = false;
    reader.scan_prefix(&first, PREFIX_BYTES, &mut |at, key| {
        let place: Place = std::array::from_fn(|n| at[PREFIX_BYTES + n]);
        if after == Some(&place) || is_changed(key) {
            return ControlFlow::Continue(());
        }
        let before = std::iter::from_fn(|| more.next_if(|(of, _)| *of < place));
        let flow = before.chain([(place, *key)]).try_for_each(|(place, key)| push(place, key));
        is_full = flow.is_break();
        flow
    })?;
    if !is_full {
        // The page itself says whether it is full by then.
        let _flow = more.try_for_each(|(place, key)| push(place, key));
    }
    Ok(page)
}

fn joined(value: &[u8; PREFIX_BYTES], key: &[u8; PREFIX_BYTES]) -> Key {
    let mut joined = [0; 32];
    joined[..PREFIX_BYTES].copy_from_slice(value);
    joined[PREFIX_BYTES..].copy_from_slice(key);
    joined
}

#[cfg(test)]
mod tests;
