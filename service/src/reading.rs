//! One lookup thread's reader: its snapshot of the engine, and what a lookup at each commitment reads beside it.
//!
//! Owns: which snapshot an answer comes from and which slot it stands for. Must not: queue or wait. Lives and dies on a
//! `lookup-N` thread.
//!
//! # Why no answer mixes two states
//!
//! **Confirmed** is one snapshot of the engine, and nothing else. Every commit ends where a slot ends, so a snapshot never
//! holds a part of a slot. The slot that an answer names is read from that snapshot: two answers with the same slot
//! stand for the same state.
//!
//! **Processed** is a view and a snapshot, in this order: load the view, move the snapshot to the newest commit, load
//! the root. A bank leaves the view only once the commit of its slot was published, and a snapshot taken after that
//! holds the slot: so what is missing in the view is in the snapshot, and no value is missed or goes back to an older
//! one. Banks at or below the snapshot's slot are left out: the snapshot has them. What is left counts only when the
//! oldest of it is the child of the snapshot's block and the root is the snapshot's block or among it: then the view's
//! fork is the chain that the engine follows. Otherwise nothing is left, and the answer is the confirmed one.
//!
//! **Finalized** is a snapshot and the undo overlay, with its lock held while the snapshot moves: see
//! [`undo`](crate::overlay::undo).
//!
//! A batch takes these parts once for all of its keys; a long one is read in pieces: see [`batch`].

mod batch;

use std::sync::Arc;

use arc_swap::Guard;
use engine_api::{Key, Reader, Value};
use engine_latency::{Measured, MeasuredReader};
use solana::ChainCheckpoint;

use crate::ingest::assemble::Base;
use crate::lookups::{Answer, LookupError};
use crate::overlay::Commitment;
use crate::overlay::undo::Undo;
use crate::overlay::view::newest_write;
use crate::status::{Shared, count};

pub(crate) use batch::{BatchReading, PIECE_KEYS};

/// One thread's reader. Opened at the first request and again after any failure.
pub(crate) struct Reading<'e> {
    engine: &'e Measured,
    shared: &'e Shared,
    /// Under which its lookups are recorded.
    source: &'static str,
    snapshot: Option<Snapshot<'e>>,
    spent: Spent,
}

/// Where the time of the last lookup that was answered went, in ns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    /// Beside the engine; at confirmed nothing lies there.
    pub(crate) overlay_ns: u64,
    /// In the engine.
    pub(crate) read_ns: u64,
}

struct Snapshot<'e> {
    reader: MeasuredReader<'e>,
    /// The block that the reader's own checkpoint names.
    base: Option<Base>,
    /// The published checkpoint, if it is the reader's own. Kept alive, so that comparing addresses cannot mistake a new
    /// checkpoint for this one.
    published: Option<Arc<ChainCheckpoint>>,
}

impl Snapshot<'_> {
    fn slot(&self) -> Option<u64> {
        self.base.map(|base| base.slot)
    }
}

impl<'e> Reading<'e> {
    /// Opens nothing yet.
    pub(crate) fn new(engine: &'e Measured, shared: &'e Shared, source: &'static str) -> Self {
        Self { engine, shared, source, snapshot: None, spent: Spent::default() }
    }

    /// Where the time of the last lookup went, if it was answered.
    pub(crate) fn spent(&self) -> Spent {
        self.spent
    }

    /// Lets the snapshot go until the next request.
    pub(crate) fn close(&mut self) {
        self.snapshot = None;
    }

    /// The value of one key.
    pub(crate) fn get(&mut self, key: &Key, commitment: Commitment) -> Result<Answer, LookupError> {
        count(&self.shared.counters.lookups, 1);
        match commitment {
            Commitment::Confirmed => self.confirmed(|reader| reader.get(key)),
            Commitment::Processed | Commitment::Finalized => {
                let found = self.beside(std::slice::from_ref(key), commitment)?;
                Ok(Answer { value: found.value.into_iter().next().flatten(), slot: found.slot })
            }
        }
    }

    /// The values of several keys into `values`, one for each key; gives the slot that they stand for.
    pub(crate) fn get_into(
        &mut self,
        keys: &[Key],
        values: &mut [Option<Value>],
        commitment: Commitment,
    ) -> Result<Option<u64>, LookupError> {
        count(&self.shared.counters.lookups, keys.len() as u64);
        match commitment {
            Commitment::Confirmed => {
                let read = |reader: &mut dyn Reader| match (keys, values) {
                    ([key], [value]) => {
                        *value = reader.get(key)?;
                        Ok(())
                    }
                    (keys, values) => reader.get_many(keys, values),
                };
                Ok(self.confirmed(read)?.slot)
            }
            Commitment::Processed | Commitment::Finalized => {
                let found = self.beside(keys, commitment)?;
                values.copy_from_slice(&found.value);
                Ok(found.slot)
            }
        }
    }

    /// Opens the newest state and reads nothing.
    pub(crate) fn probe(&mut self) -> Result<(), LookupError> {
        let opened = self.refresh().map(drop);
        opened.map_err(|error| self.failed(error))
    }

    /// Moves an idle reader to the newest commit.
    pub(crate) fn refresh_idle(&mut self) {
        // A failure closes the reader; the next request opens one anew and tells its caller.
        if self.snapshot.is_some()
            && let Err(error) = self.refresh()
        {
            tracing::warn!(%error, "cannot refresh an idle reader");
        }
    }

    fn confirmed<T>(
        &mut self,
        look_up: impl FnOnce(&mut dyn Reader) -> engine_api::Result<T>,
    ) -> Result<Answer<T>, LookupError> {
        let answer = self.refresh().and_then(|snapshot| {
            let value = look_up(&mut snapshot.reader)?;
            Ok((Answer { value, slot: snapshot.slot() }, snapshot.reader.last_ns()))
        });
        let (answer, read_ns) = answer.map_err(|error| self.failed(error))?;
        self.spent = Spent { overlay_ns: 0, read_ns };
        Ok(answer)
    }

    /// An answer that the engine alone does not give: what lies beside it first, the engine for the rest.
    fn beside(&mut self, keys: &[Key], commitment: Commitment) -> Result<Answer<Vec<Option<Value>>>, LookupError> {
        let clock = self.engine.latency().clock();
        let start = clock.raw();
        let mut known: Vec<Option<Option<Value>>> = vec![None; keys.len()];
        let slot = self.overlaid(keys, &mut known, commitment)?;
        let missing: Vec<Key> =
            keys.iter().zip(&known).filter(|(_, known)| known.is_none()).map(|(key, _)| *key).collect();
        let mut rest = vec![None; missing.len()];
        self.spent = Spent { overlay_ns: clock.delta_as_nanos(start, clock.raw()), read_ns: 0 };
        if let Some(snapshot) = &mut self.snapshot {
            let read = match missing.as_slice() {
                [] => Ok(()),
                [key] => snapshot.reader.get(key).map(|value| rest[0] = value),
                many => snapshot.reader.get_many(many, &mut rest),
            };
            let read_ns = if missing.is_empty() { 0 } else { snapshot.reader.last_ns() };
            read.map_err(|error| self.failed(error))?;
            self.spent.read_ns = read_ns;
        }
        let mut rest = rest.into_iter();
        let value = known.into_iter().map(|known| known.unwrap_or_else(|| rest.next().flatten())).collect();
        Ok(Answer { value, slot })
    }

    /// Moves the snapshot and fills in what the overlay of `commitment` says of `keys`; gives the answer's slot.
    fn overlaid(
        &mut self,
        keys: &[Key],
        known: &mut [Option<Option<Value>>],
        commitment: Commitment,
    ) -> Result<Option<u64>, LookupError> {
        match commitment {
            Commitment::Processed => self.processed(keys, known),
            Commitment::Confirmed | Commitment::Finalized => self.finalized(keys, known),
        }
    }

    /// Fills in what the banks on top of the snapshot wrote; gives the slot of the newest of them.
    fn processed(&mut self, keys: &[Key], known: &mut [Option<Option<Value>>]) -> Result<Option<u64>, LookupError> {
        let shared = self.shared;
        let processed = shared.overlay.processed().ok_or(LookupError::NotFollowed)?;
        // The order of these three is what the answer rests on: see the head of the file.
        let view = processed.view();
        let base = self.moved()?;
        let root = processed.root();
        if view.overflowed {
            return Err(LookupError::Overflowed);
        }
        let blocks = view.above(base, root);
        for (key, known) in keys.iter().zip(known) {
            *known = newest_write(blocks, key);
        }
        Ok(blocks.first().map(|block| block.base.slot).or(base.map(|base| base.slot)))
    }

    /// Fills in what was changed after the finalized slot; gives that slot.
    fn finalized(&mut self, keys: &[Key], known: &mut [Option<Option<Value>>]) -> Result<Option<u64>, LookupError> {
        let shared = self.shared;
        // The lock is held while the snapshot moves: see the head of the file.
        let undo = shared.overlay.undo().map(Undo::read);
        let base = self.moved()?;
        let Some(undo) = undo else { return Ok(base.map(|base| base.slot)) };
        let slot = undo.slot().ok_or(LookupError::NotFinal)?;
        for (key, known) in keys.iter().zip(known) {
            *known = undo.old_value(key);
        }
        Ok(Some(slot))
    }

    fn moved(&mut self) -> Result<Option<Base>, LookupError> {
        let moved = self.refresh().map(|snapshot| snapshot.base);
        moved.map_err(|error| self.failed(error))
    }

    fn failed(&mut self, error: engine_api::Error) -> LookupError {
        self.snapshot = None;
        LookupError::Engine(error)
    }

    /// Moves to the newest commit.
    ///
    /// The slot is that of the very state that is read: it comes from the reader's own checkpoint. Reading that costs a
    /// lookup, so it is left out while nothing can have moved the reader: the published checkpoint is the one that the
    /// reader had, and no commit has begun since. Both are looked at after the reader has moved. Had it moved to a later
    /// commit, that commit would be under way still, or another checkpoint published: see [`Shared::committing`].
    fn refresh(&mut self) -> engine_api::Result<&mut Snapshot<'e>> {
        let mut snapshot = match self.snapshot.take() {
            Some(mut snapshot) => {
                snapshot.reader.refresh()?;
                snapshot
            }
            None => Snapshot { reader: self.engine.reader_for(self.source)?, base: None, published: None },
        };
        // The order of these two is what the slot rests on: a commit publishes before it counts as over.
        let committing = self.shared.is_committing();
        let published = self.shared.checkpoint.load();
        let stays = snapshot.published.as_ref().is_some_and(|own| Arc::ptr_eq(own, &published));
        if committing || !stays {
            let own = ChainCheckpoint::read(&snapshot.reader.checkpoint()?)?;
            snapshot.base = own.slot.map(|slot| Base { slot, blockhash: own.blockhash });
            snapshot.published = (own == **published).then(|| Guard::into_inner(published));
        }
        Ok(self.snapshot.insert(snapshot))
    }
}
