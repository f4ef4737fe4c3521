//! Whether an archive may still join the kept slots.
//!
//! Owns: the signs that none ever will: the slots end, or they are far ahead of another provider's. Must not:
//! touch the spool, or ask a provider. Runs on the task of the heal.

use std::sync::atomic::Ordering;

use tokio::time::{Duration, Instant};

use crate::spool;

/// Number of slots, an hour's, by which the slots of one chain's providers never differ. Slots that are further ahead than
/// this may be of another chain, whose archives never come.
const FAR_SLOTS: u64 = 10_000;

/// How long kept slots may wait for the slot after them. A server that was away for longer does not have it any more.
const GROWTH_WAIT: Duration = Duration::from_secs(600);

/// Returns the first provider, of those with these newest slots, that is ahead of the store and far before the kept slots.
pub(super) fn far_before(
    first_kept: u64,
    store_slot: u64,
    newest_slots: impl IntoIterator<Item = (usize, u64)>,
) -> Option<usize> {
    let is_far = |newest: u64| newest > store_slot && newest.saturating_add(FAR_SLOTS) < first_kept;
    newest_slots.into_iter().find(|(_, newest)| is_far(*newest)).map(|(at, _)| at)
}

/// The growth of a spool.
pub(super) struct Growth {
    last_slot: u64,
    since: Instant,
}

impl Growth {
    pub(super) fn begin() -> Self {
        Self { last_slot: 0, since: Instant::now() }
    }

    /// Looks at the newest kept slot. Returns whether it has been the newest one for too long, although the spool takes
    /// more.
    pub(super) fn has_ended(&mut self, spool: &spool::SpoolFigures) -> bool {
        // ORDERING: Relaxed: statistics.
        let (slots, last_slot) = (spool.slots.load(Ordering::Relaxed), spool.last_slot.load(Ordering::Relaxed));
        if std::mem::replace(&mut self.last_slot, last_slot) != last_slot {
            self.since = Instant::now();
        }
        slots > 0 && spool.stopped().is_none() && self.since.elapsed() >= GROWTH_WAIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_far_ahead_of_a_provider_that_is_ahead_of_the_store_are_no_slots_of_its_chain() {
        let newest = [(1, 90), (2, 5000), (3, 6000)];
        assert_eq!(far_before(1_000_000, 100, newest), Some(2), "the first one that is ahead of the store");
        assert_eq!(far_before(6000 + FAR_SLOTS, 100, newest[2..].to_vec()), None, "an hour late, maybe");
        assert_eq!(far_before(1_000_000, 6000, newest), None);
    }

    #[tokio::test(start_paused = true)]
    async fn kept_slots_that_nobody_continues_have_ended_unless_the_spool_takes_no_more() {
        let spool = spool::SpoolFigures::default();
        let mut growth = Growth::begin();
        tokio::time::advance(GROWTH_WAIT).await;
        assert!(!growth.has_ended(&spool), "no slot is kept");
        spool.slots.store(1, Ordering::Relaxed);
        spool.last_slot.store(7, Ordering::Relaxed);
        assert!(!growth.has_ended(&spool), "a new one");
        tokio::time::advance(GROWTH_WAIT).await;
        assert!(growth.has_ended(&spool));
        spool.stop("full".to_owned());
        assert!(!growth.has_ended(&spool), "it takes no more");
    }
}
