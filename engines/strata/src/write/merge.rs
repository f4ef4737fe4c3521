//! The merging thread: memtables into delta runs, small delta runs into larger ones, all of them into the base.
//!
//! Owns: when something is flushed or merged, and what happens after a failure. Must not: be waited for by a reader. Runs
//! on `strata-merge`; `settle` asks it.
//!
//! Delta runs of a like size are merged four at a time, so a pair is rewritten once for each fourfold growth. Once the
//! deltas hold half as much as the base, they are merged into it, a group of segments at a time: each group is
//! installed by itself, so the space that a merge takes on top is that of a group and the deltas.
//!
//! Memtables are flushed while a merge goes on. While the base is merged, the runs that these flushes make are merged
//! among themselves; nothing is merged within that, so at most two merges are under way. Commits wait while there are
//! [`RUNS_MAX`] runs.
//!
//! # After a failure
//!
//! Only a failed flush of a file and a manifest that may or may not be in place leave the disk's state unknown and end
//! writing. A want of descriptors, memory or disk space is waited for, longer each time. A segment that a merge cannot
//! read is left where it is, and everything around it goes on: see `merge_base`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_api::{Checkpoint, Error, ErrorKind, Key, PAIR_BYTES, Result};
use parking_lot::MutexGuard;

use crate::engine::{FROZEN_MAX, Shared, Work};
use crate::format::footer::Origin;
use crate::read::cursor::{Cursor, Merged, RunCursor, Window};
use crate::read::segment::Segment;
use crate::read::version::{Run, Version};
use crate::write::directory::{Own, own_files};
use crate::write::mem::ORDER_BYTES;
use crate::write::output::{Job, write};
use crate::write::plan::{debt, groups_from, like_sized, mergeable};

/// Delta runs with which a commit that needs a new memtable waits for a merge: a get of an absent key looks at all of
/// them, and a merge of all of them has a buffer for each.
pub(crate) const RUNS_MAX: usize = 64;
/// WAL files that are kept to be overwritten.
const SPARES: usize = 2;
/// How often a thread that has nothing to do looks for memory to divide and for what readers have let go.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// How often it does while readers hold something that was replaced: its memory and space are wanted.
const LOOK_FOR_GARBAGE: Duration = Duration::from_millis(100);
/// Pauses after failures: a flush is tried again soon, because commits wait for it.
const FLUSH_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
const MERGE_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(64));

/// The pause after failures in a row: twice as long each time.
struct Pause {
    bounds: (Duration, Duration),
    next: Duration,
    until: Option<Instant>,
}

impl Pause {
    fn new(bounds: (Duration, Duration)) -> Self {
        Self { bounds, next: bounds.0, until: None }
    }

    fn is_over(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() >= until)
    }

    /// Takes in how an attempt went.
    fn after(&mut self, failed: bool) {
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
    let (mut flush_pause, mut merge_pause) = (Pause::new(FLUSH_PAUSE), Pause::new(MERGE_PAUSE));
    let mut again = false;
    while let Some(settle) = next_round(shared, &flush_pause, again) {
        make_pages_huge(shared);
        let flushed = flush_all(shared);
        let merged = (flushed.is_ok() && (settle || merge_pause.is_over())).then(|| merge_all(shared, settle));
        shared.garbage.sweep();
        shared.balance(0);
        let mut work = shared.work.lock();
        if work.stop {
            // A merge that was cut short is done again after the next opening.
            return;
        }
        flush_pause.after(flushed.is_err());
        again = matches!(merged, Some(Ok(true)));
        work.failed = flushed.err().map(|error| shared.told(error));
        if let Some(merged) = merged {
            merge_pause.after(merged.is_err());
            work.merge_failed = merged.err().map(|error| shared.told(error));
            work.settle &= !settle;
        }
        if work.failed.is_some() {
            work.settle = false;
        }
        work.rounds += 1;
        shared.done.notify_all();
    }
}

/// Waits until there is something to do; whether all is to be merged, or `None` at the end.
fn next_round(shared: &Shared, flush_pause: &Pause, again: bool) -> Option<bool> {
    let mut work = shared.work.lock();
    // A want that passes is not met sooner because more commits wait for it.
    let paused = matches!(work.failed, Some((kind, _)) if kind != ErrorKind::FreeSpace);
    while paused && !work.stop && !flush_pause.is_over() {
        wait(shared, &mut work, FLUSH_PAUSE.0);
    }
    let busy = again || work.settle || (work.failed.is_none() && !shared.visible.load().frozen.is_empty());
    if !work.stop && !busy {
        wait(shared, &mut work, if shared.garbage.held() > 0 { LOOK_FOR_GARBAGE } else { LOOK_AROUND });
    }
    (!work.stop).then_some(work.settle)
}

fn wait(shared: &Shared, work: &mut MutexGuard<'_, Work>, most: Duration) {
    shared.wake.wait_for(work, most);
}

impl Shared {
    /// Takes in why a flush or a merge failed: an error that leaves the disk's state unknown ends writing.
    fn told(&self, error: Error) -> (ErrorKind, String) {
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
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.work.lock().ended = true;
        self.0.done.notify_all();
    }
}

/// Merges everything that is in runs into the base and waits for it.
pub(crate) fn settle(shared: &Shared) -> Result<()> {
    let mut work = shared.work.lock();
    work.settle = true;
    let since = work.rounds;
    shared.wake.notify_all();
    while work.settle || work.rounds == since {
        work.check_alive()?;
        shared.done.wait(&mut work);
    }
    match work.failed.as_ref().or(work.merge_failed.as_ref()) {
        Some((kind, why)) => Err(Error::new(*kind, why.clone())),
        None => Ok(()),
    }
}

/// Flushes the memtables that are frozen now: not those that follow, or nothing would ever be merged under load.
fn flush_all(shared: &Shared) -> Result<()> {
    for _ in 0..FROZEN_MAX {
        if !flush_oldest(shared)? {
            break;
        }
    }
    Ok(())
}

/// Merges what is due, all of it to `settle`; whether anything was merged.
fn merge_all(shared: &Shared, settle: bool) -> Result<bool> {
    let some = !settle && merge_deltas(shared, None)?;
    let due = debt(&shared.visible.load());
    let base = due.records > 0 && (settle || due.parts >= 1.0);
    if base {
        merge_base(shared)?;
    }
    Ok(some || base)
}

/// Makes a delta run of the oldest frozen memtable, whose WAL is free then; false when there is none.
pub(crate) fn flush_oldest(shared: &Shared) -> Result<bool> {
    // The guard of `visible` is given back at once: readers keep what they see.
    let oldest = shared.visible.load().frozen.last().cloned();
    let Some(frozen) = oldest else { return Ok(false) };
    // The reserve is there for this.
    shared.require_space(frozen.length as u64 * (PAIR_BYTES + PAIR_BYTES / 16), 0, "a flush")?;
    let _order = shared.budget.take_for_work(frozen.length as u64 * ORDER_BYTES);
    let mut list = Merged::new(vec![Cursor::Flush(frozen.mem.sorted(frozen.length)?)])?;
    let origin = shared.origin(frozen.batch, false, &frozen.checkpoint);
    let segments = write(shared, &mut list, &origin, Job::Flush(frozen.length))?;
    let mut manifest = shared.install.lock();
    let mut version = Version::clone(&shared.visible.load().version);
    if !segments.is_empty() {
        version.deltas.insert(0, Arc::new(Run::new(segments)));
    }
    let before = manifest.wal_floor;
    shared.install(
        &mut manifest,
        version,
        |manifest| {
            manifest.wal_floor = frozen.wal_id + 1;
            manifest.batch = frozen.batch;
            manifest.checkpoint = frozen.checkpoint.clone();
        },
        |visible| {
            visible.frozen.pop();
        },
    )?;
    drop(manifest);
    // A reader that keeps it keeps its memory from others. It is mostly back soon, as that of other work is.
    let share = shared.budget.take_for_work(frozen.mem.bytes(frozen.length));
    shared.garbage.hold(Arc::clone(&frozen.mem) as _, Some(share));
    shared.counters.flushed();
    let mut work = shared.work.lock();
    // One that is not seen is removed by the next opening.
    let there = own_files(&*shared.storage).unwrap_or_default();
    let flushed = |own: &Own| matches!(own, Own::Wal(id) if (before..=frozen.wal_id).contains(id));
    for name in there.into_iter().filter(flushed).map(Own::name) {
        if work.spare.len() < SPARES {
            work.spare.push(name);
        } else {
            // One that stays is removed by the next opening.
            shared.storage.remove(&name).ok();
        }
    }
    // Under the lock that waiters look under: none misses it.
    shared.done.notify_all();
    Ok(true)
}

/// Merges some of the newest delta runs if there are enough of one size; those from `busy` on are being merged already.
/// False when there is nothing to merge.
pub(crate) fn merge_deltas(shared: &Shared, busy: Option<&Run>) -> Result<bool> {
    let (mut deltas, memtable) = {
        let now = shared.visible.load();
        (now.version.deltas.clone(), now.active.capacity() as u64)
    };
    let end = deltas.iter().position(|run| busy.is_some_and(|busy| run.is(busy)));
    deltas.truncate(end.unwrap_or(deltas.len()));
    let Some(range) = like_sized(&deltas, memtable) else { return Ok(false) };
    let merged = &deltas[range];
    shared.require_space(merged.iter().map(|run| run.file_bytes()).sum(), shared.reserve_bytes, "a merge")?;
    let segments = merge_range(shared, merged, &[0; 32], None, Job::Deltas)?;
    replace_deltas(shared, merged, Run::new(segments))?;
    Ok(true)
}

/// Puts `run` in the place of `merged`.
fn replace_deltas(shared: &Shared, merged: &[Arc<Run>], run: Run) -> Result<()> {
    let mut manifest = shared.install.lock();
    let mut version = Version::clone(&shared.visible.load().version);
    // Newer runs may have been flushed meanwhile, and stand before these.
    let start = version.deltas.iter().position(|delta| delta.is(&merged[0]));
    let start = start.ok_or_else(|| Error::new(ErrorKind::Internal, "a run that was merged is gone"))?;
    let end = start + merged.len();
    version.deltas.splice(start..end, (run.records() > 0).then(|| Arc::new(run)));
    shared.install(&mut manifest, version, |_| (), |_| ())?;
    drop(manifest);
    shared.counters.merged();
    let _work = shared.work.lock();
    // Commits may wait for fewer runs.
    shared.done.notify_all();
    Ok(())
}

/// Merges the delta runs into the base, one group of its segments after the other.
///
/// Nothing can be merged past a delta run of which a segment cannot be read: only the runs that are older are. Where a
/// segment of the base cannot be read, the records of its range stay in a delta run, which takes the place of those that
/// were merged.
fn merge_base(shared: &Shared) -> Result<()> {
    let deltas = mergeable(&shared.visible.load().version).to_vec();
    let Some(newest) = deltas.first() else { return Ok(()) };
    let delta_bytes: u64 = deltas.iter().map(|run| run.file_bytes()).sum();
    let mut left_out: Vec<(Key, Option<Key>)> = Vec::new();
    let mut from: Key = [0; 32];
    let mut asked = false;
    loop {
        let base = Arc::clone(&shared.visible.load().version.base);
        let (segments, to) = groups_from(&base, &from, shared.sizes.segment_records);
        if segments.first().is_some_and(|segment| segment.is_unreadable()) {
            left_out.push((from, to));
        } else {
            let group = Arc::new(Run::new(segments));
            // All of the deltas stay until the last group is written.
            let needed = group.file_bytes() + if asked { 0 } else { delta_bytes };
            shared.require_space(needed, shared.reserve_bytes, "a merge")?;
            asked = true;
            let mut sources = deltas.clone();
            sources.push(Arc::clone(&group));
            let written = match merge_range(shared, &sources, &from, to, Job::Base(newest)) {
                // What cannot be read is left out, and the same range looked at again.
                Err(_) if group.is_unreadable() && !deltas.iter().any(|run| run.is_unreadable()) => continue,
                written => written?,
            };
            let done = (to.is_none() && left_out.is_empty()).then_some(&deltas[..]);
            replace_group(shared, &group, written, done)?;
        }
        match to {
            Some(to) => from = to,
            None => break,
        }
    }
    if left_out.is_empty() {
        shared.counters.merged();
        return Ok(());
    }
    let mut kept = Vec::new();
    for (from, to) in left_out {
        match merge_range(shared, &deltas, &from, to, Job::Deltas) {
            Ok(written) => kept.extend(written),
            Err(failed) => {
                kept.iter().for_each(|segment| segment.retire());
                return Err(failed);
            }
        }
    }
    replace_deltas(shared, &deltas, Run::left_over(kept))
}

/// Writes the records of `runs` with `from <= key < to`: into the base, or into a delta run that keeps tombstones.
fn merge_range(
    shared: &Shared,
    runs: &[Arc<Run>],
    from: &Key,
    to: Option<Key>,
    job: Job<'_>,
) -> Result<Vec<Arc<Segment>>> {
    let base = matches!(job, Job::Base(_));
    let window = Window::merge(&shared.reads, runs.len(), shared.merge_read_bytes);
    let cursors = runs.iter().map(|run| RunCursor::boxed(run, from, to, window.clone())).collect();
    write(shared, &mut Merged::new(cursors)?, &newest_origin(shared, runs, base), job)
}

/// Where the records of these runs come from, newest first.
fn newest_origin(shared: &Shared, runs: &[Arc<Run>], base: bool) -> Origin {
    let newest = runs.iter().flat_map(|run| run.segments()).next();
    match newest.map(|segment| segment.origin()) {
        Some(newest) => Origin { base, ..newest.clone() },
        None => shared.origin(0, base, &Checkpoint::default()),
    }
}

/// Puts `written` in the place of `group` in the base; `done` are the deltas that are wholly in the base now.
fn replace_group(shared: &Shared, group: &Run, written: Vec<Arc<Segment>>, done: Option<&[Arc<Run>]>) -> Result<()> {
    let mut manifest = shared.install.lock();
    let mut version = Version::clone(&shared.visible.load().version);
    let mut segments = version.base.segments().to_vec();
    segments.retain(|segment| !group.segments().iter().any(|merged| segment.info.id == merged.info.id));
    segments.extend(written);
    segments.sort_by_key(|segment| segment.info.first);
    version.base = Arc::new(Run::new(segments));
    // Runs that were flushed meanwhile are newer and stay.
    version.deltas.retain(|run| !done.is_some_and(|done| done.iter().any(|merged| run.is(merged))));
    shared.install(&mut manifest, version, |_| (), |_| ())
}
