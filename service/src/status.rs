//! What the service knows of itself, shared between the ingest thread (which writes) and the network edge (which
//! reads): checkpoint, newest slot heard of, readiness, gap, counters.
//!
//! Owns: these figures. Must not: block; every write and read is wait-free. Counters are statistics: relaxed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use engine_api::{Checkpoint, Stats};

use crate::net::figures::Figures;
use crate::overlay::Overlay;
use crate::pulse::Pulses;
use crate::slow::SlowLog;

/// Slots that the stream can no longer deliver. Both ends included.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Gap {
    /// First missing slot.
    pub first_slot: u64,
    /// Last missing slot.
    pub last_slot: u64,
    /// What was seen that shows the gap.
    pub detail: String,
}

/// Whether lookups stand for the live chain, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Following the stream with no gap, past the slot that was applied before the start.
    Ready,
    /// Not yet, or no longer; in words.
    NotReady(String),
    /// Slots are missing.
    Gap(Gap),
}

/// The figures. One writer per field; see each.
#[derive(Debug)]
pub struct Shared {
    /// When the service started, ms since the Unix epoch.
    pub start_unix_ms: u64,
    /// The newest committed checkpoint. Writer: ingest-apply.
    pub checkpoint: ArcSwap<Checkpoint>,
    /// Writer: ingest-apply, and the receiver for a gap that the server itself reports.
    pub readiness: ArcSwap<Readiness>,
    /// Engine statistics, refreshed about once a second. Writer: ingest-apply.
    pub stats: ArcSwap<Stats>,
    /// The newest slot heard of from the stream; 0 before the first. Writer: the receiver.
    pub newest_slot: AtomicU64,
    /// Milliseconds from the creation of the newest applied slot's block meta to its commit. Writer: ingest-apply.
    pub lag_ms: AtomicU64,
    /// When the newest updates of the stream were handed on, ms since the Unix epoch; 0 before the first. Writer: the
    /// receiver.
    pub last_update_unix_ms: AtomicU64,
    /// When the newest commit was published, ms since the Unix epoch; 0 before the first. Writer: ingest-apply.
    pub last_commit_unix_ms: AtomicU64,
    /// Since when ingest-apply is at what it was last handed, ms since the Unix epoch; 0 while it waits for more.
    /// Writer: ingest-apply.
    pub busy_since_unix_ms: AtomicU64,
    /// Connected to the stream right now. Writer: the receiver.
    pub connected: AtomicBool,
    /// Batches between the receiver and ingest-apply. Writer: the receiver.
    pub queue_batches: AtomicU64,
    /// Clients on shared memory. Writer: shm-lookup.
    pub shm_sessions: AtomicU64,
    /// See [`Shared::resume_slot`]; [`NO_SLOT`] before the first. Writer: ingest-apply.
    resume_slot: AtomicU64,
    /// What lookups at each commitment read.
    pub overlay: Overlay,
    /// Counters since start.
    pub counters: Counters,
    /// What the network edge counts. Writer: the network edge.
    pub net: Figures,
    /// Which threads get on. Writer: each of them.
    pub pulses: Pulses,
    /// Slow requests. Writer: whoever serves lookups.
    pub slow: SlowLog,
    /// Snapshots of the store made on request. Writer: the snapshot's thread.
    pub snapshots: SnapshotFigures,
}

/// Snapshots of the store since start.
#[derive(Debug, Default)]
pub struct SnapshotFigures {
    /// One is being made.
    pub running: AtomicBool,
    /// Made whole.
    pub made: AtomicU64,
    /// Given up.
    pub failed: AtomicU64,
    /// When the newest whole one was begun, ms since the Unix epoch; 0 before the first.
    pub last_unix_ms: AtomicU64,
    /// What it took, in ms.
    pub last_took_ms: AtomicU64,
}

/// Monotonic counters since start.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "each name says what it counts; the metric catalogue has the sentences")]
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

/// Stands for no slot in an atomic: no chain gets there.
const NO_SLOT: u64 = u64::MAX;

impl Shared {
    /// The state at start: nothing heard of, not ready. Processed slots are not followed.
    pub fn new(checkpoint: Checkpoint) -> Arc<Self> {
        Self::with_overlay(checkpoint, Overlay::new(&checkpoint, false, false))
    }

    /// The state at start, with the overlay of a service that follows more than confirmed slots, or less.
    pub fn with_overlay(checkpoint: Checkpoint, overlay: Overlay) -> Arc<Self> {
        Arc::new(Self {
            start_unix_ms: unix_ms(),
            checkpoint: ArcSwap::from_pointee(checkpoint),
            readiness: ArcSwap::from_pointee(Readiness::NotReady("starting".to_owned())),
            stats: ArcSwap::from_pointee(Stats::default()),
            newest_slot: AtomicU64::new(0),
            lag_ms: AtomicU64::new(0),
            last_update_unix_ms: AtomicU64::new(0),
            last_commit_unix_ms: AtomicU64::new(0),
            busy_since_unix_ms: AtomicU64::new(0),
            connected: AtomicBool::new(false),
            queue_batches: AtomicU64::new(0),
            shm_sessions: AtomicU64::new(0),
            resume_slot: AtomicU64::new(checkpoint.slot.unwrap_or(NO_SLOT)),
            overlay,
            counters: Counters::default(),
            net: Figures::default(),
            slow: SlowLog::default(),
            snapshots: SnapshotFigures::default(),
            pulses: Pulses::default(),
        })
    }

    /// The newest slot that ingest-apply has taken over from the assembler, committed or not: what a new connection
    /// starts over from. Behind a restart it is the checkpoint's. `None`: start with what is new.
    pub fn resume_slot(&self) -> Option<u64> {
        // ORDERING: Relaxed: an older slot only makes the replay longer.
        Some(self.resume_slot.load(Ordering::Relaxed)).filter(|slot| *slot != NO_SLOT)
    }

    /// Moves [`Shared::resume_slot`] on.
    pub fn set_resume_slot(&self, slot: u64) {
        // ORDERING: Relaxed: see the read.
        self.resume_slot.store(slot, Ordering::Relaxed);
    }

    /// Slots between the newest heard of and the newest applied; `None` before the first slot.
    pub fn lag_slots(&self) -> Option<u64> {
        let applied = self.checkpoint.load().slot?;
        // ORDERING: Relaxed: a statistic.
        Some(self.newest_slot.load(Ordering::Relaxed).saturating_sub(applied))
    }
}

/// The service's clock, ms since the Unix epoch.
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Adds to a counter.
pub fn count(counter: &AtomicU64, by: u64) {
    // ORDERING: Relaxed: a statistic, nothing is inferred from it.
    counter.fetch_add(by, Ordering::Relaxed);
}
