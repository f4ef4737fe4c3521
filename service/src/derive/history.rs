//! The derived store `history`: the values that keys had at past slots.
//!
//! Owns: the open row of stores and its readers. Must not: answer for a slot that the map has not reached, or that is not
//! resolved.
//!
//! A request reads the map first, and then the past, once that has every change of the view of the map. If the past has no
//! change of the key after the slot, the key has not changed since, and the map's value is the answer. During a heal the map
//! may be between two slots; that does not matter, because the past has the changes that led there.

use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use derived::history::{self, At};
use engine_api::{Key, Reader as _, Value};
use engine_latency::Measured;
use engines::EngineOptions;
use solana::ChainCheckpoint;

use super::row::{Limits, Recorder, Row, beginning};
use super::{Context, DerivedError, DerivedSettings, Followed, MEMORY_MIN, State, check_follows};
use crate::base::chain::{Base, Commitment};
use crate::base::published::is_between_slots;
use crate::base::stop;
use crate::feed::Pool;
use crate::overlay::{Overlay, Processed};
use crate::reading::LookupError;

/// Largest number of changes in one answer: 300 KB.
pub(crate) const HISTORY_MAX: usize = 4_000;

/// Number of threads that read: one may wait for the disk while the other works.
const READ_THREADS: usize = 2;

/// Number of stores that the memory is divided between; see `row`.
const STORES: u64 = 8;

/// The value of a key at a past slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Past {
    pub(crate) value: Option<Value>,
    /// Slot of the first change after it; `None` if the key has not changed since.
    pub(crate) until_slot: Option<u64>,
    /// The newest slot that the map had when it was asked.
    pub(crate) slot: Option<u64>,
}

/// A change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PastChange {
    pub(crate) slot: u64,
    pub(crate) before: Option<Value>,
    pub(crate) after: Option<Value>,
}

/// Changes of a key, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pasts {
    pub(crate) changes: Vec<PastChange>,
    /// The newest slot that the map had, as [`Past::slot`].
    pub(crate) slot: Option<u64>,
    /// The oldest slot that is kept: changes up to it are not among these.
    pub(crate) oldest_slot: u64,
    /// Where to go on, if there are more.
    pub(crate) cursor: Option<Cursor>,
}

/// Bytes by which a client goes on after an answer: slot and seq of the last change in it.
pub(crate) type Cursor = [u8; 16];

/// Handle to the derived store. Clones share it.
#[derive(Clone)]
pub(crate) struct History {
    inner: Arc<Inner>,
}

struct Inner {
    followed: Followed,
    row: Row,
    /// Only borrowed, because the service needs the engine alone to close it at its stop.
    map: Weak<Measured>,
    overlay: Arc<Overlay>,
    pool: Pool,
}

/// The map's value of a key in one view.
struct Present {
    value: Option<Value>,
    seq: u64,
    /// The newest slot of the map in the view.
    map_slot: Option<u64>,
    /// The newest slot at the commitment.
    slot: Option<u64>,
    /// The changes of the key in the banks on top of the view, ascending by slot.
    banks: Vec<(u64, Option<Value>)>,
}

impl History {
    /// Opens the past of the map in `context`, or begins it. A past that cannot be used is no error: its requests are refused,
    /// with the reason.
    ///
    /// # Errors
    /// I/O errors of starting a thread.
    pub(crate) fn start(
        context: &Context,
        settings: &DerivedSettings,
        options: &EngineOptions,
        memory_bytes: u64,
    ) -> io::Result<Self> {
        let opened = open(context, settings, options, memory_bytes);
        let row = opened.as_ref().map_or_else(|_| Row::default(), |(recorder, ..)| recorder.row());
        let followed = Followed::start(opened, context)?;
        let pool = Pool::start("history", READ_THREADS)?;
        let (map, overlay) = (Weak::clone(&context.map), Arc::clone(&context.overlay));
        Ok(Self { inner: Arc::new(Inner { followed, row, map, overlay, pool }) })
    }

    /// Returns the state at this moment.
    pub(crate) fn state(&self) -> State {
        self.inner.followed.state()
    }

    /// Returns the number of changes of the map that the past has still to take; `None` if it never will.
    pub(crate) fn lag(&self) -> Option<u64> {
        self.inner.followed.lag()
    }

    /// Returns the value that a key had at a slot, which the map has reached. Waits as long as `wait` for the past to have all that
    /// the map has.
    ///
    /// # Errors
    /// The slot is not kept, or not resolved; the past cannot be read.
    pub(crate) async fn at(
        &self,
        key: Key,
        slot: u64,
        commitment: Commitment,
        wait: Duration,
    ) -> Result<Past, DerivedError> {
        let present = self.present(key, commitment, wait).await?;
        if Some(slot) > present.map_slot {
            return Ok(present.at(slot));
        }
        let row = self.inner.row.clone();
        let found = self.read(move || history::at(&row.periods(), &key, slot)).await?;
        match found {
            At::Unchanged => Ok(present.at(slot)),
            // The past may know later changes than the view of the map.
            At::Before(change) if Some(change.slot) > present.map_slot => {
                Ok(Past { value: change.before, ..present.at(slot) })
            }
            At::Before(change) => {
                let until_slot = Some(change.slot).filter(|slot| Some(*slot) <= present.slot);
                Ok(Past { value: change.before, until_slot, slot: present.slot })
            }
            At::Gone { oldest_slot } => Err(DerivedError::OutOfRange(format!(
                "the past does not go back that far: slot={slot} oldest_slot={oldest_slot}"
            ))),
            At::Unresolved(mark) => Err(DerivedError::OutOfRange(format!(
                "slot={slot} is not resolved, because a heal has led the map from slot={} to slot={}: ask for one of these",
                mark.from_slot, mark.to_slot
            ))),
        }
    }

    /// Returns up to `limit` changes of a key, newest first: those before a cursor, or the newest ones. Waits as
    /// [`History::at`] does.
    ///
    /// # Errors
    /// The cursor's change is not kept; the past cannot be read.
    pub(crate) async fn changes(
        &self,
        key: Key,
        cursor: Option<Cursor>,
        limit: usize,
        commitment: Commitment,
        wait: Duration,
    ) -> Result<Pasts, DerivedError> {
        let present = self.present(key, commitment, wait).await?;
        let row = self.inner.row.clone();
        let read = move || {
            let periods = row.periods();
            let oldest_slot = periods.first().map_or(u64::MAX, |period| period.first_slot);
            let slot = present.slot.unwrap_or(0);
            let (until, mut after) = match cursor.map(of_cursor) {
                Some(at) => match history::find(&periods, &key, at)? {
                    Some(change) => (at, change.before),
                    None => return Ok(None),
                },
                None => match history::at(&periods, &key, slot)? {
                    At::Before(change) => ((slot + 1, 0), change.before),
                    _ => ((slot + 1, 0), present.value),
                },
            };
            let mut found = history::changes(&periods, &key, until, limit + 1)?;
            let has_more = found.len() > limit;
            found.truncate(limit);
            let cursor = found.last().filter(|_| has_more).map(|last| cursor_of(last.slot, last.seq));
            let shown = found.iter().map(|change| {
                let before = change.before;
                PastChange { slot: change.slot, before, after: std::mem::replace(&mut after, before) }
            });
            Ok(Some(Pasts { changes: shown.collect(), slot: present.slot, oldest_slot, cursor }))
        };
        self.read(read).await?.ok_or(DerivedError::OtherCursor)
    }

    /// Reads the map, and waits until the past has all changes of that view.
    async fn present(&self, key: Key, commitment: Commitment, wait: Duration) -> Result<Present, DerivedError> {
        let (map, overlay) = (self.inner.map.clone(), Arc::clone(&self.inner.overlay));
        let present = self.inner.pool.run(move || present(&map, &overlay, &key, commitment)).await;
        let present = present.unwrap_or(Err(DerivedError::Stopped))?;
        self.inner.followed.reach(present.seq, wait).await?;
        Ok(present)
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> engine_api::Result<T> + Send + 'static,
    ) -> Result<T, DerivedError> {
        let read = self.inner.pool.run(read).await.ok_or(DerivedError::Stopped)?;
        read.map_err(|error| self.inner.followed.failed(history::NAME, error.into()))
    }

    /// Tells the past to take no more changes.
    #[cfg(test)]
    pub(super) fn end(&self) {
        self.inner.followed.end();
    }

    /// Ends the threads and closes the stores. The feed must be closed before.
    ///
    /// # Errors
    /// The names of the threads that have not ended at `deadline`.
    pub(crate) fn stop(&self, deadline: Instant) -> Result<(), stop::Stuck> {
        let ended = self.inner.followed.stop(deadline).and(self.inner.pool.stop(deadline));
        self.inner.row.close();
        ended
    }
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state().fmt(f)
    }
}

/// Opens the row, and checks that the feed leads on from it.
fn open(
    context: &Context,
    settings: &DerivedSettings,
    options: &EngineOptions,
    memory_bytes: u64,
) -> engine_api::Result<(Recorder, derived::Position, u64)> {
    let memory = ByteSize::b((memory_bytes / STORES).max(MEMORY_MIN));
    // The options of its map, such as RocksDB's profile.
    let options = EngineOptions { memory: Some(memory), ..options.clone() };
    let limits = Limits { slots: settings.history_slots, bytes: settings.history_bytes.as_u64() };
    let map = context.checkpoint()?;
    let begins = || {
        let at = ChainCheckpoint::read(&map)?;
        beginning(&map, at.slot.filter(|_| !is_between_slots(&at)), context.feed.id())
    };
    let (recorder, position, seq) = Recorder::open(&context.dir, options, limits, begins)?;
    check_follows(seq, &position, &map, &context.feed)?;
    Ok((recorder, position, seq))
}

impl Present {
    /// Returns the value at a slot, if the key has not changed after it in the map.
    fn at(&self, slot: u64) -> Past {
        let (before, after) = self.banks.split_at(self.banks.partition_point(|(of, _)| *of <= slot));
        let value = before.last().map_or(self.value, |(_, value)| *value);
        Past { value, until_slot: after.first().map(|(slot, _)| *slot), slot: self.slot }
    }
}

/// Reads the map's newest commit, and the changes of the key in the banks on top of it.
fn present(
    map: &Weak<Measured>,
    overlay: &Overlay,
    key: &Key,
    commitment: Commitment,
) -> Result<Present, DerivedError> {
    let map = map.upgrade().ok_or(DerivedError::Stopped)?;
    // In this order: see `reading`. A slot that is final is in any later view.
    let processed = (commitment == Commitment::Processed).then(|| overlay.processed().ok_or(LookupError::NotFollowed));
    let (processed, finalized) = (processed.transpose()?, overlay.slot(Commitment::Finalized));
    let view = processed.map(Processed::view);
    let mut reader = map.reader_for("rpc")?;
    let at = ChainCheckpoint::read(&reader.checkpoint()?)?;
    let mut present =
        Present { value: reader.get(key)?, seq: at.seq, map_slot: at.slot, slot: at.slot, banks: Vec::new() };
    if commitment == Commitment::Finalized {
        present.slot = Some(finalized.ok_or(LookupError::NotFinal)?);
    }
    let Some(view) = view.filter(|_| !is_between_slots(&at)) else { return Ok(present) };
    if view.overflowed {
        return Err(LookupError::Overflowed.into());
    }
    let base = at.slot.map(|slot| Base { slot, blockhash: at.blockhash });
    let blocks = view.above(base, processed.and_then(Processed::root));
    present.slot = blocks.first().map(|block| block.base.slot).or(at.slot);
    let mut last = present.value;
    for block in blocks.iter().rev() {
        if let Some((value, _)) = block.writes.get(key)
            && std::mem::replace(&mut last, *value) != *value
        {
            present.banks.push((block.base.slot, *value));
        }
    }
    Ok(present)
}

fn cursor_of(slot: u64, seq: u64) -> Cursor {
    let mut cursor = [0; 16];
    cursor[..8].copy_from_slice(&slot.to_le_bytes());
    cursor[8..].copy_from_slice(&seq.to_le_bytes());
    cursor
}

fn of_cursor(cursor: Cursor) -> (u64, u64) {
    let number = |from: usize| u64::from_le_bytes(std::array::from_fn(|n| cursor[from + n]));
    (number(0), number(8))
}
