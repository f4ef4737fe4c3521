//! What is to be merged with what: sizes of delta runs, the debt to the base, groups of the base, segments that cannot be
//! read.
//!
//! Owns: the shape of the store. Must not: read or write. Runs on `strata-merge`, and on the thread of a transaction that
//! asks how far merges are behind.

use std::ops::Range;
use std::sync::Arc;

use engine_api::Key;

use crate::read::segment::Segment;
use crate::read::version::{Run, Version};
use crate::read::visible::Visible;
use crate::write::limits::{RUNS_MAX, RUNS_SLOW};

/// Delta runs of one size before they are merged.
const FANOUT: usize = 4;
/// The same once there are so many runs that commits will soon be held.
const FANOUT_CROWDED: usize = 2;
const CROWDED: usize = (RUNS_SLOW + RUNS_MAX) / 2;
/// Runs that are merged at once: each has buffers. More of them than commits are held at are there only where something has
/// failed for long.
pub(crate) const MERGED_MAX: usize = 2 * RUNS_MAX;
/// The base is merged once the deltas hold this part of it (one in), or this many memtables while it is small.
const BASE_SHARE: u64 = 2;
const DELTA_MEMS_MIN: u64 = 16;
/// The same where no delta has a filter in memory: then every absent key costs a read in each.
const BASE_SHARE_UNFILTERED: u64 = 16;

/// What the deltas hold that can be merged into the base.
pub(crate) struct Debt {
    pub(crate) records: u64,
    /// Of what makes a merge into the base due.
    pub(crate) parts: f64,
    /// Of what makes it due where every delta has its filter.
    pub(crate) parts_filtered: f64,
}

impl Debt {
    /// What makes a merge into the base due where every delta has its filter is 100.
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
        let due = (base as f64 / share).max((DELTA_MEMS_MIN * now.active.capacity() as u64) as f64);
        records as f64 / due
    };
    // As much sooner as the part of the deltas that has no filter.
    let part = unfiltered as f64 / records.max(1) as f64;
    let share = BASE_SHARE as f64 + (BASE_SHARE_UNFILTERED - BASE_SHARE) as f64 * part;
    Debt { records, parts: parts(share), parts_filtered: parts(BASE_SHARE as f64) }
}

/// The delta runs that can be merged into the base: those older than any that cannot be read.
///
/// Each of them is of an older batch than every run that is left out: a manifest that is made of footers takes a segment of
/// the base for newer than the deltas of its batch. Only a run that a replay has cut within a batch, or that a repair has made,
/// could be of a later one.
pub(crate) fn mergeable(version: &Version) -> &[Arc<Run>] {
    let unreadable = version.deltas.iter().rposition(|run| run.is_unreadable());
    let (left, deltas) = version.deltas.split_at(unreadable.map_or(0, |at| at + 1));
    let Some(oldest_left) = left.iter().map(|run| batch_of(run)).min() else { return deltas };
    let alike = deltas.iter().rposition(|run| batch_of(run) >= oldest_left);
    &deltas[alike.map_or(0, |at| at + 1)..]
}

/// The newest batch that may have a record in a run.
fn batch_of(run: &Run) -> u64 {
    run.segments().iter().map(|segment| segment.origin().batch).max().unwrap_or(0)
}

/// Which of the runs, newest first, are to be merged, where `all` is how many there are with those that are being merged:
/// of a stretch that can be read, the newest up to the last of at least [`FANOUT`] of one tier; of fewer when there are too
/// many runs, and all of a stretch where no two are alike.
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

/// Whether merges can make fewer of the delta runs.
pub(crate) fn can_shrink(version: &Version) -> bool {
    let of_two = version.deltas.windows(2).any(|two| !two.iter().any(|run| run.is_unreadable()));
    of_two || mergeable(version).iter().any(|run| !run.is_left_over())
}

/// How many of these, by their size in memtables, are to be merged.
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

/// The segments of the base that are merged together from this key on, and the key that comes after them: one that cannot
/// be read by itself, or as many as fill a segment.
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
