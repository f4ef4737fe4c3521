//! The merging thread: what is due, one merge at a time, and pauses after failures.
//!
//! Owns: the order of steps, and what happens after a failure. Must not: be waited for by a reader, flush memtables, or
//! begin a merge within another. Runs on `strata-merge`; `settle` asks it.
//!
//! Delta runs of a like size are merged four at a time, so a pair is rewritten once for each fourfold growth. Once the
//! deltas hold half as much as the base, they are merged into it. A merge is done in steps, each of which writes a segment
//! or replaces a group of them in the base, and ends with nothing in memory but where it goes on: see `write/steps.rs`.
//! Between two steps a merge of newer runs may have its turn, so that a merge of hours keeps nobody from merging what is
//! flushed meanwhile. How far commits may be ahead of all this is in `write/limits.rs`.
//!
//! # After a failure
//!
//! Only a failed flush of a file and a manifest that may or may not be in place leave the disk's state unknown and end
//! writing. A want of descriptors, memory or disk space is waited for, longer each time, and the merge goes on where it
//! was. A segment that a merge cannot read is left where it is, and everything around it goes on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_api::{Error, ErrorKind, Result};

use crate::engine::{Failure, Shared, Work};
use crate::write::steps::Merging;

/// How often a thread that has nothing to do looks for memory to divide and for what readers have let go.
pub(crate) const LOOK_AROUND: Duration = Duration::from_secs(1);
/// How often it does while readers hold something that was replaced: its memory and space are wanted.
const LOOK_FOR_GARBAGE: Duration = Duration::from_millis(100);
/// Pauses after failures.
const MERGE_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(64));

/// The pause after failures in a row: twice as long each time.
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

    /// Takes in how an attempt went.
    pub(crate) fn after(&mut self, failed: bool) {
        if failed {
            self.until = Some(Instant::now() + self.next);
            self.next = (self.next * 2).min(self.bounds.1);
        } else {
            *self = Self::new(self.bounds);
        }
    }
}

/// The thread.
pub(crate) fn run(shared: &Shared) {
    // Merging yields to gets and commits. Without the right to it, it runs as everything else does.
    // SAFETY: setpriority takes no pointers; 0 names the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
    let _ended = Ended(shared);
    let mut pause = Pause::new(MERGE_PAUSE);
    let mut merging = Merging::of(&shared.visible.load().version);
    let mut again = false;
    while let Some(settle) = next_round(shared, again) {
        make_pages_huge(shared);
        let step = (settle.is_some() || pause.is_over()).then(|| merging.step(shared, settle));
        shared.garbage.sweep();
        shared.balance(0);
        let mut work = shared.work.lock();
        if work.stop {
            // What is not installed is merged again after the next opening.
            return;
        }
        again = matches!(step, Some(Ok(true)));
        if let Some(step) = step {
            pause.after(step.is_err());
            work.merge_failed = step.err().map(|error| shared.told(error));
            // Whoever settles is told of a failure, and decides whether to ask again.
            let over = if work.merge_failed.is_some() { settle } else { merging.settled(settle, again) };
            if let Some(over) = over {
                work.settles_over = over;
                work.settle_failed = work.merge_failed.clone();
            }
        }
        shared.done.notify_all();
    }
}

/// Waits until there is something to do; the last `settle` that was asked for and is not over, or `None` at the end.
fn next_round(shared: &Shared, again: bool) -> Option<Option<u64>> {
    let mut work = shared.work.lock();
    let settle = |work: &Work| (work.settles_asked > work.settles_over).then_some(work.settles_asked);
    if !work.stop && !again && settle(&work).is_none() {
        let most = if shared.garbage.held() > 0 { LOOK_FOR_GARBAGE } else { LOOK_AROUND };
        shared.wake.wait_for(&mut work, most);
    }
    (!work.stop).then(|| settle(&work))
}

impl Shared {
    /// Takes in why a flush or a merge failed: an error that leaves the disk's state unknown ends writing.
    pub(crate) fn told(&self, error: Error) -> Failure {
        self.counters.merge_failed();
        let error = if is_final(&error) { self.poison(error) } else { error };
        (error.kind(), error.to_string())
    }
}

/// Whether nothing is known of the disk after this error, or of ourselves.
pub(crate) fn is_final(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Reopen | ErrorKind::Internal)
}

fn make_pages_huge(shared: &Shared) {
    let version = Arc::clone(&shared.visible.load().version);
    for pages in version.segments().filter_map(|one| one.resident()) {
        // Whatever waits for this thread is more urgent.
        if !shared.visible.load().frozen.is_empty() {
            return;
        }
        pages.make_huge();
    }
}

/// Tells those who wait that nobody is there any more, also after a panic.
pub(crate) struct Ended<'a>(pub(crate) &'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.work.lock().ended = true;
        self.0.done.notify_all();
    }
}

/// Merges everything that is in runs now into the base and waits for it; what is flushed meanwhile is left to later merges.
pub(crate) fn settle(shared: &Shared) -> Result<()> {
    let mut work = shared.work.lock();
    work.settles_asked += 1;
    let asked = work.settles_asked;
    shared.wake.notify_all();
    while work.settles_over < asked {
        work.check_alive()?;
        shared.done.wait(&mut work);
    }
    match &work.settle_failed {
        Some((kind, why)) => Err(Error::new(*kind, why.clone())),
        None => Ok(()),
    }
}
