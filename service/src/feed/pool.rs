//! A few named threads that work off one bounded queue of jobs, for the work that subscribers cause.
//!
//! Owns: the queue and the threads. Must not: know the content of a job. Threads: jobs are handed over on the network
//! edge. They run on `NAME-N`, which takes them in the order in which they came.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Sender, TrySendError, bounded};
use tokio::sync::oneshot;

use crate::base::stop;

type Job = Box<dyn FnOnce() + Send>;

/// Reason why a job was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// The queue is full; nothing was done.
    Busy,
    /// The service is shutting down.
    Stopped,
}

/// Handle to the threads. Clones share them.
#[derive(Clone)]
pub(super) struct Pool {
    inner: Arc<Inner>,
}

struct Inner {
    /// Sender of jobs; `None` once stopped.
    queue: Mutex<Option<Sender<Job>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Pool {
    /// Starts `threads` threads called `name-N`. Up to `queue` jobs may wait for a thread.
    ///
    /// # Errors
    /// I/O errors of starting a thread; the threads already started end.
    pub(super) fn start(name: &str, threads: usize, queue: usize) -> io::Result<Self> {
        let (sender, jobs) = bounded::<Job>(queue);
        let mut started = Vec::new();
        for n in 0..threads {
            let jobs = jobs.clone();
            let run = move || jobs.into_iter().for_each(|job| job());
            started.push(std::thread::Builder::new().name(format!("{name}-{n}")).spawn(run)?);
        }
        let inner = Inner { queue: Mutex::new(Some(sender)), threads: Mutex::new(started) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Runs `job` on one of the threads and returns its result.
    ///
    /// # Errors
    /// Any kind of [`NotDone`].
    pub(super) async fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Result<T, NotDone> {
        let (reply, done) = oneshot::channel();
        let job: Job = Box::new(move || drop(reply.send(job())));
        {
            let queue = self.inner.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let queue = queue.as_ref().ok_or(NotDone::Stopped)?;
            queue.try_send(job).map_err(|error| match error {
                TrySendError::Full(_) => NotDone::Busy,
                TrySendError::Disconnected(_) => NotDone::Stopped,
            })?;
        }
        done.await.map_err(|_| NotDone::Stopped)
    }

    /// Refuses further jobs, waits for the queued ones until `deadline`, and ends the threads.
    ///
    /// # Errors
    /// The names of the threads that have not ended.
    pub(super) fn stop(&self, deadline: Instant) -> Result<(), stop::Stuck> {
        drop(self.inner.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        let threads = std::mem::take(&mut *self.inner.threads.lock().unwrap_or_else(PoisonError::into_inner));
        stop::join_all(threads, deadline)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn jobs_run_on_the_named_threads_and_a_full_queue_refuses() {
        let pool = Pool::start("feed-test", 1, 1).unwrap();
        let name = || std::thread::current().name().map(str::to_owned);
        assert_eq!(pool.run(name).await.unwrap().as_deref(), Some("feed-test-0"));
        let (hold, held) = crossbeam_channel::bounded::<()>(0);
        let (begun, begins) = oneshot::channel();
        let running = tokio::spawn({
            let pool = pool.clone();
            async move {
                pool.run(move || {
                    begun.send(()).ok();
                    held.recv().ok();
                })
                .await
            }
        });
        begins.await.unwrap();
        let mut waiting = Box::pin(pool.run(|| 7));
        assert!(futures::poll!(&mut waiting).is_pending());
        assert_eq!(pool.run(|| 8).await, Err(NotDone::Busy));
        drop(hold);
        assert_eq!(waiting.await, Ok(7));
        running.await.unwrap().unwrap();
        tokio::task::spawn_blocking({
            let pool = pool.clone();
            move || pool.stop(Instant::now() + Duration::from_secs(100)).unwrap()
        })
        .await
        .unwrap();
        assert_eq!(pool.run(|| 9).await, Err(NotDone::Stopped));
    }
}
