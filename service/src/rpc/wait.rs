//! The state that a lookup asks for: a commitment, and a slot that it must include.
//!
//! Owns: the wait for that slot. Must not: hold a lookup thread; a request waits here before it is queued. Threads: the
//! tokio runtime of the network edge.

use std::sync::Arc;
use std::time::Duration;

use tonic::Status;
use tonic::metadata::MetadataMap;

use super::budget::Peer;
use super::places::Taking;
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
pub(super) struct Wanted {
    pub(super) commitment: Commitment,
    min_context_slot: Option<u64>,
    /// Longest time to wait for the slot.
    wait: Duration,
}

/// The requests that wait for a slot.
#[derive(Debug)]
pub(super) struct Waits {
    overlay: Arc<Overlay>,
}

impl Wanted {
    /// Reads the fields of a request, and its deadline. No commitment means confirmed.
    pub(super) fn new(metadata: &MetadataMap, commitment: i32, min_context_slot: Option<u64>) -> Result<Self, Status> {
        use proto::v1::Commitment as Wire;
        let commitment = match Wire::try_from(commitment) {
            Ok(Wire::Processed) => Commitment::Processed,
            Ok(Wire::Unspecified | Wire::Confirmed) => Commitment::Confirmed,
            Ok(Wire::Finalized) => Commitment::Finalized,
            Err(_) => return Err(Status::invalid_argument(format!("no such commitment: got={commitment}"))),
        };
        // Read only with a slot, because most lookups wait for nothing.
        let deadline = min_context_slot.and_then(|_| timeout(metadata.get("grpc-timeout")?.to_str().ok()?));
        let wait = deadline.map_or(WAIT_MAX, |deadline| (deadline - deadline / ANSWER_SHARE).min(WAIT_MAX));
        Ok(Self { commitment, min_context_slot, wait })
    }

    /// Checks that the data read includes the slot asked for. After a wait it does, except at processed, where a
    /// shorter fork may have replaced the one waited for.
    pub(super) fn check(&self, slot: Option<u64>) -> Result<(), Status> {
        if self.is_in(slot) { Ok(()) } else { Err(self.not_reached(slot)) }
    }

    /// Whether the request names a slot, reached already or not.
    pub(super) fn names_a_slot(&self) -> bool {
        self.min_context_slot.is_some()
    }

    fn is_in(&self, slot: Option<u64>) -> bool {
        self.min_context_slot.is_none_or(|min| slot.is_some_and(|slot| slot >= min))
    }

    fn not_reached(&self, slot: Option<u64>) -> Status {
        let reached = slot.map_or("none".to_owned(), |slot| slot.to_string());
        Status::failed_precondition(format!(
            "min_context_slot={} is not reached: slot={reached}; try again later",
            self.min_context_slot.unwrap_or(0)
        ))
    }
}

impl Waits {
    pub(super) fn new(overlay: Arc<Overlay>) -> Self {
        Self { overlay }
    }

    /// Waits until a lookup would read the wanted slot. Returns at once if it already would, or if no slot is wanted.
    /// `keys` is the number of the request's keys.
    pub(super) async fn until(&self, wanted: &Wanted, keys: usize, peer: &Arc<Peer>) -> Result<(), Status> {
        if wanted.min_context_slot.is_none() {
            return Ok(());
        }
        if wanted.commitment == Commitment::Processed && self.overlay.processed().is_none() {
            // The lookup reports this; no wait would help.
            return Ok(());
        }
        let mut reached = self.overlay.reached(wanted.commitment);
        if wanted.is_in(*reached.borrow_and_update()) {
            return Ok(());
        }
        let places = keys.div_ceil(KEYS_PER_WAITER).max(1) as u64;
        let _places = Taking::new(peer, Place::Waiters, places, WAITERS_MAX)?;
        let arrives = reached.wait_for(|slot| wanted.is_in(*slot));
        match tokio::time::timeout(wanted.wait, arrives).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(Status::unavailable("the service is shutting down")),
            Err(_) => Err(wanted.not_reached(*self.overlay.reached(wanted.commitment).borrow())),
        }
    }
}

/// Parses a `grpc-timeout` header: at most eight digits and a unit.
fn timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(value * 3600),
        "M" => Duration::from_secs(value * 60),
        "S" => Duration::from_secs(value),
        "m" => Duration::from_millis(value),
        "u" => Duration::from_micros(value),
        "n" => Duration::from_nanos(value),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use solana::ChainCheckpoint;
    use tonic::Code;

    use super::super::budget::Budget;
    use super::*;
    use crate::net::limit::tests::source;

    fn waits(slot: u64) -> Waits {
        let checkpoint = ChainCheckpoint { slot: Some(slot), ..ChainCheckpoint::default() };
        Waits::new(Arc::new(Overlay::new(&checkpoint, false, false)))
    }

    fn peer() -> Arc<Peer> {
        Peer::of_test(&Budget::new(Arc::default()), source(1))
    }

    fn wanted(min_context_slot: u64, timeout: &'static str) -> Wanted {
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", timeout.parse().unwrap());
        Wanted::new(&metadata, 0, Some(min_context_slot)).unwrap()
    }

    #[test]
    fn deadlines_are_read_and_commitments_are_known() {
        assert_eq!(timeout("150m"), Some(Duration::from_millis(150)));
        assert_eq!(timeout("2S"), Some(Duration::from_secs(2)));
        for text in ["", "S", "1", "-1S", "123456789S", "1x", "\u{e9}", "1\u{e9}"] {
            assert_eq!(timeout(text), None, "{text:?}");
        }
        assert_eq!(wanted(1, "8S").wait, Duration::from_secs(7));
        assert_eq!(wanted(1, "8H").wait, WAIT_MAX);
        assert_eq!(Wanted::new(&MetadataMap::new(), 7, None).unwrap_err().code(), Code::InvalidArgument);
    }

    #[tokio::test]
    async fn a_slot_is_waited_for_and_the_slot_reached_is_named() {
        let waits = waits(7);
        let peer = peer();
        waits.until(&wanted(7, "8S"), 1, &peer).await.unwrap();
        let refused = waits.until(&wanted(9, "8m"), 1, &peer).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("min_context_slot=9") && refused.message().contains("slot=7"), "{refused}");
        let overlay = Arc::clone(&waits.overlay);
        let nine = wanted(9, "9S");
        let waiter = tokio::spawn(async move { waits.until(&nine, 1, &peer).await });
        overlay.published(Some(8));
        overlay.published(Some(9));
        waiter.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn those_that_wait_are_bounded() {
        let waits = Arc::new(waits(7));
        let peer = peer();
        let (share, nine) = (WAITERS_MAX / 4, wanted(9, "8S"));
        let mut waiting: Vec<_> = (0..share).map(|_| Box::pin(waits.until(&nine, KEYS_PER_WAITER, &peer))).collect();
        for waiter in &mut waiting {
            assert!(futures::poll!(waiter).is_pending());
        }
        let refused = waits.until(&nine, 1, &peer).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        drop(waiting);
        let refused = waits.until(&wanted(9, "8m"), 10_000, &peer).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
    }
}
