//! The plan of merges: sizes of delta runs, the debt to the base, groups of the base, segments that cannot be read.
//!
//! Owns: the shape of the store, and the bounds on delta runs and debt from which commits are slowed and held. Must not:
//! read, write or wait. Runs on `strata-merge`, and on the threads that ask how far merges lag.

use std::ops::Range;
use std::sync::Arc;

use engine_api::Key;

use crate::read::segment::Segment;
use crate::read::version::{Run, Version};
use crate::read::visible::Visible;

/// Number of delta runs up to which none are merged with each other. In a store of some memtables most runs are in the base
/// before there are as many, and are written once less.
const RUNS_USUAL: usize = 20;
/// Number of delta runs from which commits are slowed: some more than usual.
const RUNS_SLOW: usize = 24;
/// Number of delta runs at which a commit that needs a new memtable is held. The number is bounded because a get of an
/// absent key looks at all runs, and a merge of all of them has a buffer for each.
const RUNS_MAX: usize = 36;
/// Debt from which commits are slowed, in units of the records that make a merge into the base due (a quarter of the base,
/// or some memtables): soon after that, because the deltas take disk space.
const DEBT_SLOW: f64 = 1.1;
/// Debt at which commits are held, in the same units. The deltas then hold three eighths as many records as the base.
const DEBT_MAX: f64 = 1.5;
/// Least number of delta runs of one size that are merged together.
const FANOUT: usize = 4;
/// As [`FANOUT`], once there are [`CROWDED`] runs, so many that commits will soon be held.
const FANOUT_CROWDED: usize = 2;
const CROWDED: usize = (RUNS_SLOW + RUNS_MAX) / 2;
/// Largest number of runs merged at once, because each has buffers. There are more runs than the number that holds
/// commits only if something has failed for a long time.
pub(crate) const MERGED_MAX: usize = 2 * RUNS_MAX;
/// A merge into the base is due as long as the deltas hold 1/BASE_SHARE of its records, and at least [`DELTA_MEMS_MIN`]
/// memtables, that the base does not have. With half of the base, deltas and their merges would take as much space again as
/// the base; with an eighth, each record would be written five times.
const BASE_SHARE: u64 = 4;
/// A merge into the base is due no sooner than the deltas hold as many records as this many memtables. It matters while
/// the base is small, so that a memtable is larger than its share of the store.
const DELTA_MEMS_MIN: u64 = 8;
/// As [`BASE_SHARE`], if no delta has a filter in memory: every absent key then costs a read in each of them.
const BASE_SHARE_UNFILTERED: u64 = 16;

/// The greatest pressure, at which commits are held.
pub(crate) const FULL_PRESSURE: f64 = 1024.0;

/// Debt to the base: records in the delta runs that can be merged into it, without those that it has already.
pub(crate) struct Debt {
    /// Its records divided by the number that makes a merge into the base due: at 1.0 or more, merge now. Deltas without
    /// filters in memory lower that number.
    pub(crate) parts: f64,
    /// As `parts`, with the number that applies if every delta has its filter.
    pub(crate) parts_filtered: f64,
}

impl Debt {
    /// Debt in percent of the records that make a merge into the base due if every delta has its filter.
    pub(crate) fn percent(&self) -> u64 {
        (self.parts_filtered * 100.0) as u64
    }
}

pub(crate) fn debt(now: &Visible) -> Debt {
    let deltas = mergeable(&now.version).iter().filter(|run| !run.is_left_over());
    let (mut records, mut unfiltered) = (0, 0);
    for run in deltas {
        let of_run = now.version.unmerged_of(run);
        records += of_run;
        unfiltered += if run.segments().iter().all(|segment| segment.planes_loaded() == 0) { of_run } else { 0 };
    }
    let parts = |share: f64| records as f64 / due_records(now, share);
    // Merge sooner in proportion to the part of the deltas without a filter.
    let part = unfiltered as f64 / records.max(1) as f64;
    let share = BASE_SHARE as f64 + (BASE_SHARE_UNFILTERED - BASE_SHARE) as f64 * part;
    Debt { parts: parts(share), parts_filtered: parts(BASE_SHARE as f64) }
}

/// Returns the number of unmerged records that makes a merge into the base due.
fn due_records(now: &Visible, share: f64) -> f64 {
    (now.version.base.records() as f64 / share).max((DELTA_MEMS_MIN * now.usual_mem_records()) as f64)
}

/// Returns how far merges lag: from 0, not at all, to [`FULL_PRESSURE`], where commits are held.
pub(crate) fn pressure_of(now: &Visible) -> u32 {
    let share = |value: f64, slow: f64, most: f64| ((value - slow) / (most - slow)).clamp(0.0, 1.0);
    let runs = share(now.version.deltas.len() as f64, RUNS_SLOW as f64, RUNS_MAX as f64);
    let debt = share(debt(now).parts_filtered, DEBT_SLOW, DEBT_MAX);
    (runs.max(debt) * FULL_PRESSURE) as u32
}

/// Whether a commit has to wait before it may begin a new memtable.
pub(crate) fn is_held(now: &Visible) -> bool {
    has_too_many_runs(now) || debt(now).parts_filtered >= DEBT_MAX
}

/// Whether the number of delta runs holds commits. If nothing can be merged, because too much is unreadable, waiting
/// would not help.
pub(crate) fn has_too_many_runs(now: &Visible) -> bool {
    now.version.deltas.len() >= RUNS_MAX && can_shrink(&now.version)
}

/// Whether merges must run at full speed: half way from the usual state to the point where commits are slowed.
pub(crate) fn is_late(now: &Visible) -> bool {
    now.version.deltas.len() >= (RUNS_USUAL + RUNS_SLOW) / 2 || debt(now).parts_filtered >= (1.0 + DEBT_SLOW) / 2.0
}

/// Returns the delta runs that the next step of the merge into the base takes: those older than every run that cannot
/// be read, and at most [`MERGED_MAX`].
///
/// Each of them is of an older batch than every run that is left out, because a manifest that is rebuilt from footers
/// takes the deltas up to the step's batch for merged. Only a run that a replay has cut within a batch, or that a repair
/// has made, could be of a later batch; such runs are left out too.
pub(crate) fn mergeable(version: &Version) -> &[Arc<Run>] {
    let unreadable = version.deltas.iter().rposition(|run| run.is_unreadable());
    let from = unreadable.map_or(0, |at| at + 1).max(version.deltas.len().saturating_sub(MERGED_MAX));
    let (left, deltas) = version.deltas.split_at(from);
    let Some(oldest_left) = left.iter().map(|run| batch_of(run)).min() else { return deltas };
    let alike = deltas.iter().rposition(|run| batch_of(run) >= oldest_left);
    &deltas[alike.map_or(0, |at| at + 1)..]
}

/// Returns the newest batch that may have a record in a run.
pub(crate) fn batch_of(run: &Run) -> u64 {
    run.segments().iter().map(|segment| segment.origin().batch).max().unwrap_or(0)
}

/// Returns the range of runs to merge next, if there are more than usual. `deltas` are the runs that no merge has taken,
/// newest first. Of a stretch of readable runs these are the newest up to the last of at least [`FANOUT`] of one tier. If
/// there are too many runs, fewer of one tier suffice, and if no two are alike a whole stretch is merged.
///
/// As long as there are not, no merge writes more than half of the records that make a merge into the base due: a run that large
/// soon is in the base, and all its records would be written once more for nothing.
pub(crate) fn due(now: &Visible, deltas: &[Arc<Run>]) -> Option<Range<usize>> {
    let (memtable, records_max) = (now.usual_mem_records(), due_records(now, BASE_SHARE as f64) as u64 / 2);
    let crowded = now.version.deltas.len() >= CROWDED;
    let fanout = if crowded { FANOUT_CROWDED } else { FANOUT };
    if now.version.deltas.len() < RUNS_USUAL {
        return None;
    }
    let mut start = 0;
    let mut longest = 0..0;
    for stretch in deltas.split(|run| run.is_unreadable()) {
        let sizes: Vec<u64> = stretch.iter().map(|run| run.records() / memtable.max(1)).collect();
        let mut room = if crowded { u64::MAX } else { records_max };
        let mut fits = |run: &&Arc<Run>| {
            let left = room.checked_sub(run.records());
            room = left.unwrap_or(0);
            left.is_some()
        };
        if let Some(end) = newest_alike(&sizes, fanout) {
            let count = stretch[..end].iter().take(MERGED_MAX).take_while(&mut fits).count();
            if count >= fanout {
                return Some(start..start + count);
            }
        }
        if stretch.len() > longest.len() {
            longest = start..start + stretch.len();
        }
        start += stretch.len() + 1;
    }
    (crowded && longest.len() > 1).then_some(longest)
}

/// Whether merges can reduce the number of delta runs.
pub(crate) fn can_shrink(version: &Version) -> bool {
    let of_two = version.deltas.windows(2).any(|two| !two.iter().any(|run| run.is_unreadable()));
    of_two || mergeable(version).iter().any(|run| !run.is_left_over())
}

/// Returns how many of the newest runs to merge, given their sizes in memtables.
fn newest_alike(sizes: &[u64], fanout: usize) -> Option<usize> {
    let tier = |size: &u64| (*size).max(1).ilog2() / FANOUT.ilog2();
    let mut end = 0;
    while end < sizes.len() {
        let of = tier(&sizes[end]);
        let count = sizes[end..].iter().take_while(|size| tier(size) <= of).count();
        if count >= fanout {
            return Some(end + count);
        }
        end += count;
    }
    None
}

/// Returns the next group of the base from key `from` on, and the first key after the group. A group is as many
/// segments as fill one, or a single segment that cannot be read.
pub(crate) fn groups_from(base: &Run, from: &Key, segment_records: u64) -> (Vec<Arc<Segment>>, Option<Key>) {
    let start = base.segments().partition_point(|segment| segment.info.last < *from);
    let (mut end, mut records) = (start, 0);
    while let Some(segment) = base.segments().get(end)
        && (end == start || (records + segment.info.records <= segment_records && !segment.is_unreadable()))
    {
        records += segment.info.records;
        end += 1;
        if segment.is_unreadable() {
            break;
        }
    }
    (base.segments()[start..end].to_vec(), base.segments().get(end).map(|segment| segment.info.first))
}

#[cfg(test)]
mod tests {
    use super::{FANOUT, newest_alike};

    #[test]
    fn four_of_a_size_are_merged_with_all_that_are_newer() {
        assert_eq!(newest_alike(&[1, 1, 1], FANOUT), None);
        assert_eq!(newest_alike(&[1, 1, 1, 1], FANOUT), Some(4));
        assert_eq!(newest_alike(&[1, 4, 4, 4, 16], FANOUT), None);
        assert_eq!(newest_alike(&[1, 4, 4, 4, 5, 16], FANOUT), Some(5));
        assert_eq!(newest_alike(&[1, 4, 4, 1, 5, 16], FANOUT), Some(5), "a smaller one between them counts");
        assert_eq!(newest_alike(&[0, 0, 0, 0], FANOUT), Some(4), "so do runs of less than a memtable");
    }
}
