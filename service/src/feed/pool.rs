//! A few named threads that work off one queue of jobs, for the work that subscribers and requests for the past cause.
//!
//! Owns: the queue and the threads. Must not: know the content of a job, or bound the queue: a subscriber, a dump and a request
//! have one job each, and `ask::places` bounds their number. Threads: jobs are handed over on the network
//! edge. They run on `NAME-N`, which takes them in the order in which they came.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Sender, unbounded};
use tokio::sync::oneshot;

use crate::base::{lock, stop};

type Job = Box<dyn FnOnce() + Send>;

/// Handle to the threads. Clones share them.
#[derive(Clone)]
pub(crate) struct Pool {
    inner: Arc<Inner>,
}

struct Inner {
    /// Sender of jobs; `None` once stopped.
    queue: Mutex<Option<Sender<Job>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Pool {
    /// Starts `threads` threads called `name-N`.
    ///
    /// # Errors
    /// I/O errors of starting a thread; the threads already started end.
    pub(crate) fn start(name: &str, threads: usize) -> io::Result<Self> {
        let (sender, jobs) = unbounded::<Job>();
        let mut started = Vec::new();
        for n in 0..threads {
            let jobs = jobs.clone();
            let run = move || jobs.into_iter().for_each(|job| job());
            started.push(std::thread::Builder::new().name(format!("{name}-{n}")).spawn(run)?);
        }
        let inner = Inner { queue: Mutex::new(Some(sender)), threads: Mutex::new(started) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Runs `job` on one of the threads and returns its result; `None` if the threads end.
    pub(crate) async fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (reply, done) = oneshot::channel();
        let job: Job = Box::new(move || drop(reply.send(job())));
        lock(&self.inner.queue).as_ref()?.send(job).ok()?;
        done.await.ok()
    }

    /// Refuses further jobs, waits for the queued ones until `deadline`, and ends the threads.
    ///
    /// # Errors
    /// The names of the threads that have not ended.
    pub(crate) fn stop(&self, deadline: Instant) -> Result<(), stop::Stuck> {
        drop(lock(&self.inner.queue).take());
        let threads = std::mem::take(&mut *lock(&self.inner.threads));
        stop::join_all(threads, deadline)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn jobs_run_on_the_named_threads_in_their_order_until_these_end() {
        let pool = Pool::start("feed-test", 1).unwrap();
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
        drop(hold);
        assert_eq!(waiting.await, Some(7));
        running.await.unwrap().unwrap();
        tokio::task::spawn_blocking({
            let pool = pool.clone();
            move || pool.stop(Instant::now() + Duration::from_secs(100)).unwrap()
        })
        .await
        .unwrap();
        assert_eq!(pool.run(|| 9).await, None);
    }
}
