//! The state that a lookup asks for: a commitment, and a slot that it must include.
//!
//! Owns: the wait for that slot. Must not: hold a lookup thread; a request waits here before it is queued. Threads: the
//! tokio runtime of the network edge.

use std::sync::Arc;
use std::time::Duration;

use super::budget::Peer;
use super::places::Taking;
use super::refusal::{Cause, Refusal};
use crate::base::chain::Commitment;
use crate::net::figures::Place;
use crate::overlay::Overlay;

/// Longest wait for a slot. A healthy service reaches an existing slot within a second or two, and a finalized one
/// within about 13. A client that wants to wait longer asks again.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Maximum number of waiting requests. A batch counts as one for each [`KEYS_PER_WAITER`] of its keys, which bounds the
/// keys held during the wait to about 20 MB. Each connection and each source has a share; see `places`.
const WAITERS_MAX: u64 = 1024;

/// Number of a batch's keys that count as one waiter; see [`WAITERS_MAX`].
const KEYS_PER_WAITER: usize = 512;

/// Part of a request's deadline by which a wait ends earlier, so that the caller gets the answer and not its deadline.
const ANSWER_SHARE: u32 = 8;

/// The state that one request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) commitment: Commitment,
    min_context_slot: Option<u64>,
    /// Longest time to wait for the slot.
    wait: Duration,
}

impl Wanted {
    /// Returns the state of a request that has this much time, or as much as it takes.
    pub(crate) fn new(commitment: Commitment, min_context_slot: Option<u64>, deadline: Option<Duration>) -> Self {
        let wait = deadline.map_or(WAIT_MAX, |deadline| (deadline - deadline / ANSWER_SHARE).min(WAIT_MAX));
        Self { commitment, min_context_slot, wait }
    }

    /// Checks that the data read includes the slot asked for. After a wait it does, except at processed, where a
    /// shorter fork may have replaced the one waited for.
    pub(super) fn check(&self, slot: Option<u64>) -> Result<(), Refusal> {
        if self.is_in(slot) { Ok(()) } else { Err(self.not_reached(slot)) }
    }

    /// Longest time to wait for a slot, or for a derived store.
    pub(super) fn time(&self) -> Duration {
        self.wait
    }

    /// Whether the request names a slot, reached already or not.
    pub(super) fn names_a_slot(&self) -> bool {
        self.min_context_slot.is_some()
    }

    /// Whether data at `slot` includes the slot asked for.
    pub(crate) fn is_in(&self, slot: Option<u64>) -> bool {
        self.min_context_slot.is_none_or(|min| slot.is_some_and(|slot| slot >= min))
    }

    fn not_reached(&self, slot: Option<u64>) -> Refusal {
        let reached = slot.map_or("none".to_owned(), |slot| slot.to_string());
        let min = self.min_context_slot.unwrap_or(0);
        let message = format!("min_context_slot={min} is not reached: slot={reached}; try again later");
        Refusal::new(Cause::NotReached, message)
    }
}

/// Waits until a lookup would read the wanted slot. Returns at once if it already would. `keys` is the number of the
/// request's keys.
///
/// # Errors
/// The slot does not come in time, too many requests wait, or the service stops.
pub(super) async fn until(overlay: &Overlay, wanted: &Wanted, keys: usize, peer: &Arc<Peer>) -> Result<(), Refusal> {
    if wanted.commitment == Commitment::Processed && overlay.processed().is_none() {
        // The lookup reports this; no wait would help.
        return Ok(());
    }
    let mut reached = overlay.reached(wanted.commitment);
    if wanted.is_in(*reached.borrow_and_update()) {
        return Ok(());
    }
    let places = keys.div_ceil(KEYS_PER_WAITER).max(1) as u64;
    let _places = Taking::new(peer, Place::Waiters, places, WAITERS_MAX)?;
    let arrives = reached.wait_for(|slot| wanted.is_in(*slot));
    match tokio::time::timeout(wanted.wait, arrives).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) => Err(Refusal::stopping("the service is shutting down")),
        Err(_) => Err(wanted.not_reached(*overlay.reached(wanted.commitment).borrow())),
    }
}

#[cfg(test)]
mod tests {
    use solana::ChainCheckpoint;

    use super::super::budget::Budget;
    use super::*;
    use crate::net::limit::tests::source;

    fn overlay(slot: u64) -> Arc<Overlay> {
        let checkpoint = ChainCheckpoint { slot: Some(slot), ..ChainCheckpoint::default() };
        Arc::new(Overlay::new(&checkpoint, false, false))
    }

    fn peer() -> Arc<Peer> {
        Peer::of_test(&Budget::new(Arc::default()), source(1))
    }

    fn wanted(min_context_slot: u64, deadline_ms: u64) -> Wanted {
        Wanted::new(Commitment::Confirmed, Some(min_context_slot), Some(Duration::from_millis(deadline_ms)))
    }

    #[test]
    fn a_wait_ends_before_the_deadline() {
        assert_eq!(wanted(1, 8000).wait, Duration::from_secs(7));
        assert_eq!(wanted(1, 8 * 3_600_000).wait, WAIT_MAX);
        assert_eq!(Wanted::new(Commitment::Confirmed, Some(1), None).wait, WAIT_MAX);
    }

    #[tokio::test]
    async fn a_slot_is_waited_for_and_the_slot_reached_is_named() {
        let overlay = overlay(7);
        let peer = peer();
        until(&overlay, &wanted(7, 8000), 1, &peer).await.unwrap();
        let refused = until(&overlay, &wanted(9, 8), 1, &peer).await.unwrap_err();
        assert_eq!(refused.cause, Cause::NotReached);
        let message = &refused.message;
        assert!(message.contains("min_context_slot=9") && message.contains("slot=7"), "{refused:?}");
        let nine = wanted(9, 9000);
        let theirs = Arc::clone(&overlay);
        let waiter = tokio::spawn(async move { until(&theirs, &nine, 1, &peer).await });
        overlay.published(Some(8));
        overlay.published(Some(9));
        waiter.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn those_that_wait_are_bounded() {
        let overlay = overlay(7);
        let peer = peer();
        let (share, nine) = (WAITERS_MAX / 4, wanted(9, 8000));
        let mut waiting: Vec<_> =
            (0..share).map(|_| Box::pin(until(&overlay, &nine, KEYS_PER_WAITER, &peer))).collect();
        for waiter in &mut waiting {
            assert!(futures::poll!(waiter).is_pending());
        }
        let refused = until(&overlay, &nine, 1, &peer).await.unwrap_err();
        assert_eq!(refused.cause, Cause::Full);
        drop(waiting);
        let refused = until(&overlay, &wanted(9, 8), 10_000, &peer).await.unwrap_err();
        assert_eq!(refused.cause, Cause::NotReached);
    }
}
