//! The activity of one connection: its requests under way, the bytes that they hold, and whether it has to end for them.
//!
//! Owns: these figures. Must not: decide who has to end; `ask::budget` does. Threads: the network edge.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;

use crate::base::figure::count;

/// Activity of a connection, by its requests.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// Bytes held; changed only under the lock of the budget.
    pub(crate) held: AtomicU64,
    /// Number of charges released since the connection began. An increase shows that a client reads slowly and has not
    /// stopped reading.
    pub(crate) released: AtomicU64,
    /// Whether the connection has to end, because it has held its bytes for the longest time.
    cut: AtomicBool,
    cut_waker: AtomicWaker,
    /// Number of requests admitted since the connection began.
    requests: AtomicU64,
    /// Number of those requests whose answers are not sent completely yet.
    under_way: AtomicU64,
}

impl Activity {
    /// Returns the number of charges released so far, if any bytes are held; otherwise `None`.
    pub(crate) fn progress(&self) -> Option<u64> {
        // ORDERING: Relaxed: read again seconds later, so a short delay does not matter.
        (self.held.load(Ordering::Relaxed) > 0).then(|| self.released.load(Ordering::Relaxed))
    }

    /// Returns the number of requests so far.
    pub(super) fn requests(&self) -> u64 {
        // ORDERING: Relaxed: as above.
        self.requests.load(Ordering::Relaxed)
    }

    /// Whether a request is under way.
    pub(super) fn is_busy(&self) -> bool {
        // ORDERING: Relaxed: as above.
        self.under_way.load(Ordering::Relaxed) > 0
    }

    /// Counts one more request, which is under way from now on.
    pub(super) fn begin_request(&self) {
        // ORDERING: Relaxed: as above.
        self.under_way.fetch_add(1, Ordering::Relaxed);
        count(&self.requests, 1);
    }

    /// Counts that a request is under way no longer.
    pub(super) fn end_request(&self) {
        // ORDERING: Relaxed: as above.
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// Has the connection end at its next read or write.
    pub(crate) fn cut(&self) {
        // ORDERING: Release pairs with the Acquire in `poll_cut`; nothing else is passed on.
        self.cut.store(true, Ordering::Release);
        self.cut_waker.wake();
    }

    /// Polls until the connection has to end.
    pub(crate) fn poll_cut(&self, context: &mut Context<'_>) -> Poll<()> {
        self.cut_waker.register(context.waker());
        // ORDERING: Acquire: see `cut`.
        if self.cut.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }
}
