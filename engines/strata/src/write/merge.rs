//! The merging thread: it does merges that are due, one at a time, and pauses after failures.
//!
//! Owns: the order of steps, and the reaction to a failure. Must not: be waited for by a reader, flush memtables, or
//! begin a merge within another. Runs on `strata-merge`; `settle` sends requests to it.
//!
//! Delta runs of similar size are merged four at a time, so a pair is rewritten once for each fourfold growth. Once the
//! deltas hold half as many records as the base, they are merged into it. A merge is done in steps. Each step writes a
//! segment, or replaces a group of segments in the base, and keeps nothing in memory but the position where the merge
//! continues: see `write/steps.rs`. Between two steps a merge of newer runs may have its turn, so that a merge of hours
//! does not keep freshly flushed runs from being merged. `write/limits.rs` bounds how far commits may be ahead of
//! merges.
//!
//! # After a failure
//!
//! Only two failures leave the disk's state unknown and end writing: a failed flush of a file, and a manifest that may
//! or may not be in place. After a shortage of descriptors, memory or disk space the merge waits, longer each time, and
//! then continues where it was. A segment that a merge cannot read is left in place, and everything around it is
//! merged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_api::{Error, ErrorKind, Result};

use crate::write::shared::{Failure, Shared, Work};
use crate::write::steps::Merging;

/// How often an idle thread looks for memory to divide and for garbage that readers have let go.
pub(crate) const LOOK_AROUND: Duration = Duration::from_secs(1);
/// How often it looks while readers hold replaced objects, because their memory and disk space are wanted.
const LOOK_FOR_GARBAGE: Duration = Duration::from_millis(100);
/// Shortest and longest pause after failures of merges.
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

/// Runs the thread `strata-merge` until the store is closed.
pub(crate) fn run(shared: &Shared) {
    // Lower the thread's priority, so that merging yields to gets and commits. Where that is not permitted, it runs at
    // normal priority.
    // SAFETY: setpriority takes no pointers; 0 names the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
    let _ended = Ended(shared);
    let mut pause = Pause::new(MERGE_PAUSE);
    let mut merging = Merging::of(&shared.visible.load().version);
    let mut again = false;
    while let Some(Round { settle, now }) = next_round(shared, again) {
        make_pages_huge(shared);
        let step = (settle.is_some() || now || pause.is_over()).then(|| {
            let begun = Instant::now();
            let step = shared.poison.check().and_then(|()| merging.step(shared, settle));
            shared.counters.merge_step(begun.elapsed());
            step
        });
        shared.garbage.sweep();
        shared.balance(0);
        let mut work = shared.work.lock();
        if work.stop {
            // Segments that are not installed are merged again after the next opening.
            return;
        }
        again = matches!(step, Some(Ok(true)));
        if let Some(step) = step {
            pause.after(step.is_err());
            work.merges_tried += 1;
            work.merge_failed = step.err().map(|error| shared.told(error));
            // A caller of `settle` learns of a failure and decides whether to ask again.
            let over = if work.merge_failed.is_some() { settle } else { merging.settled(settle, again) };
            if let Some(over) = over {
                // A merge that an older request began may end after a newer one has failed.
                work.settles_over = work.settles_over.max(over);
                work.settle_failed = work.merge_failed.clone();
            }
        }
        shared.done.notify_all();
    }
}

/// A turn of the merging thread.
struct Round {
    /// The newest request to settle that is not done, if there is one.
    settle: Option<u64>,
    /// Whether a commit that is held asks for a step at once.
    now: bool,
}

/// Waits for work. Returns `None` when the store is closed.
fn next_round(shared: &Shared, again: bool) -> Option<Round> {
    let mut work = shared.work.lock();
    let settle = |work: &Work| (work.settles_asked > work.settles_over).then_some(work.settles_asked);
    if !work.stop && !again && !work.merge_now && settle(&work).is_none() {
        let most = if shared.garbage.held() > 0 { LOOK_FOR_GARBAGE } else { LOOK_AROUND };
        shared.wake.wait_for(&mut work, most);
    }
    (!work.stop).then(|| Round { settle: settle(&work), now: std::mem::take(&mut work.merge_now) })
}

impl Shared {
    /// Counts and describes the failure of a flush or a merge. An error that leaves the disk's state unknown ends
    /// writing.
    pub(crate) fn told(&self, error: Error) -> Failure {
        self.counters.merge_failed();
        let error = if is_final(&error) { self.poison(error) } else { error };
        (error.kind(), error.to_string())
    }
}

/// Whether the error leaves the state of the disk, or of this program, unknown.
pub(crate) fn is_final(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Reopen | ErrorKind::Internal)
}

fn make_pages_huge(shared: &Shared) {
    let version = Arc::clone(&shared.visible.load().version);
    for pages in version.segments().filter_map(|one| one.resident()) {
        // Flushing and merging are more urgent, so stop as soon as a memtable waits.
        if !shared.visible.load().frozen.is_empty() {
            return;
        }
        pages.make_huge();
    }
}

/// Marks the thread as ended when it is dropped, also after a panic, and wakes those who wait for it.
pub(crate) struct Ended<'a>(pub(crate) &'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.work.lock().ended = true;
        self.0.done.notify_all();
    }
}

/// Merges everything that is in runs now into the base, and waits for it. Runs flushed meanwhile are left to later
/// merges.
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
