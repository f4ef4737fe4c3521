//! The mailbox of the threads of a store: their requests to each other, and the results.
//!
//! Owns: the lock `mailbox`, the last in the order of `write/shared.rs`, and the conditions to wait for under it. It is
//! held for a few instructions, and never during an access to a disk, because commits take it. Must not: work on a
//! request. Any thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_api::{Error, ErrorKind, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::budget::Share;
use crate::format::wal::Wal;
use crate::memtable::Mem;
use crate::storage::StorageFile;

/// How often an idle thread looks for memory to divide and for garbage that readers have let go.
pub(crate) const LOOK_AROUND: Duration = Duration::from_secs(1);

/// Requests under their lock, and the conditions that threads wait for.
#[derive(Default)]
pub(crate) struct Mailbox {
    requests: Mutex<Requests>,
    /// Wakes the thread `strata-merge`, which otherwise looks around after [`LOOK_AROUND`].
    pub(crate) wake_merge: Condvar,
    /// Wakes the thread `strata-flush` for a frozen memtable, or for a WAL file that is needed soon.
    pub(crate) wake_flush: Condvar,
    /// Wakes the threads that wait for a flush or a merge.
    pub(crate) done: Condvar,
}

/// Kind and message of a failure that other threads report.
pub(crate) type Failure = (ErrorKind, String);

/// Requests to the engine's threads and their results.
#[derive(Default)]
pub(crate) struct Requests {
    pub(crate) stop: bool,
    /// Number of requests to settle so far.
    pub(crate) settles_asked: u64,
    /// The last request to settle that is done, successful or not.
    pub(crate) settles_over: u64,
    /// Failure of that request; `None` if it succeeded.
    pub(crate) settle_failed: Option<Failure>,
    /// Number of attempts to flush a memtable, which waiters compare.
    pub(crate) flushes_tried: u64,
    /// Failure of the last flush; `None` if it succeeded.
    pub(crate) flush_failed: Option<Failure>,
    /// Number of attempts to do a step of a merge, which waiters compare.
    pub(crate) merges_tried: u64,
    /// Failure of the last merge step, want of disk space included; `None` if it succeeded.
    pub(crate) merge_failed: Option<Failure>,
    /// Whether a commit that is held asks for a step at once, whatever pause a failure has begun.
    pub(crate) merge_now: bool,
    /// Whether a thread of the engine has ended. Then nobody may wait for it.
    pub(crate) ended: bool,
    /// Names of WAL files that wait to be overwritten.
    pub(crate) spare: Vec<String>,
    /// When commits last filled a memtable; `None` if they have not since the opening.
    pub(crate) filled_at: Option<Instant>,
    /// Preparation of the next WAL file and memtable while commits continue.
    pub(crate) ahead: Ahead,
}

/// Requests to `strata-flush` to prepare for later commits, and their results.
#[derive(Default)]
pub(crate) struct Ahead {
    /// Whether the next WAL file and memtable are wanted.
    pub(crate) wanted: bool,
    pub(crate) ready: Option<Ready>,
    /// A range of the WAL file that the device should begin to write.
    pub(crate) write_out: Option<WriteOut>,
    /// Whether the newest entries of the active memtable are to be taken into its order.
    pub(crate) arranges: bool,
}

/// The next WAL file and memtable, both empty.
pub(crate) struct Ready {
    pub(crate) wal: Wal,
    pub(crate) mem: Arc<Mem>,
    /// Memory of the empty memtable. Its entries are counted with the memtables.
    pub(crate) _share: Share,
}

/// A range of a WAL file.
pub(crate) struct WriteOut {
    pub(crate) file: Arc<dyn StorageFile>,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Mailbox {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock()
    }

    /// Asks all threads to end.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.wake_merge.notify_all();
        self.wake_flush.notify_all();
    }
}

impl Requests {
    /// Returns an error once a thread has ended.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.ended {
            return Err(Error::new(
                ErrorKind::Reopen,
                "a thread of the store has ended: close and open the store again",
            ));
        }
        Ok(())
    }
}

impl Ahead {
    /// Whether `strata-flush` has a request to work on.
    pub(crate) fn is_asked(&self) -> bool {
        self.write_out.is_some() || self.arranges || (self.wanted && self.ready.is_none())
    }

    /// Takes the next file and memtable, if they are ready, and withdraws all requests.
    pub(crate) fn take(&mut self) -> Option<Ready> {
        (self.wanted, self.arranges) = (false, false);
        self.write_out = None;
        self.ready.take()
    }
}

/// Marks its thread as ended when it is dropped, also after a panic, and wakes those who wait for it.
pub(crate) struct Running<'a>(pub(crate) &'a Mailbox);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.done.notify_all();
    }
}

/// The pause of a thread after failures in a row: twice as long each time.
pub(crate) struct Pause {
    bounds: (Duration, Duration),
    next: Duration,
    until: Option<Instant>,
}

impl Pause {
    pub(crate) fn new(bounds: (Duration, Duration)) -> Self {
        Self { bounds, next: bounds.0, until: None }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() >= until)
    }

    /// Records whether an attempt failed: a failure starts the next pause, a success resets it.
    pub(crate) fn after(&mut self, failed: bool) {
        if failed {
            self.until = Some(Instant::now() + self.next);
            self.next = (self.next * 2).min(self.bounds.1);
        } else {
            *self = Self::new(self.bounds);
        }
    }
}
