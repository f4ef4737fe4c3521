//! When operations are due, and a snapshot of their latencies each second.
//!
//! Owns: the clock of closed and open loops. Must not: know what an operation is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use engine_latency::{Latency, Snapshot};

/// Below this a wait is spun through: the scheduler would oversleep it.
const SPIN_BELOW: Duration = Duration::from_micros(100);

/// Between two samples of the series.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// When operations are due.
pub(crate) struct Pace {
    started: Instant,
    period: Option<Duration>,
    done: u32,
}

impl Pace {
    pub(crate) fn new(rate: Option<f64>) -> Self {
        Self { started: Instant::now(), period: rate.map(|rate| Duration::from_secs_f64(1.0 / rate)), done: 0 }
    }

    /// Waits for the next operation's time and gives it; the time from which its latency counts.
    pub(crate) fn next(&mut self) -> Instant {
        let Some(period) = self.period else { return Instant::now() };
        let due = self.started + period * self.done;
        self.done += 1;
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
}

/// A snapshot a second until `time` is over or something stopped.
pub(crate) fn sample(
    latency: &Arc<Latency>,
    started: Instant,
    time: Duration,
    stop: &AtomicBool,
) -> Vec<(f64, Snapshot)> {
    let mut last = latency.snapshot();
    let mut seconds = Vec::new();
    // ORDERING: Relaxed: the flag carries nothing but itself.
    while started.elapsed() < time && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(SAMPLE_EVERY.min(time.saturating_sub(started.elapsed())));
        let now = latency.snapshot();
        seconds.push((started.elapsed().as_secs_f64(), now.since(&last)));
        last = now;
    }
    seconds
}
