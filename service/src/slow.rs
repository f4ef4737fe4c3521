//! Slow requests: says in the log how long one took and where, so that a slow answer has a cause.
//!
//! Owns: the threshold, the line, how many lines a second. Must not: name a key, or read a clock; who serves a request
//! has read it. Threads: whoever serves lookups; wait-free.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::overlay::Commitment;
use crate::status::{count, unix_ms};

/// Lines a second at most. More say nothing new and would make what is slow slower; the next line says how many there
/// would have been.
pub const LINES_PER_SECOND: u64 = 5;

/// No request is as slow as this.
const NEVER_NS: u64 = u64::MAX;

/// What a request came in by; the label `transport` of the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// gRPC on TCP.
    #[default]
    GrpcTcp,
    /// gRPC on the Unix socket.
    GrpcUds,
    /// Shared memory.
    Shm,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::GrpcTcp, Self::GrpcUds, Self::Shm];

    /// The label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GrpcTcp => "grpc-tcp",
            Self::GrpcUds => "grpc-uds",
            Self::Shm => "shm",
        }
    }
}

/// Where a request's time went, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Waiting for the slot of `min_context_slot`.
    pub slot_wait_ns: u64,
    /// Waiting for a lookup thread; of a batch also while gets went before its pieces.
    pub queue_ns: u64,
    /// In the overlay: its lock, and what lies beside the engine. 0 at confirmed.
    pub overlay_ns: u64,
    /// In the engine; long when it had to wait for the device.
    pub read_ns: u64,
}

impl Parts {
    /// Their sum.
    pub fn sum_ns(&self) -> u64 {
        self.slot_wait_ns + self.queue_ns + self.overlay_ns + self.read_ns
    }

    /// The largest of them, by name.
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

/// A request that took too long.
#[derive(Clone, Copy, Debug)]
pub struct Slow {
    /// What it came in by.
    pub transport: Transport,
    /// Keys it asked for.
    pub keys: usize,
    /// At which commitment.
    pub commitment: Commitment,
    /// From when it was decoded to when it was answered, in ns. On shared memory the sum of the parts: nobody knows
    /// when the request was written.
    pub total_ns: u64,
    /// What of it is known.
    pub parts: Parts,
}

/// Counts and logs slow requests.
#[derive(Debug)]
pub struct SlowLog {
    threshold_ns: AtomicU64,
    /// The second of the newest line, since the Unix epoch, and the requests in it that were slow.
    second: AtomicU64,
    in_second: AtomicU64,
    /// Without a line since the last one.
    unsaid: AtomicU64,
    counts: [AtomicU64; 3],
}

impl Default for SlowLog {
    /// Nothing is slow.
    fn default() -> Self {
        Self {
            threshold_ns: AtomicU64::new(NEVER_NS),
            second: AtomicU64::new(0),
            in_second: AtomicU64::new(0),
            unsaid: AtomicU64::new(0),
            counts: Default::default(),
        }
    }
}

// ORDERING: Relaxed in all of this file: statistics and a setting; nothing is inferred from one about another.
impl SlowLog {
    /// From now on what takes `nanos` or longer is slow; 0 is never.
    pub fn set_threshold_ns(&self, nanos: u64) {
        self.threshold_ns.store(if nanos == 0 { NEVER_NS } else { nanos }, Ordering::Relaxed);
    }

    /// Whether that is slow.
    #[inline]
    pub fn is_slow(&self, nanos: u64) -> bool {
        nanos >= self.threshold_ns.load(Ordering::Relaxed)
    }

    /// Slow requests since the start.
    pub fn count(&self, transport: Transport) -> u64 {
        self.counts[transport as usize].load(Ordering::Relaxed)
    }

    /// Counts it and writes its line, unless there were too many in this second.
    #[cold]
    pub fn report(&self, slow: &Slow) {
        count(&self.counts[slow.transport as usize], 1);
        let second = unix_ms() / 1000;
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.in_second.store(0, Ordering::Relaxed);
        }
        if self.in_second.fetch_add(1, Ordering::Relaxed) >= LINES_PER_SECOND {
            count(&self.unsaid, 1);
            return;
        }
        let parts = slow.parts;
        let other_ns = slow.total_ns.saturating_sub(parts.sum_ns());
        tracing::warn!(
            cause = parts.cause(other_ns),
            transport = slow.transport.name(),
            keys = slow.keys,
            commitment = ?slow.commitment,
            total_us = slow.total_ns / 1000,
            slot_wait_us = parts.slot_wait_ns / 1000,
            queue_us = parts.queue_ns / 1000,
            overlay_us = parts.overlay_ns / 1000,
            read_us = parts.read_ns / 1000,
            other_us = other_ns / 1000,
            unsaid = self.unsaid.swap(0, Ordering::Relaxed),
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
    fn every_slow_request_is_counted_and_few_are_said() {
        let log = SlowLog::default();
        let slow = Slow {
            transport: Transport::Shm,
            keys: 1,
            commitment: Commitment::Confirmed,
            total_ns: 1,
            parts: Parts::default(),
        };
        (0..100).for_each(|_| log.report(&slow));
        assert_eq!((log.count(Transport::Shm), log.count(Transport::GrpcTcp)), (100, 0));
        // Two seconds at most, even when one ends in between.
        assert!(log.unsaid.load(Ordering::Relaxed) >= 100 - 2 * LINES_PER_SECOND);
    }
}
