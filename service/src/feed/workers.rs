//! The threads of the feed's subscribers: `feed-read-N` look at changes, `feed-dump-N` copy ranges of the map.
//!
//! Owns: how many there are. Must not: run on the network edge what may take long: a stream that is read there waits as
//! well. Threads: made and stopped by the service's main thread.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use engine_latency::Measured;

use super::dump::Dumps;
use super::pool::{NotDone, Pool};
use crate::status::Shared;
use crate::stop;

/// Threads that look at changes for subscribers: one may wait for the disk while the other works.
const READ_THREADS: usize = 2;

/// All of them. Clones share them.
#[derive(Clone)]
pub struct Workers {
    read: Pool,
    dumps: Dumps,
}

impl Workers {
    /// Starts the threads for up to `subscribers` subscribers, each of which has one piece of work under way at most.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn start(engine: Arc<Measured>, shared: Arc<Shared>, subscribers: usize) -> io::Result<Self> {
        let read = Pool::start("feed-read", READ_THREADS, subscribers.max(1))?;
        Ok(Self { read, dumps: Dumps::start(engine, shared)? })
    }

    /// Runs `job` on one of `feed-read-N`.
    ///
    /// # Errors
    /// See [`NotDone`].
    pub async fn read<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Result<T, NotDone> {
        self.read.run(job).await
    }

    /// The way to `feed-dump-N`.
    pub fn dumps(&self) -> &Dumps {
        &self.dumps
    }

    /// Ends all threads and waits until `deadline`. After it none holds the engine, unless a thread did not end.
    ///
    /// # Errors
    /// The names of the threads that have not ended.
    pub fn stop(&self, deadline: Instant) -> Result<(), stop::Stuck> {
        let dumps = self.dumps.stop(deadline);
        self.read.stop(deadline).and(dumps)
    }
}
