//! Writing of runs: records into segments at a limited rate, with regular checks for more urgent work of this thread.
//!
//! Owns: how a merge shares the disk. Must not: decide which runs are merged. Runs on `strata-flush` and
//! `strata-merge`, and for a sorted load on the thread that loads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_api::{Error, ErrorKind, Key, PAIR_BYTES, Result, Value};

use crate::format::footer::Origin;
use crate::read::cursor::Merged;
use crate::read::segment::Segment;
use crate::write::fill::THREADS;
use crate::write::limits::{DEBT_SLOW, RUNS_SLOW, RUNS_USUAL};
use crate::write::plan::debt;
use crate::write::shared::Shared;
use crate::write::writer::{Room, SegmentWriter};

/// Write rate of a merge while nobody waits for it, in bytes a second: a part of the rate of any flash drive, so that
/// reads seldom compete with it.
const MERGE_BYTES_PER_S: f64 = (128 << 20) as f64;
/// Largest number of records written between two checks for other work: some ten milliseconds.
const LOOK_RECORDS: u64 = 1 << 16;

/// The kind of run that is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    /// A memtable of at most this many records, as one run.
    Flush(usize),
    /// Several delta runs as one, a segment of it at a time.
    Deltas,
    /// Delta runs merged into a group of the base whose last key this is. Records after that key are written a segment
    /// at a time, because they replace no segment of the base.
    Base(Option<Key>),
    /// Records of a range of the base that cannot be read, as a delta run.
    LeftOut,
}

impl Job {
    /// Whether the job may stop before this key and continue later.
    fn may_end_before(self, key: &Key) -> bool {
        match self {
            Self::Deltas => true,
            Self::Base(last) => last.is_none_or(|last| last < *key),
            Self::Flush(_) | Self::LeftOut => false,
        }
    }
}

/// Result of a job, or of as much of it as fits into a segment.
pub(crate) struct Progress {
    pub(crate) segments: Vec<Arc<Segment>>,
    /// The first key that is left; `None` if the job is done.
    pub(crate) next: Option<Key>,
}

impl Shared {
    /// Checks that there is disk space for `bytes` in addition to `reserve_bytes`. Otherwise gives up the WAL files
    /// that wait to be overwritten, and checks again.
    ///
    /// # Errors
    /// `FreeSpace` naming both numbers; I/O errors of asking for the free space.
    pub(crate) fn require_space(&self, bytes: u64, reserve_bytes: u64, for_what: &str) -> Result<()> {
        let shown = || self.storage.shown();
        let ask = || {
            let free = self.storage.free_bytes();
            free.map_err(|e| Error::io(format!("cannot ask for the free space: dir={}", shown()), e))
        };
        let short_of = |free: u64| bytes.saturating_add(reserve_bytes).saturating_sub(free);
        let mut free = ask()?;
        if short_of(free) > 0 && self.remove_spares() {
            free = ask()?;
        }
        let short = short_of(free);
        if reserve_bytes > 0 {
            self.counters.merge_short(short);
        }
        if short == 0 {
            return Ok(());
        }
        let message = format!(
            "not enough free disk for {for_what}: dir={} needed_bytes={bytes} reserve_bytes={reserve_bytes} free_bytes={free}",
            shown()
        );
        Err(Error::new(ErrorKind::FreeSpace, message))
    }
}

/// Writes records as segments. Tombstones are left out of the base.
pub(crate) fn write(shared: &Shared, records: &mut Merged, origin: &Origin, job: Job) -> Result<Progress> {
    let mut segments = Vec::new();
    match write_into(shared, records, origin, job, &mut segments) {
        Ok(next) => Ok(Progress { segments, next }),
        Err(failed) => {
            // No manifest will name these segments.
            segments.iter().for_each(|segment| segment.retire());
            Err(failed)
        }
    }
}

fn write_into(
    shared: &Shared,
    records: &mut Merged,
    origin: &Origin,
    job: Job,
    segments: &mut Vec<Arc<Segment>>,
) -> Result<Option<Key>> {
    let records_max = match job {
        Job::Flush(records) => (records as u64).min(shared.sizes.segment_records),
        _ => shared.sizes.segment_records,
    };
    let has_parts = matches!(job, Job::Flush(_));
    let mut output = Output { shared, origin, has_parts, records_max, writer: None, segments };
    // Several checks a group, even if groups are small.
    let check = LOOK_RECORDS.min((shared.sizes.segment_records / 4).max(1));
    let (mut seen, mut pace) = (0u64, Pace::new());
    while let Some((key, value)) = records.next()? {
        seen += 1;
        if output.is_full() && job.may_end_before(&key) {
            output.end()?;
            return Ok(Some(key));
        }
        if seen.is_multiple_of(check) {
            match job {
                // Commits continue during a flush, so prepare for them.
                Job::Flush(_) => shared.work_ahead(),
                _ => {
                    pace.keep(shared, check * PAIR_BYTES)?;
                    look(shared)?;
                }
            }
        }
        if origin.base {
            // The record comes from a delta run and is new to the base, so a cached record of the key is out of date.
            if !records.is_of_oldest() {
                shared.reads.cache.forget(&key, shared.reads.seed.hash(&key));
            }
            if value.is_none() {
                continue;
            }
        }
        output.push(&key, value.as_ref())?;
    }
    output.end()?;
    Ok(None)
}

/// Does the work that others wait for during a merge: drops garbage, pays back memory debt, checks the disk space.
fn look(shared: &Shared) -> Result<()> {
    shared.garbage.sweep();
    if shared.budget.left() < 0 {
        shared.balance(0);
    }
    // Other programs write to the same disk.
    shared.require_space(0, shared.reserve_bytes, "a merge")
}

/// Whether merges must run at full speed: half way from the usual state to the point where commits are slowed.
fn is_late(shared: &Shared) -> bool {
    let now = shared.visible.load();
    now.version.deltas.len() >= (RUNS_USUAL + RUNS_SLOW) / 2 || debt(&now).parts_filtered >= (1.0 + DEBT_SLOW) / 2.0
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
        let due = self.since + Duration::from_secs_f64(self.bytes as f64 / MERGE_BYTES_PER_S);
        let late = is_late(shared);
        let mut work = shared.work.lock();
        loop {
            if work.stop {
                return Err(Error::new(ErrorKind::Retry, "the store is being closed"));
            }
            let waited_for = late || work.settles_asked > work.settles_over;
            if waited_for || Instant::now() >= due {
                break;
            }
            shared.wake.wait_until(&mut work, due);
        }
        // Start over, so that a deviation from the rate so far is not made up for later.
        *self = Self::new();
        Ok(())
    }
}

/// Writes ascending pairs as segments of the base, one after the other. Two threads fill each segment.
pub(crate) fn write_pairs(shared: &Shared, pairs: &[(Key, Value)], origin: &Origin) -> Result<Vec<Arc<Segment>>> {
    let last = pairs.last().map(|(key, _)| *key);
    let write = |part: &[(Key, Value)]| {
        let origin = Origin { part: part.last().map(|(key, _)| *key) != last, ..origin.clone() };
        // Readers do not ask for pages during a load, so none are kept in memory.
        let room = Room::for_load(THREADS, part.len() as u64, &shared.budget);
        let mut writer = SegmentWriter::create(&shared.storage, shared.new_id(), &origin, room)?;
        writer.fill(part)?;
        shared.complete(writer)
    };
    let mut segments = Vec::new();
    for part in pairs.chunks(shared.sizes.segment_records as usize) {
        match write(part) {
            Ok(segment) => segments.push(segment),
            Err(failed) => {
                segments.iter().for_each(|segment: &Arc<Segment>| segment.retire());
                return Err(failed);
            }
        }
    }
    Ok(segments)
}

/// Cuts a stream of records into segments.
struct Output<'a> {
    shared: &'a Shared,
    origin: &'a Origin,
    /// Whether all segments but the last are marked as parts: see [`Origin`].
    has_parts: bool,
    /// Largest number of records of a segment.
    records_max: u64,
    writer: Option<SegmentWriter>,
    segments: &'a mut Vec<Arc<Segment>>,
}

impl Output<'_> {
    /// Whether the next record begins another segment.
    fn is_full(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| writer.records() == self.records_max)
    }

    fn push(&mut self, key: &Key, value: Option<&Value>) -> Result<()> {
        // A full segment waits for the next record, because only then is it known not to be the last.
        if self.is_full() {
            self.finish(self.has_parts)?;
        }
        let open = match &mut self.writer {
            Some(open) => open,
            None => {
                let kept = self.shared.room_for_pages(self.records_max);
                let room = Room::of(self.records_max, &self.shared.budget, kept);
                let id = self.shared.new_id();
                self.writer.insert(SegmentWriter::create(&self.shared.storage, id, self.origin, room)?)
            }
        };
        open.push(key, value)
    }

    /// Completes the last segment, if there is one.
    fn end(&mut self) -> Result<()> {
        self.finish(false)
    }

    fn finish(&mut self, part: bool) -> Result<()> {
        if let Some(mut writer) = self.writer.take() {
            writer.origin.part = part;
            self.segments.push(self.shared.complete(writer)?);
        }
        Ok(())
    }
}
