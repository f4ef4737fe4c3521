//! The published state of the store: the newest committed checkpoint, and whether a commit is under way.
//!
//! Owns: the order of these two, by which a reader knows the slot of its view. Must not: block; every write and read is
//! wait-free. Writer: ingest-apply; any thread reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::{ArcSwap, Guard};
use solana::{ChainCheckpoint, MapPhase};

/// The newest committed checkpoint, and whether a commit is under way.
#[derive(Debug)]
pub struct Published {
    checkpoint: ArcSwap<ChainCheckpoint>,
    /// True while a commit is under way; see [`Published::committing`].
    committing: AtomicBool,
    /// Whether the store is between two slots; see [`Published::is_healing`].
    healing: AtomicBool,
}

impl Published {
    /// Returns the state at start, which is the store's checkpoint.
    pub fn new(checkpoint: ChainCheckpoint) -> Self {
        Self {
            checkpoint: ArcSwap::from_pointee(checkpoint),
            committing: AtomicBool::new(false),
            healing: AtomicBool::new(is_between_slots(&checkpoint)),
        }
    }

    /// Returns the newest checkpoint that is committed and published.
    #[inline]
    pub fn checkpoint(&self) -> Guard<Arc<ChainCheckpoint>> {
        self.checkpoint.load()
    }

    /// The newest slot that is committed as a whole; `None` before the first.
    pub fn slot(&self) -> Option<u64> {
        self.checkpoint.load().slot
    }

    /// ingest-apply: announces that a commit begins. From here until [`Published::publish`] or
    /// [`Published::not_committed`], a reader may see the commit while [`Published::checkpoint`] is still the previous
    /// one.
    pub fn committing(&self) {
        // ORDERING: Release pairs with the Acquire of `is_committing`. The engine's own synchronisation comes between:
        // a reader that sees the commit sees this as well.
        self.committing.store(true, Ordering::Release);
    }

    /// ingest-apply: announces that the commit is over and the engine is at `checkpoint`.
    pub fn publish(&self, checkpoint: ChainCheckpoint) {
        self.checkpoint.store(Arc::new(checkpoint));
        // ORDERING: Release: whoever sees that the store is whole again moves to this commit or a later one.
        self.healing.store(is_between_slots(&checkpoint), Ordering::Release);
        // ORDERING: Release: a reader that sees that the commit is over loads its checkpoint, or a later one.
        self.committing.store(false, Ordering::Release);
    }

    /// ingest-apply: announces that the next commits bring the store to an archive's slot part by part.
    pub fn heal(&self) {
        // ORDERING: Release pairs with the Acquire of `is_healing`, as in `committing`.
        self.healing.store(true, Ordering::Release);
    }

    /// Whether the engine's newest commit may hold a part of a slot, because the store is being healed. A view from
    /// before is kept then.
    #[inline]
    pub fn is_healing(&self) -> bool {
        // ORDERING: Acquire: see the writes.
        self.healing.load(Ordering::Acquire)
    }

    /// ingest-apply: announces that the commit failed and changed nothing, so that [`Published::checkpoint`] is still
    /// the engine's.
    pub fn not_committed(&self) {
        // ORDERING: Release, as in `publish`; the checkpoint published before is still right.
        self.committing.store(false, Ordering::Release);
    }

    /// Whether a reader's view may be newer than [`Published::checkpoint`]. Ask after renewing the view, and load the
    /// checkpoint after asking.
    #[inline]
    pub fn is_committing(&self) -> bool {
        // ORDERING: Acquire: see the writes.
        self.committing.load(Ordering::Acquire)
    }
}

/// Whether a store at this checkpoint holds a part of a slot.
pub(crate) fn is_between_slots(checkpoint: &ChainCheckpoint) -> bool {
    matches!(checkpoint.phase, MapPhase::Healing { .. })
}

/// Why there is no view of a store that holds a part of a slot.
pub(crate) const BETWEEN_SLOTS: &str = "the store is being brought to the slot of a snapshot archive, and no view from \
                                        before is left: try again once it is live (see /readyz)";

/// The refusal of such a view.
pub(crate) fn between_slots() -> engine_api::Error {
    engine_api::Error::new(engine_api::ErrorKind::Retry, BETWEEN_SLOTS)
}
