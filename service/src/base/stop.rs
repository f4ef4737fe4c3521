//! Waits for threads to end, with a time limit.
//!
//! Owns: the wait and its log line. Must not: end a thread. The caller has told the threads to stop before it waits
//! here. Threads: the one that stops the service, last of all.
//!
//! A thread that does not end (because its device does not answer, or because of a bug) must not keep the process
//! alive. Everything committed is safe whenever the process ends. An operator learns more from the name of the thread
//! than from a process that has to be killed.

use std::fmt;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time for a clean stop after SIGTERM. Everything committed is safe after it too, and the packaged unit waits for longer.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which a thread that was told to stop is checked.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Names of the threads that had not ended at the limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stuck(pub Vec<String>);

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "threads did not end: threads={}", self.0.join(","))
    }
}

impl std::error::Error for Stuck {}

/// Waits until all of `threads` have ended or `deadline` has passed.
///
/// # Errors
/// The names of the threads that have not ended. They run until the process ends.
pub(crate) fn join_all(threads: impl IntoIterator<Item = JoinHandle<()>>, deadline: Instant) -> Result<(), Stuck> {
    let mut stuck = Stuck::default();
    for thread in threads {
        let name = thread.thread().name().unwrap_or("unnamed").to_owned();
        while !thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(LOOK_EVERY);
        }
        if !thread.is_finished() {
            tracing::error!(thread = name, "the thread did not end in time: it ends with the process");
            stuck.0.push(name);
        } else {
            // There is no panic to look at: it would have ended the program.
            thread.join().ok();
        }
    }
    if stuck.0.is_empty() { Ok(()) } else { Err(stuck) }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_thread_that_does_not_end_is_named_and_left() {
        let (ends, ended) = mpsc::channel::<()>();
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(run).unwrap()
        };
        let wait = move || _ = ended.recv();
        let threads = [spawn("stuck", Box::new(wait)), spawn("quick", Box::new(|| {}))];
        while !threads[1].is_finished() {
            std::thread::yield_now();
        }
        assert_eq!(join_all(threads, Instant::now()), Err(Stuck(vec!["stuck".to_owned()])));
        drop(ends);
        let later = Instant::now() + Duration::from_secs(100);
        assert_eq!(join_all([spawn("quick", Box::new(|| {}))], later), Ok(()));
    }
}
