//! Lookups at three commitments: the banks on top of the engine (processed), and the changes that the engine has to
//! forget (finalized).
//!
//! ```text
//! processed  =  engine + banks of the processed fork     (view: made by the overlay thread)
//! confirmed  =  engine                                   (commitment = confirmed)
//! finalized  =  engine - changes after the final slot    (undo: kept by ingest-apply)
//! ```
//!
//! Owns: the state shared between the threads that make these parts and those that read them. Must not: write to the
//! engine, or delay ingest-apply, which never waits for a queue here, and for a lock no longer than a lookup takes.
//!
//! With `commitment = finalized` the engine holds only finalized data: it answers finalized and confirmed lookups as it
//! is. An answer can be more settled than was asked for only there, or at processed while no bank on top of the engine
//! is known. The slot of the answer tells both.
//!
//! Processed lookups are refused without `processed = true`, and while the banks have overflowed. Finalized ones are
//! refused until all changes that were not final at the start are final. Confirmed ones never are.

pub(crate) mod banks;
pub(crate) mod patch;
pub(crate) mod undo;
pub(crate) mod view;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, ArcSwapOption};
use engine_api::Value;
use solana::ChainCheckpoint;
use tokio::sync::{mpsc, watch};

use crate::base::chain::{Base, Commitment};
use crate::base::published::Published;
use banks::{Banks, Dropped, Seen};
use undo::{CHANGES_MAX, Change, Undo};
use view::View;

/// Answer of an overlay about one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The overlay has no write of the key, so the engine has its value.
    Nothing,
    /// The key's value at the commitment of the overlay. `None`: the key is absent.
    Value(Option<Value>),
}

impl Known {
    /// Returns the overlay's value, or the engine's where the overlay has none.
    pub(crate) fn value_or(self, of_engine: impl FnOnce() -> Option<Value>) -> Option<Value> {
        match self {
            Self::Nothing => of_engine(),
            Self::Value(value) => value,
        }
    }
}

/// State for all three commitments. Shared by ingest-apply, the `overlay` thread, the receivers and the threads that
/// answer lookups.
#[derive(Debug)]
pub struct Overlay {
    processed: Option<Processed>,
    undo: Option<Undo>,
    reached: [watch::Sender<Option<u64>>; 3],
}

/// Message to the `overlay` thread.
#[derive(Debug)]
pub(crate) enum Message {
    /// Inputs in the order in which they arrived.
    Batch(Vec<Seen>),
    /// The engine has committed, so the banks should follow it.
    Moved,
}

/// Shared state of the processed fork. Written by the `overlay` thread, unless said otherwise.
#[derive(Debug)]
pub struct Processed {
    view: ArcSwap<View>,
    /// The block that ingest-apply began to apply last. Written by ingest-apply.
    root: ArcSwapOption<Base>,
    /// Wakes the `overlay` thread. Set when that thread is started.
    wake: OnceLock<mpsc::WeakSender<Message>>,
    /// Figures of the processed fork, for the metrics.
    pub(crate) figures: Figures,
}

/// Figures of the overlay. Statistics: relaxed.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) bytes: AtomicU64,
    pub(crate) dropped: ArcSwap<Dropped>,
}

impl Overlay {
    /// Creates the state of a service whose store stands at `checkpoint`. `processed` says that processed slots are
    /// followed. `engine_is_final` says that the engine takes in finalized slots only.
    pub fn new(checkpoint: &ChainCheckpoint, processed: bool, engine_is_final: bool) -> Self {
        let slot = checkpoint.slot;
        let root = slot.map(|slot| Base { slot, blockhash: checkpoint.blockhash });
        let processed = processed.then(|| Processed {
            view: ArcSwap::default(),
            root: ArcSwapOption::from_pointee(root),
            wake: OnceLock::new(),
            figures: Figures::default(),
        });
        let finalized = slot.filter(|_| engine_is_final);
        Self {
            processed,
            undo: (!engine_is_final).then(|| Undo::new(slot, CHANGES_MAX)),
            reached: [slot, slot, finalized].map(watch::Sender::new),
        }
    }

    /// The processed fork; `None` when processed slots are not followed.
    pub fn processed(&self) -> Option<&Processed> {
        self.processed.as_ref()
    }

    /// Changes that the engine has to forget for a finalized answer; `None` when it holds finalized slots only.
    pub fn undo(&self) -> Option<&Undo> {
        self.undo.as_ref()
    }

    /// Returns a watch on the newest slot that a lookup at `commitment` has reached.
    pub fn reached(&self, commitment: Commitment) -> watch::Receiver<Option<u64>> {
        self.reached[commitment as usize].subscribe()
    }

    /// Notes that a connection reports `slot` as final. Called by the receivers.
    pub fn name_final(&self, slot: u64) {
        if let Some(undo) = &self.undo {
            undo.name_final(slot);
        }
    }

    /// Forgets the slots that earlier connections reported as final and that are not applied. Called by the receivers at a new
    /// connection.
    pub fn forget_named(&self) {
        if let Some(undo) = &self.undo {
            undo.forget_named();
        }
    }

    /// Called by ingest-apply when the next slot of the chain is whole, before any change of it is in a transaction.
    pub fn begin(&self, block: Base) {
        if let Some(processed) = &self.processed {
            processed.root.store(Some(Arc::new(block)));
        }
        if let Some(undo) = &self.undo {
            undo.begin(block.slot);
        }
    }

    /// Called by ingest-apply when these changes are in the transaction that is committed next.
    pub fn committing(&self, changes: impl Iterator<Item = Change>) {
        if let Some(undo) = &self.undo {
            undo.record(changes);
        }
    }

    /// Called by ingest-apply when a commit was published. `slot` is the newest slot that the commit holds as a whole.
    pub fn published(&self, slot: Option<u64>) {
        self.set_reached(Commitment::Confirmed, slot);
        match &self.undo {
            Some(undo) => _ = undo.published(slot),
            None => self.set_reached(Commitment::Finalized, slot),
        }
        self.tell_final();
        if let Some(processed) = &self.processed {
            processed.wake();
        }
    }

    /// Called by ingest-apply to move the finalized slot to the newest one reported, as far as it is published.
    pub fn settle(&self) {
        if self.undo.as_ref().is_some_and(Undo::settle) {
            self.tell_final();
        }
    }

    /// The newest slot that a lookup at `commitment` has reached.
    pub fn slot(&self, commitment: Commitment) -> Option<u64> {
        *self.reached[commitment as usize].borrow()
    }

    /// Called by the `overlay` thread: moves the banks on with the engine, and publishes the fork where it may have
    /// changed.
    pub(crate) fn show(&self, published: &Published, banks: &mut Banks, changed: bool) {
        let Some(processed) = &self.processed else { return };
        // In this order, so that the root is never older than the published slot.
        let committed = published.slot();
        let root = processed.root();
        if banks.advance(committed, root) | changed {
            let view = banks.view();
            let slot = view.tip().max(committed);
            processed.view.store(Arc::new(view));
            self.set_reached(Commitment::Processed, slot);
        }
        processed.record(banks);
    }

    fn tell_final(&self) {
        if let Some(undo) = &self.undo {
            let slot = undo.read().slot();
            self.set_reached(Commitment::Finalized, slot);
        }
    }

    fn set_reached(&self, commitment: Commitment, slot: Option<u64>) {
        self.reached[commitment as usize].send_if_modified(|reached| std::mem::replace(reached, slot) != slot);
    }
}

impl Processed {
    /// Returns the processed fork. Load it before the engine's snapshot is moved. A bank leaves the fork once its
    /// commit is published, so every snapshot taken after the view was loaded holds each bank that the view lacks for
    /// that reason.
    pub fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// Returns the block that ingest-apply began to apply last. Load it after the engine's snapshot was moved. It is
    /// stored before any change of that block is committed, so a snapshot never holds a part of a later block.
    pub fn root(&self) -> Option<Base> {
        self.root.load().as_deref().copied()
    }

    /// Called before the `overlay` thread is started: `sender` leads to it.
    pub(crate) fn wake_by(&self, sender: mpsc::WeakSender<Message>) {
        self.wake.get_or_init(|| sender);
    }

    fn wake(&self) {
        if let Some(sender) = self.wake.get().and_then(mpsc::WeakSender::upgrade) {
            // Where the queue is full the thread is awake, and it checks the engine after each message.
            sender.try_send(Message::Moved).ok();
        }
    }

    fn record(&self, banks: &Banks) {
        // ORDERING: Relaxed: statistics.
        self.figures.bytes.store(banks.bytes() as u64, Ordering::Relaxed);
        self.figures.dropped.store(Arc::new(banks.dropped()));
    }
}

#[cfg(test)]
mod tests;
