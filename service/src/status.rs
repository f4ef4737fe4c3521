//! The service's state, shared between the ingest thread (which writes) and the network edge (which reads): checkpoint,
//! newest slot mentioned by the stream, readiness, gap, counters.
//!
//! Owns: these figures. Must not: block; every write and read is wait-free. Counters are statistics, so their accesses
//! are relaxed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use engine_api::Stats;
use solana::ChainCheckpoint;

use crate::figure::unix_ms;
use crate::net::figures::Figures;
use crate::overlay::Overlay;
use crate::pulse::Pulses;
use crate::readiness::{Readiness, Verdict};
use crate::slow::SlowLog;
use crate::views::Views;

/// The shared figures. Each field names its writers.
#[derive(Debug)]
pub struct Shared {
    /// Time of the service's start, in ms since the Unix epoch.
    pub start_unix_ms: u64,
    /// The newest committed checkpoint. Writer: ingest-apply.
    pub checkpoint: ArcSwap<ChainCheckpoint>,
    /// True while a commit is under way; see [`Shared::committing`]. Writer: ingest-apply.
    committing: AtomicBool,
    /// The events from which readiness is computed; ask [`Shared::verdict`]. Writers: ingest-apply and the receiver.
    pub readiness: Readiness,
    /// Engine statistics, refreshed about once a second. Writer: ingest-apply.
    pub stats: ArcSwap<Stats>,
    /// The newest slot mentioned on the newest connection to the stream, if it is plausible; 0 before the first.
    /// Writer: the receiver.
    pub newest_slot: AtomicU64,
    /// Time at which the newest updates of the stream were passed on, in ms since the Unix epoch; 0 before the first.
    /// Writer: the receiver.
    pub last_update_unix_ms: AtomicU64,
    /// Time at which the newest commit was published, in ms since the Unix epoch; 0 before the first. Writer:
    /// ingest-apply.
    pub last_commit_unix_ms: AtomicU64,
    /// Time since which ingest-apply has worked on its current message, in ms since the Unix epoch; 0 while it waits
    /// for one. Writer: ingest-apply.
    pub busy_since_unix_ms: AtomicU64,
    /// Whether the stream is connected at this moment. Writer: the receiver.
    pub connected: AtomicBool,
    /// Number of connections to the stream that ingest-apply has given up, counted from the first: see
    /// [`Shared::give_up`].
    given_up: AtomicU64,
    /// Number of batches in the queue between the receiver and ingest-apply. Writer: the receiver.
    pub queue_batches: AtomicU64,
    /// Number of clients connected over shared memory. Writer: shm-lookup.
    pub shm_sessions: AtomicU64,
    /// The slot of [`Shared::resume_slot`]; [`NO_SLOT`] before the first. Writer: ingest-apply.
    resume_slot: AtomicU64,
    /// The data with which lookups read at other commitments than the store's: newer banks for processed, replaced
    /// values for finalized.
    pub overlay: Overlay,
    pub counters: Counters,
    /// Figures of the network edge. Writer: the network edge.
    pub net: Figures,
    /// Signs of life of the worker threads. Writer: each of them.
    pub pulses: Pulses,
    /// The log of slow requests. Writers: the threads that serve lookups.
    pub slow: SlowLog,
    /// Figures of snapshots made on request. Writer: the snapshot's thread.
    pub snapshots: SnapshotFigures,
    /// Views of the store held by dumps and snapshots. Writers: their threads.
    pub views: Views,
}

/// Figures of snapshots of the store since the start.
#[derive(Debug, Default)]
pub struct SnapshotFigures {
    /// Whether a snapshot is being made at this moment.
    pub running: AtomicBool,
    /// Number of snapshots completed since the start.
    pub made: AtomicU64,
    /// Number of snapshots that failed since the start.
    pub failed: AtomicU64,
    /// Time at which the newest complete snapshot began, in ms since the Unix epoch; 0 before the first.
    pub last_unix_ms: AtomicU64,
    /// Duration of the newest complete snapshot, in ms.
    pub last_took_ms: AtomicU64,
}

/// Counters of events since the start; they only grow.
#[derive(Debug, Default)]
pub struct Counters {
    pub updates_received: AtomicU64,
    pub updates_malformed: AtomicU64,
    pub connects: AtomicU64,
    pub events_applied: AtomicU64,
    pub events_written: AtomicU64,
    pub events_deleted: AtomicU64,
    pub slots_applied: AtomicU64,
    pub slots_dead: AtomicU64,
    pub slots_duplicate: AtomicU64,
    pub updates_duplicate: AtomicU64,
    pub commits: AtomicU64,
    pub commits_without_space: AtomicU64,
    pub lookups: AtomicU64,
    pub lookups_refused: AtomicU64,
}

/// The value of an atomic slot that holds none; no chain ever reaches it.
const NO_SLOT: u64 = u64::MAX;

impl Shared {
    /// Returns the state at start: no slot mentioned, not ready, and processed slots not followed.
    pub fn new(checkpoint: ChainCheckpoint) -> Arc<Self> {
        Self::with_overlay(checkpoint, Overlay::new(&checkpoint, false, false))
    }

    /// Returns the state at start with the given overlay, which decides the commitments that the service follows.
    pub fn with_overlay(checkpoint: ChainCheckpoint, overlay: Overlay) -> Arc<Self> {
        Arc::new(Self {
            start_unix_ms: unix_ms(),
            checkpoint: ArcSwap::from_pointee(checkpoint),
            committing: AtomicBool::new(false),
            readiness: Readiness::default(),
            stats: ArcSwap::from_pointee(Stats::default()),
            newest_slot: AtomicU64::new(0),
            last_update_unix_ms: AtomicU64::new(0),
            last_commit_unix_ms: AtomicU64::new(0),
            busy_since_unix_ms: AtomicU64::new(0),
            connected: AtomicBool::new(false),
            given_up: AtomicU64::new(0),
            queue_batches: AtomicU64::new(0),
            shm_sessions: AtomicU64::new(0),
            resume_slot: AtomicU64::new(checkpoint.slot.unwrap_or(NO_SLOT)),
            overlay,
            counters: Counters::default(),
            net: Figures::default(),
            slow: SlowLog::default(),
            snapshots: SnapshotFigures::default(),
            views: Views::default(),
            pulses: Pulses::default(),
        })
    }

    /// ingest-apply: announces that a commit begins. From here until [`Shared::publish`] or [`Shared::not_committed`],
    /// a reader may see the commit while [`Shared::checkpoint`] is still the previous one.
    pub fn committing(&self) {
        // ORDERING: Release pairs with the Acquire of `is_committing`. The engine's own synchronisation comes between:
        // a reader that sees the commit sees this as well.
        self.committing.store(true, Ordering::Release);
    }

    /// ingest-apply: announces that the commit is over and the engine is at `checkpoint`.
    pub fn publish(&self, checkpoint: ChainCheckpoint) {
        self.checkpoint.store(Arc::new(checkpoint));
        // ORDERING: Release: a reader that sees that the commit is over loads its checkpoint, or a later one.
        self.committing.store(false, Ordering::Release);
    }

    /// ingest-apply: announces that the commit failed and changed nothing, so that [`Shared::checkpoint`] is still the
    /// engine's.
    pub fn not_committed(&self) {
        // ORDERING: Release, as in `publish`; the checkpoint published before is still right.
        self.committing.store(false, Ordering::Release);
    }

    /// Whether a reader's view may be newer than [`Shared::checkpoint`]. Ask after renewing the view, and load the
    /// checkpoint after asking.
    pub fn is_committing(&self) -> bool {
        // ORDERING: Acquire: see the writes.
        self.committing.load(Ordering::Acquire)
    }

    /// Returns the newest slot that ingest-apply has taken over from the assembler, committed or not: a new connection
    /// replays the stream from it. After a restart it is the checkpoint's slot. `None` means to begin with new slots.
    pub fn resume_slot(&self) -> Option<u64> {
        // ORDERING: Relaxed: an older slot only makes the replay longer.
        Some(self.resume_slot.load(Ordering::Relaxed)).filter(|slot| *slot != NO_SLOT)
    }

    /// Sets the slot of [`Shared::resume_slot`].
    pub fn set_resume_slot(&self, slot: u64) {
        // ORDERING: Relaxed: see the read.
        self.resume_slot.store(slot, Ordering::Relaxed);
    }

    /// Returns the number of slots between the newest one mentioned and the newest applied; `None` before the first of
    /// either.
    pub fn lag_slots(&self) -> Option<u64> {
        let applied = self.checkpoint.load().slot?;
        // ORDERING: Relaxed: a statistic.
        let newest = Some(self.newest_slot.load(Ordering::Relaxed)).filter(|newest| *newest > 0)?;
        Some(newest.saturating_sub(applied))
    }

    /// Computes readiness and lag at this moment. Every report of the service's readiness comes from here.
    pub fn verdict(&self) -> Verdict {
        self.readiness.verdict(self.lag_slots())
    }

    /// Gives up the `connection`-th connection that the receiver has announced, and all earlier ones, because it does
    /// not bring the missing slots and a new one may.
    pub fn give_up(&self, connection: u64) {
        // ORDERING: Relaxed: the receiver only has to see it sooner or later.
        self.given_up.fetch_max(connection, Ordering::Relaxed);
    }

    /// Whether the `connection`-th connection was given up.
    pub fn is_given_up(&self, connection: u64) -> bool {
        // ORDERING: Relaxed: see the write.
        connection <= self.given_up.load(Ordering::Relaxed)
    }
}
