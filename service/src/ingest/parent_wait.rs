//! How long whole slots have waited for a parent, while none was handed out.
//!
//! Owns: that time, which goes on from one connection to the next: a server may end its streams more often than the time
//! limit. It stands still while there is no connection. Must not: end a connection. Runs where an assembler runs.

use std::time::Duration;

// Outside of simulations this is the machine's monotonic clock.
use tokio::time::Instant;

use super::assemble::Assembler;
use super::progress::Awaited;
use crate::base::chain::Gap;

/// The wait of an assembler's first whole slot for its parent.
#[derive(Debug)]
pub(super) struct ParentWait {
    /// The time of the waits on earlier connections, or before another slot was the first.
    before: Duration,
    /// When the present wait would have begun without a pause, and when it was looked at last.
    present: Option<(Instant, Instant)>,
    gap_timeout: Duration,
}

impl ParentWait {
    /// Creates the wait at the start, when no slot waits. A parent counts as missing after `gap_timeout`.
    pub(super) fn new(gap_timeout: Duration) -> Self {
        Self { before: Duration::ZERO, present: None, gap_timeout }
    }

    /// Notes that a slot was handed out, or that the missing slots are a gap.
    pub(super) fn over(&mut self) {
        (self.before, self.present) = (Duration::ZERO, None);
    }

    /// Notes that no slot waits at this moment, or that another connection may send the parent. The wait ended when it was
    /// looked at last.
    pub(super) fn pause(&mut self) {
        if let Some((since, seen)) = self.present.take() {
            self.before = seen.duration_since(since);
        }
    }

    /// Returns the slot that waits, with the time at which the wait would have begun without a pause.
    pub(super) fn awaited(&mut self, assembler: &Assembler) -> Option<Awaited> {
        let Some((slot, parent_slot)) = assembler.awaits_parent() else {
            self.pause();
            return None;
        };
        let now = Instant::now();
        let since = self.present.map_or_else(|| now.checked_sub(self.before).unwrap_or(now), |(since, _)| since);
        self.present = Some((since, now));
        Some(Awaited { slot, parent_slot, since, gap_timeout: self.gap_timeout })
    }

    /// Returns the gap before the slot if it has waited too long.
    pub(super) fn check(&mut self, assembler: &Assembler) -> Option<Gap> {
        let is_over = self.awaited(assembler).is_some_and(|awaited| awaited.since.elapsed() >= self.gap_timeout);
        is_over.then(|| assembler.missing_parent(&format!("over gap_timeout={:?}", self.gap_timeout))).flatten()
    }
}
