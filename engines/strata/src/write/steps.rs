//! Merges in steps: of delta runs among themselves, and of delta runs into the base.
//!
//! Owns: which merges are under way and where each goes on. Must not: wait or decide about failures. Runs on `strata-merge`.
//!
//! A merge of delta runs keeps the segments that it has written until the last one, and then puts them in the place of its
//! runs at once. A merge into the base replaces one group of its segments at a time; its deltas stay until the last group,
//! so every moment is a whole map. Merges that are under way have no run in common. Newer and older ones take turns, so that
//! neither keeps the other from coming to an end.

use std::sync::Arc;

use engine_api::{Checkpoint, Error, ErrorKind, Key, Result};

use crate::engine::Shared;
use crate::format::footer::Origin;
use crate::format::manifest::MergedBelow;
use crate::read::cursor::{Merged, RunCursor, Window};
use crate::read::segment::Segment;
use crate::read::version::{Run, Version};
use crate::read::visible::Visible;
use crate::write::limits::{HeldBy, held_by};
use crate::write::output::{Job, Piece, write};
use crate::write::plan::{MERGED_MAX, debt, due, groups_from, mergeable};

/// The merges that are under way.
#[derive(Default)]
pub(crate) struct Merging {
    /// Of delta runs, that of the newest runs first.
    deltas: Vec<DeltaMerge>,
    base: Option<BaseMerge>,
    /// Whose turn it is where both could be.
    older_next: bool,
    /// The last `settle` whose merge has ended.
    settled: Option<u64>,
}

/// A merge of delta runs.
struct DeltaMerge {
    /// Newest first.
    runs: Vec<Arc<Run>>,
    /// What no manifest names yet.
    written: Vec<Arc<Segment>>,
    /// The first key that is not in it.
    from: Key,
}

/// A merge of delta runs into the base.
struct BaseMerge {
    /// Newest first.
    deltas: Vec<Arc<Run>>,
    /// The first key that is not merged.
    from: Key,
    /// Ranges of segments of the base that cannot be read.
    left_out: Vec<(Key, Option<Key>)>,
    /// The last `settle` that had been asked for when it began with all runs that there were.
    settles: Option<u64>,
    /// The space that the deltas take until the end was asked for.
    asked: bool,
}

impl Drop for DeltaMerge {
    fn drop(&mut self) {
        self.written.iter().for_each(|segment| segment.retire());
    }
}

impl DeltaMerge {
    /// Writes the next segment; whether that was the last, and the runs were replaced.
    fn step(&mut self, shared: &Shared) -> Result<bool> {
        self.runs = as_they_are(&shared.visible.load().version, &self.runs);
        let Piece { segments, next } = merge_range(shared, &self.runs, &self.from, None, Job::Deltas)?;
        self.written.extend(segments);
        if let Some(from) = next {
            self.from = from;
            return Ok(false);
        }
        replace_deltas(shared, &self.runs, Run::new(std::mem::take(&mut self.written)))?;
        Ok(true)
    }
}

impl BaseMerge {
    fn new(deltas: Vec<Arc<Run>>, from: Key, settles: Option<u64>) -> Self {
        Self { deltas, from, left_out: Vec::new(), settles, asked: false }
    }

    /// Merges the next group of the base; whether that was the last.
    ///
    /// Nothing can be merged past a delta run of which a segment cannot be read: only the runs that are older are. Where a
    /// segment of the base cannot be read, the records of its range stay in a delta run, which takes the place of those
    /// that were merged.
    fn step(&mut self, shared: &Shared) -> Result<bool> {
        let version = Arc::clone(&shared.visible.load().version);
        self.deltas = as_they_are(&version, &self.deltas);
        let base = Arc::clone(&version.base);
        drop(version);
        let (segments, to) = groups_from(&base, &self.from, shared.sizes.segment_records);
        if segments.first().is_some_and(|segment| segment.is_unreadable()) {
            self.left_out.push((self.from, to));
        } else {
            let group = Arc::new(Run::new(segments));
            // All of the deltas stay until the last group is written.
            let delta_bytes = || self.deltas.iter().map(|run| run.file_bytes()).sum::<u64>();
            let needed = group.file_bytes() + if self.asked { 0 } else { delta_bytes() };
            shared.require_space(needed, shared.reserve_bytes, "a merge")?;
            self.asked = true;
            let mut sources = self.deltas.clone();
            sources.push(Arc::clone(&group));
            let closing = group.close();
            let last = group.segments().last().map(|segment| segment.info.last);
            let Piece { segments, next } = match merge_range(shared, &sources, &self.from, to, Job::Base(last)) {
                // What cannot be read is left out, and the same range looked at again.
                Err(_) if group.is_unreadable() && !is_unreadable(&self.deltas) => return Ok(false),
                written => written?,
            };
            let goes_on = next.or(to);
            // The records of the first range that was left out are only in the deltas.
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

    /// Puts what had to be left out in the place of the deltas.
    fn end(&self, shared: &Shared) -> Result<()> {
        if self.left_out.is_empty() {
            shared.counters.merged();
            return Ok(());
        }
        let mut kept = Vec::new();
        for (from, to) in &self.left_out {
            match merge_range(shared, &self.deltas, from, *to, Job::LeftOut) {
                Ok(written) => kept.extend(written.segments),
                Err(failed) => {
                    kept.iter().for_each(|segment: &Arc<Segment>| segment.retire());
                    return Err(failed);
                }
            }
        }
        replace_deltas(shared, &self.deltas, Run::left_over(kept))
    }
}

impl Merging {
    /// Where a store goes on: with the merge into the base that was cut, if there is one.
    pub(crate) fn of(version: &Version) -> Self {
        let going_on = |below: MergedBelow| {
            let oldest = version.deltas.len() - below.deltas;
            BaseMerge::new(version.deltas[oldest..].to_vec(), below.key, None)
        };
        Self { base: version.merged_below.map(going_on), ..Self::default() }
    }

    /// Does a step of a merge that is under way or due, all of it due for `settle`; whether there was any.
    pub(crate) fn step(&mut self, shared: &Shared, settle: Option<u64>) -> Result<bool> {
        let now = shared.visible.load_full();
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
        if newer && (newer_first || !older) {
            self.step_deltas(shared, 0)?;
        } else if self.base.is_some() {
            self.step_base(shared)?;
        } else {
            self.step_deltas(shared, self.deltas.len() - 1)?;
        }
        Ok(true)
    }

    /// The last `settle` up to which all is merged, where a step has ended it: the step has done something or not.
    pub(crate) fn settled(&mut self, settle: Option<u64>, stepped: bool) -> Option<u64> {
        let ended = self.settled.take();
        // Nothing is left to be merged.
        if stepped { ended } else { settle }
    }

    /// Begins a merge into the base where one is due and none is under way.
    fn begin_base(&mut self, shared: &Shared, now: &Visible, settle: Option<u64>) {
        let due = debt(now);
        if self.base.is_some() || due.records == 0 || (settle.is_none() && due.parts < 1.0) {
            return;
        }
        let deltas = mergeable(&now.version);
        if deltas.len() > MERGED_MAX || (settle.is_none() && !self.deltas.is_empty()) {
            return;
        }
        // Its runs are merged into the base at once.
        self.deltas.clear();
        self.base = Some(BaseMerge::new(deltas.to_vec(), [0; 32], settle));
        shared.counters.base_merge_began();
    }

    /// Begins a merge of the newest delta runs that are not being merged, where one is due.
    fn begin_deltas(&mut self, shared: &Shared, now: &Visible) -> Result<bool> {
        let busy = self.deltas.first().map(|merge| &merge.runs).or(self.base.as_ref().map(|merge| &merge.deltas));
        let busy = busy.and_then(|runs| runs.first());
        let deltas = &now.version.deltas;
        let free = busy.and_then(|busy| deltas.iter().position(|run| run.is(busy))).unwrap_or(deltas.len());
        let Some(range) = due(&deltas[..free], deltas.len(), now.active.capacity() as u64) else { return Ok(false) };
        let runs = deltas[range].to_vec();
        let needed = runs.iter().map(|run| run.file_bytes()).sum();
        match shared.require_space(needed, shared.reserve_bytes, "a merge") {
            // The base needs less at a time, and gives some back in the end.
            Err(_) if self.base.is_some() => return Ok(false),
            asked => asked?,
        }
        self.deltas.insert(0, DeltaMerge { runs, written: Vec::new(), from: [0; 32] });
        Ok(true)
    }

    fn step_deltas(&mut self, shared: &Shared, at: usize) -> Result<()> {
        let merge = &mut self.deltas[at];
        let stepped = merge.step(shared);
        // What it has written takes space that others want, and is of no use where it cannot go on.
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
                // What was left out would be left out twice.
                if is_unreadable(&merge.deltas) || !merge.left_out.is_empty() {
                    self.base = None;
                }
                return Err(failed);
            }
        }
        Ok(())
    }
}

/// These runs as they are in the version: they may have given memory away, which comes back once nobody has the old ones.
fn as_they_are(version: &Version, runs: &[Arc<Run>]) -> Vec<Arc<Run>> {
    let now = |run: &Arc<Run>| version.deltas.iter().find(|other| other.is(run)).unwrap_or(run).clone();
    runs.iter().map(now).collect()
}

fn is_unreadable(runs: &[Arc<Run>]) -> bool {
    runs.iter().any(|run| run.is_unreadable())
}

/// Puts `run` in the place of `merged`.
fn replace_deltas(shared: &Shared, merged: &[Arc<Run>], run: Run) -> Result<()> {
    let mut manifest = shared.install.lock();
    let mut version = Version::clone(&shared.visible.load().version);
    // Newer runs may have been flushed meanwhile, and stand before these.
    let start = version.deltas.iter().position(|delta| delta.is(&merged[0]));
    let start = start.ok_or_else(|| Error::new(ErrorKind::Internal, "a run that was merged is gone"))?;
    let end = start + merged.len();
    // A merge into the base that was given up has left these runs to others: the next one begins anew.
    let in_base = version.merged_below.map_or(0, |below| below.deltas);
    if end > version.deltas.len() - in_base {
        version.merged_below = None;
    }
    version.deltas.splice(start..end, (run.records() > 0).then(|| Arc::new(run)));
    shared.install(&mut manifest, version, |_| (), |_| ())?;
    drop(manifest);
    shared.counters.merged();
    let _work = shared.work.lock();
    // Commits may wait for fewer runs.
    shared.done.notify_all();
    Ok(())
}

/// Writes the records of `runs` with `from <= key < to`: into the base, or into a delta run that keeps tombstones.
fn merge_range(shared: &Shared, runs: &[Arc<Run>], from: &Key, to: Option<Key>, job: Job) -> Result<Piece> {
    let base = matches!(job, Job::Base(_));
    let window = Window::merge(&shared.reads, runs.len(), shared.merge_read_bytes);
    let cursors = runs.iter().map(|run| RunCursor::boxed(run, from, to, window.clone())).collect();
    write(shared, &mut Merged::new(cursors)?, &newest_origin(shared, runs, base), job)
}

/// Where the records of these runs come from: the newest of them says so.
fn newest_origin(shared: &Shared, runs: &[Arc<Run>], base: bool) -> Origin {
    // A group of the base may have records of a merge that was given up, which are newer than these deltas.
    let segments = runs.iter().flat_map(|run| run.segments());
    match segments.max_by_key(|segment| segment.origin().batch) {
        Some(newest) => Origin { base, ..newest.origin().clone() },
        None => shared.origin(0, base, &Checkpoint::default()),
    }
}

/// Puts `written` in the place of `group` in the base. The deltas are in the base below this key then; without one they are
/// in it wholly, and go.
fn replace_group(
    shared: &Shared,
    group: &Run,
    written: Vec<Arc<Segment>>,
    deltas: &[Arc<Run>],
    merged_below: Option<Key>,
) -> Result<()> {
    let mut manifest = shared.install.lock();
    let mut version = Version::clone(&shared.visible.load().version);
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
    shared.install(&mut manifest, version, |_| (), |_| ())
}
