//! How long a whole slot has waited for its parent.
//!
//! Owns: the time at which the wait began. Must not: end a connection. Runs where an assembler runs.

use std::time::Duration;

// Outside of simulations this is the machine's monotonic clock.
use tokio::time::Instant;

use super::assemble::Assembler;
use crate::chain::Gap;
use crate::readiness::Awaited;

/// The wait of an assembler's first whole slot for its parent.
#[derive(Debug)]
pub(super) struct Waiting {
    since: Option<Instant>,
    gap_timeout: Duration,
}

impl Waiting {
    /// Creates the wait at the start, when no slot waits. A parent counts as missing after `gap_timeout`.
    pub(super) fn new(gap_timeout: Duration) -> Self {
        Self { since: None, gap_timeout }
    }

    /// Notes that the slot no longer waits, or that a new connection may bring its parent.
    pub(super) fn over(&mut self) {
        self.since = None;
    }

    /// Returns the slot that waits, with the time at which the wait began, which is now if it is new.
    pub(super) fn awaited(&mut self, assembler: &Assembler) -> Option<Awaited> {
        let Some((slot, parent_slot)) = assembler.awaits_parent() else {
            self.since = None;
            return None;
        };
        let since = *self.since.get_or_insert_with(Instant::now);
        Some(Awaited { slot, parent_slot, since, gap_timeout: self.gap_timeout })
    }

    /// Returns the gap before the slot if it has waited too long.
    pub(super) fn check(&mut self, assembler: &Assembler) -> Option<Gap> {
        let is_over = self.awaited(assembler).is_some_and(|awaited| awaited.since.elapsed() >= self.gap_timeout);
        is_over.then(|| assembler.missing_parent(&format!("over gap_timeout={:?}", self.gap_timeout))).flatten()
    }
}
