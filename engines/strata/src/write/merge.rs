//! The merging thread: memtables into delta runs, small delta runs into larger ones, all of them into the base.
//!
//! Owns: when something is merged. Must not: be waited for by a reader. Runs on `strata-merge`; `settle` asks it.
//!
//! Delta runs of a like size are merged four at a time, so a pair is rewritten once for each fourfold growth. Once the
//! deltas hold half as much as the base, they are merged into it, a group of segments at a time: each group is
//! installed by itself, so the space that a merge takes on top is that of a group.
//!
//! A commit waits for a flush at most, never for a merge: memtables are flushed while a merge goes on, and the runs that
//! this makes are merged among themselves meanwhile, so that there are never many. Merges keep to a rate as long as
//! nothing waits for them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_api::{Checkpoint, Error, ErrorKind, Key, PAIR_BYTES, Result, Value};

use crate::engine::Shared;
use crate::format::footer::Origin;
use crate::format::wal;
use crate::read::cursor::{Cursor, Keep, Merged, RunCursor};
use crate::read::segment::Segment;
use crate::read::version::{Run, Version};
use crate::write::writer::SegmentWriter;

/// Delta runs of one size before they are merged.
const FANOUT: usize = 4;
/// The base is merged once the deltas hold this part of it (one in), or this many memtables while it is small.
const BASE_SHARE: u64 = 2;
const DELTA_MEMS_MIN: u64 = 16;
/// The same where filters no longer fit into the memory.
const BASE_SHARE_UNFILTERED: u64 = 16;
/// WAL files that are kept to be overwritten.
const SPARES: usize = 2;
/// What a merge may write a second while nobody waits for it, in bytes: a part of what any flash drive does, so that
/// reads seldom meet it.
const MERGE_BYTES_PER_S: f64 = (128 << 20) as f64;
/// A round that failed is tried again after this, or when asked; pages that are wholly in memory are looked for as often.
const RETRY: Duration = Duration::from_secs(1);

/// The thread.
pub(crate) fn run(shared: &Shared) {
    // Merging yields to gets and commits. Without the right to it, it runs as everything else does.
    // SAFETY: setpriority takes no pointers; 0 names the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
    let _ended = Ended(shared);
    loop {
        let settle = {
            let mut work = shared.work.lock();
            let idle = |work: &crate::engine::Work| {
                !work.stop && !work.settle && (work.failed.is_some() || shared.visible.load().frozen.is_empty())
            };
            if idle(&work) {
                if work.failed.is_some() || any_small_pages(shared) {
                    shared.wake.wait_for(&mut work, RETRY);
                } else {
                    shared.wake.wait(&mut work);
                }
            }
            if work.stop {
                return;
            }
            work.settle
        };
        make_pages_huge(shared);
        let outcome = round(shared, settle);
        let mut work = shared.work.lock();
        if work.stop {
            // A merge that was cut short is done again after the next opening.
            return;
        }
        if outcome.is_ok() && settle {
            work.settle = false;
        }
        work.failed = outcome.err().map(|error| {
            let error = if error.kind() == ErrorKind::FreeSpace { error } else { shared.poison(error) };
            (error.kind(), error.to_string())
        });
        if work.failed.is_some() {
            work.settle = false;
        }
        work.rounds += 1;
        shared.done.notify_all();
    }
}

/// Whether pages in memory wait to become huge ones.
fn any_small_pages(shared: &Shared) -> bool {
    shared.visible.load().version.segments().filter_map(|one| one.resident()).any(|pages| pages.is_small())
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

/// Merges everything into the base and waits for it. The caller has drained the memtables.
pub(crate) fn settle(shared: &Shared) -> Result<()> {
    let mut work = shared.work.lock();
    work.settle = true;
    let since = work.rounds;
    shared.wake.notify_all();
    while work.settle || work.rounds == since {
        work.check_alive()?;
        shared.done.wait(&mut work);
    }
    match &work.failed {
        Some((kind, why)) => Err(Error::new(*kind, why.clone())),
        None => Ok(()),
    }
}

fn round(shared: &Shared, settle: bool) -> Result<()> {
    while flush_oldest(shared)? {
        if !settle {
            merge_deltas(shared, None)?;
        }
    }
    let due = debt(shared);
    if due.records > 0 && (settle || due.parts >= 1.0) {
        merge_base(shared)?;
    }
    shared.use_freed_memory()
}

/// What the deltas hold.
struct Debt {
    records: u64,
    /// Of what makes a merge into the base due.
    parts: f64,
}

fn debt(shared: &Shared) -> Debt {
    let now = shared.visible.load();
    let records: u64 = now.version.deltas.iter().map(|run| run.records()).sum();
    let base = now.version.base.records();
    // A delta without a filter costs a read for every absent key: then there is no memory for so many deltas.
    let unfiltered = now.version.deltas.iter().flat_map(|run| run.segments()).any(|one| one.planes_loaded() == 0);
    let share = if unfiltered { BASE_SHARE_UNFILTERED } else { BASE_SHARE };
    let due = (base / share).max(DELTA_MEMS_MIN * now.active.capacity() as u64);
    Debt { records, parts: records as f64 / due as f64 }
}

/// Makes a delta run of the oldest frozen memtable, whose WAL is free then; false when there is none.
fn flush_oldest(shared: &Shared) -> Result<bool> {
    // The guard of `visible` is given back at once: readers keep what they see.
    let oldest = shared.visible.load().frozen.last().cloned();
    let Some(frozen) = oldest else { return Ok(false) };
    let records = frozen.mem.sorted(frozen.length);
    let mut list = Merged::new(vec![Cursor::List(records.into_iter())])?;
    let origin = shared.origin(frozen.batch, false, &frozen.checkpoint);
    let segments = write(shared, &mut list, &origin, None)?;
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
            manifest.checkpoint = frozen.checkpoint;
        },
        |visible| {
            visible.frozen.pop();
        },
    )?;
    drop(manifest);
    shared.counters.flushed();
    let mut work = shared.work.lock();
    let free: Vec<String> = shared.storage.list().unwrap_or_default();
    for name in (before..=frozen.wal_id).map(wal::name).filter(|name| free.contains(name)) {
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

/// Merges the newest delta runs while there are enough of one size; those from `busy` on are being merged already.
fn merge_deltas(shared: &Shared, busy: Option<&Arc<Run>>) -> Result<()> {
    loop {
        let (mut deltas, memtable) = {
            let now = shared.visible.load();
            (now.version.deltas.clone(), now.active.capacity() as u64)
        };
        let end = deltas.iter().position(|run| busy.is_some_and(|busy| Arc::ptr_eq(run, busy)));
        deltas.truncate(end.unwrap_or(deltas.len()));
        let Some(count) = like_sized(&deltas, memtable) else { return Ok(()) };
        let merged = &deltas[..count];
        let cursors = merged.iter().map(|run| RunCursor::boxed(run, &[0; 32], None, Keep::Nothing)).collect();
        let segments =
            write(shared, &mut Merged::new(cursors)?, &newest_origin(shared, merged, false), Some(&merged[0]))?;
        let mut manifest = shared.install.lock();
        let mut version = Version::clone(&shared.visible.load().version);
        // Newer runs may have been flushed meanwhile, and stand before these.
        let start = version.deltas.iter().position(|run| Arc::ptr_eq(run, &merged[0])).unwrap_or(0);
        version.deltas.splice(start..start + count, [Arc::new(Run::new(segments))]);
        shared.install(&mut manifest, version, |_| (), |_| ())?;
        shared.counters.merged();
    }
}

/// How many of the newest runs are to be merged: all up to the last of at least [`FANOUT`] of one tier.
fn like_sized(deltas: &[Arc<Run>], memtable: u64) -> Option<usize> {
    let tier = |run: &Arc<Run>| (run.records() / memtable.max(1)).max(1).ilog2() / FANOUT.ilog2();
    let mut end = 0;
    while end < deltas.len() {
        let of = tier(&deltas[end]);
        let count = deltas[end..].iter().take_while(|run| tier(run) <= of).count();
        if count >= FANOUT {
            return Some(end + count);
        }
        end += count;
    }
    None
}

/// Merges all delta runs into the base, one group of its segments after the other.
fn merge_base(shared: &Shared) -> Result<()> {
    let deltas = shared.visible.load().version.deltas.clone();
    let Some(newest) = deltas.first() else { return Ok(()) };
    let mut from: Key = [0; 32];
    loop {
        let base = Arc::clone(&shared.visible.load().version.base);
        let start = base.segments().partition_point(|segment| segment.info.last < from);
        let (mut end, mut records) = (start, 0);
        while let Some(segment) = base.segments().get(end)
            && (end == start || records + segment.info.records <= shared.sizes.segment_records)
        {
            records += segment.info.records;
            end += 1;
        }
        let to = base.segments().get(end).map(|segment| segment.info.first);
        let group = Arc::new(Run::new(base.segments()[start..end].to_vec()));
        let mut cursors: Vec<Cursor> =
            deltas.iter().map(|run| RunCursor::boxed(run, &from, to, Keep::Nothing)).collect();
        cursors.push(RunCursor::boxed(&group, &from, to, Keep::Nothing));
        let written = write(shared, &mut Merged::new(cursors)?, &newest_origin(shared, &deltas, true), Some(newest))?;
        replace_group(shared, &group, written, to.is_none().then_some(&deltas[..]))?;
        match to {
            Some(to) => from = to,
            None => break,
        }
    }
    shared.counters.merged();
    Ok(())
}

/// Puts `written` in the place of `group` in the base; `done` are the deltas that are wholly in the base now.
fn replace_group(shared: &Shared, group: &Run, written: Vec<Arc<Segment>>, done: Option<&[Arc<Run>]>) -> Result<()> {
    let mut manifest = shared.install.lock();
    let mut version = Version::clone(&shared.visible.load().version);
    let mut segments = version.base.segments().to_vec();
    segments.retain(|segment| !group.segments().iter().any(|merged| Arc::ptr_eq(segment, merged)));
    segments.extend(written);
    segments.sort_by_key(|segment| segment.info.first);
    version.base = Arc::new(Run::new(segments));
    // Runs that were flushed meanwhile are newer and stay.
    version.deltas.retain(|run| !done.is_some_and(|done| done.iter().any(|merged| Arc::ptr_eq(run, merged))));
    shared.install(&mut manifest, version, |_| (), |_| ())
}

/// Records written between two looks at the memtables, at most: some ten milliseconds.
const FLUSH_CHECK_RECORDS: u64 = 1 << 16;

/// Where the records of these runs come from, newest first.
fn newest_origin(shared: &Shared, runs: &[Arc<Run>], base: bool) -> Origin {
    let newest = runs.iter().flat_map(|run| run.segments()).next();
    match newest.map(|segment| segment.origin()) {
        Some(newest) => Origin { base, ..newest.clone() },
        None => shared.origin(0, base, &Checkpoint::default()),
    }
}

/// Writes records as segments; the base has no tombstones. A merge names the newest run that it replaces.
fn write(
    shared: &Shared,
    records: &mut Merged,
    origin: &Origin,
    merging: Option<&Arc<Run>>,
) -> Result<Vec<Arc<Segment>>> {
    let mut segments = Vec::new();
    let written = write_into(shared, records, origin, merging, &mut segments);
    if written.is_err() {
        // No manifest will name them.
        segments.iter().for_each(|segment| segment.retire());
    }
    written.map(|()| segments)
}

fn write_into(
    shared: &Shared,
    records: &mut Merged,
    origin: &Origin,
    merging: Option<&Arc<Run>>,
    segments: &mut Vec<Arc<Segment>>,
) -> Result<()> {
    let mut output = Output { shared, origin, keep: true, writer: None, segments };
    // Some looks a group, also where groups are small.
    let check = FLUSH_CHECK_RECORDS.min((shared.sizes.segment_records / 4).max(1));
    let (mut seen, mut pace) = (0u64, Pace::new());
    while let Some((key, value)) = records.next()? {
        seen += 1;
        if let Some(newest) = merging
            && seen.is_multiple_of(check)
        {
            pace.keep(shared, check * PAIR_BYTES)?;
            while flush_oldest(shared)? {
                merge_deltas(shared, Some(newest))?;
            }
        }
        if origin.base && value.is_none() {
            continue;
        }
        output.push(&key, value.as_ref())?;
    }
    output.finish()
}

/// The rate of a merge.
struct Pace {
    since: Instant,
    bytes: u64,
}

impl Pace {
    fn new() -> Self {
        Self { since: Instant::now(), bytes: 0 }
    }

    /// Waits until `bytes` more may be written; not at all while somebody waits for this merge or for a flush.
    fn keep(&mut self, shared: &Shared, bytes: u64) -> Result<()> {
        self.bytes += bytes;
        let due = self.since + Duration::from_secs_f64(self.bytes as f64 / MERGE_BYTES_PER_S);
        // Twice as much as makes a merge due: changes come faster than the rate.
        let late = debt(shared).parts >= 2.0;
        let mut work = shared.work.lock();
        loop {
            if work.stop {
                return Err(Error::new(ErrorKind::Retry, "the store is being closed"));
            }
            let waited_for = late || work.settle || !shared.visible.load().frozen.is_empty();
            if waited_for || Instant::now() >= due {
                break;
            }
            shared.wake.wait_until(&mut work, due);
        }
        // What was done faster or slower than the rate is no debt of what follows.
        *self = Self::new();
        Ok(())
    }
}

/// Writes ascending pairs as segments of the base.
pub(crate) fn write_pairs(shared: &Shared, pairs: &[(Key, Value)], origin: &Origin) -> Result<Vec<Arc<Segment>>> {
    let mut segments = Vec::new();
    // A load is followed by another opening, which divides the memory anew.
    let mut output = Output { shared, origin, keep: false, writer: None, segments: &mut segments };
    let written =
        pairs.iter().try_for_each(|(key, value)| output.push(key, Some(value))).and_then(|()| output.finish());
    if written.is_err() {
        segments.iter().for_each(|segment| segment.retire());
    }
    written.map(|()| segments)
}

/// Cuts records into segments.
struct Output<'a> {
    shared: &'a Shared,
    origin: &'a Origin,
    /// Whether pages stay in memory where there is room.
    keep: bool,
    writer: Option<SegmentWriter>,
    segments: &'a mut Vec<Arc<Segment>>,
}

impl Output<'_> {
    fn push(&mut self, key: &Key, value: Option<&Value>) -> Result<()> {
        let open = match &mut self.writer {
            Some(open) => open,
            None => {
                let kept = if self.keep { self.shared.room_for_pages(self.shared.sizes.segment_records) } else { None };
                self.writer.insert(SegmentWriter::create(
                    &self.shared.storage,
                    self.shared.new_id(),
                    self.origin,
                    kept,
                )?)
            }
        };
        open.push(key, value)?;
        if open.records() == self.shared.sizes.segment_records { self.finish() } else { Ok(()) }
    }

    /// Completes the segment that is open, if one is.
    fn finish(&mut self) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            self.segments.push(self.shared.open_segment(writer.finish()?)?);
        }
        Ok(())
    }
}
