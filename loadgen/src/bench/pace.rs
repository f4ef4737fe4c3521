//! The due times of operations, and the figures of their latencies in each second.
//!
//! Owns: the clock of closed and open loops. Must not: know which operations it paces.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use engine_latency::{Latency, Snapshot};

use crate::result::{Sample, Series};

/// Longest wait that is spun through, because the scheduler would oversleep it.
const SPIN_BELOW: Duration = Duration::from_micros(100);

/// Time between two samples of the series.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Due times of the operations of one loop.
pub(crate) struct Pace {
    started: Instant,
    period: Option<Duration>,
    done: u32,
}

impl Pace {
    pub(crate) fn new(rate: Option<f64>) -> Self {
        Self { started: Instant::now(), period: rate.map(|rate| Duration::from_secs_f64(1.0 / rate)), done: 0 }
    }

    /// Waits until the next operation is due. Returns the time from which its latency counts.
    pub(crate) fn next(&mut self) -> Instant {
        self.next_of(1)
    }

    /// Waits until `operations` operations are due that begin together: when the first of them is due.
    pub(crate) fn next_of(&mut self, operations: u32) -> Instant {
        let Some(due) = self.next_due() else { return Instant::now() };
        self.done += operations;
        loop {
            let wait = due.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                return due;
            }
            if wait > SPIN_BELOW {
                std::thread::sleep(wait - SPIN_BELOW);
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Returns the due times before `end` of operations that nobody has begun. They count with the time that they have
    /// waited. An open loop that left them out would look better the further it lags.
    pub(crate) fn overdue(mut self, end: Instant) -> impl Iterator<Item = Instant> {
        std::iter::from_fn(move || {
            let due = self.next_due().filter(|due| *due < end)?;
            self.done += 1;
            Some(due)
        })
    }

    /// Returns when the next operation is due; `None` in a closed loop.
    fn next_due(&self) -> Option<Instant> {
        self.period.map(|period| self.started + period * self.done)
    }
}

/// Note for a run that has left operations undone, if these are one in a hundred or more.
pub(crate) fn note_of_overdue(overdue: u64, done: u64) -> Option<String> {
    let note = "were due and not begun at the end: each counts with the time it had waited, and none in the rate";
    (overdue * 100 > done).then(|| format!("{overdue} operations {note}"))
}

/// Note for a writer at a rate that has left puts undone.
pub(crate) fn note_of_writer(overdue_puts: u64) -> Option<String> {
    (overdue_puts > 0)
        .then(|| format!("the writer fell behind its rate: {overdue_puts} puts were due and not begun at the end"))
}

/// Takes a sample of each operation each second until `time` is over or `stop` is set.
///
/// Keeps only the figures of a second: its histograms take a megabyte, which would fill a memory cap within minutes.
pub(crate) fn sample(latency: &Arc<Latency>, started: Instant, time: Duration, stop: &AtomicBool) -> Vec<Series> {
    let mut last = latency.snapshot();
    let mut all = BTreeMap::new();
    // ORDERING: Relaxed: the flag carries no other data.
    while started.elapsed() < time && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(SAMPLE_EVERY.min(time.saturating_sub(started.elapsed())));
        let now = latency.snapshot();
        add(&mut all, started.elapsed().as_secs_f64(), &now.since(&last));
        last = now;
    }
    let named = |(op, samples): (&str, _)| Series { op: op.to_owned(), over: "elapsed_s".to_owned(), samples };
    all.into_iter().map(named).collect()
}

/// Adds a sample of each operation that was recorded in a second to `all`, by the operation's name.
fn add(all: &mut BTreeMap<&'static str, Vec<Sample>>, at: f64, second: &Snapshot) {
    for series in &second.series {
        let histogram = &series.histogram;
        all.entry(series.op.as_str()).or_default().push(Sample {
            at,
            count: histogram.len(),
            mean_ns: series.mean_ns(),
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            max_ns: histogram.max(),
        });
    }
}
