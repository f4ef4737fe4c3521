//! Warm-up of the store after its opening, in the background.
//!
//! Owns: the thread `warm-up` and its log lines. Must not: delay the start or the stop of the service; end the service
//! for a failed read, because the lookup that needs the same data reports it. Threads: `warm-up`, which ends once the
//! engine has read all that it has memory for.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use engine_api::{Engine, Warmed};
use engine_latency::Measured;
use tracing::{info, warn};

use crate::stop;

/// A warm-up that is under way, or has ended by itself.
#[derive(Debug)]
pub(crate) struct WarmUp {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl WarmUp {
    /// Starts the thread `warm-up`.
    ///
    /// # Errors
    /// The operating system cannot start a thread.
    pub(crate) fn start(engine: Arc<Measured>) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("warm-up".to_owned()).spawn(move || run(&*engine, &stopped))?;
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

fn run(engine: &dyn Engine, stopped: &AtomicBool) {
    let (start, mut last, mut cut) = (Instant::now(), Warmed::default(), false);
    let outcome = engine.warm_up(&mut |now| {
        last = now;
        // ORDERING: Relaxed: as in `join`.
        cut = stopped.load(Ordering::Relaxed);
        !cut
    });
    let (read_bytes, missing_bytes, seconds) = (last.read_bytes, last.missing_bytes, start.elapsed().as_secs_f64());
    match outcome {
        Err(e) => warn!(read_bytes, missing_bytes, seconds, "the store was not warmed up: {e}"),
        Ok(()) if cut => info!(read_bytes, missing_bytes, seconds, "the warm-up was stopped"),
        Ok(()) if missing_bytes > 0 => info!(read_bytes, missing_bytes, seconds, "the store is warm"),
        Ok(()) => {}
    }
}
