//! The flushing thread: memtables into delta runs, and what commits will need next.
//!
//! Owns: when a memtable is flushed, and what happens after a failure. Must not: merge, for commits wait for it. Runs on
//! `strata-flush`.
//!
//! A want of descriptors, memory or disk space is waited for, longer each time. Only a failed flush of a file and a manifest
//! that may or may not be in place leave the disk's state unknown and end writing.

use std::sync::Arc;
use std::time::Duration;

use engine_api::{ErrorKind, PAIR_BYTES, Result};

use crate::engine::Shared;
use crate::read::cursor::{Cursor, Merged};
use crate::read::version::{Run, Version};
use crate::write::directory::{Own, own_files};
use crate::write::mem::ORDER_BYTES;
use crate::write::merge::{Ended, LOOK_AROUND, Pause};
use crate::write::output::{Job, write};

/// WAL files that are kept to be overwritten.
const SPARES: usize = 2;
/// Pauses after failures: a flush is tried again soon, because commits wait for it.
const FLUSH_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// The thread.
pub(crate) fn run(shared: &Shared) {
    let _ended = Ended(shared);
    let mut pause = Pause::new(FLUSH_PAUSE);
    while let Some(flushes) = next_round(shared, &pause) {
        shared.work_ahead();
        if !flushes {
            continue;
        }
        let flushed = flush_oldest(shared);
        shared.balance(0);
        let mut work = shared.work.lock();
        pause.after(flushed.is_err());
        work.flush_failed = flushed.err().map(|error| shared.told(error));
        work.flushes_tried += 1;
        // Under the lock that waiters look under: none misses it.
        shared.done.notify_all();
        // There may be enough runs to be merged now.
        shared.wake.notify_all();
    }
}

/// Waits until there is something to do; whether that is a flush, or `None` at the end.
fn next_round(shared: &Shared, pause: &Pause) -> Option<bool> {
    let mut work = shared.work.lock();
    let mut woken = false;
    while !work.stop {
        // A want that passes is not met sooner because more commits wait for it.
        let paused = matches!(work.flush_failed, Some((kind, _)) if kind != ErrorKind::FreeSpace) && !pause.is_over();
        let flushes = !shared.visible.load().frozen.is_empty() && !paused && (work.flush_failed.is_none() || woken);
        if flushes || work.ahead.is_asked() {
            return Some(flushes);
        }
        shared.flush_wake.wait_for(&mut work, if paused { FLUSH_PAUSE.0 } else { LOOK_AROUND });
        woken = true;
    }
    None
}

/// Makes a delta run of the oldest frozen memtable, whose WAL is free then; false when there is none.
fn flush_oldest(shared: &Shared) -> Result<bool> {
    // The guard of `visible` is given back at once: readers keep what they see.
    let oldest = shared.visible.load().frozen.last().cloned();
    let Some(frozen) = oldest else { return Ok(false) };
    // The reserve is there for this.
    shared.require_space(frozen.length as u64 * (PAIR_BYTES + PAIR_BYTES / 16), 0, "a flush")?;
    let _order = shared.budget.take_for_work(frozen.length as u64 * ORDER_BYTES);
    let mut list = Merged::new(vec![Cursor::Flush(frozen.mem.sorted(frozen.length)?)])?;
    let origin = shared.origin(frozen.batch, false, &frozen.checkpoint);
    let segments = write(shared, &mut list, &origin, Job::Flush(frozen.length))?.segments;
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
    // One that is not seen is removed by the next opening.
    let there = own_files(&*shared.storage).unwrap_or_default();
    let flushed = |own: &Own| matches!(own, Own::Wal(id) if (before..=frozen.wal_id).contains(id));
    let mut files: Vec<String> = there.into_iter().filter(flushed).map(Own::name).collect();
    {
        let mut work = shared.work.lock();
        let room = SPARES.saturating_sub(work.spare.len()).min(files.len());
        work.spare.extend(files.drain(..room));
    }
    // One that stays is removed by the next opening.
    files.iter().for_each(|name| drop(shared.storage.remove(name)));
    shared.counters.flushed();
    Ok(true)
}
