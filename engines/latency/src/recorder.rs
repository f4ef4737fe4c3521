//! [`Recorder`]: counters that one thread writes and any thread reads. [`Latency`]: all recorders of one engine.
//!
//! Owns: the counters and their hand-over between threads. Must not: use a read-modify-write instruction or a lock on
//! the recording path. Recording a value costs an index computation and two plain stores.
//! Threads: a value is recorded on the recorder's own thread. `recorder`, drop and `snapshot` run on any thread, under
//! one short lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use quanta::Clock;

use crate::buckets::{BUCKETS, HIGH_NS, LOW_NS, empty_histogram, index_for, value_for};
use crate::{Op, Series, Snapshot};

/// All recorders of one engine.
///
/// Counters are never freed. Those of a dropped recorder are kept, and the next recorder of the same source continues
/// with them. So no count is lost, and memory is bounded by the largest number of recorders alive at once: 216 KiB for
/// each operation that one of them has recorded.
#[derive(Debug)]
pub struct Latency {
    engine: &'static str,
    clock: Clock,
    start: SystemTime,
    slots: Mutex<Vec<Slot>>,
}

/// Counters of one thread for one source, by operation. A recorder may move to another thread, and only one thread uses
/// it at a time.
#[derive(Debug)]
pub struct Recorder {
    latency: Arc<Latency>,
    counters: Arc<Counters>,
}

/// Returns the time that two reads of the clock take, in ns. This is the instrument's own part of every recorded value:
/// one read falls inside the timed span, the other outside it. Measured once per process, as the median of many runs.
pub fn instrument_ns() -> u64 {
    static COST: OnceLock<u64> = OnceLock::new();
    *COST.get_or_init(|| {
        const RUNS: usize = 101;
        const PAIRS: u64 = 256;
        let clock = Clock::new();
        let mut runs: Vec<u64> = (0..RUNS)
            .map(|_| {
                let start = fenced(&clock);
                for _ in 0..PAIRS {
                    std::hint::black_box((fenced(&clock), fenced(&clock)));
                }
                clock.delta_as_nanos(start, fenced(&clock)).div_ceil(PAIRS)
            })
            .collect();
        runs.sort_unstable();
        runs[RUNS / 2]
    })
}

/// Reads the clock once every earlier load has its value, as the system's clock does.
///
/// The processor may read its counter out of order otherwise. A get then seems to end before its value has come from
/// memory: in a program without the fence redb's gets of present keys appeared a fifth faster. The fence is x86's; other
/// processors have the order of their own clock.
#[inline]
fn fenced(clock: &Clock) -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, and it touches no memory.
    unsafe {
        core::arch::x86_64::_mm_lfence();
    }
    clock.raw()
}

impl Latency {
    /// Creates the counters of the engine with this label, and calibrates the clock.
    pub fn new(engine: &'static str) -> Arc<Self> {
        Arc::new(Self { engine, clock: Clock::new(), start: SystemTime::now(), slots: Mutex::default() })
    }

    /// Returns a recorder for the current thread. `source` names the part of the program that it measures (`ingest`,
    /// `rpc`, `bootstrap`).
    pub fn recorder(self: &Arc<Self>, source: &'static str) -> Recorder {
        let mut slots = self.lock();
        let counters = match slots.iter_mut().find(|slot| !slot.in_use && slot.counters.source == source) {
            Some(slot) => {
                slot.in_use = true;
                Arc::clone(&slot.counters)
            }
            None => {
                let counters = Arc::new(Counters { source, by_op: Default::default() });
                slots.push(Slot { in_use: true, counters: Arc::clone(&counters) });
                counters
            }
        };
        Recorder { latency: Arc::clone(self), counters }
    }

    /// Returns everything recorded since [`Latency::new`], merged by source and operation. A value that is being
    /// recorded at the same time is in this snapshot or in the next one.
    pub fn snapshot(&self) -> Snapshot {
        let mut merged: Vec<(&'static str, Op, Vec<u64>, u64)> = Vec::new();
        for slot in self.lock().iter() {
            for op in Op::ALL {
                let Some(counter) = slot.counters.by_op[op as usize].get() else { continue };
                let source = slot.counters.source;
                let at = merged.iter().position(|(s, o, ..)| (*s, *o) == (source, op)).unwrap_or_else(|| {
                    merged.push((source, op, vec![0; BUCKETS], 0));
                    merged.len() - 1
                });
                let (_, _, counts, sum_ns) = &mut merged[at];
                // ORDERING: relaxed, pairs with the stores in `Counter::record`. Each counter only grows and is
                // read on its own; nothing is inferred from one about another, so no edge between them is needed.
                for (total, count) in counts.iter_mut().zip(counter.counts.iter()) {
                    *total += count.load(Ordering::Relaxed);
                }
                *sum_ns = sum_ns.saturating_add(counter.sum_ns.load(Ordering::Relaxed));
            }
        }
        merged.sort_by_key(|(source, op, ..)| (*source, *op));
        let series = merged.into_iter().map(|(source, op, counts, sum_ns)| {
            let mut histogram = empty_histogram();
            for (index, &count) in counts.iter().enumerate().filter(|&(_, &count)| count > 0) {
                histogram.saturating_record_n(value_for(index), count);
            }
            Series { source: source.to_owned(), op, histogram, sum_ns }
        });
        Snapshot { engine: self.engine.to_owned(), start: self.start, end: SystemTime::now(), series: series.collect() }
    }

    /// Returns the `engine` label that was given to [`Latency::new`].
    pub fn engine(&self) -> &'static str {
        self.engine
    }

    /// Returns the clock with which every recorder of this engine measures.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Locks the list of recorders. A poisoned lock is used as if it were sound, because the list is consistent after
    /// each statement that changes it.
    fn lock(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorder {
    /// Records that `op` took `nanos`. Allocates on the first use of an operation and never again.
    #[inline]
    pub fn record(&mut self, op: Op, nanos: u64) {
        self.counters.by_op[op as usize].get_or_init(Counter::new).record(nanos);
    }

    /// Reads the clock. The result is the `start` that [`Recorder::record_since`] takes.
    #[inline]
    pub fn start(&self) -> u64 {
        fenced(&self.latency.clock)
    }

    /// Returns the nanoseconds since `start`, which [`Recorder::start`] has returned.
    #[inline]
    pub fn elapsed_ns(&self, start: u64) -> u64 {
        self.latency.clock.delta_as_nanos(start, fenced(&self.latency.clock))
    }

    /// Records the time since `start` as the duration of `op`.
    #[inline]
    pub fn record_since(&mut self, op: Op, start: u64) {
        let nanos = self.elapsed_ns(start);
        self.record(op, nanos);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // ORDERING: the lock orders this thread's last store before the first load of the thread that takes the
        // counters over. So `Counter::record` may assume that it reads its own last store.
        let mut slots = self.latency.lock();
        if let Some(slot) = slots.iter_mut().find(|slot| Arc::ptr_eq(&slot.counters, &self.counters)) {
            slot.in_use = false;
        }
    }
}

#[derive(Debug)]
struct Slot {
    in_use: bool,
    counters: Arc<Counters>,
}

/// Counters of one source. Those of an operation are allocated on its first use, because a recorder for lookups never
/// commits.
#[derive(Debug)]
struct Counters {
    source: &'static str,
    by_op: [OnceLock<Counter>; Op::ALL.len()],
}

#[derive(Debug)]
struct Counter {
    counts: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
}

impl Counter {
    fn new() -> Self {
        Self { counts: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(), sum_ns: AtomicU64::new(0) }
    }

    #[inline]
    fn record(&self, nanos: u64) {
        let nanos = nanos.clamp(LOW_NS, HIGH_NS);
        // ORDERING: relaxed load and store instead of an atomic add: only the thread that holds the recorder
        // writes, so nothing can come between the two, and readers (`Latency::snapshot`) need each value alone.
        let count = &self.counts[index_for(nanos)];
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.sum_ns.store(self.sum_ns.load(Ordering::Relaxed).wrapping_add(nanos), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn recorded_values_equal_a_plain_histogram(values in prop::collection::vec(0u64..100_000_000_000, 1..200)) {
            let latency = Latency::new("test");
            let mut plain = empty_histogram();
            let mut recorder = latency.recorder("unit");
            for &value in &values {
                recorder.record(Op::Write, value);
                plain.saturating_record(value.clamp(LOW_NS, HIGH_NS));
            }
            let snapshot = latency.snapshot();
            let series = &snapshot.series[0];
            // Not prop_assert_eq: it would print 27,000 counters.
            prop_assert!(series.histogram == plain);
            prop_assert_eq!(series.sum_ns, values.iter().map(|value| (*value).clamp(LOW_NS, HIGH_NS)).sum::<u64>());
        }
    }

    #[test]
    fn snapshots_grow_while_threads_record_and_lose_nothing() {
        const THREADS: u64 = 3;
        const VALUES: u64 = 100_000;
        let latency = Latency::new("test");
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let mut recorder = latency.recorder("unit");
                std::thread::spawn(move || (0..VALUES).for_each(|i| recorder.record(Op::Write, thread * 1000 + i % 7)))
            })
            .collect();
        let mut before = latency.snapshot();
        while !writers.iter().all(std::thread::JoinHandle::is_finished) {
            let now = latency.snapshot();
            assert!(now.merged(Op::Write).len() >= before.merged(Op::Write).len());
            before = now;
        }
        for writer in writers {
            writer.join().unwrap();
        }
        assert_eq!(latency.snapshot().merged(Op::Write).len(), THREADS * VALUES);
    }

    #[test]
    fn a_dropped_recorder_is_kept_and_handed_on() {
        let latency = Latency::new("test");
        for value in 1..=50 {
            latency.recorder("unit").record(Op::Commit, value);
        }
        let _other = latency.recorder("other");
        assert_eq!(latency.lock().len(), 2, "one set of counters per source is enough");
        assert_eq!(latency.snapshot().get("unit", Op::Commit).unwrap().len(), 50);
    }

    #[test]
    fn the_instrument_has_a_cost() {
        assert!(instrument_ns() > 0);
        assert_eq!(instrument_ns(), instrument_ns());
    }
}
