//! Warm-up of the store after its opening, in the background.
//!
//! Owns: the thread `warm-up`, its figures and its log lines. Must not: delay the start or the stop of the service;
//! compete with lookups for the device; end the service after a failed read, because a lookup that needs the same data
//! reports the error. Threads: `warm-up`, which ends once the engine has read all that it has memory for.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine_api::{Engine, Pace, Warmed};
use engine_latency::Measured;
use serde::Serialize;
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::base::{lock, stop};
use crate::lookups::LookupFigures;

/// How often a pause is interrupted to see whether the service stops, because a stop waits for it.
const PAUSE_STEP: Duration = Duration::from_millis(50);

/// The progress of the warm-up, which the metrics, `/status.json` and the dashboard show. Written by the thread `warm-up`
/// after each piece; a reader of the figures holds the lock only to copy them.
#[derive(Debug, Default)]
pub struct Figures(Mutex<Progress>);

/// How far the warm-up has come, and why it reads nothing more.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) state: State,
    pub(crate) warmed: Warmed,
}

/// State of the warm-up. `/status.json` gives its name in snake_case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// The store is not open yet.
    #[default]
    NotOpen,
    /// The configuration has turned it off.
    Off,
    /// It looks for data that memory lacks, or reads them.
    UnderWay,
    /// Memory has the whole store.
    Warm,
    /// Memory has the part of the store for which it has room.
    PartlyWarm,
    /// The store is larger than the memory that it may take, and the engine keeps no part of it.
    NoRoom,
    /// With its settings the engine reads its files past the page cache, into a cache that only lookups fill.
    CachedByLookups,
    /// Reads have failed. Memory lacks the bytes that are left.
    Failed,
    /// The service stops, and nothing more is read.
    Stopped,
}

impl Figures {
    /// Returns the figures of this moment.
    pub(crate) fn now(&self) -> Progress {
        *lock(&self.0)
    }

    /// Shows that there is no warm-up, because the configuration says so.
    pub(crate) fn turn_off(&self) {
        self.set(State::Off, Warmed::default());
    }

    fn set(&self, state: State, warmed: Warmed) {
        *lock(&self.0) = Progress { state, warmed };
    }

    /// Returns the figures as `/status.json` and the dashboard give them.
    pub(crate) fn json(&self) -> Value {
        let Progress { state, warmed } = self.now();
        let Warmed { store_bytes, room_bytes, missing_bytes, left_bytes, read_bytes } = warmed;
        json!({
            "state": state,
            "store_bytes": store_bytes,
            "room_bytes": room_bytes,
            "missing_bytes": missing_bytes,
            "left_bytes": left_bytes,
            "read_bytes": read_bytes,
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
        // Before the thread runs, so that nobody sees a warm-up that has not begun as one that is turned off.
        figures.set(State::UnderWay, Warmed::default());
        let run = Run { stopped: Arc::clone(&stop), figures, lookups };
        let work = move || run.warm_up(&*engine);
        let thread = std::thread::Builder::new().name("warm-up".to_owned()).spawn(work)?;
        Ok(Self { stop, thread })
    }

    /// Tells the warm-up to end after its present reads.
    pub(crate) fn end(&self) {
        // ORDERING: Relaxed: the flag guards no other memory.
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Ends the warm-up after its present reads and waits for the thread until `deadline`.
    ///
    /// # Errors
    /// The thread has not ended by then.
    pub(crate) fn join(self, deadline: Instant) -> Result<(), stop::Stuck> {
        self.end();
        stop::join_all([self.thread], deadline)
    }
}

impl Run {
    fn warm_up(&self, engine: &dyn Engine) {
        let (start, mut last, mut cut) = (Instant::now(), None, false);
        let (mut asked, mut answered, mut drained) = (start, self.answered(), false);
        let outcome = engine.warm_up(&mut |now| {
            if last.is_none() && now.missing_bytes > 0 {
                let Warmed { store_bytes, room_bytes, missing_bytes, .. } = now;
                let part = if room_bytes < store_bytes { "the part of the store that has room" } else { "the store" };
                info!(store_bytes, room_bytes, missing_bytes, "the warm-up reads {part} into memory");
            }
            last = Some(now);
            self.figures.set(State::UnderWay, now);
            if drained {
                self.pause(asked.elapsed());
            }
            // ORDERING: Relaxed: a flag as in `end`.
            cut = self.stopped.load(Ordering::Relaxed);
            drained = !drained && self.answered() > answered;
            if drained && !cut {
                return Pace::Drain;
            }
            (asked, answered) = (Instant::now(), self.answered());
            if cut { Pace::Stop } else { Pace::On }
        });
        let state = match (&outcome, last) {
            (Err(_), _) => State::Failed,
            (Ok(()), _) if cut => State::Stopped,
            (Ok(()), None) => State::CachedByLookups,
            (Ok(()), Some(Warmed { store_bytes, room_bytes, .. })) if room_bytes >= store_bytes => State::Warm,
            (Ok(()), Some(Warmed { missing_bytes: 0, .. })) => State::NoRoom,
            (Ok(()), Some(_)) => State::PartlyWarm,
        };
        let last = last.unwrap_or_default();
        self.figures.set(state, last);
        let Warmed { store_bytes, room_bytes, missing_bytes, left_bytes, read_bytes } = last;
        let seconds = start.elapsed().as_secs_f64();
        if let Err(e) = outcome {
            warn!(missing_bytes, left_bytes, read_bytes, seconds, "the warm-up stopped before its end: {e}");
            return;
        }
        match state {
            State::Warm => {
                info!(missing_bytes, read_bytes, seconds, "the warm-up has read the whole store into memory")
            }
            State::PartlyWarm => {
                info!(
                    store_bytes,
                    room_bytes, read_bytes, seconds, "the warm-up has read as much of the store as memory has room for"
                );
            }
            State::NoRoom => info!(store_bytes, room_bytes, "no warm-up, because the store has no room in memory"),
            State::CachedByLookups => {
                info!("no warm-up, because the engine reads its files past the page cache with these settings");
            }
            _ => info!(missing_bytes, left_bytes, read_bytes, seconds, "the warm-up was stopped"),
        }
    }

    /// Leaves the device to lookups for `rest`, or until the service stops.
    fn pause(&self, mut rest: Duration) {
        // ORDERING: Relaxed: a flag as in `end`.
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
        // ORDERING: Relaxed: a flag as in `end`.
        run.stopped.store(true, Ordering::Relaxed);
        run.pause(Duration::MAX);
    }
}
