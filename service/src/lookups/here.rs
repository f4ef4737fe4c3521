//! Lookups on the thread that asks, where memory answers: no hand-over, no wait.
//!
//! Owns: the engine that they read, until the pool ends, and when such a lookup is left to the pool. Must not: wait, for the
//! device or for a lock; refuse or fail a lookup: the pool does. Threads: the network edge, many at a time.
//!
//! A reader lives for one call, so no idle thread holds a snapshot. An old version of a store is removed by its last reader;
//! the pool's readers keep one for longer than a call here, so that is never a network thread's work.

use std::sync::{Arc, RwLock};

use engine_api::{Key, Value};
use engine_latency::Measured;

use super::{LookupState, Origin, SOURCE};
use crate::base::chain::Commitment;
use crate::base::slow::Parts;
use crate::reading::Reading;

/// Maximum number of keys that are looked up here at once: they take about 20 us, in which the thread serves nobody else.
pub(crate) const HERE_KEYS_MAX: usize = 64;

pub(super) struct Here {
    /// `None` for an engine that cannot tell, and once the pool has ended.
    engine: RwLock<Option<Arc<Measured>>>,
    state: LookupState,
}

impl Here {
    pub(super) fn new(engine: &Arc<Measured>, state: &LookupState) -> Self {
        let engine = state.answers_from_memory.then(|| Arc::clone(engine));
        Self { engine: RwLock::new(engine), state: state.clone() }
    }

    /// Lets go of the engine. Waits for the calls that read it.
    pub(super) fn close(&self) {
        // Only these two functions hold the lock, and neither leaves anything half done.
        *self.engine.write().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
    }

    /// Looks the `keys` up, all from one state. Returns its slot. `None` leaves them to the pool: it would read the device, there
    /// are too many, or the state cannot be told without a wait.
    pub(super) fn get_into(
        &self,
        keys: &[Key],
        values: &mut [Option<Value>],
        commitment: Commitment,
        origin: &Origin,
    ) -> Option<Option<u64>> {
        // The finalized state is told under a lock that the ingest takes as well.
        if keys.len() > HERE_KEYS_MAX || commitment == Commitment::Finalized {
            return None;
        }
        let engine = self.engine.try_read().ok()?;
        let engine = engine.as_ref()?;
        let mut reading = Reading::new(engine, &self.state, SOURCE);
        let slot = reading.get_resident(keys, values, commitment)?;
        let clock = engine.latency().clock();
        let total_ns = clock.delta_as_nanos(origin.asked, clock.raw());
        if self.state.slow.is_slow(total_ns) {
            let parts = Parts { slot_wait_ns: origin.slot_wait_ns, ..reading.spent() };
            self.state.slow.report(origin.transport, keys.len(), commitment, total_ns, parts);
        }
        Some(slot)
    }
}
