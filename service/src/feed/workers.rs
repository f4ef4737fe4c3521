//! The threads that serve the feed's subscribers: `feed-read-N` read changes, `feed-dump-N` copy ranges of the map.
//!
//! Owns: the number of these threads. Must not: run long work on the network edge, because the other streams there
//! would wait. Threads: made and stopped by the service's main thread.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use engine_latency::Measured;

use super::dump::Dumps;
use super::pool::Pool;
use crate::base::stop;
use crate::base::views::Views;

/// Number of threads that read changes for subscribers: one may wait for the disk while the other works.
const READ_THREADS: usize = 2;

/// Handle to all threads of the feed. Clones share them.
#[derive(Clone)]
pub struct Workers {
    read: Pool,
    dumps: Dumps,
}

impl Workers {
    /// Starts the threads. Each subscriber has at most one piece of work under way.
    ///
    /// # Errors
    /// I/O errors of starting a thread.
    pub fn start(engine: Arc<Measured>, views: Arc<Views>) -> io::Result<Self> {
        Ok(Self { read: Pool::start("feed-read", READ_THREADS)?, dumps: Dumps::start(engine, views)? })
    }

    /// Runs `job` on one of the `feed-read-N` threads; `None` if these end.
    pub async fn read<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        self.read.run(job).await
    }

    /// The pool of `feed-dump-N` threads.
    pub fn dumps(&self) -> &Dumps {
        &self.dumps
    }

    /// Ends all threads and waits for them until `deadline`. Afterwards no thread holds the engine, unless one did not
    /// end.
    ///
    /// # Errors
    /// The names of the threads that have not ended.
    pub fn stop(&self, deadline: Instant) -> Result<(), stop::Stuck> {
        let dumps = self.dumps.stop(deadline);
        self.read.stop(deadline).and(dumps)
    }
}
