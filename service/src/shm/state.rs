//! The state of the service that `shm-lookup` reads and writes.
//!
//! Owns: nothing; each part lies with the code that writes it. Must not: know a session. Thread: `shm-lookup`.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::lookups::LookupState;
use crate::status::Status;

/// State of the service that the thread reads and writes.
#[derive(Clone, Debug)]
pub struct ShmState {
    pub lookups: LookupState,
    pub status: Status,
    /// Number of clients connected at this moment.
    pub sessions: Arc<AtomicU64>,
}
