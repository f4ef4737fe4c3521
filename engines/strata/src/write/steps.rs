//! Merges in steps: of delta runs with each other, and of delta runs into the base.
//!
//! Owns: which merges are in progress and where each continues. Must not: wait, or decide about failures. Runs on
//! `strata-merge`.
//!
//! A merge of delta runs keeps the segments it has written until the last one, and then replaces its runs by them at
//! once. A merge into the base replaces one group of segments at a time. Its deltas stay until the last group, so the
//! map is complete at every moment. No run is in two merges at once. Newer and older merges take turns, so that neither
//! keeps the other from ending.
//!
//! Every group of the base is rewritten, also one without a record in the deltas, because a footer names the newest
//! batch of its segment. TRIED.md in the crate's folder says which damage a group that stays would cause.

use std::sync::Arc;

use engine_api::{Checkpoint, Error, ErrorKind, Key, Result};

use crate::format::footer::Origin;
use crate::format::manifest::MergedBelow;
use crate::read::cursor::{Cursor, Merged, RunCursor, Window};
use crate::read::segment::Segment;
use crate::read::version::{Run, Version};
use crate::read::visible::Visible;
use crate::write::output::{Job, Progress, origin_of, write};
use crate::write::plan::{HeldBy, MERGED_MAX, debt, due, groups_from, held_by, mergeable, oldest_that};
use crate::write::shared::Shared;
use crate::write::unnamed::Unnamed;

/// The merges in progress, at most one of them into the base.
#[derive(Default)]
pub(crate) struct Merging {
    /// Merges of delta runs, that of the newest runs first.
    deltas: Vec<DeltaMerge>,
    base: Option<BaseMerge>,
    /// Whether the older merge has the next turn if both have work.
    older_next: bool,
    /// The last request to settle whose merge has ended.
    settled: Option<u64>,
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

/// A merge of delta runs into the base.
struct BaseMerge {
    /// The delta runs that it merges, newest first.
    deltas: Vec<Arc<Run>>,
    /// The first key that is not merged yet.
    from: Key,
    /// Ranges of segments of the base that cannot be read, from the first key to the next segment's.
    left_out: Vec<(Key, Option<Key>)>,
    /// The last request to settle that was made before the merge began, with all runs of that time; `None` if there was
    /// none.
    settles: Option<u64>,
    /// Whether the merge was begun here, and not before a restart.
    is_new: bool,
    /// Whether the merge has made sure that there is disk space for the deltas, which stay until the end.
    asked: bool,
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
        replace_deltas(shared, &self.runs, Run::new(std::mem::take(&mut self.written).keep()))?;
        Ok(true)
    }
}

impl BaseMerge {
    fn new(deltas: Vec<Arc<Run>>, from: Key, settles: Option<u64>) -> Self {
        Self { deltas, from, left_out: Vec::new(), settles, is_new: from == [0; 32], asked: false }
    }

    /// Merges the next group of the base. Returns whether it was the last.
    ///
    /// A delta run with an unreadable segment stops newer runs from being merged, so only older runs are. If a segment
    /// of the base cannot be read, the records of its range stay in a delta run, which replaces the merged ones.
    fn step(&mut self, shared: &Shared) -> Result<bool> {
        let version = Arc::clone(&shared.common.newest.load().version);
        self.deltas = as_they_are(&version, &self.deltas);
        // Nothing but the group is held during the step, because the memory of a segment that is held does not come
        // back.
        let (segments, to) = groups_from(&version.base, &self.from, shared.common.sizes.segment_records);
        drop(version);
        if segments.first().is_some_and(|segment| segment.is_unreadable()) {
            // The range is there already if the end of the merge has failed and is tried again.
            if self.left_out.last().is_none_or(|(from, _)| *from != self.from) {
                self.left_out.push((self.from, to));
            }
        } else {
            let group = Arc::new(Run::new(segments));
            self.find_space(shared, group.file_bytes())?;
            let mut sources = self.deltas.clone();
            sources.push(Arc::clone(&group));
            let closing = group.close();
            let last = group.segments().last().map(|segment| segment.info.last);
            let Progress { segments, next } = match merge_range(shared, &sources, &self.from, to, Job::Base(last)) {
                // Come back to the same range; the next step leaves the unreadable segment out.
                Err(_) if group.is_unreadable() && !is_unreadable(&self.deltas) => return Ok(false),
                written => written?,
            };
            let goes_on = next.or(to);
            // Records of the first range that was left out are only in the deltas.
            let merged_below = self.left_out.first().map(|(from, _)| *from).or(goes_on);
            replace_group(shared, &group, segments, &self.deltas, merged_below)?;
            closing.replaced();
            if let Some(next) = next {
                self.from = next;
                return Ok(false);
            }
        }
        let Some(to) = to else { return self.end(shared).map(|()| true) };
        self.from = to;
        Ok(false)
    }

    /// Makes sure that there is disk space for the next group, and once also for all that the deltas add to the base,
    /// because they stay until the last group. If the disk has no room for all of them, a merge that was not begun
    /// leaves out the newest: the merge of the others makes room.
    fn find_space(&mut self, shared: &Shared, group_bytes: u64) -> Result<()> {
        if self.asked {
            return shared.common.require_space(group_bytes, shared.common.reserve_bytes, "a merge");
        }
        let from = self.from;
        // A merge that a restart has interrupted has made room for the records below `from` already.
        let left = |segment: &&Arc<Segment>| segment.info.last >= from;
        let bytes =
            |run: &Arc<Run>| run.segments().iter().filter(left).map(|segment| segment.file_bytes()).sum::<u64>();
        let ask = |runs: &[Arc<Run>]| {
            let needed = group_bytes + runs.iter().map(bytes).sum::<u64>();
            shared.common.require_space(needed, shared.common.reserve_bytes, "a merge")
        };
        if ask(&self.deltas).is_err() {
            let fits = |runs: &[Arc<Run>]| self.is_new && ask(runs).is_ok();
            let oldest = oldest_that(&self.deltas, fits).to_vec();
            if oldest.is_empty() {
                // Ask for all of them again, because the statistics have the space that the last one asked for lacks.
                ask(&self.deltas)?;
            } else {
                self.deltas = oldest;
                // Not all runs of the time of the request are merged now, so another merge has to follow.
                self.settles = None;
            }
        }
        self.asked = true;
        Ok(())
    }

    /// Replaces the deltas by a run of the records that were left out.
    fn end(&self, shared: &Shared) -> Result<()> {
        if self.left_out.is_empty() {
            shared.common.counters.merges.add(1);
            return Ok(());
        }
        let mut kept = Unnamed::default();
        for (from, to) in &self.left_out {
            kept.0.extend(merge_range(shared, &self.deltas, from, *to, Job::LeftOut)?.segments);
        }
        replace_deltas(shared, &self.deltas, Run::left_over(kept.keep()))
    }
}

impl Merging {
    /// Makes the state after an opening: an interrupted merge into the base continues, if there is one.
    pub(crate) fn of(version: &Version) -> Self {
        let going_on = |below: MergedBelow| {
            let oldest = version.deltas.len() - below.deltas;
            BaseMerge::new(version.deltas[oldest..].to_vec(), below.key, None)
        };
        Self { base: version.merged_below.map(going_on), ..Self::default() }
    }

    /// Does a step of a merge that is in progress or due; for `settle` a merge of all runs is due. Returns whether
    /// there was a step to do.
    pub(crate) fn step(&mut self, shared: &Shared, settle: Option<u64>) -> Result<bool> {
        let now = shared.common.newest.load_full();
        self.begin_base(shared, &now, settle);
        let newer = self.begin_deltas(shared, &now)? || self.deltas.len() > usize::from(self.base.is_none());
        let older = self.base.is_some() || !self.deltas.is_empty();
        let newer_first = match held_by(&now) {
            Some(HeldBy::Runs) => true,
            Some(HeldBy::Debt) => false,
            None => !self.older_next,
        };
        match (newer, older) {
            (false, false) => return Ok(false),
            (true, true) => self.older_next = newer_first,
            _ => {}
        }
        // A step takes seconds, and memory of a version that is held does not come back.
        drop(now);
        if newer && (newer_first || !older) {
            self.step_deltas(shared, 0)?;
        } else if self.base.is_some() {
            self.step_base(shared)?;
        } else {
            self.step_deltas(shared, self.deltas.len() - 1)?;
        }
        Ok(true)
    }

    /// Returns the last request to settle that is now done, if any. `stepped` is whether the step had anything to do.
    pub(crate) fn settled(&mut self, settle: Option<u64>, stepped: bool) -> Option<u64> {
        let ended = self.settled.take();
        // Without a step nothing is left to merge, so the request is done.
        if stepped { ended } else { settle }
    }

    /// Begins a merge into the base if one is due and none is in progress.
    fn begin_base(&mut self, shared: &Shared, now: &Visible, settle: Option<u64>) {
        let due = debt(now);
        if self.base.is_some() || due.records == 0 || (settle.is_none() && due.parts < 1.0) {
            return;
        }
        let deltas = mergeable(&now.version);
        if deltas.len() > MERGED_MAX || (settle.is_none() && !self.deltas.is_empty()) {
            return;
        }
        // Give up the merges of delta runs, because their runs are merged into the base directly.
        self.deltas.clear();
        self.base = Some(BaseMerge::new(deltas.to_vec(), [0; 32], settle));
        shared.common.counters.base_merges.add(1);
    }

    /// Begins a merge of the newest delta runs that no merge has taken, if one is due.
    fn begin_deltas(&mut self, shared: &Shared, now: &Visible) -> Result<bool> {
        let busy = self.deltas.first().map(|merge| &merge.runs).or(self.base.as_ref().map(|merge| &merge.deltas));
        let busy = busy.and_then(|runs| runs.first());
        let deltas = &now.version.deltas;
        let free = busy.and_then(|busy| deltas.iter().position(|run| run.is(busy))).unwrap_or(deltas.len());
        let Some(range) = due(&deltas[..free], deltas.len(), now.usual_mem_records()) else { return Ok(false) };
        let runs = deltas[range].to_vec();
        let needed = runs.iter().map(|run| run.file_bytes()).sum();
        match shared.common.require_space(needed, shared.common.reserve_bytes, "a merge") {
            // A merge in progress has the space that it needs, and frees some in the end.
            Err(_) if self.base.is_some() || !self.deltas.is_empty() => return Ok(false),
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

    fn step_base(&mut self, shared: &Shared) -> Result<()> {
        let Some(merge) = &mut self.base else { return Ok(()) };
        match merge.step(shared) {
            Ok(false) => {}
            Ok(true) => self.settled = self.base.take().and_then(|merge| merge.settles),
            Err(failed) => {
                // Older runs than the unreadable one are to be merged without it.
                if is_unreadable(&merge.deltas) {
                    self.base = None;
                }
                return Err(failed);
            }
        }
        Ok(())
    }
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

/// Replaces the runs `merged` by `run`.
fn replace_deltas(shared: &Shared, merged: &[Arc<Run>], run: Run) -> Result<()> {
    let mut manifest = shared.runs.lock();
    let mut version = Version::clone(&shared.common.newest.load().version);
    // Runs that were flushed meanwhile are newer and come first.
    let start = version.deltas.iter().position(|delta| delta.is(&merged[0]));
    let start = start.ok_or_else(|| Error::new(ErrorKind::Internal, "a run that was merged is gone"))?;
    let end = start + merged.len();
    // A merge into the base that was given up has left these runs to other merges, so the next one begins at the first
    // key.
    let in_base = version.merged_below.map_or(0, |below| below.deltas);
    if end > version.deltas.len() - in_base {
        version.merged_below = None;
    }
    version.deltas.splice(start..end, (run.records() > 0).then(|| Arc::new(run)));
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

/// Returns the origin of the records of these runs, which is that of the newest segment.
fn newest_origin(shared: &Shared, runs: &[Arc<Run>], base: bool) -> Origin {
    // A group of the base may have records of a merge that was given up, which are newer than these deltas.
    let segments = runs.iter().flat_map(|run| run.segments());
    match segments.max_by_key(|segment| segment.origin().batch) {
        Some(newest) => Origin { base, part: false, ..newest.origin().clone() },
        None => origin_of(shared, 0, base, &Checkpoint::default()),
    }
}

/// Replaces `group` in the base by `written`. Below `merged_below` the deltas are then in the base. `None` means that
/// they are in it completely, so they are dropped.
fn replace_group(
    shared: &Shared,
    group: &Run,
    written: Vec<Arc<Segment>>,
    deltas: &[Arc<Run>],
    merged_below: Option<Key>,
) -> Result<()> {
    let mut manifest = shared.runs.lock();
    let mut version = Version::clone(&shared.common.newest.load().version);
    let mut segments = version.base.segments().to_vec();
    segments.retain(|segment| !group.segments().iter().any(|merged| segment.info.id == merged.info.id));
    segments.extend(written);
    segments.sort_by_key(|segment| segment.info.first);
    version.base = Arc::new(Run::new(segments));
    version.merged_below = merged_below.map(|key| MergedBelow { deltas: deltas.len(), key });
    if merged_below.is_none() {
        // Runs that were flushed meanwhile are newer and stay.
        version.deltas.retain(|run| !deltas.iter().any(|merged| run.is(merged)));
    }
    shared.runs.install(&mut manifest, version, |_| (), |_| ())
}
