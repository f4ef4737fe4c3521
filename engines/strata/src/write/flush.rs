//! The flushing thread: it writes memtables as delta runs and prepares for later commits.
//!
//! Owns: when a memtable is flushed, and the reaction to a failure. Must not: merge, because commits wait for this
//! thread. Runs on `strata-flush`.
//!
//! A shortage of descriptors, memory or disk space is waited out, longer each time. Only two failures leave the disk's
//! state unknown and end writing: a failed flush of a file, and a manifest that may or may not be in place.

use std::sync::Arc;
use std::time::Duration;

use engine_api::{ErrorKind, PAIR_BYTES, Result};

use crate::read::cursor::{Cursor, Merged};
use crate::read::version::{Run, Version};
use crate::write::directory::{Own, own_files};
use crate::write::mailbox::{LOOK_AROUND, Pause, Running};
use crate::write::output::{Job, origin_of, write};
use crate::write::shared::Shared;

/// Number of WAL files that are kept to be overwritten.
const SPARES: usize = 2;
/// Shortest and longest pause after failures. A flush is tried again soon, because commits wait for it.
const FLUSH_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Runs the thread `strata-flush` until the store is closed.
pub(crate) fn run(shared: &Shared) {
    let _running = Running(&shared.common.mailbox);
    let mut pause = Pause::new(FLUSH_PAUSE);
    let mut unlisted = None;
    while let Some(flushes) = next_round(shared, &pause) {
        shared.commits.work_ahead();
        if !flushes {
            continue;
        }
        let flushed = flush_oldest(shared, &mut unlisted);
        let mut requests = shared.common.mailbox.lock();
        pause.after(flushed.is_err());
        requests.flush_failed = flushed.err().map(|error| shared.common.failure(error));
        requests.flushes_tried += 1;
        // Notify under the lock that waiters check under, so that none misses it.
        shared.common.mailbox.done.notify_all();
        // There may now be enough runs for a merge.
        shared.common.mailbox.wake_merge.notify_all();
        drop(requests);
        // After an opening `strata-merge` holds the lock while it reads all filters, and commits wait for this thread.
        shared.memory.balance_soon();
    }
}

/// Waits for something to do. Returns whether there is a memtable to flush, or `None` when the store is closed.
fn next_round(shared: &Shared, pause: &Pause) -> Option<bool> {
    let mut requests = shared.common.mailbox.lock();
    let mut woken = false;
    while !requests.stop {
        // More waiting commits do not end a shortage sooner, so they do not shorten the pause.
        let paused =
            matches!(requests.flush_failed, Some((kind, _)) if kind != ErrorKind::FreeSpace) && !pause.is_over();
        let flushes =
            !shared.common.newest.load().frozen.is_empty() && !paused && (requests.flush_failed.is_none() || woken);
        if flushes || requests.ahead.is_asked() {
            return Some(flushes);
        }
        shared.common.mailbox.wake_flush.wait_for(&mut requests, if paused { FLUSH_PAUSE.0 } else { LOOK_AROUND });
        woken = true;
    }
    None
}

/// Writes the oldest frozen memtable as a delta run and frees its WAL. Returns false if there is none. `unlisted` is
/// the lowest number of the WAL files that nobody needs any more, if they could not be listed before.
fn flush_oldest(shared: &Shared, unlisted: &mut Option<u64>) -> Result<bool> {
    // Drop the guard of `visible` at once; the frozen memtable is kept by its own reference.
    let oldest = shared.common.newest.load().frozen.last().cloned();
    let Some(frozen) = oldest else { return Ok(false) };
    shared.common.poison.check()?;
    // The flush may use the disk reserve, which exists for it.
    shared.common.require_space(frozen.length as u64 * (PAIR_BYTES + PAIR_BYTES / 16), 0, "a flush")?;
    let mut list = Merged::new(vec![Cursor::Mem(frozen.mem.ascending(frozen.length, &[0; 32])?)])?;
    let origin = origin_of(shared, frozen.batch, false, &frozen.checkpoint);
    let segments = write(shared, &mut list, &origin, Job::Flush(frozen.length))?.segments;
    let mut manifest = shared.runs.lock();
    let mut version = Version::clone(&shared.common.newest.load().version);
    if !segments.is_empty() {
        version.deltas.insert(0, Arc::new(Run::joining(segments, version.merge_at)));
    }
    let before = unlisted.unwrap_or(manifest.wal_floor);
    shared.runs.install(
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
    // A reader that keeps the memtable keeps its memory from others. It mostly comes back soon, so it counts as work.
    let share = shared.memory.reads.budget.take_for_work(frozen.mem.bytes(frozen.length));
    shared.runs.garbage.hold(Arc::clone(&frozen.mem) as _, Some(share));
    // Without a free descriptor the directory cannot be listed; the next flush does it.
    let there = own_files(&*shared.common.storage);
    *unlisted = there.is_err().then_some(before);
    let there = there.unwrap_or_default();
    let flushed = |own: &Own| matches!(own, Own::Wal(id) if (before..=frozen.wal_id).contains(id));
    let mut files: Vec<String> = there.into_iter().filter(flushed).map(Own::name).collect();
    {
        let mut requests = shared.common.mailbox.lock();
        let room = SPARES.saturating_sub(requests.spare.len()).min(files.len());
        requests.spare.extend(files.drain(..room));
    }
    // The next opening removes a file that stays.
    files.iter().for_each(|name| drop(shared.common.storage.remove(name)));
    shared.common.counters.flushes.add(1);
    Ok(true)
}
