//! What the service knows of itself, shared between the ingest thread (which writes) and the network edge (which
//! reads): checkpoint, newest slot heard of, readiness, gap, counters.
//!
//! Owns: these figures. Must not: block; every write and read is wait-free. Counters are statistics: relaxed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use engine_api::Stats;
use solana::ChainCheckpoint;

use crate::net::figures::Figures;
use crate::overlay::Overlay;
use crate::pulse::Pulses;
use crate::readiness::{Readiness, Verdict};
use crate::slow::SlowLog;
use crate::views::Views;

/// The figures. One writer per field; see each.
#[derive(Debug)]
pub struct Shared {
    /// When the service started, ms since the Unix epoch.
    pub start_unix_ms: u64,
    /// The newest committed checkpoint. Writer: ingest-apply.
    pub checkpoint: ArcSwap<ChainCheckpoint>,
    /// See [`Shared::committing`]. Writer: ingest-apply.
    committing: AtomicBool,
    /// What readiness follows from; ask [`Shared::verdict`]. Writers: ingest-apply and the receiver.
    pub readiness: Readiness,
    /// Engine statistics, refreshed about once a second. Writer: ingest-apply.
    pub stats: ArcSwap<Stats>,
    /// The newest slot heard of on the newest connection to the stream, as far as that can be true; 0 before the first.
    /// Writer: the receiver.
    pub newest_slot: AtomicU64,
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
    /// How many connections to the stream ingest-apply has given up, counted from the first: see [`Shared::give_up`].
    given_up: AtomicU64,
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
    /// Views of the store held by dumps and snapshots. Writers: their threads.
    pub views: Views,
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
    pub fn new(checkpoint: ChainCheckpoint) -> Arc<Self> {
        Self::with_overlay(checkpoint, Overlay::new(&checkpoint, false, false))
    }

    /// The state at start, with the overlay of a service that follows more than confirmed slots, or less.
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

    /// ingest-apply: a commit begins. From here until [`Shared::publish`] or [`Shared::not_committed`] a reader may see it while
    /// [`Shared::checkpoint`] is still the one before.
    pub fn committing(&self) {
        // ORDERING: Release pairs with the Acquire of `is_committing`. The engine's own synchronisation lies in between:
        // whoever sees the commit sees this as well.
        self.committing.store(true, Ordering::Release);
    }

    /// ingest-apply: the commit is over, and the engine stands at `checkpoint`.
    pub fn publish(&self, checkpoint: ChainCheckpoint) {
        self.checkpoint.store(Arc::new(checkpoint));
        // ORDERING: Release: whoever sees that the commit is over loads its checkpoint, or a later one.
        self.committing.store(false, Ordering::Release);
    }

    /// ingest-apply: the commit has failed and changed nothing, so that [`Shared::checkpoint`] is still the engine's.
    pub fn not_committed(&self) {
        // ORDERING: Release, as in `publish`; what was published before is still right.
        self.committing.store(false, Ordering::Release);
    }

    /// Whether a reader may have moved past [`Shared::checkpoint`]. Ask after moving it, and load the checkpoint after
    /// asking.
    pub fn is_committing(&self) -> bool {
        // ORDERING: Acquire: see the writes.
        self.committing.load(Ordering::Acquire)
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

    /// Slots between the newest heard of and the newest applied; `None` before the first of either.
    pub fn lag_slots(&self) -> Option<u64> {
        let applied = self.checkpoint.load().slot?;
        // ORDERING: Relaxed: a statistic.
        let newest = Some(self.newest_slot.load(Ordering::Relaxed)).filter(|newest| *newest > 0)?;
        Some(newest.saturating_sub(applied))
    }

    /// Whether lookups stand for the live chain at this moment, and the lag. All that the service says of its readiness
    /// comes from here.
    pub fn verdict(&self) -> Verdict {
        self.readiness.verdict(self.lag_slots())
    }

    /// Gives up the `connection`-th connection that the receiver has announced, and all before it: it does not bring
    /// what is missing, and a new one may.
    pub fn give_up(&self, connection: u64) {
        // ORDERING: Relaxed: the receiver only has to see it sooner or later.
        self.given_up.fetch_max(connection, Ordering::Relaxed);
    }

    /// Whether the `connection`-th connection is given up.
    pub fn is_given_up(&self, connection: u64) -> bool {
        // ORDERING: Relaxed: see the write.
        connection <= self.given_up.load(Ordering::Relaxed)
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
