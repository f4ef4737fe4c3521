//! Merges in steps: of delta runs with each other, and of delta runs into the base.
//!
//! Owns: which merges are in progress and where each continues. Must not: wait, or decide about failures. Runs on
//! `strata-merge`.
//!
//! A merge of delta runs keeps the segments it has written until the last one, and then replaces its runs by them at
//! once. No run is in two of these merges.
//!
//! The merge into the base goes round the keys without an end, and rests while the deltas are small. Each step replaces a
//! group of segments of the base, with the records that all deltas have in its range. Where these are too many for a step, it
//! ends among them, and the rest of the group stands as a segment of its own. Groups in whose range no delta has a segment are
//! passed by. Segments of the deltas are dropped as
//! soon as the base has their records ([`Version::merge_to`]), and a run goes when the merge has come round to where it
//! began with the run. So the map is complete at every moment, and the deltas take little more space than their unmerged
//! records.
//!
//! Newer and older merges take turns, so that neither keeps the other from ending.

use std::collections::BTreeSet;
use std::sync::Arc;

use engine_api::{Checkpoint, Error, ErrorKind, Key, Result};

use crate::format::footer::{MergedRange, Origin, SegmentInfo};
use crate::read::cursor::{Cursor, Merged, RunCursor, Window};
use crate::read::segment::Segment;
use crate::read::version::{Run, Version, records_from};
use crate::read::visible::Visible;
use crate::write::output::{BaseStep, Job, Progress, origin_of, write};
use crate::write::plan::{batch_of, debt, due, groups_from, has_too_many_runs, mergeable};
use crate::write::shared::Shared;
use crate::write::unnamed::Unnamed;

/// Size in bytes of a record in a segment, with its part of the filters and of the directory.
const RECORD_BYTES: u64 = 72;

/// Number of segments of delta records after which a step of the merge into the base ends within its group, so that no step
/// takes long, however many records the deltas have in a narrow range of the keys.
const STEP_SEGMENTS: u64 = 4;

/// The merges in progress. How far the merge into the base is stands in the version.
#[derive(Default)]
pub(crate) struct Merging {
    /// Merges of delta runs, that of the newest runs first.
    deltas: Vec<DeltaMerge>,
    /// Whether the older merge has the next turn if both have work.
    older_next: bool,
    settling: Option<Settling>,
    /// The last request to settle that is done.
    settled: Option<u64>,
}

/// A request to settle that is being done.
struct Settling {
    request: u64,
    /// Numbers of the delta segments that were there when it began.
    segments: BTreeSet<u64>,
}

/// A merge of delta runs.
struct DeltaMerge {
    /// The runs that it merges, newest first.
    runs: Vec<Arc<Run>>,
    /// Segments written so far, which no manifest names yet.
    written: Unnamed,
    /// The first key that is not merged yet.
    from: Key,
}

impl DeltaMerge {
    /// Writes the next segment. Returns whether it was the last, in which case the runs are replaced.
    fn step(&mut self, shared: &Shared) -> Result<bool> {
        self.runs = as_they_are(&shared.common.newest.load().version, &self.runs);
        let Progress { segments, next } = merge_range(shared, &self.runs, &self.from, None, Job::Deltas)?;
        self.written.0.extend(segments);
        if let Some(from) = next {
            self.from = from;
            return Ok(false);
        }
        // If the run cannot be installed, its segments are removed, so the merge begins anew.
        self.from = [0; 32];
        replace_deltas(shared, &self.runs, std::mem::take(&mut self.written).keep())?;
        Ok(true)
    }
}

impl Merging {
    /// Does a step of a merge that is in progress or due. While there is a request to `settle`, the merge into the base is
    /// due until it has all that the deltas had at the request. Returns whether there was a step to do.
    pub(crate) fn step(&mut self, shared: &Shared, settle: Option<u64>) -> Result<bool> {
        let stepped = self.step_of_any(shared, settle);
        if stepped.is_err() {
            // The callers of `settle` learn of the failure.
            self.settling = None;
        }
        stepped
    }

    fn step_of_any(&mut self, shared: &Shared, settle: Option<u64>) -> Result<bool> {
        let now = shared.common.newest.load_full();
        self.settle(&now, settle);
        let base = self.settling.is_some() || debt(&now).parts >= 1.0;
        let newer = self.begin_deltas(shared, &now, base)? || self.deltas.len() > usize::from(!base);
        let older = base || !self.deltas.is_empty();
        let newer_first = has_too_many_runs(&now) || !self.older_next;
        match (newer, older) {
            (false, false) => return Ok(false),
            (true, true) => self.older_next = newer_first,
            _ => {}
        }
        // A step takes seconds, and memory of a version that is held does not come back.
        drop(now);
        if newer && (newer_first || !older) {
            self.step_deltas(shared, 0)?;
        } else if base {
            self.step_base(shared)?;
        } else {
            self.step_deltas(shared, self.deltas.len() - 1)?;
        }
        Ok(true)
    }

    /// Returns the last request to settle, if one was done since the last call.
    pub(crate) fn settled(&mut self) -> Option<u64> {
        self.settled.take()
    }

    /// Begins the request to settle that was `asked` for, if none is being done, and ends one that is done.
    fn settle(&mut self, now: &Visible, asked: Option<u64>) {
        let runs = mergeable(&now.version).iter().filter(|run| !run.is_left_over());
        let ids: BTreeSet<u64> = runs.flat_map(|run| run.segments()).map(|segment| segment.info.id).collect();
        if let (None, Some(request)) = (&self.settling, asked) {
            // Give up the merges of delta runs, because their runs are merged into the base directly.
            self.deltas.clear();
            self.settling = Some(Settling { request, segments: ids.clone() });
        }
        if let Some(settling) = &mut self.settling {
            settling.segments.retain(|id| ids.contains(id));
            if settling.segments.is_empty() {
                self.settled = Some(settling.request);
                self.settling = None;
            }
        }
    }

    /// Whether a run is merged already: with others, or into the base for a request to settle.
    fn is_taken(&self, run: &Run) -> bool {
        let is_settled =
            |settling: &Settling| run.segments().iter().any(|one| settling.segments.contains(&one.info.id));
        self.deltas.iter().flat_map(|merge| &merge.runs).any(|other| run.is(other))
            || self.settling.as_ref().is_some_and(is_settled)
    }

    /// Begins a merge of the newest delta runs that no merge has taken, if one is due. `base` is whether a step of the merge
    /// into the base is due.
    fn begin_deltas(&mut self, shared: &Shared, now: &Visible, base: bool) -> Result<bool> {
        let deltas = &now.version.deltas;
        let free = deltas.iter().position(|run| self.is_taken(run)).unwrap_or(deltas.len());
        let Some(range) = due(now, &deltas[..free]) else { return Ok(false) };
        let runs = deltas[range].to_vec();
        let needed = runs.iter().map(|run| run.file_bytes()).sum();
        match shared.common.require_space(needed, shared.common.reserve_bytes, "a merge") {
            // Another merge needs less space, or has it, and frees some in the end.
            Err(_) if base || !self.deltas.is_empty() => return Ok(false),
            asked => asked?,
        }
        self.deltas.insert(0, DeltaMerge { runs, written: Unnamed::default(), from: [0; 32] });
        Ok(true)
    }

    fn step_deltas(&mut self, shared: &Shared, at: usize) -> Result<()> {
        let merge = &mut self.deltas[at];
        let stepped = merge.step(shared);
        // A merge that cannot continue is given up, because its segments are of no use and take space that others need.
        let ends = match &stepped {
            Ok(ended) => *ended,
            Err(failed) => failed.kind() != ErrorKind::Retry || is_unreadable(&merge.runs),
        };
        if ends {
            self.deltas.remove(at);
        }
        stepped.map(|_| ())
    }

    /// Merges the next group of the base.
    ///
    /// A delta run with an unreadable segment stops newer runs from being merged, so only older runs are. If a segment
    /// of the base cannot be read, the records of its range stay in a delta run.
    fn step_base(&mut self, shared: &Shared) -> Result<()> {
        let version = Arc::clone(&shared.common.newest.load().version);
        let (deltas, from) = (mergeable(&version).to_vec(), version.merge_at);
        if let Some(to) = passed(&version, &deltas, &from) {
            return self.install(shared, to, &deltas, |_, _| ());
        }
        // Nothing but the group and the deltas are held during the step, because the memory of a segment that is held
        // does not come back.
        let (segments, to) = groups_from(&version.base, &from, shared.common.usual_segment_records());
        // A load may be writing segments beyond the last key meanwhile, which the step does not replace.
        let end = to.or_else(|| version.last_key().and_then(|last| successor(&last)));
        drop(version);
        let group = Arc::new(Run::new(segments));
        let records = group.records() + deltas.iter().map(|run| records_between(run, &from, to.as_ref())).sum::<u64>();
        let usual = shared.common.usual_segment_records();
        let segments_max = group.records() / usual + STEP_SEGMENTS;
        let most = segments_max * usual + group.records();
        shared.common.require_space(records.min(most) * RECORD_BYTES, shared.common.reserve_bytes, "a merge")?;
        let batch = deltas.iter().map(|run| batch_of(run)).max().unwrap_or(0);
        let last = group.segments().last().map(|segment| segment.info.last);
        let step = BaseStep { last, segments_max, left: MergedRange { from, to: end, batch }, records };
        if group.is_unreadable() {
            let left = merge_range(shared, &deltas, &from, to, Job::LeftOut(step))?.segments;
            // It comes in front of runs that merges of deltas have taken, and perhaps between them.
            self.deltas.clear();
            return self.install(shared, to, &deltas, |version, newer| {
                if !left.is_empty() {
                    let at = version.merge_at;
                    version.deltas.insert(newer, Arc::new(Run::left_over(left, at)));
                }
            });
        }
        let sources: Vec<_> = deltas.iter().chain([&group]).cloned().collect();
        let closing = group.close();
        let Progress { segments, next } = match merge_group(shared, &sources, &group, &from, to, step) {
            // Come back to the same range; the next step leaves the unreadable segment out.
            Err(_) if group.is_unreadable() && !is_unreadable(&deltas) => return Ok(()),
            written => written?,
        };
        self.install(shared, next.or(to), &deltas, |version, _| {
            let is_merged =
                |segment: &Arc<Segment>| group.segments().iter().any(|merged| segment.info.id == merged.info.id);
            let stay = version.base.segments().iter().filter(|segment| !is_merged(segment));
            let mut base: Vec<Arc<Segment>> = stay.cloned().chain(segments).collect();
            base.sort_by_key(|segment| segment.info.first);
            version.base = Arc::new(Run::new(base));
        })?;
        closing.replaced();
        Ok(())
    }

    /// Installs a step of the merge into the base that has merged `deltas` up to key `to`. `change` gets the version with
    /// the deltas after the step, and the number of those that are newer than all of the merged ones.
    fn install(
        &self,
        shared: &Shared,
        to: Option<Key>,
        deltas: &[Arc<Run>],
        change: impl FnOnce(&mut Version, usize),
    ) -> Result<()> {
        let busy: Vec<_> = self.deltas.iter().flat_map(|merge| &merge.runs).cloned().collect();
        let mut manifest = shared.runs.lock();
        let mut version = Version::clone(&shared.common.newest.load().version);
        let begins = version.merge_at == [0; 32];
        // Runs that were flushed meanwhile are newer and come first.
        let newer = version.deltas.iter().take_while(|run| !deltas.iter().any(|merged| run.is(merged))).count();
        version.merge_to(to, deltas, &busy);
        change(&mut version, newer);
        shared.runs.install(&mut manifest, version, |_| (), |_| ())?;
        shared.common.counters.base_merges.add(u64::from(begins));
        shared.common.counters.merges.add(u64::from(to.is_none()));
        Ok(())
    }
}

/// Returns where the merge into the base goes on if no delta has a segment in the range of the next groups; `None` if the next
/// group is to be merged.
fn passed(version: &Version, deltas: &[Arc<Run>], from: &Key) -> Option<Option<Key>> {
    let base = version.base.segments();
    let base = &base[base.partition_point(|segment| segment.info.last < *from)..];
    let to = |at: usize| base.get(at + 1).map(|next| next.info.first);
    let is_free = |at: &usize| {
        let (from, to) = (if *at == 0 { *from } else { base[*at].info.first }, to(*at));
        let is_among = |info: &SegmentInfo| from <= info.last && to.is_none_or(|to| info.first < to);
        let mut segments = deltas.iter().flat_map(|run| run.segments());
        !base[*at].is_unreadable() && !segments.any(|one| is_among(&one.info))
    };
    (0..base.len()).take_while(is_free).last().map(to)
}

/// Merges a group of the base and the records of all deltas in its range. If the step ends within the group, the records that
/// the rest of the group has go into a segment of their own: the base has nothing more of the deltas there.
fn merge_group(
    shared: &Shared,
    sources: &[Arc<Run>],
    group: &Arc<Run>,
    from: &Key,
    to: Option<Key>,
    step: BaseStep,
) -> Result<Progress> {
    let Progress { segments, next } = merge_range(shared, sources, from, to, Job::Base(step))?;
    let Some(next) = next.filter(|next| step.last.is_some_and(|last| *next <= last)) else {
        return Ok(Progress { segments, next });
    };
    let mut segments = Unnamed(segments);
    let left = MergedRange { from: next, to: step.left.to, batch: 0 };
    let rest = BaseStep { segments_max: u64::MAX, left, records: records_between(group, &next, None), ..step };
    let group = std::slice::from_ref(group);
    segments.0.extend(merge_range(shared, group, &next, to, Job::Base(rest))?.segments);
    Ok(Progress { segments: segments.keep(), next: Some(next) })
}

/// Returns the key that follows; `None` after the greatest.
fn successor(key: &Key) -> Option<Key> {
    let mut next = *key;
    let at = next.iter().rposition(|byte| *byte < 0xff)?;
    next[at] += 1;
    next[at + 1..].fill(0);
    Some(next)
}

/// Estimates the number of a run's records with `from <= key < to`.
fn records_between(run: &Run, from: &Key, to: Option<&Key>) -> u64 {
    let of = |info: &SegmentInfo| records_from(info, from).saturating_sub(to.map_or(0, |to| records_from(info, to)));
    run.segments().iter().map(|segment| of(&segment.info)).sum()
}

/// Returns these runs as they are in the version. They may have given memory away, which comes back once nobody holds
/// the old ones.
fn as_they_are(version: &Version, runs: &[Arc<Run>]) -> Vec<Arc<Run>> {
    let now = |run: &Arc<Run>| version.deltas.iter().find(|other| other.is(run)).unwrap_or(run).clone();
    runs.iter().map(now).collect()
}

fn is_unreadable(runs: &[Arc<Run>]) -> bool {
    runs.iter().any(|run| run.is_unreadable())
}

/// Replaces the runs `merged` by a run of these segments.
fn replace_deltas(shared: &Shared, merged: &[Arc<Run>], segments: Vec<Arc<Segment>>) -> Result<()> {
    let mut manifest = shared.runs.lock();
    let mut version = Version::clone(&shared.common.newest.load().version);
    // Runs that were flushed meanwhile are newer and come first.
    let start = version.deltas.iter().position(|delta| delta.is(&merged[0]));
    let start = start.ok_or_else(|| Error::new(ErrorKind::Internal, "a run that was merged is gone"))?;
    let end = start + merged.len();
    let joined_at = version.joined_last(&version.deltas[start..end]);
    let run = (!segments.is_empty()).then(|| Arc::new(Run::joining(segments, joined_at)));
    version.deltas.splice(start..end, run);
    shared.runs.install(&mut manifest, version, |_| (), |_| ())?;
    drop(manifest);
    shared.common.counters.merges.add(1);
    let _requests = shared.common.mailbox.lock();
    // Wake commits that were held because there were too many runs.
    shared.common.mailbox.done.notify_all();
    Ok(())
}

/// Writes the records of `runs` with `from <= key < to`, into the base or into a delta run, which keeps tombstones.
fn merge_range(shared: &Shared, runs: &[Arc<Run>], from: &Key, to: Option<Key>, job: Job) -> Result<Progress> {
    let base = matches!(job, Job::Base(_));
    let window = Window::merge(&shared.memory.reads, runs.len(), shared.memory.merge_read_bytes);
    let cursors = runs.iter().map(|run| Cursor::Run(RunCursor::new(run, from, to, &window))).collect();
    write(shared, &mut Merged::new(cursors)?, &newest_origin(shared, runs, base), job)
}

/// Returns the origin of the records of these runs: the newest batch and the newest checkpoint of their segments.
fn newest_origin(shared: &Shared, runs: &[Arc<Run>], base: bool) -> Origin {
    // A group of the base may have records of a merge that was given up, which are newer than these deltas.
    let origins = || runs.iter().flat_map(|run| run.segments()).map(|segment| segment.origin());
    // The newest checkpoint may be that of a load, which names no batch.
    let checkpoint = origins().map(|origin| &origin.checkpoint).max_by_key(|checkpoint| checkpoint.seq);
    let batch = origins().map(|origin| origin.batch).max().unwrap_or(0);
    origin_of(shared, batch, base, checkpoint.unwrap_or(&Checkpoint::default()))
}
