//! Handles to the state of every part of the service, collected once at the start for the pages that show all of it.
//!
//! Owns: nothing; each state lies with the code that writes it. Must not: be known to that code: `map` hands each part
//! its own state. Any thread.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bootstrap::Seen;

use crate::admin::SnapshotFigures;
use crate::base::figure::unix_ms;
use crate::base::views::Views;
use crate::derive::Derived;
use crate::feed::Feed;
use crate::ingest;
use crate::lookups::LookupState;
use crate::net::figures::Figures;
use crate::spool;
use crate::status::Status;
use crate::warmth;

/// Handles to the state of every part. Clones share it.
#[derive(Clone, Debug)]
pub struct Handles {
    /// Time of the service's start, in ms since the Unix epoch.
    pub start_unix_ms: u64,
    /// The ingest writes the state of which the status is made.
    pub status: Status,
    /// Written by the threads that answer lookups; the published state and the overlay by the ingest.
    pub lookups: LookupState,
    /// The change feed; `None` if the service keeps none.
    pub feed: Option<Arc<Feed>>,
    /// The derived stores of the map.
    pub(crate) derived: Derived,
    /// Written by the network edge, for gRPC and HTTP alike.
    pub net: Arc<Figures>,
    /// Number of clients connected over shared memory. Written by `shm-lookup`.
    pub shm_sessions: Arc<AtomicU64>,
    /// Written by the thread that makes a snapshot.
    pub snapshots: Arc<SnapshotFigures>,
    /// Views of the store held by dumps and snapshots. Written by their threads.
    pub views: Arc<Views>,
    /// The load of the store from an archive.
    pub load: Seen,
    /// Written by the thread `warm-up`.
    pub warmth: Arc<warmth::Figures>,
    /// Written by the thread `spool`.
    pub spool: Arc<spool::SpoolFigures>,
}

impl Handles {
    /// Returns the handles of a service that starts now, without a feed. `engine` is the engine's label.
    pub fn new(engine: &'static str, ingest: &ingest::State) -> Self {
        Self {
            start_unix_ms: unix_ms(),
            status: Status { engine, ingest: ingest.clone() },
            lookups: LookupState::new(Arc::clone(&ingest.published), Arc::clone(&ingest.overlay)),
            feed: None,
            derived: Derived::default(),
            net: Arc::default(),
            shm_sessions: Arc::default(),
            snapshots: Arc::default(),
            views: Arc::default(),
            load: Seen::default(),
            warmth: Arc::default(),
            spool: Arc::default(),
        }
    }

    /// Returns the handles with the figures of a load and of a spool.
    pub fn with(self, load: &Seen, spool: &Arc<spool::SpoolFigures>) -> Self {
        Self { load: load.clone(), spool: Arc::clone(spool), ..self }
    }
}
