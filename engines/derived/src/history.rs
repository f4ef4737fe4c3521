//! `history`: the values that keys had. An entry's key is a hash of the map's key, the slot of a change and its seq; its value
//! is the value before that change, so the value at a slot is the one before the first change after it.
//!
//! Owns: the entries; a row of stores, each with a [`Period`] of slots, and the reads that go through it; the slots that are not
//! resolved. Must not: know the map's present value, which its caller has; remove a period. The caller's thread.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use engine_api::{Code, Durability, Engine, Error, Key, Result, Value};

use crate::{PREFIX_BYTES, Position, Secret, dir};

/// Name of the derived store that has the values of the past.
pub const NAME: &str = "history";

/// Prefix of the entries that name slots which are not resolved. No hash is expected to be zero: the chance is 2^-128 a key.
const MARKS: [u8; PREFIX_BYTES] = [0; PREFIX_BYTES];

/// Factor by which a search for older changes extends its range of slots. A key changes at most once a slot, so the last range
/// has at most this many times the changes that are wanted.
const WIDER: u64 = 16;

/// A change of a key in the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub slot: u64,
    pub seq: u64,
    /// The value before the change; `None` if the map did not have the key.
    pub before: Option<Value>,
}

/// Slots between these two, of which nothing is known: a heal has led the map from one to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unresolved {
    pub from_slot: u64,
    pub to_slot: u64,
}

/// A change to record: its slot, its seq, the key, and the value before.
pub type Record = (u64, u64, Key, Option<Value>);

/// The value of a key at a slot, as far as the past tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// It is the value before this change.
    Before(Change),
    /// The key has not changed since the slot: it is the map's value.
    Unchanged,
    /// A heal has jumped over the slot.
    Unresolved(Unresolved),
    /// The slot is before the oldest one that is kept.
    Gone { oldest_slot: u64 },
}

/// A store with the changes after `first_slot`, up to the slot at which the next period begins.
pub struct Period {
    pub first_slot: u64,
    engine: Box<dyn Engine>,
    secret: Secret,
    unresolved: RwLock<Vec<Unresolved>>,
}

impl Period {
    /// Takes the open store of a period. Returns it with its position and its seq.
    ///
    /// # Errors
    /// Bytes that no complete derived store has; errors of the engine.
    pub fn new(first_slot: u64, engine: Box<dyn Engine>) -> Result<(Self, Position, u64)> {
        let mut reader = engine.reader()?;
        let at = reader.checkpoint()?;
        let position = Position::read(&at)?;
        let mut unresolved = Vec::new();
        reader.scan_prefix(&join(&MARKS, 0, 0), PREFIX_BYTES, &mut |key, _| {
            let (to_slot, from_slot) = numbers(key);
            unresolved.push(Unresolved { from_slot, to_slot });
            ControlFlow::Continue(())
        })?;
        drop(reader);
        let secret = position.secret.clone();
        Ok((Self { first_slot, engine, secret, unresolved: RwLock::new(unresolved) }, position, at.seq))
    }

    /// Commits changes and slots that are not resolved, and the position after them. The changes of a feed may be recorded again.
    /// Flushed, because the feed may drop changes that the store has.
    ///
    /// # Errors
    /// Those of the engine; nothing has changed after `FreeSpace` and `Retry`.
    pub fn record(
        &self,
        changes: &mut dyn Iterator<Item = Record>,
        unresolved: &[Unresolved],
        seq: u64,
        to: &Position,
    ) -> Result<()> {
        let mut txn = self.engine.begin()?;
        for (slot, seq, key, before) in changes {
            let at = join(&self.secret.hash(&key), slot, seq << 1 | u64::from(before.is_none()));
            txn.put(&at, &before.unwrap_or_default())?;
        }
        for mark in unresolved {
            txn.put(&join(&MARKS, mark.to_slot, mark.from_slot), &[0; 32])?;
        }
        txn.commit(&to.write(seq), Durability::Synced)?;
        self.unresolved.write().unwrap_or_else(PoisonError::into_inner).extend(unresolved);
        Ok(())
    }

    /// Bytes of the store's files.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn disk_bytes(&self) -> Result<u64> {
        Ok(self.engine.stats()?.disk_bytes)
    }

    /// Closes the store.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn close(self) -> Result<()> {
        self.engine.close()
    }

    /// Returns the first change of a key at this slot and seq or after.
    fn first_from(&self, key: &Key, slot: u64, seq: u64) -> Result<Option<Change>> {
        let (mut found, mut reader) = (None, self.engine.reader()?);
        reader.scan_prefix(&join(&self.secret.hash(key), slot, seq << 1), PREFIX_BYTES, &mut |at, before| {
            found = Some(change(at, before));
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// Adds up to `limit` changes of a key to `found`, newest first: those before the change `until`. The period has none after
    /// `last_slot`.
    fn newest_before(
        &self,
        key: &Key,
        until: (u64, u64),
        last_slot: u64,
        limit: usize,
        found: &mut Vec<Change>,
    ) -> Result<()> {
        let (hash, mut reader, mut slots) = (self.secret.hash(key), self.engine.reader()?, limit as u64);
        loop {
            let from = until.0.min(last_slot).saturating_sub(slots).max(self.first_slot);
            let mut newest = VecDeque::new();
            reader.scan_prefix(&join(&hash, from, 0), PREFIX_BYTES, &mut |at, before| {
                let change = change(at, before);
                if (change.slot, change.seq) >= until {
                    return ControlFlow::Break(());
                }
                if newest.len() == limit {
                    newest.pop_front();
                }
                newest.push_back(change);
                ControlFlow::Continue(())
            })?;
            if newest.len() == limit || from == self.first_slot {
                found.extend(newest.into_iter().rev());
                return Ok(());
            }
            slots = slots.saturating_mul(WIDER);
        }
    }

    fn unresolved_at(&self, slot: u64) -> Option<Unresolved> {
        let unresolved = self.unresolved.read().unwrap_or_else(PoisonError::into_inner);
        unresolved.iter().find(|mark| mark.from_slot < slot && slot < mark.to_slot).copied()
    }
}

/// Checks that a period begins at the slot at which the one before it ends.
///
/// # Errors
/// A store between them is missing, or belongs to another row.
pub fn check_adjoins(before: &Position, first_slot: u64) -> Result<()> {
    if before.slot == Some(first_slot) {
        return Ok(());
    }
    let ends_at = before.slot.map_or_else(|| "none".to_owned(), |slot| slot.to_string());
    let why =
        format!("a store of the past is missing: one ends at slot={ends_at}, and the next begins at slot={first_slot}");
    Err(Error::wrong(Code::Derived, why))
}

/// Returns the value that a key had at `slot`. `periods` ascend, and have every change of the map up to the view of which the
/// caller knows the map's value.
///
/// # Errors
/// Those of the engine.
pub fn at(periods: &[Arc<Period>], key: &Key, slot: u64) -> Result<At> {
    let oldest_slot = periods.first().map_or(u64::MAX, |period| period.first_slot);
    if slot < oldest_slot {
        return Ok(At::Gone { oldest_slot });
    }
    let first = periods.partition_point(|period| period.first_slot <= slot) - 1;
    if let Some(mark) = periods[first..].iter().find_map(|period| period.unresolved_at(slot)) {
        return Ok(At::Unresolved(mark));
    }
    for period in &periods[first..] {
        if let Some(change) = slot.checked_add(1).map_or(Ok(None), |next| period.first_from(key, next, 0))? {
            return Ok(At::Before(change));
        }
    }
    Ok(At::Unchanged)
}

/// Returns up to `limit` changes of a key before the change `until` (slot and seq), newest first.
///
/// # Errors
/// Those of the engine.
pub fn changes(periods: &[Arc<Period>], key: &Key, until: (u64, u64), limit: usize) -> Result<Vec<Change>> {
    let (mut found, mut last_slot) = (Vec::new(), u64::MAX);
    for period in periods.iter().rev() {
        if found.len() < limit {
            period.newest_before(key, until, last_slot, limit - found.len(), &mut found)?;
        }
        last_slot = period.first_slot;
    }
    Ok(found)
}

/// Returns the change of a key with this slot and seq, if it is kept.
///
/// # Errors
/// Those of the engine.
pub fn find(periods: &[Arc<Period>], key: &Key, (slot, seq): (u64, u64)) -> Result<Option<Change>> {
    let first = periods.partition_point(|period| period.first_slot < slot);
    let Some(period) = first.checked_sub(1).map(|at| &periods[at]) else { return Ok(None) };
    Ok(period.first_from(key, slot, seq)?.filter(|change| (change.slot, change.seq) == (slot, seq)))
}

/// Returns the directories of the map's periods with their first slots, ascending; none if no past is kept.
///
/// # Errors
/// I/O errors.
pub fn periods(map: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let row = dir(map, NAME);
    let list = || -> std::io::Result<Vec<(u64, PathBuf)>> {
        let mut found = Vec::new();
        if !row.exists() {
            return Ok(found);
        }
        for entry in std::fs::read_dir(&row)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()?.parse().ok());
            found.extend(name.map(|first_slot: u64| (first_slot, path)));
        }
        found.sort();
        Ok(found)
    };
    list().map_err(|source| Error::io(format!("cannot list a directory: dir={}", row.display()), source))
}

/// Returns the directory of the period that begins after `first_slot`.
pub fn period_dir(map: &Path, first_slot: u64) -> PathBuf {
    dir(map, NAME).join(first_slot.to_string())
}

fn join(prefix: &[u8; PREFIX_BYTES], slot: u64, number: u64) -> Key {
    let mut key = [0; 32];
    key[..PREFIX_BYTES].copy_from_slice(prefix);
    key[PREFIX_BYTES..24].copy_from_slice(&slot.to_be_bytes());
    key[24..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Returns the two numbers at the end of an entry's key.
fn numbers(key: &Key) -> (u64, u64) {
    let number = |from: usize| u64::from_be_bytes(std::array::from_fn(|n| key[from + n]));
    (number(PREFIX_BYTES), number(24))
}

fn change(at: &Key, before: &Value) -> Change {
    let (slot, number) = numbers(at);
    Change { slot, seq: number >> 1, before: (number & 1 == 0).then_some(*before) }
}

#[cfg(test)]
mod tests;
