//! The merging thread: it does merges that are due, one at a time, and pauses after failures.
//!
//! Owns: the order of steps, and the reaction to a failure. Must not: be waited for by a reader, flush memtables, or
//! begin a merge within another. Runs on `strata-merge`; `settle` sends requests to it.
//!
//! Delta runs of similar size are merged once there are more of them than usual. As long as the deltas have a quarter as
//! many records as the base that the base does not have, they are merged into it. A merge is done in steps. Each step writes
//! a segment, or replaces a group of segments in the base, and keeps nothing in memory but the position where the merge
//! continues: see `write/steps.rs`. Between two steps a merge of newer runs may have its turn, so that a merge of hours
//! does not keep freshly flushed runs from being merged. `write/plan.rs` bounds how far commits may be ahead of
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

use engine_api::{Error, Result};

use crate::write::mailbox::{LOOK_AROUND, Pause, Requests, Running};
use crate::write::shared::Shared;
use crate::write::steps::Merging;

/// As [`LOOK_AROUND`], while readers hold replaced objects, because their memory and disk space are wanted.
const LOOK_FOR_GARBAGE: Duration = Duration::from_millis(100);
/// Shortest and longest pause after failures of merges.
const MERGE_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(64));

/// Runs the thread `strata-merge` until the store is closed.
pub(crate) fn run(shared: &Shared) {
    // Lower the thread's priority, so that merging yields to gets and commits. Where that is not permitted, it runs at
    // normal priority.
    // SAFETY: setpriority takes no pointers; 0 names the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
    let _running = Running(&shared.common.mailbox);
    let mut pause = Pause::new(MERGE_PAUSE);
    // The opening has read no filter.
    shared.memory.balance(0);
    let mut merging = Merging::default();
    let mut again = false;
    while let Some(Round { settle, now }) = next_round(shared, again) {
        make_pages_huge(shared);
        let step = (settle.is_some() || now || pause.is_over()).then(|| {
            let begun = Instant::now();
            let step = shared.common.poison.check().and_then(|()| merging.step(shared, settle));
            shared.common.counters.merge_steps.add(begun.elapsed());
            step
        });
        shared.runs.garbage.sweep();
        shared.memory.balance(0);
        let mut requests = shared.common.mailbox.lock();
        if requests.stop {
            // Segments that are not installed are merged again after the next opening.
            return;
        }
        again = matches!(step, Some(Ok(true)));
        if let Some(step) = step {
            pause.after(step.is_err());
            requests.merges_tried += 1;
            requests.merge_failed = step.err().map(|error| shared.common.failure(error));
            // A caller of `settle` learns of a failure and decides whether to ask again.
            let over = if requests.merge_failed.is_some() { settle } else { merging.settled() };
            if let Some(over) = over {
                // A merge that an older request began may end after a newer one has failed.
                requests.settles_over = requests.settles_over.max(over);
                requests.settle_failed = requests.merge_failed.clone();
            }
        }
        shared.common.mailbox.done.notify_all();
    }
}

/// A turn of the merging thread.
struct Round {
    /// The newest request to settle that is not done, if there is one.
    settle: Option<u64>,
    /// Whether a commit that is held asks for a step at once.
    now: bool,
}

/// Waits for something to do. Returns `None` when the store is closed.
fn next_round(shared: &Shared, again: bool) -> Option<Round> {
    let mut requests = shared.common.mailbox.lock();
    let settle =
        |requests: &Requests| (requests.settles_asked > requests.settles_over).then_some(requests.settles_asked);
    if !requests.stop && !again && !requests.merge_now && settle(&requests).is_none() {
        let most = if shared.runs.garbage.held() > 0 { LOOK_FOR_GARBAGE } else { LOOK_AROUND };
        shared.common.mailbox.wake_merge.wait_for(&mut requests, most);
    }
    (!requests.stop).then(|| Round { settle: settle(&requests), now: std::mem::take(&mut requests.merge_now) })
}

fn make_pages_huge(shared: &Shared) {
    let version = Arc::clone(&shared.common.newest.load().version);
    for pages in version.segments().filter_map(|one| one.resident()) {
        // Flushing and merging are more urgent, so stop as soon as a memtable waits.
        if !shared.common.newest.load().frozen.is_empty() {
            return;
        }
        pages.make_huge();
    }
}

/// Merges everything that is in runs now into the base, and waits for it. Runs flushed meanwhile are left to later
/// merges.
pub(crate) fn settle(shared: &Shared) -> Result<()> {
    let mut requests = shared.common.mailbox.lock();
    requests.settles_asked += 1;
    let asked = requests.settles_asked;
    shared.common.mailbox.wake_merge.notify_all();
    while requests.settles_over < asked {
        requests.check_alive()?;
        shared.common.mailbox.done.wait(&mut requests);
    }
    match &requests.settle_failed {
        Some((kind, why)) => Err(Error::new(*kind, why.clone())),
        None => Ok(()),
    }
}
