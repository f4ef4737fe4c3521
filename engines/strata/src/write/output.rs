//! Writing of runs: records into segments at a limited rate, with regular checks for more urgent work of this thread.
//!
//! Owns: how a merge shares the disk, and how the segments of flushes, merges and loads are opened. Must not: decide
//! which runs are merged. Runs on `strata-flush` and `strata-merge`, and for a sorted load on the thread that loads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_api::{Checkpoint, Error, ErrorKind, Key, PAIR_BYTES, Result, Value};

use crate::format::footer::{MergedRange, Origin};
use crate::read::cursor::Merged;
use crate::read::segment::{self, Segment};
use crate::sizes::usual_segment_records;
use crate::write::plan::{is_held, is_late};
use crate::write::segment_writer::{LOAD_THREADS, Room, SegmentWriter, Written};
use crate::write::shared::Shared;
use crate::write::unnamed::Unnamed;

/// Write rate of a merge while nobody waits for it, in bytes a second: a part of the rate of any flash drive, so that
/// reads seldom compete with it.
const MERGE_BYTES_PER_S: f64 = (128 << 20) as f64;
/// As [`MERGE_BYTES_PER_S`], if commits have not filled a memtable for [`QUIET`]: then it is of no use to end soon, and on a
/// slow device reads would wait for the merge.
const MERGE_BYTES_PER_S_QUIET: f64 = MERGE_BYTES_PER_S / 4.0;
/// Long enough for commits at a steady rate that merges can barely follow, which fill a memtable in a second or two.
const QUIET: Duration = Duration::from_secs(5);
/// Largest number of records written between two checks for other work: a few milliseconds.
const LOOK_RECORDS: u64 = 1 << 14;
/// Number of segments of a large memtable. The more there are, the sooner a part of it can be dropped after a merge.
const FLUSH_SEGMENTS: u64 = 4;
/// Least number of records of such a part: 1 MiB.
const FLUSH_RECORDS_MIN: u64 = 1 << 14;

/// The kind of run that is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    /// A memtable of at most this many records, as one run.
    Flush(usize),
    /// Several delta runs as one, a segment of it at a time.
    Deltas,
    /// Delta runs merged into a group of the base.
    Base(BaseStep),
    /// Records of a range of the base that cannot be read, as a delta run.
    LeftOut(BaseStep),
}

/// A step of the merge into the base.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct BaseStep {
    /// The last key of the group. Records after it are written a segment at a time, because they replace no segment of the
    /// base.
    pub(crate) last: Option<Key>,
    /// Number of full segments after which the step ends within its group.
    pub(crate) segments_max: u64,
    /// The range of keys that is left to write, for the footers of its segments.
    pub(crate) left: MergedRange,
    /// Estimated number of records in the range.
    pub(crate) records: u64,
}

impl BaseStep {
    /// Returns the size of equal segments that is nearest to a usual one: a remainder would be a small segment of its own
    /// in every round. It is half of a usual one at least, because `records` is an estimate.
    fn segment_records(self, usual: u64) -> u64 {
        let segments = (self.records + usual / 2) / usual.max(1);
        self.records.div_ceil(segments.max(1)).max(usual / 2).max(1)
    }
}

impl Job {
    /// Whether the job may stop before this key and continue later, after this number of full segments.
    fn may_end_before(self, key: &Key, segments: u64) -> bool {
        match self {
            Self::Deltas => true,
            Self::Base(step) => segments >= step.segments_max || step.last.is_none_or(|last| last < *key),
            Self::Flush(_) | Self::LeftOut(_) => false,
        }
    }
}

/// Result of a job, or of as much of it as fits into a segment.
pub(crate) struct Progress {
    pub(crate) segments: Vec<Arc<Segment>>,
    /// The first key that is left; `None` if the job is done.
    pub(crate) next: Option<Key>,
}

/// Writes records as segments. Tombstones are left out of the base.
pub(crate) fn write(shared: &Shared, records: &mut Merged, origin: &Origin, job: Job) -> Result<Progress> {
    let usual = shared.common.usual_segment_records();
    let records_max = match job {
        Job::Flush(records) => (records as u64).div_ceil(FLUSH_SEGMENTS).max(FLUSH_RECORDS_MIN).min(usual),
        Job::Base(step) => step.segment_records(usual),
        Job::Deltas | Job::LeftOut(_) => usual,
    };
    let mut output = Output { shared, origin, job, records_max, writer: None, segments: Unnamed::default() };
    // Several checks a group, even if groups are small.
    let check = LOOK_RECORDS.min((usual / 4).max(1));
    let (mut seen, mut pace) = (0u64, Pace::new());
    while let Some((key, value)) = records.next()? {
        seen += 1;
        if output.is_full() && job.may_end_before(&key, output.segments.0.len() as u64 + 1) {
            return output.end(Some(key));
        }
        if seen.is_multiple_of(check) {
            match job {
                // Commits continue during a flush, so prepare for them.
                Job::Flush(_) => shared.commits.work_ahead(),
                _ => {
                    pace.keep(shared, check * PAIR_BYTES)?;
                    look(shared)?;
                }
            }
        }
        if origin.base {
            // The record comes from a delta run and is new to the base, so a cached record of the key is out of date.
            if !records.is_of_oldest() {
                shared.memory.reads.cache.forget(&key, shared.memory.reads.seed.hash(&key));
            }
            if value.is_none() {
                continue;
            }
        }
        output.push(&key, value.as_ref())?;
    }
    output.end(None)
}

/// Returns the origin of the records of a segment that is written now.
pub(crate) fn origin_of(shared: &Shared, batch: u64, base: bool, checkpoint: &Checkpoint) -> Origin {
    let seed = shared.memory.reads.seed;
    Origin { seed, batch, base, checkpoint: checkpoint.clone(), part: false, merged: None }
}

/// Completes a segment and opens it. Its directory, and the planes for which there is room, stay in memory.
fn complete(shared: &Shared, writer: SegmentWriter) -> Result<Arc<Segment>> {
    shared.memory.make_room(writer.index_bytes());
    let Written { footer, index, kept } = writer.finish(&shared.memory.reads)?;
    let name = segment::name(footer.info.id);
    let segment = Segment::written(&shared.common.storage, footer, index, &shared.memory.reads).map_err(|e| {
        // No manifest names it; the next opening removes it if it stays.
        shared.common.storage.remove(&name).ok();
        unread(e)
    })?;
    if let Some(pages) = kept {
        segment.adopt_pages(pages);
    }
    shared.common.counters.segment_bytes.add(segment.file_bytes());
    Ok(segment)
}

/// Turns the error of opening a new segment into one that may be retried: no manifest names the segment, so it can be
/// written again.
fn unread(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Reopen => Error::with_source(ErrorKind::Retry, error.to_string(), error),
        _ => error,
    }
}

/// Does the work that others wait for during a merge: drops garbage, pays back memory debt, checks the disk space.
fn look(shared: &Shared) -> Result<()> {
    shared.runs.garbage.sweep();
    if shared.memory.reads.budget.left() < 0 {
        shared.memory.balance(0);
    }
    // Other programs write to the same disk.
    shared.common.require_space(0, shared.common.reserve_bytes, "a merge")
}

/// Limits the rate of a merge.
struct Pace {
    since: Instant,
    bytes: u64,
}

impl Pace {
    fn new() -> Self {
        Self { since: Instant::now(), bytes: 0 }
    }

    /// Waits until `bytes` more may be written, but not while somebody waits for this merge.
    fn keep(&mut self, shared: &Shared, bytes: u64) -> Result<()> {
        self.bytes += bytes;
        let (held, late) = {
            let now = shared.common.newest.load();
            (is_held(&now), is_late(&now))
        };
        let mut requests = shared.common.mailbox.lock();
        let quiet = requests.filled_at.is_none_or(|at| at.elapsed() > QUIET);
        let rate = if quiet { MERGE_BYTES_PER_S_QUIET } else { MERGE_BYTES_PER_S };
        let due = self.since + Duration::from_secs_f64(self.bytes as f64 / rate);
        loop {
            if requests.stop {
                return Err(Error::new(ErrorKind::Retry, "the store is being closed"));
            }
            let waited_for = held || (late && !quiet) || requests.settles_asked > requests.settles_over;
            if waited_for || Instant::now() >= due {
                break;
            }
            shared.common.mailbox.wake_merge.wait_until(&mut requests, due);
        }
        // Start over, so that a deviation from the rate so far is not made up for later.
        *self = Self::new();
        Ok(())
    }
}

/// Writes ascending pairs as segments of the base, one after the other. Two threads fill each segment.
pub(crate) fn write_pairs(shared: &Shared, pairs: &[(Key, Value)], origin: &Origin) -> Result<Vec<Arc<Segment>>> {
    let write = |pairs: &[(Key, Value)], part: bool| {
        let origin = Origin { part, ..origin.clone() };
        // Readers do not ask for pages during a load, so none are kept in memory.
        let room = Room::of(LOAD_THREADS, pairs.len() as u64, &shared.memory.reads.budget, None);
        let mut writer = SegmentWriter::create(&shared.common.storage, shared.runs.new_id(), &origin, room)?;
        writer.fill(pairs)?;
        complete(shared, writer)
    };
    let mut segments = Unnamed::default();
    let base_records = shared.common.newest.load().version.base.records() + pairs.len() as u64;
    let records_max = usual_segment_records(shared.common.sizes.segment_records, base_records);
    let mut chunks = pairs.chunks(records_max as usize).peekable();
    while let Some(chunk) = chunks.next() {
        let part = chunks.peek().is_some();
        if !part {
            segments.make_names_durable(&*shared.common.storage)?;
        }
        segments.0.push(write(chunk, part)?);
    }
    Ok(segments.keep())
}

/// Cuts a stream of records into segments.
struct Output<'a> {
    shared: &'a Shared,
    origin: &'a Origin,
    job: Job,
    /// Largest number of records of a segment.
    records_max: u64,
    writer: Option<SegmentWriter>,
    segments: Unnamed,
}

impl Output<'_> {
    /// Whether the next record begins another segment.
    fn is_full(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| writer.records() == self.records_max)
    }

    fn push(&mut self, key: &Key, value: Option<&Value>) -> Result<()> {
        // A full segment waits for the next record, because only then is it known not to be the last.
        if self.is_full() {
            self.finish(Some(*key))?;
        }
        let open = match &mut self.writer {
            Some(open) => open,
            None => {
                let kept = self.shared.memory.room_for_pages(self.records_max);
                let room = Room::of(1, self.records_max, &self.shared.memory.reads.budget, kept);
                let id = self.shared.runs.new_id();
                self.writer.insert(SegmentWriter::create(&self.shared.common.storage, id, self.origin, room)?)
            }
        };
        open.push(key, value)
    }

    /// Completes the last segment, if there is one. `next` is the first key that is left.
    fn end(mut self, next: Option<Key>) -> Result<Progress> {
        if let (Job::Base(step), Some(next)) = (&mut self.job, next) {
            step.left.to = Some(next);
        }
        self.finish(None)?;
        Ok(Progress { segments: self.segments.keep(), next })
    }

    /// Completes the segment that is being written, if there is one. `next` is the first key of the one after it.
    fn finish(&mut self, next: Option<Key>) -> Result<()> {
        if let Some(mut writer) = self.writer.take() {
            if matches!(self.job, Job::Flush(_)) {
                // All segments of a flush but the last are marked as parts: see `Origin`.
                writer.set_part(next.is_some());
                if next.is_none() {
                    self.segments.make_names_durable(&*self.shared.common.storage)?;
                }
            }
            if let Job::Base(step) | Job::LeftOut(step) = &mut self.job {
                let MergedRange { from, to, batch } = step.left;
                writer.set_merged(MergedRange { from, to: next.or(to), batch });
                step.left.from = next.unwrap_or(from);
            }
            self.segments.0.push(complete(self.shared, writer)?);
        }
        Ok(())
    }
}
