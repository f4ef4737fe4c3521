//! Slow requests: logs how long one took and in which part, so that a slow answer has a cause.
//!
//! Owns: the threshold, the log line. Must not: name a key, or read a clock: the code that serves a request times it.
//! Threads: all that serve lookups.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::chain::Commitment;
use crate::base::figure::count;
use crate::base::label::labels;

/// A threshold that no request reaches.
const NEVER_NS: u64 = u64::MAX;

labels! {
    /// The transport of a request; the label `transport` of the metrics.
    #[derive(Default)]
    pub enum Transport {
        /// gRPC over TCP, with or without TLS.
        #[default]
        GrpcTcp = "grpc-tcp",
        /// gRPC over the Unix socket.
        GrpcUds = "grpc-uds",
        /// The Redis protocol over TCP, with or without TLS.
        RedisTcp = "redis-tcp",
        /// The Redis protocol over its Unix socket.
        RedisUds = "redis-uds",
        /// HTTP over TCP, with or without TLS.
        HttpTcp = "http-tcp",
        /// HTTP over its Unix socket.
        HttpUds = "http-uds",
        Shm = "shm",
    }
}

/// Known parts of a request's duration, in ns; 0 for those that were not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Waiting for the slot that `min_context_slot` asks for.
    pub slot_wait_ns: u64,
    /// Waiting for a lookup thread; for a batch, also while single lookups ran between its pieces.
    pub queue_ns: u64,
    /// In the overlay: waiting for its lock, and looking up the values that it holds itself. 0 at confirmed.
    pub overlay_ns: u64,
    /// In the engine; long if it had to wait for the device.
    pub read_ns: u64,
}

impl Parts {
    pub fn sum_ns(&self) -> u64 {
        self.slot_wait_ns + self.queue_ns + self.overlay_ns + self.read_ns
    }

    /// Returns the name of the largest part, where `other_ns` is the time that no part explains.
    fn cause(&self, other_ns: u64) -> &'static str {
        let parts = [
            (other_ns, "other"),
            (self.slot_wait_ns, "slot_wait"),
            (self.queue_ns, "queue"),
            (self.overlay_ns, "overlay"),
            (self.read_ns, "read"),
        ];
        parts.into_iter().max_by_key(|(ns, _)| *ns).map_or("other", |(_, name)| name)
    }
}

/// Counts slow requests and logs them.
#[derive(Debug)]
pub struct SlowLog {
    threshold_ns: AtomicU64,
    counts: [AtomicU64; Transport::ALL.len()],
}

impl Default for SlowLog {
    /// Returns a log with a threshold that no request reaches.
    fn default() -> Self {
        Self { threshold_ns: AtomicU64::new(NEVER_NS), counts: Default::default() }
    }
}

// ORDERING: Relaxed in all of this file: statistics and a setting; nothing is inferred from one about another.
impl SlowLog {
    /// Sets the threshold: a request of `nanos` or longer is slow. 0 turns the log off.
    pub fn set_threshold_ns(&self, nanos: u64) {
        self.threshold_ns.store(if nanos == 0 { NEVER_NS } else { nanos }, Ordering::Relaxed);
    }

    /// Whether a duration reaches the threshold.
    #[inline]
    pub fn is_slow(&self, nanos: u64) -> bool {
        nanos >= self.threshold_ns.load(Ordering::Relaxed)
    }

    /// Returns the number of slow requests since the start.
    pub fn count(&self, transport: Transport) -> u64 {
        self.counts[transport as usize].load(Ordering::Relaxed)
    }

    /// Counts a request for so many keys, and logs it. `total_ns` is the time from decoding the request to answering it, and
    /// `parts` are the parts of it that were measured.
    #[cold]
    pub fn report(&self, transport: Transport, keys: usize, commitment: Commitment, total_ns: u64, parts: Parts) {
        count(&self.counts[transport as usize], 1);
        let other_ns = total_ns.saturating_sub(parts.sum_ns());
        tracing::warn!(
            cause = parts.cause(other_ns),
            transport = transport.name(),
            keys,
            commitment = ?commitment,
            total_us = total_ns / 1000,
            slot_wait_us = parts.slot_wait_ns / 1000,
            queue_us = parts.queue_ns / 1000,
            overlay_us = parts.overlay_ns / 1000,
            read_us = parts.read_ns / 1000,
            other_us = other_ns / 1000,
            "slow request"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_part_is_the_cause_and_nothing_is_slow_by_default() {
        let parts = Parts { slot_wait_ns: 1, queue_ns: 5, overlay_ns: 2, read_ns: 4 };
        assert_eq!((parts.cause(3), parts.cause(6), parts.sum_ns()), ("queue", "other", 12));
        let log = SlowLog::default();
        assert!(!log.is_slow(u64::MAX - 1));
        log.set_threshold_ns(10);
        assert!(log.is_slow(10) && !log.is_slow(9));
        log.set_threshold_ns(0);
        assert!(!log.is_slow(u64::MAX - 1));
    }

    #[test]
    fn every_slow_request_is_counted() {
        let log = SlowLog::default();
        (0..100).for_each(|_| log.report(Transport::Shm, 1, Commitment::Confirmed, 1, Parts::default()));
        assert_eq!((log.count(Transport::Shm), log.count(Transport::GrpcTcp)), (100, 0));
    }
}
