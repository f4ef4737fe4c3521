//! Rebuilding a manifest from the footers of the segments, for a store without a usable manifest.
//!
//! Owns: which segments are used, and which of two overlapping ones is the newer. Must not: write. Runs on the thread
//! that repairs.
//!
//! A footer names the newest batch that its segment may hold, so of two overlapping segments the one with the higher
//! batch is the newer. A footer of the base also names the range of keys that the merge has written as its segment, and up
//! to which batch the base has all records of that range. So a delta whose range is written is in the base.

use std::collections::BTreeSet;
use std::sync::Arc;

use engine_api::{Error, ErrorKind, Repaired, Result};

use crate::file::ReadFile;
use crate::format::footer::{MergedRange, Origin, SegmentInfo, Wrong};
use crate::format::manifest::{Manifest, OTHER_VERSION};
use crate::format::secret::Seed;
use crate::read::sections::salvage_footer;
use crate::read::segment::name;
use crate::storage::Storage;
use crate::write::directory::{Own, own_files};

/// A manifest rebuilt from footers.
pub(crate) struct Rebuilt {
    pub(crate) manifest: Manifest,
    /// Names of the segment files that are not in the manifest.
    pub(crate) unused: Vec<String>,
}

/// A segment and its origin, as its footer describes them.
type Found = (SegmentInfo, Origin);

/// Rebuilds a manifest from the footers that can be read. Its WAL key is not the store's.
///
/// # Errors
/// `FixInput`: the directory has no file of a store, or segments of several stores; I/O errors of reading; `Internal`:
/// the kernel gives no random bytes.
pub(crate) fn rebuild(storage: &Arc<dyn Storage>, why: String, report: &mut Repaired) -> Result<Rebuilt> {
    let (found, mut unused) = footers(&**storage, report)?;
    let mut manifest = Manifest { runs: Vec::new(), wal_floor: 0, next_id: 1, ..Manifest::default() };
    manifest.seed = found.first().map_or_else(|| Seed::random(32), |(_, origin)| Ok(origin.seed))?;
    // A part of a flush or a load does not show that the rest is there.
    let ends = || found.iter().filter(|(_, origin)| !origin.part);
    if let Some((_, origin)) = ends().max_by_key(|(info, origin)| (origin.checkpoint.seq, origin.batch, info.id)) {
        manifest.checkpoint = origin.checkpoint.clone();
    }
    manifest.batch = ends().map(|(_, origin)| origin.batch).max().unwrap_or(0);
    report.findings.push(format!(
        "{why}: made anew of {} segments: batch={} seq={}",
        found.len(),
        manifest.batch,
        manifest.checkpoint.seq
    ));
    // Files that were replaced and not removed yet, or whose removal a loss of power has undone, may be among them.
    let lost = "files may be missing, and old values or deleted keys be back: only the lost manifest named all segments and \
                WAL files";
    report.lost.push(lost.to_owned());
    let (runs, obsolete) = runs(found, report);
    // The merge begins anew with every delta.
    manifest.joined_at = vec![[0; 32]; runs.len() - 1];
    manifest.runs = runs;
    unused.extend(obsolete.into_iter().map(|id| Own::Segment(id).name()));
    Ok(Rebuilt { manifest, unused })
}

/// Returns every segment with a valid footer, and the file names of those without.
fn footers(storage: &dyn Storage, report: &mut Repaired) -> Result<(Vec<Found>, Vec<String>)> {
    let own = own_files(storage)?;
    if own.is_empty() {
        let message = format!("there are no files of a store: dir={}", storage.shown());
        return Err(Error::new(ErrorKind::FixInput, message));
    }
    let (mut found, mut unused) = (Vec::<Found>::new(), Vec::new());
    let mut first: Option<String> = None;
    for own in own {
        let Own::Segment(id) = own else { continue };
        let file = ReadFile::open(storage, &name(id))?;
        match salvage_footer(&file)? {
            Ok((footer, _)) if footer.info.id == id => {
                let seed = found.first().map(|(_, origin)| origin.seed);
                if seed.is_some_and(|seed| seed != footer.origin.seed) {
                    let other = first.unwrap_or_default();
                    let message = format!(
                        "segments of several stores are here: file={other} file={}: move those of the others away",
                        file.shown()
                    );
                    return Err(Error::new(ErrorKind::FixInput, message));
                }
                first.get_or_insert_with(|| file.shown().to_owned());
                found.push((footer.info, footer.origin));
            }
            Err(wrong @ Wrong::OtherVersion(_)) => {
                let message = format!("file={} {wrong}", file.shown());
                return Err(Error::new(ErrorKind::FixInput, message).with_way_out(OTHER_VERSION));
            }
            Ok(_) | Err(Wrong::Damaged(_)) => {
                report.findings.push(format!("segment has no footer of its own: file={}", file.shown()));
                report.lost.push(format!(
                    "file={}: what it holds, unless a merge or a load that wrote it was cut short",
                    file.shown()
                ));
                unused.push(own.name());
            }
        }
    }
    Ok((found, unused))
}

/// Sorts segments into runs, newest first and the base last. Also returns the numbers of those that are in the base
/// already.
fn runs(mut found: Vec<Found>, report: &mut Repaired) -> (Vec<Vec<SegmentInfo>>, Vec<u64>) {
    found.sort_by_key(|(info, origin)| std::cmp::Reverse((origin.batch, origin.base, info.id)));
    let ranges = merged_ranges(found.iter().filter(|(_, origin)| origin.base));
    let is_replaced = |(info, origin): &Found| origin.base && is_written(info, 0, &ranges);
    let mut obsolete: BTreeSet<u64> = found.iter().filter(|one| is_replaced(one)).map(|(info, _)| info.id).collect();
    found.retain(|(info, _)| !obsolete.contains(&info.id));
    // Nothing has replaced the older part as a whole, so the step that wrote the newer one was cut short. Its records stand
    // in front of the base.
    let older = found.clone();
    let overlaps = |info: &SegmentInfo| {
        older.iter().any(|(other, origin)| origin.base && other.id < info.id && other.overlaps(info))
    };
    let (base, mut deltas): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|(info, origin)| origin.base && !overlaps(info));
    if deltas.iter().any(|(_, origin)| origin.base) {
        report.lost.push("deletions of the last merge: parts of the base overlap, and keys may be back".to_owned());
    }
    // Where a step could not read the base, a delta has the merged range.
    let left_over = deltas.iter().filter(|(_, origin)| !origin.base);
    let ranges = merged_ranges(base.iter().chain(left_over));
    obsolete.extend(in_base(&deltas, &ranges));
    deltas.retain(|(info, _)| !obsolete.contains(&info.id));
    let mut runs: Vec<Vec<Found>> = Vec::new();
    for one in deltas {
        let alike = |run: &&mut Vec<Found>| {
            let same = run.iter().all(|(_, origin)| (origin.batch, origin.base) == (one.1.batch, one.1.base));
            same && run.iter().all(|(info, _)| !info.overlaps(&one.0))
        };
        match runs.last_mut().filter(alike) {
            Some(run) => run.push(one),
            None => runs.push(vec![one]),
        }
    }
    runs.push(base);
    runs.iter_mut().for_each(|run| run.sort_by_key(|(info, _)| info.first));
    let infos = runs.into_iter().map(|run| run.into_iter().map(|(info, _)| info).collect());
    (infos.collect(), obsolete.into_iter().collect())
}

/// Returns the ranges that the merge into the base has written, ascending, each with the number of its segment.
fn merged_ranges<'a>(found: impl Iterator<Item = &'a Found>) -> Vec<(u64, MergedRange)> {
    let mut ranges: Vec<_> = found.filter_map(|(info, origin)| Some((info.id, origin.merged?))).collect();
    ranges.sort_by_key(|(_, range)| range.from);
    ranges
}

/// Whether the merge into the base has written the whole range of a segment after the segment, with the records up to
/// this batch. A delta that was written later than the base, such as that of a replay that was cut within a batch, is not
/// in it.
fn is_written(info: &SegmentInfo, batch: u64, ranges: &[(u64, MergedRange)]) -> bool {
    let mut next = Some(info.first);
    for (_, range) in ranges.iter().filter(|(id, range)| *id > info.id && range.batch >= batch) {
        next = match next {
            Some(from) if range.from <= from && range.to.is_none_or(|to| from < to) => range.to,
            next => next,
        };
    }
    next.is_none_or(|next| next > info.last)
}

/// Returns the numbers of those deltas, newest first, that a merge has written into the base and would have dropped. As in
/// `Version::merge_to`, a delta stays if it hides an older one that stays.
fn in_base(deltas: &[Found], ranges: &[(u64, MergedRange)]) -> BTreeSet<u64> {
    let (mut written, mut stay) = (BTreeSet::new(), Vec::<&SegmentInfo>::new());
    for (info, origin) in deltas.iter().rev() {
        let is_in_base = !origin.base && is_written(info, origin.batch, ranges);
        match is_in_base && !stay.iter().any(|older| older.overlaps(info)) {
            true => _ = written.insert(info.id),
            false => stay.push(info),
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a delta, segment `id` from key `first` to key `last`, with the given origin.
    fn delta(id: u64, (first, last): (u8, u8), batch: u64) -> Found {
        let info = SegmentInfo { id, records: 5, tombstones: 0, first: [first; 32], last: [last; 32] };
        (info, Origin { batch, ..Origin::default() })
    }

    /// Makes a segment of the base that a merge of all deltas up to its batch has written from key `from` up to key `to`.
    fn base(id: u64, keys: (u8, u8), batch: u64, (from, to): (u8, Option<u8>)) -> Found {
        let (info, origin) = delta(id, keys, batch);
        let merged = Some(MergedRange { from: [from; 32], to: to.map(|to| [to; 32]), batch });
        (info, Origin { base: true, merged, ..origin })
    }

    fn ids(found: Vec<Found>) -> (Vec<Vec<u64>>, Vec<u64>, bool) {
        let mut report = Repaired::default();
        let (runs, obsolete) = runs(found, &mut report);
        let ids = runs.iter().map(|run| run.iter().map(|info| info.id).collect());
        (ids.collect(), obsolete, report.lost.is_empty())
    }

    #[test]
    fn runs_stand_as_they_stood_and_what_is_in_the_base_is_left_out() {
        let all = vec![
            delta(9, (1, 9), 30),
            delta(8, (5, 9), 20),
            delta(7, (1, 4), 20),
            delta(3, (1, 9), 12),
            base(5, (6, 9), 12, (6, None)),
            base(4, (1, 5), 15, (0, Some(6))),
        ];
        assert_eq!(ids(all), (vec![vec![9], vec![7, 8], vec![4, 5]], vec![3], true));
        // Input and output of one merge have the same newest batch and overlap: the higher number comes first.
        let merged = vec![delta(3, (1, 9), 20), delta(8, (1, 9), 20)];
        assert_eq!(ids(merged), (vec![vec![8], vec![3], vec![]], vec![], true));
        // A replay that was cut within a batch has written a run of the batch before, after the merge of that batch.
        let cut = vec![base(5, (1, 9), 20, (0, None)), delta(8, (1, 9), 20)];
        assert_eq!(ids(cut), (vec![vec![8], vec![5]], vec![], true));
        // A loaded segment has no merged range.
        let (info, origin) = base(2, (1, 9), 0, (0, None));
        let loaded = vec![(info, Origin { merged: None, ..origin }), delta(1, (1, 9), 0)];
        assert_eq!(ids(loaded), (vec![vec![1], vec![2]], vec![], true));
    }

    #[test]
    fn a_delta_stays_until_all_of_its_range_is_written_and_hides_what_it_hid() {
        let part = |to| vec![base(9, (1, 4), 30, (0, Some(to))), delta(3, (1, 7), 30)];
        assert_eq!(ids(part(7)), (vec![vec![3], vec![9]], vec![], true), "the last key is not written");
        assert_eq!(ids(part(8)), (vec![vec![9]], vec![3], true));
        // Two ranges that meet, and two that do not.
        let two =
            |from| vec![base(8, (1, 3), 30, (0, Some(4))), base(9, (5, 6), 30, (from, None)), delta(3, (1, 7), 30)];
        assert_eq!(ids(two(4)), (vec![vec![8, 9]], vec![3], true));
        assert_eq!(ids(two(5)), (vec![vec![3], vec![8, 9]], vec![], true));
        // A range of an older batch.
        let older = vec![base(8, (1, 3), 30, (0, Some(4))), base(9, (5, 6), 29, (4, None)), delta(3, (1, 7), 30)];
        assert_eq!(ids(older), (vec![vec![3], vec![8, 9]], vec![], true));
        // The newer delta is written, but without it the older one, which is not, would be found first.
        let hidden = vec![base(8, (1, 4), 30, (0, Some(5))), delta(5, (2, 3), 20), delta(3, (1, 7), 10)];
        assert_eq!(ids(hidden), (vec![vec![5], vec![3], vec![8]], vec![], true));
    }

    #[test]
    fn a_newer_part_replaces_the_base_where_it_has_all_of_the_range_and_stands_above_it_otherwise() {
        let old = || vec![base(1, (1, 5), 10, (0, Some(6))), base(2, (6, 9), 10, (6, None))];
        let new = |found: Vec<Found>| [found, old()].concat();
        let all = new(vec![base(7, (1, 3), 10, (0, Some(4))), base(8, (5, 5), 10, (4, Some(6)))]);
        assert_eq!(ids(all), (vec![vec![7, 8, 2]], vec![1], true));
        let all = new(vec![base(7, (1, 3), 40, (0, Some(4))), delta(5, (1, 9), 40)]);
        assert_eq!(ids(all), (vec![vec![7], vec![5], vec![1, 2]], vec![], false));
    }
}
