//! Warm-up of the store after its opening, in the background.
//!
//! Owns: the thread `warm-up`, its figures and its log lines. Must not: delay the start or the stop of the service;
//! compete with lookups for the device; end the service after a failed read, because a lookup that needs the same data
//! reports the error. Threads: `warm-up`, which ends once the engine has read all that it has memory for.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine_api::{Engine, Pace, Warmed};
use engine_latency::Measured;
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::lookups::LookupFigures;
use crate::stop;

/// How often a pause is interrupted to see whether the service stops, because a stop waits for it.
const PAUSE_STEP: Duration = Duration::from_millis(50);

/// The progress of the warm-up, which the metrics, `/status.json` and the dashboard show.
#[derive(Debug, Default)]
pub struct Figures {
    /// Whether the warm-up is under way.
    pub warming: AtomicBool,
    /// Number of bytes read so far.
    pub read_bytes: AtomicU64,
    /// Number of bytes that had room in memory and were not there when the store was opened.
    pub missing_bytes: AtomicU64,
}

impl Figures {
    /// Returns the figures as `/status.json` and the dashboard give them.
    pub(crate) fn json(&self) -> Value {
        // ORDERING: Relaxed: statistics, nothing is inferred from them.
        let of = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        json!({
            "under_way": self.warming.load(Ordering::Relaxed),
            "read_bytes": of(&self.read_bytes),
            "missing_bytes": of(&self.missing_bytes),
        })
    }
}

/// A warm-up that is under way, or has ended by itself.
#[derive(Debug)]
pub(crate) struct WarmUp {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// The thread's part of a warm-up: its orders and its figures. It has no pulse, because a service whose warm-up hangs in a
/// bad region of the device still answers, and would hang there again after a restart.
struct Run {
    stopped: Arc<AtomicBool>,
    figures: Arc<Figures>,
    lookups: Arc<LookupFigures>,
}

impl WarmUp {
    /// Starts the thread `warm-up`. It pauses while `lookups` grow.
    ///
    /// # Errors
    /// The operating system cannot start a thread.
    pub(crate) fn start(engine: Arc<Measured>, figures: Arc<Figures>, lookups: Arc<LookupFigures>) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        // ORDERING: Relaxed: a statistic.
        figures.warming.store(true, Ordering::Relaxed);
        let run = Run { stopped: Arc::clone(&stop), figures, lookups };
        let work = move || {
            run.warm_up(&*engine);
            run.figures.warming.store(false, Ordering::Relaxed);
        };
        let thread = std::thread::Builder::new().name("warm-up".to_owned()).spawn(work)?;
        Ok(Self { stop, thread })
    }

    /// Ends the warm-up after its present read and waits for the thread until `deadline`.
    ///
    /// # Errors
    /// The thread has not ended by then.
    pub(crate) fn join(self, deadline: Instant) -> Result<(), stop::Stuck> {
        // ORDERING: Relaxed: the flag guards no other memory.
        self.stop.store(true, Ordering::Relaxed);
        stop::join_all([self.thread], deadline)
    }
}

impl Run {
    fn warm_up(&self, engine: &dyn Engine) {
        let (start, mut last, mut cut) = (Instant::now(), Warmed::default(), false);
        let (mut asked, mut answered, mut drained) = (start, self.answered(), false);
        let outcome = engine.warm_up(&mut |now| {
            last = now;
            // ORDERING: Relaxed: statistics, and a flag as in `join`.
            self.figures.read_bytes.store(now.read_bytes, Ordering::Relaxed);
            self.figures.missing_bytes.store(now.missing_bytes, Ordering::Relaxed);
            if drained {
                self.pause(asked.elapsed());
            }
            cut = self.stopped.load(Ordering::Relaxed);
            drained = !drained && self.answered() > answered;
            if drained && !cut {
                return Pace::Drain;
            }
            (asked, answered) = (Instant::now(), self.answered());
            if cut { Pace::Stop } else { Pace::On }
        });
        let (read_bytes, missing_bytes, seconds) = (last.read_bytes, last.missing_bytes, start.elapsed().as_secs_f64());
        match outcome {
            Err(e) => warn!(read_bytes, missing_bytes, seconds, "the store was not warmed up as a whole: {e}"),
            Ok(()) if cut => info!(read_bytes, missing_bytes, seconds, "the warm-up was stopped"),
            Ok(()) if missing_bytes > 0 => info!(read_bytes, missing_bytes, seconds, "the store is warm"),
            Ok(()) => {}
        }
    }

    /// Leaves the device to lookups for `rest`, or until the service stops.
    fn pause(&self, mut rest: Duration) {
        // ORDERING: Relaxed: a flag as in `join`.
        while !rest.is_zero() && !self.stopped.load(Ordering::Relaxed) {
            let step = rest.min(PAUSE_STEP);
            std::thread::sleep(step);
            rest -= step;
        }
    }

    fn answered(&self) -> u64 {
        // ORDERING: Relaxed: a statistic.
        self.lookups.lookups.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_lasts_as_long_as_asked_unless_the_service_stops() {
        let run = Run { stopped: Arc::default(), figures: Arc::default(), lookups: Arc::default() };
        let (start, rest) = (Instant::now(), PAUSE_STEP + Duration::from_millis(1));
        run.pause(rest);
        assert!(start.elapsed() >= rest);
        // ORDERING: Relaxed: a flag as in `join`.
        run.stopped.store(true, Ordering::Relaxed);
        run.pause(Duration::MAX);
    }
}
