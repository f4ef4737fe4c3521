//! Rebuilding a manifest from the footers of the segments, for a store without a usable manifest.
//!
//! Owns: which segments are used, and which of two overlapping ones is the newer. Must not: write. Runs on the thread
//! that repairs.
//!
//! A footer names the newest batch that its segment may hold, so of two overlapping segments the one with the higher
//! batch is the newer. At the same batch a segment of the base counts as newer than a delta, because it holds the
//! delta's records.

use std::collections::BTreeSet;
use std::sync::Arc;

use engine_api::{Error, ErrorKind, Repaired, Result};

use crate::file::ReadFile;
use crate::format::footer::{Origin, SegmentInfo, Wrong};
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
    report.lost.push("files may be missing: only the lost manifest named all segments and WAL files".to_owned());
    let (runs, obsolete) = runs(found, report);
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

/// Sorts segments into runs, newest first and the base last. Also returns the numbers of deltas that are in the base
/// already.
fn runs(mut found: Vec<Found>, report: &mut Repaired) -> (Vec<Vec<SegmentInfo>>, Vec<u64>) {
    found.sort_by_key(|(info, origin)| std::cmp::Reverse((origin.batch, origin.base, info.id)));
    let mut base: Vec<Found> = found.iter().filter(|(_, origin)| origin.base).cloned().collect();
    base.sort_by_key(|(info, _)| info.first);
    let whole = disjoint(&base);
    let mut obsolete = BTreeSet::new();
    if whole {
        // A merge into the base takes all deltas up to a batch, which were written before it. Once no part of the base
        // is older than a delta, the delta is in it. A run that was written after the base, such as that of a replay
        // that was cut within a batch, is not.
        let merged = base.iter().map(|(_, origin)| origin.batch).min().unwrap_or(0);
        let first = base.iter().map(|(info, _)| info.id).min().unwrap_or(0);
        let in_base = |(info, origin): &&Found| !origin.base && origin.batch <= merged && info.id < first;
        let merged: Vec<&SegmentInfo> = found.iter().filter(in_base).map(|(info, _)| info).collect();
        let end = base.last().map(|(info, _)| info.last);
        if merged.iter().all(|info| end.is_some_and(|end| info.last <= end)) {
            obsolete.extend(merged.iter().map(|info| info.id));
        } else {
            // The last records of a merge come after the base's last key. As long as they are not all there, the deltas
            // alone have them. All deltas stay then, because each hides older values in the others.
            report.lost.push("newest values of some keys, unless a merge into the base was under way".to_owned());
        }
        found.retain(|(info, origin)| !origin.base && !obsolete.contains(&info.id));
    } else {
        report.lost.push("deletions of the last merge: parts of the base overlap, and keys may be back".to_owned());
    }
    let mut runs: Vec<Vec<Found>> = Vec::new();
    for one in found {
        let alike = |run: &&mut Vec<Found>| {
            let same = run.iter().all(|(_, origin)| (origin.batch, origin.base) == (one.1.batch, one.1.base));
            same && run.iter().all(|(info, _)| info.last < one.0.first || one.0.last < info.first)
        };
        match runs.last_mut().filter(alike) {
            Some(run) => run.push(one),
            None => runs.push(vec![one]),
        }
    }
    runs.iter_mut().for_each(|run| run.sort_by_key(|(info, _)| info.first));
    runs.push(if whole { base } else { Vec::new() });
    let infos = runs.into_iter().map(|run| run.into_iter().map(|(info, _)| info).collect());
    (infos.collect(), obsolete.into_iter().collect())
}

fn disjoint(ascending: &[Found]) -> bool {
    ascending.windows(2).all(|two| two[0].0.last < two[1].0.first)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes segment `id` from key `first` to key `last`, with the given origin.
    fn found(id: u64, (first, last): (u8, u8), batch: u64, base: bool) -> Found {
        let info = SegmentInfo { id, records: 5, tombstones: 0, first: [first; 32], last: [last; 32] };
        (info, Origin { batch, base, ..Origin::default() })
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
            found(9, (1, 9), 30, false),
            found(8, (5, 9), 20, false),
            found(7, (1, 4), 20, false),
            found(3, (1, 9), 12, false),
            found(5, (6, 9), 12, true),
            found(4, (1, 5), 15, true),
        ];
        // A merge of four deltas has the batch of its newest input, 20: both would be of one batch, and the output is
        // the newer.
        assert_eq!(ids(all), (vec![vec![9], vec![7, 8], vec![4, 5]], vec![3], true));
        // Input and output of one merge have the same newest batch and overlap: the higher number comes first.
        let merged = vec![found(3, (1, 9), 20, false), found(8, (1, 9), 20, false)];
        assert_eq!(ids(merged), (vec![vec![8], vec![3], vec![]], vec![], true));
        // A replay that was cut within a batch has written a run of the batch before, after the merge of that batch.
        let cut = vec![found(5, (1, 9), 20, true), found(8, (1, 9), 20, false)];
        assert_eq!(ids(cut), (vec![vec![8], vec![5]], vec![], true));
        // A merge that has replaced every part of the base may still have records after its last key to write.
        let tail = vec![found(9, (1, 4), 30, true), found(3, (1, 9), 30, false), found(2, (1, 3), 20, false)];
        assert_eq!(ids(tail), (vec![vec![3], vec![2], vec![9]], vec![], false));
        // A loaded segment has no batch, so no delta is taken to be in it.
        let loaded = vec![found(2, (1, 9), 0, true), found(3, (1, 9), 4, false)];
        assert_eq!(ids(loaded), (vec![vec![3], vec![2]], vec![], true));
    }

    #[test]
    fn a_base_that_overlaps_is_kept_whole_with_the_newer_part_above() {
        let all = vec![
            found(1, (1, 5), 10, true),
            found(2, (6, 9), 10, true),
            found(7, (1, 3), 40, true),
            found(5, (1, 9), 40, false),
        ];
        assert_eq!(ids(all), (vec![vec![7], vec![5], vec![1, 2], vec![]], vec![], false));
    }
}
