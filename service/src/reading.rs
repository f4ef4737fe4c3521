//! The reader of one lookup thread: its snapshot of the engine, and the overlay that a lookup at each commitment needs
//! in addition to it.
//!
//! Owns: which snapshot an answer comes from and which slot the answer stands for. Must not: queue or wait. Lives on
//! one thread from its creation to its end: a `lookup-N` thread or `shm-lookup`.
//!
//! # Why no answer mixes two states
//!
//! **Confirmed** is one snapshot of the engine, and nothing else. Every commit ends where a slot ends, so a snapshot
//! never holds a part of a slot. The slot that an answer names is read from that snapshot, so two answers with the same
//! slot show the same state. The one exception: while commits bring the store to the slot of an archive, a snapshot from
//! before stays where it is, and a new one is refused.
//!
//! **Processed** is a view and a snapshot, in this order: load the view, move the snapshot to the newest commit, load
//! the root. A bank leaves the view only once the commit of its slot was published, and a snapshot taken after that
//! holds the slot. A write that is missing in the view is therefore in the snapshot: no value is missed or goes back to
//! an older one. Banks at or below the snapshot's slot are left out, because the snapshot has them. The remaining banks
//! count only under two conditions. The oldest of them must be the child of the snapshot's block, and the root must be
//! the snapshot's block or one of them: then the view's fork is the chain that the engine follows. Otherwise no bank
//! counts, and the answer is the confirmed one.
//!
//! **Finalized** is a snapshot and the undo overlay, with its lock held while the snapshot moves: see
//! [`undo`](crate::overlay::undo).
//!
//! A batch takes these parts once for all of its keys. A long batch is read in pieces: see [`batch`].
//!
//! # Gets of a cold store
//!
//! A get that waits for the device holds up all gets after it, although the device could do their reads at the same time.
//! So as long as [`Reading::is_cold`], its thread takes the confirmed gets that wait and looks them up together.
//! Such gets count as `get_many` in the latencies.

mod batch;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arc_swap::Guard;
use engine_api::{Error, ErrorKind, Key, Reader as _, Resident, Value};
use engine_latency::{Measured, MeasuredReader};
use solana::ChainCheckpoint;

use crate::base::chain::{Base, Commitment};
use crate::base::figure::count;
use crate::base::published::{Published, between_slots, is_between_slots};
use crate::base::slow::{Parts, SlowLog};
use crate::overlay::undo::Undo;
use crate::overlay::view::newest_write;
use crate::overlay::{Known, Overlay};

pub(crate) use batch::{BatchReading, PIECE_KEYS};

/// Longest time that the lookup of one key takes without a read of the device, in ns, on a slow machine. A wrong guess
/// costs a get the time of the others that it is looked up with.
const MEMORY_NS: u64 = 3000;

/// Answer of a lookup, and the slot that it reflects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T = Option<Value>> {
    /// The value; `None` when the map does not hold the key. For `get_many` one such value a key, in the order asked.
    pub value: T,
    /// The newest slot that the state read holds as a whole. For confirmed it is the last slot applied, for processed
    /// the tip of the fork, for finalized the last final slot. Never newer than the state read; `None` before the first
    /// slot.
    pub slot: Option<u64>,
}

/// Reason why a lookup has no answer.
#[derive(Debug)]
pub enum LookupError {
    /// The queue is full. Nothing was read; a later attempt may succeed.
    Busy,
    /// The service is shutting down.
    Stopped,
    /// The service is not configured to follow processed slots.
    NotFollowed,
    /// Processed slots exceeded the overlay's limits and were dropped. Processed lookups work again once the engine has
    /// passed them.
    Overflowed,
    /// Old values of changes after the finalized slot are missing, because the service has started recently or there
    /// were too many changes.
    NotFinal,
    /// The store is being healed, and no view from before is left.
    Healing,
    /// The engine returned this error.
    Engine(Error),
}

/// State that lookups read, and the figures that they write. Clones share it.
#[derive(Clone, Debug)]
pub struct LookupState {
    pub published: Arc<Published>,
    pub overlay: Arc<Overlay>,
    pub figures: Arc<LookupFigures>,
    pub slow: Arc<SlowLog>,
    /// Whether the engine's `get_many` keeps several reads of the device in flight.
    pub reads_together: bool,
    /// Whether the engine answers from memory on a thread that may not wait.
    pub answers_from_memory: bool,
}

impl LookupState {
    /// Returns the state at start: nothing counted, no request slow enough to be logged, and one read of the device
    /// after another.
    pub fn new(published: Arc<Published>, overlay: Arc<Overlay>) -> Self {
        let (figures, slow) = (Arc::default(), Arc::default());
        Self { published, overlay, figures, slow, reads_together: false, answers_from_memory: false }
    }
}

/// Counters of lookups since the start.
#[derive(Debug, Default)]
pub struct LookupFigures {
    /// Number of keys looked up.
    pub lookups: AtomicU64,
    /// Number of lookups refused because a queue was full.
    pub refused: AtomicU64,
}

/// Reader of one thread. It opens its snapshot once it is idle or at the first request, and again after any failure.
pub(crate) struct Reading<'e> {
    engine: &'e Measured,
    published: &'e Published,
    overlay: &'e Overlay,
    figures: &'e LookupFigures,
    /// Label under which its lookups are recorded.
    source: &'static str,
    snapshot: Option<Snapshot<'e>>,
    /// Time that the last answered lookup spent in the overlay and in the engine.
    spent: Parts,
    /// Whether the engine's `get_many` keeps several reads of the device in flight.
    reads_together: bool,
    /// Whether the last confirmed lookup took so long that it has waited for the device.
    waited: bool,
}

struct Snapshot<'e> {
    reader: MeasuredReader<'e>,
    /// Block that the reader's own checkpoint names; `None` before the first slot.
    base: Option<Base>,
    /// The published checkpoint, if it equals the reader's own. Kept alive, so that comparing addresses cannot mistake
    /// a new checkpoint for this one.
    published: Option<Arc<ChainCheckpoint>>,
}

impl<'e> Reading<'e> {
    /// Creates a reader without opening a snapshot. `source` is the label under which its lookups are recorded.
    pub(crate) fn new(engine: &'e Measured, state: &'e LookupState, source: &'static str) -> Self {
        let LookupState { published, overlay, figures, reads_together, .. } = state;
        let (snapshot, spent, reads_together) = (None, Parts::default(), *reads_together);
        Self { engine, published, overlay, figures, source, snapshot, spent, reads_together, waited: false }
    }

    /// Time that the last answered lookup spent in the overlay and in the engine. The other parts are 0 here: the caller
    /// knows them.
    pub(crate) fn spent(&self) -> Parts {
        self.spent
    }

    /// Whether confirmed gets that wait should be looked up together, because each would wait for the device.
    pub(crate) fn is_cold(&self) -> bool {
        self.reads_together && self.waited
    }

    /// Makes the next lookup believe that the one before it has waited for the device.
    #[cfg(test)]
    pub(crate) fn pretend_cold(&mut self) {
        (self.reads_together, self.waited) = (true, true);
    }

    /// Drops the snapshot; the next request opens a new one.
    pub(crate) fn close(&mut self) {
        self.snapshot = None;
    }

    /// Returns the value of one key, and the slot that it reflects.
    pub(crate) fn get(&mut self, key: &Key, commitment: Commitment) -> Result<Answer, LookupError> {
        let mut value = None;
        let slot = self.get_into(std::slice::from_ref(key), std::slice::from_mut(&mut value), commitment)?;
        Ok(Answer { value, slot })
    }

    /// Writes the values of `keys` into `values`, one for each key. Returns the slot that they reflect.
    pub(crate) fn get_into(
        &mut self,
        keys: &[Key],
        values: &mut [Option<Value>],
        commitment: Commitment,
    ) -> Result<Option<u64>, LookupError> {
        count(&self.figures.lookups, keys.len() as u64);
        let mut known = Vec::new();
        let slot = self.begin(keys, &mut known, commitment)?;
        self.read(keys, &known, values)?;
        if commitment == Commitment::Confirmed {
            self.waited = self.spent.read_ns > keys.len() as u64 * MEMORY_NS;
        }
        Ok(slot)
    }

    /// Moves an idle reader to the newest commit, so that the engine can free the pages of the old snapshot. Opens one that
    /// is closed, because a heal answers from the snapshots that were open before it.
    pub(crate) fn refresh_idle(&mut self) {
        // A failure closes the reader. The next request opens a new one and reports its own failure.
        if (self.snapshot.is_some() || !self.published.is_healing())
            && let Err(error) = self.refresh()
        {
            tracing::warn!(%error, "cannot refresh an idle reader");
        }
    }

    /// Fixes the state that is read next: the newest one at `commitment`. Returns its slot, and fills `known` with the
    /// values that the overlay has for `keys`. At confirmed there is no overlay, and `known` stays empty.
    fn begin(
        &mut self,
        keys: &[Key],
        known: &mut Vec<Known>,
        commitment: Commitment,
    ) -> Result<Option<u64>, LookupError> {
        self.spent = Parts::default();
        known.clear();
        if commitment == Commitment::Confirmed {
            return Ok(self.moved()?.map(|base| base.slot));
        }
        let clock = self.engine.latency().clock();
        let start = clock.raw();
        known.resize(keys.len(), Known::Nothing);
        let slot = match commitment {
            Commitment::Processed => self.processed(keys, known)?,
            Commitment::Confirmed | Commitment::Finalized => self.finalized(keys, known)?,
        };
        self.spent.overlay_ns = clock.delta_as_nanos(start, clock.raw());
        Ok(slot)
    }

    /// Looks up the `keys` as [`Reading::get_into`] does, if that takes no read of the device. `None` otherwise, and where the
    /// state refuses an answer.
    pub(crate) fn get_resident(
        &mut self,
        keys: &[Key],
        values: &mut [Option<Value>],
        commitment: Commitment,
    ) -> Option<Option<u64>> {
        let mut known = Vec::new();
        let slot = self.begin(keys, &mut known, commitment).ok()?;
        let reader = &mut self.snapshot.as_mut()?.reader;
        for (n, (key, value)) in keys.iter().zip(values).enumerate() {
            *value = match known.get(n) {
                Some(Known::Value(known)) => *known,
                Some(Known::Nothing) | None => match reader.get_resident(key) {
                    Resident::Found(value) => Some(value),
                    Resident::Absent => None,
                    Resident::WouldRead => return None,
                },
            };
            self.spent.read_ns += reader.last_ns();
        }
        count(&self.figures.lookups, keys.len() as u64);
        Some(slot)
    }

    /// Reads the values of `keys` from the state that [`Reading::begin`] has fixed: those that the overlay knows from it, the
    /// other ones from the engine.
    fn read(&mut self, keys: &[Key], known: &[Known], values: &mut [Option<Value>]) -> Result<(), LookupError> {
        let Some(snapshot) = &mut self.snapshot else { return Err(LookupError::Stopped) };
        let reader = &mut snapshot.reader;
        let read =
            if known.is_empty() { read(reader, keys, values) } else { read_unknown(reader, keys, known, values) };
        let read_ns = reader.last_ns();
        if read.map_err(|error| self.failed(error))? {
            self.spent.read_ns += read_ns;
        }
        Ok(())
    }

    /// Fills `known` with the writes of the banks on top of the snapshot. Returns the slot of the newest of these
    /// banks.
    fn processed(&mut self, keys: &[Key], known: &mut [Known]) -> Result<Option<u64>, LookupError> {
        let processed = self.overlay.processed().ok_or(LookupError::NotFollowed)?;
        // The answer is right only with these three in this order: see the head of the file.
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

    /// Fills `known` with the old values of keys that changed after the finalized slot. Returns that slot.
    fn finalized(&mut self, keys: &[Key], known: &mut [Known]) -> Result<Option<u64>, LookupError> {
        let overlay = self.overlay;
        // The lock is held while the snapshot moves: see the head of the file.
        let undo = overlay.undo().map(Undo::read);
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
        match error.kind() {
            ErrorKind::Retry if self.published.is_healing() => LookupError::Healing,
            _ => LookupError::Engine(error),
        }
    }

    /// Moves to the newest commit.
    ///
    /// The slot is exactly that of the state being read, because it comes from the reader's own checkpoint. Reading the
    /// checkpoint costs as much as a lookup, so it is skipped while the reader cannot have moved. That is so while the
    /// published checkpoint is the one that the reader had, and no commit has begun since. Both are checked after the
    /// reader has moved. Had it moved to a later commit, that commit would still be under way, or another checkpoint
    /// would be published: see [`Published::committing`].
    fn refresh(&mut self) -> engine_api::Result<&mut Snapshot<'e>> {
        let mut snapshot = match self.snapshot.take() {
            // The newest commits hold a part of a slot.
            Some(held) if self.published.is_healing() => return Ok(self.snapshot.insert(held)),
            Some(mut snapshot) => {
                snapshot.reader.refresh()?;
                snapshot
            }
            None => Snapshot { reader: self.engine.reader_for(self.source)?, base: None, published: None },
        };
        // The slot is right only with these two in this order: a commit publishes its checkpoint before it counts as
        // over.
        let committing = self.published.is_committing();
        let published = self.published.checkpoint();
        let stays = snapshot.published.as_ref().is_some_and(|own| Arc::ptr_eq(own, &published));
        if committing || !stays {
            let own = ChainCheckpoint::read(&snapshot.reader.checkpoint()?)?;
            if is_between_slots(&own) {
                return Err(between_slots());
            }
            snapshot.base = own.slot.map(|slot| Base { slot, blockhash: own.blockhash });
            snapshot.published = (own == **published).then(|| Guard::into_inner(published));
        }
        Ok(self.snapshot.insert(snapshot))
    }
}

/// Reads all of `keys`. Returns whether the engine was asked.
fn read(reader: &mut MeasuredReader<'_>, keys: &[Key], values: &mut [Option<Value>]) -> engine_api::Result<bool> {
    match (keys, values) {
        ([], _) => return Ok(false),
        ([key], [value]) => *value = reader.get(key)?,
        (keys, values) => reader.get_many(keys, values)?,
    }
    Ok(true)
}

/// Reads those of `keys` that the overlay does not know. Returns whether the engine was asked.
fn read_unknown(
    reader: &mut MeasuredReader<'_>,
    keys: &[Key],
    known: &[Known],
    values: &mut [Option<Value>],
) -> engine_api::Result<bool> {
    let unknown = keys.iter().zip(known).filter(|(_, known)| matches!(known, Known::Nothing));
    let missing: Vec<Key> = unknown.map(|(key, _)| *key).collect();
    let mut rest = vec![None; missing.len()];
    let asked = read(reader, &missing, &mut rest)?;
    let mut rest = rest.into_iter();
    for (value, known) in values.iter_mut().zip(known) {
        *value = known.value_or(|| rest.next().flatten());
    }
    Ok(asked)
}
