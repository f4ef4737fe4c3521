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

/// Number of delta runs that is usual: three of each of four sizes.
const RUNS_USUAL: usize = 12;
/// Number of delta runs from which commits are slowed. About as many as usual may wait while a merge into the base holds the
/// others. RocksDB's triggers have the same values.
const RUNS_SLOW: usize = 20;
/// Number of delta runs at which a commit that needs a new memtable is held. The number is bounded because a get of an
/// absent key looks at all runs, and a merge of all of them has a buffer for each.
const RUNS_MAX: usize = 36;
/// Debt from which commits are slowed, in units of the records that make a merge into the base due (half of the base,
/// or some memtables): soon after a merge is due, because the deltas take disk space until it ends.
const DEBT_SLOW: f64 = 1.25;
/// Debt at which commits are held, in the same units. The deltas then hold one and a half times as many records as the
/// base. Writers at full speed reach two thirds of it.
const DEBT_MAX: f64 = 3.0;
/// Number of delta runs of one size that are merged together.
const FANOUT: usize = 4;
/// As [`FANOUT`], once there are [`CROWDED`] runs, so many that commits will soon be held.
const FANOUT_CROWDED: usize = 2;
const CROWDED: usize = (RUNS_SLOW + RUNS_MAX) / 2;
/// Largest number of runs merged at once, because each has buffers. There are more runs than the number that holds
/// commits only if something has failed for a long time.
pub(crate) const MERGED_MAX: usize = 2 * RUNS_MAX;
/// A merge into the base is due once the deltas hold 1/BASE_SHARE of its records, and at least [`DELTA_MEMS_MIN`]
/// memtables.
const BASE_SHARE: u64 = 2;
/// A merge into the base is due no sooner than the deltas hold as many records as this many memtables. It matters while
/// the base is small, so that a memtable is larger than its share of the store.
const DELTA_MEMS_MIN: u64 = 16;
/// As [`BASE_SHARE`], if no delta has a filter in memory: every absent key then costs a read in each of them.
const BASE_SHARE_UNFILTERED: u64 = 16;

/// The greatest pressure, at which commits are held.
pub(crate) const FULL_PRESSURE: f64 = 1024.0;

/// Debt to the base: records in the delta runs that can be merged into it.
pub(crate) struct Debt {
    pub(crate) records: u64,
    /// Records divided by the number that makes a merge into the base due: at 1.0 or more, merge now. Deltas without
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
    for segment in deltas.flat_map(|run| run.segments()) {
        records += segment.info.records;
        unfiltered += if segment.planes_loaded() == 0 { segment.info.records } else { 0 };
    }
    let base = now.version.base.records();
    let parts = |share: f64| {
        let due = (base as f64 / share).max((DELTA_MEMS_MIN * now.usual_mem_records()) as f64);
        records as f64 / due
    };
    // Merge sooner in proportion to the part of the deltas without a filter.
    let part = unfiltered as f64 / records.max(1) as f64;
    let share = BASE_SHARE as f64 + (BASE_SHARE_UNFILTERED - BASE_SHARE) as f64 * part;
    Debt { records, parts: parts(share), parts_filtered: parts(BASE_SHARE as f64) }
}

/// Returns how far merges lag: from 0, not at all, to [`FULL_PRESSURE`], where commits are held.
pub(crate) fn pressure_of(now: &Visible) -> u32 {
    let share = |value: f64, slow: f64, most: f64| ((value - slow) / (most - slow)).clamp(0.0, 1.0);
    let runs = share(now.version.deltas.len() as f64, RUNS_SLOW as f64, RUNS_MAX as f64);
    let debt = share(debt(now).parts_filtered, DEBT_SLOW, DEBT_MAX);
    (runs.max(debt) * FULL_PRESSURE) as u32
}

/// Returns the bound that a commit has to wait at before it may begin a new memtable, if any.
pub(crate) fn held_by(now: &Visible) -> Option<HeldBy> {
    // If nothing can be merged, because too much is unreadable, waiting would not help.
    if now.version.deltas.len() >= RUNS_MAX && can_shrink(&now.version) {
        return Some(HeldBy::Runs);
    }
    (debt(now).parts_filtered >= DEBT_MAX).then_some(HeldBy::Debt)
}

/// The bound at which commits are held: the number of delta runs, or the debt.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeldBy {
    Runs,
    Debt,
}

/// Whether merges must run at full speed: half way from the usual state to the point where commits are slowed.
pub(crate) fn is_late(now: &Visible) -> bool {
    now.version.deltas.len() >= (RUNS_USUAL + RUNS_SLOW) / 2 || debt(now).parts_filtered >= (1.0 + DEBT_SLOW) / 2.0
}

/// Returns the delta runs that can be merged into the base: those older than every run that cannot be read.
///
/// Each of them is of an older batch than every run that is left out, because a manifest that is rebuilt from footers
/// takes a segment of the base for newer than the deltas of its batch. Only a run that a replay has cut within a batch,
/// or that a repair has made, could be of a later batch; such runs are left out too.
pub(crate) fn mergeable(version: &Version) -> &[Arc<Run>] {
    let unreadable = version.deltas.iter().rposition(|run| run.is_unreadable());
    let (left, deltas) = version.deltas.split_at(unreadable.map_or(0, |at| at + 1));
    let Some(oldest_left) = left.iter().map(|run| batch_of(run)).min() else { return deltas };
    let alike = deltas.iter().rposition(|run| batch_of(run) >= oldest_left);
    &deltas[alike.map_or(0, |at| at + 1)..]
}

/// Returns as many of these runs as `fits` accepts, from the oldest on, but not all of them. They are of older batches
/// than the others, as [`mergeable`] demands. None if there are no such runs.
pub(crate) fn oldest_that(deltas: &[Arc<Run>], fits: impl Fn(&[Arc<Run>]) -> bool) -> &[Arc<Run>] {
    let is_older = |newer: &[Arc<Run>], older: &[Arc<Run>]| {
        newer.iter().map(|run| batch_of(run)).min() > older.iter().map(|run| batch_of(run)).max()
    };
    let mut parts = (1..deltas.len()).map(|from| deltas.split_at(from));
    parts.find(|(newer, older)| is_older(newer, older) && fits(older)).map_or(&[], |(_, older)| older)
}

/// Returns the newest batch that may have a record in a run.
fn batch_of(run: &Run) -> u64 {
    run.segments().iter().map(|segment| segment.origin().batch).max().unwrap_or(0)
}

/// Returns the range of runs to merge next, if any. `deltas` are the runs that no merge has taken, newest first; `all`
/// is the number of all delta runs. Of a stretch of readable runs these are the newest up to the last of at least
/// [`FANOUT`] of one tier. If there are too many runs, fewer of one tier suffice, and if no two are alike a whole
/// stretch is merged.
pub(crate) fn due(deltas: &[Arc<Run>], all: usize, memtable: u64) -> Option<Range<usize>> {
    let crowded = all >= CROWDED;
    let fanout = if crowded { FANOUT_CROWDED } else { FANOUT };
    let mut start = 0;
    let mut longest = 0..0;
    for stretch in deltas.split(|run| run.is_unreadable()) {
        let sizes: Vec<u64> = stretch.iter().map(|run| run.records() / memtable.max(1)).collect();
        if let Some(count) = newest_alike(&sizes, fanout) {
            return Some(start + count.saturating_sub(MERGED_MAX)..start + count);
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
