//! Whether an archive may still join the kept slots.
//!
//! Owns: the signs that none ever will: the slots end, or they are far ahead of another provider's. Must not:
//! touch the spool, or ask a provider. Runs on the task of the heal.

use std::sync::atomic::Ordering;

use tokio::time::{Duration, Instant};

use super::reason::PATIENCE;
use crate::spool::SpoolFigures;

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

/// The kept slots of one spool over time.
pub(super) struct SpoolWatch {
    /// Time since which the spool has a gap of its own, if it has one.
    broken_since: Option<Instant>,
    last_slot: u64,
    grown_at: Instant,
}

impl SpoolWatch {
    pub(super) fn begin() -> Self {
        Self { broken_since: None, last_slot: 0, grown_at: Instant::now() }
    }

    /// Looks at the spool, which `is_broken` if it has a gap of its own. Returns the reason if no slot has come after the
    /// newest one for too long, although the spool takes more.
    pub(super) fn has_ended(&mut self, is_broken: bool, spool: &SpoolFigures) -> Option<&'static str> {
        self.broken_since = is_broken.then(|| self.broken_since.unwrap_or_else(Instant::now));
        // ORDERING: Relaxed: statistics.
        let (slots, last_slot) = (spool.slots.load(Ordering::Relaxed), spool.last_slot.load(Ordering::Relaxed));
        if std::mem::replace(&mut self.last_slot, last_slot) != last_slot {
            self.grown_at = Instant::now();
        }
        if self.broken_since.is_some_and(|since| since.elapsed() >= PATIENCE) {
            // The spool ends at its gap, so no archive that comes now can join it.
            return Some("the kept slots have a gap of their own");
        }
        let is_open = slots > 0 && spool.stopped().is_none();
        (is_open && self.grown_at.elapsed() >= GROWTH_WAIT).then_some("no provider sends the slots after the kept ones")
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
        let spool = SpoolFigures::default();
        let mut watch = SpoolWatch::begin();
        tokio::time::advance(GROWTH_WAIT).await;
        assert_eq!(watch.has_ended(false, &spool), None, "no slot is kept");
        spool.slots.store(1, Ordering::Relaxed);
        spool.last_slot.store(7, Ordering::Relaxed);
        assert_eq!(watch.has_ended(false, &spool), None, "a new one");
        tokio::time::advance(GROWTH_WAIT).await;
        assert!(watch.has_ended(false, &spool).is_some());
        spool.stop("full".to_owned());
        assert_eq!(watch.has_ended(false, &spool), None, "it takes no more");
        assert_eq!(watch.has_ended(true, &spool), None, "another provider may close the gap");
        tokio::time::advance(PATIENCE).await;
        assert!(watch.has_ended(true, &spool).is_some());
    }
}
