//! A version: the runs of one moment, newest first, and the lookup of a key in them.
//!
//! Owns: the order of runs. Must not: change; each new moment is a new version.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine_api::{Key, Value};

use crate::format::Record;
use crate::format::filter::Spot;
use crate::format::footer::SegmentInfo;
use crate::format::manifest::Manifest;
use crate::format::page::prefix;
use crate::read::lookup::Hashes;
use crate::read::segment::Segment;
use crate::sizes::{usual_mem_records, usual_segment_records};

/// Number of runs whose filters are asked at once: more than there usually are.
const RUNS_TOGETHER: usize = 24;

/// Segments with disjoint ranges, in ascending order.
#[derive(Default)]
pub(crate) struct Run {
    segments: Vec<Arc<Segment>>,
    firsts: Firsts,
    /// Where the merge into the base was when it began with this delta run. The base has the run's records from there up
    /// to where the merge is now, going round.
    joined_at: Key,
    /// Whether the run holds the records that a merge into the base had to leave out.
    left_over: bool,
}

/// A run that a merge is replacing. Pairs read from it are not cached until this is dropped, and after that only if the
/// run was not replaced.
pub(crate) struct Closing<'a> {
    run: &'a Run,
    replaced: bool,
}

impl Closing<'_> {
    /// Confirms that the run was replaced. Otherwise the drop lets pairs read from it be cached again.
    pub(crate) fn replaced(mut self) {
        self.replaced = true;
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        if !self.replaced {
            self.run.segments.iter().for_each(|segment| segment.closed().open());
        }
    }
}

/// First key of each segment, held here so that a search does not touch the segments.
#[derive(Default)]
struct Firsts {
    keys: Vec<Key>,
    /// First eight bytes of each key as a number, which nearly always decides a search.
    prefixes: Vec<u64>,
}

impl Firsts {
    fn new(keys: Vec<Key>) -> Self {
        let prefixes = keys.iter().map(prefix).collect();
        Self { keys, prefixes }
    }

    /// Number of first keys that are at most `key`.
    fn up_to(&self, key: &Key) -> usize {
        let wanted = prefix(key);
        let below = self.below(wanted);
        let alike = self.prefixes[below..].partition_point(|first| *first == wanted);
        below + self.keys[below..below + alike].partition_point(|first| first <= key)
    }

    /// Number of first keys whose first eight bytes are less than `wanted`. Segments mostly divide the key space into
    /// equal parts, so the place is guessed first, because a search would delay the prefetch of the filter.
    #[inline]
    fn below(&self, wanted: u64) -> usize {
        let guess = ((u128::from(wanted) * self.prefixes.len() as u128) >> 64) as usize;
        let is_there = self.prefixes.get(guess).is_some_and(|first| *first < wanted)
            && self.prefixes.get(guess + 1).is_none_or(|next| *next >= wanted);
        if is_there { guess + 1 } else { self.prefixes.partition_point(|first| *first < wanted) }
    }
}

/// The runs of one moment. Deltas may hold tombstones, the base never does.
#[derive(Clone, Default)]
pub(crate) struct Version {
    /// The delta runs, newest first.
    pub(crate) deltas: Vec<Arc<Run>>,
    pub(crate) base: Arc<Run>,
    /// Where the next step of the merge into the base begins. The merge goes round the keys without an end.
    pub(crate) merge_at: Key,
}

impl Run {
    pub(crate) fn new(segments: Vec<Arc<Segment>>) -> Self {
        let firsts = Firsts::new(segments.iter().map(|segment| segment.info.first).collect());
        Self { segments, firsts, joined_at: [0; 32], left_over: false }
    }

    /// Makes a delta run that the merge into the base begins with at this key.
    pub(crate) fn joining(segments: Vec<Arc<Segment>>, joined_at: Key) -> Self {
        Self { joined_at, ..Self::new(segments) }
    }

    /// Makes a run of the records that a merge into the base left out because it could not read that part of the base.
    /// The merge goes on at `joined_at`.
    pub(crate) fn left_over(segments: Vec<Arc<Segment>>, joined_at: Key) -> Self {
        Self { left_over: true, ..Self::joining(segments, joined_at) }
    }

    /// Returns the same run with these segments and this beginning.
    fn changed(&self, segments: Vec<Arc<Segment>>, joined_at: Key) -> Arc<Self> {
        Arc::new(Self { left_over: self.left_over, ..Self::joining(segments, joined_at) })
    }

    /// Keeps pairs read from the run out of the record cache, because the run is being replaced.
    pub(crate) fn close(&self) -> Closing<'_> {
        self.segments.iter().for_each(|segment| segment.closed().close());
        Closing { run: self, replaced: false }
    }

    /// Whether a merge left these records over. Another merge would find nothing more to merge.
    pub(crate) fn is_left_over(&self) -> bool {
        self.left_over
    }

    /// Whether a merge could not read some part of the run.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.segments.iter().any(|segment| segment.is_unreadable())
    }

    /// Whether both are the same run, which the first segment decides, because no two runs share a segment.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let first = |run: &Self| run.segments.first().map(|segment| segment.info.id);
        first(self) == first(other)
    }

    /// Size of the files in bytes.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.file_bytes()).sum()
    }

    pub(crate) fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    pub(crate) fn records(&self) -> u64 {
        self.segments.iter().map(|segment| segment.info.records).sum()
    }

    pub(crate) fn tombstones(&self) -> u64 {
        self.segments.iter().map(|segment| segment.info.tombstones).sum()
    }

    /// Returns the index of the segment that would hold `key`.
    pub(crate) fn segment_for(&self, key: &Key) -> Option<usize> {
        self.firsts.up_to(key).checked_sub(1)
    }

    /// Whether the run may hold keys from `first` on that begin with `prefix`, with this hash for filters.
    pub(crate) fn may_hold_prefix(&self, prefix: &[u8], first: &Key, filter_hash: u64) -> bool {
        let holder = self.segment_for(first);
        // The keys may go on in the next segment.
        let next = self.segments.get(holder.map_or(0, |at| at + 1));
        holder.is_some_and(|at| self.segments[at].pass(filter_hash))
            || next.is_some_and(|next| next.info.first.starts_with(prefix))
    }

    /// Returns the segment that may hold `key`.
    #[inline]
    pub(crate) fn holder(&self, key: &Key) -> Option<&Arc<Segment>> {
        self.segment_for(key).map(|index| &self.segments[index])
    }
}

impl Version {
    /// Returns the same runs with segments replaced by those in `others`, which maps their numbers.
    pub(crate) fn with(&self, others: &BTreeMap<u64, Arc<Segment>>) -> Self {
        let run = |run: &Arc<Run>| {
            if !run.segments.iter().any(|segment| others.contains_key(&segment.info.id)) {
                return Arc::clone(run);
            }
            let other = |segment: &Arc<Segment>| Arc::clone(others.get(&segment.info.id).unwrap_or(segment));
            run.changed(run.segments.iter().map(other).collect(), run.joined_at)
        };
        Self { deltas: self.deltas.iter().map(run).collect(), base: run(&self.base), merge_at: self.merge_at }
    }

    /// Writes into a manifest which segments the runs have, and how far the merge into the base is.
    pub(crate) fn describe(&self, manifest: &mut Manifest) {
        manifest.runs = self.runs().map(|run| run.segments.iter().map(|segment| segment.info).collect()).collect();
        manifest.merge_at = self.merge_at;
        manifest.joined_at = self.deltas.iter().map(|run| run.joined_at).collect();
    }

    /// Makes the deltas those after a step of the merge into the base that has gone on to key `to`; `None` is the end of
    /// the keys, where it begins anew. The step has written the records of `merged`, and of no other run.
    ///
    /// A segment is dropped once the base has all of its records, unless an older delta has a segment in the same
    /// range: its records would come back. Runs in `busy` stay as they are, because a merge of deltas reads them.
    pub(crate) fn merge_to(&mut self, to: Option<Key>, merged: &[Arc<Run>], busy: &[Arc<Run>]) {
        let (from, at) = (self.merge_at, to.unwrap_or_default());
        let is_among = |run: &Run, runs: &[Arc<Run>]| runs.iter().any(|other| run.is(other));
        let mut kept: Vec<Arc<Run>> = Vec::new();
        for run in self.deltas.iter().rev() {
            if !is_among(run, merged) {
                // What is left out now would be missing in the base, so the merge begins anew with it.
                kept.push(run.changed(run.segments.clone(), at));
                continue;
            }
            let is_round = ends_round(&run.joined_at, &from, to.as_ref());
            let joined_at = if is_round { at } else { run.joined_at };
            let is_in_base = |info: &SegmentInfo| is_round || is_between(info, &joined_at, &at);
            let stays = |segment: &&Arc<Segment>| {
                let hides = |older: &Arc<Run>| older.segments.iter().any(|older| older.info.overlaps(&segment.info));
                !is_in_base(&segment.info) || kept.iter().any(hides)
            };
            let stay: Vec<_> = match is_among(run, busy) {
                true => run.segments.clone(),
                false => run.segments.iter().filter(stays).cloned().collect(),
            };
            if !stay.is_empty() {
                kept.push(run.changed(stay, joined_at));
            }
        }
        kept.reverse();
        self.deltas = kept;
        self.merge_at = at;
    }

    /// Returns where the merge into the base begins with a run that takes the place of these. It is the latest of their
    /// beginnings, after which the base has the records of all of them.
    pub(crate) fn joined_last(&self, runs: &[Arc<Run>]) -> Key {
        let nearest = runs.iter().map(|run| run.joined_at).max_by_key(|at| (*at <= self.merge_at, *at));
        nearest.unwrap_or(self.merge_at)
    }

    /// Returns the value of `key`, unless `newer` knows a newer record. `newer` is asked while the filters' cache lines
    /// are being fetched. `ask` looks into a segment that plane 0 lets through.
    ///
    /// The place of a key's cache line in a filter depends on the key alone. So the lines of many runs are fetched at
    /// once, and cost hardly more than one.
    #[inline]
    pub(crate) fn get<E>(
        &self,
        key: &Key,
        hash: Hashes,
        newer: impl FnOnce() -> Option<Record>,
        mut ask: impl FnMut(&Segment) -> Result<Option<Record>, E>,
    ) -> Result<Option<Value>, E> {
        let spot = Spot::of(0, hash.filter);
        let mut newer = Some(newer);
        let mut runs = self.runs();
        loop {
            let mut holders = [None; RUNS_TOGETHER];
            let mut count = 0;
            for (holder, run) in holders.iter_mut().zip(&mut runs) {
                *holder = run.holder(key);
                holder.iter().for_each(|segment: &&Arc<Segment>| segment.fetch_filter(spot));
                count += 1;
            }
            let holders = &holders[..count];
            // A key that is present is mostly in the last run, the base.
            if let Some(Some(segment)) = holders.last() {
                segment.fetch_directory(key);
            }
            if let Some(Record(found)) = newer.take().and_then(|newer| newer()) {
                return Ok(found);
            }
            for segment in holders.iter().flatten() {
                if segment.may_hold(spot)
                    && let Some(Record(found)) = ask(segment)?
                {
                    return Ok(found);
                }
            }
            if count < RUNS_TOGETHER {
                return Ok(None);
            }
        }
    }

    pub(crate) fn runs(&self) -> impl Iterator<Item = &Arc<Run>> {
        self.deltas.iter().chain(std::iter::once(&self.base))
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.runs().flat_map(|run| run.segments())
    }

    /// Number of records in a usual memtable of a store with these runs. `mem_records` is the largest number.
    pub(crate) fn usual_mem_records(&self, mem_records: u64) -> u64 {
        usual_mem_records(mem_records, self.base.records(), self.runs().map(|run| run.records()).sum())
    }

    /// Number of records in a usual segment of these runs. `segment_records` is the largest number.
    pub(crate) fn usual_segment_records(&self, segment_records: u64) -> u64 {
        usual_segment_records(segment_records, self.base.records())
    }

    /// Returns the greatest key of any run.
    pub(crate) fn last_key(&self) -> Option<Key> {
        self.runs().filter_map(|run| run.segments().last()).map(|segment| segment.info.last).max()
    }

    /// Estimates the number of pairs, counting a key once for each run. Exact if nothing was overwritten since the last
    /// full merge.
    pub(crate) fn pairs_estimate(&self) -> u64 {
        let tombstones: u64 = self.deltas.iter().map(|run| run.tombstones()).sum();
        (self.base.records() + self.unmerged()).saturating_sub(2 * tombstones)
    }

    /// Estimates the number of records in delta runs that the base does not have yet.
    pub(crate) fn unmerged(&self) -> u64 {
        self.deltas.iter().map(|run| self.unmerged_of(run)).sum()
    }

    /// Estimates how many records of a delta run the base does not have yet.
    pub(crate) fn unmerged_of(&self, run: &Run) -> u64 {
        run.segments.iter().map(|segment| records_left(&segment.info, &run.joined_at, &self.merge_at)).sum()
    }
}

/// Whether a step from `from` to `to` ends the round of a run that the merge has begun with at `joined_at`.
fn ends_round(joined_at: &Key, from: &Key, to: Option<&Key>) -> bool {
    match to {
        Some(to) if joined_at > from => joined_at <= to,
        Some(_) => false,
        None => joined_at > from || *joined_at == [0; 32],
    }
}

/// Whether all keys of a segment are between the two, going round from the first one. Nothing is between equal keys.
fn is_between(info: &SegmentInfo, from: &Key, to: &Key) -> bool {
    if from <= to { *from <= info.first && info.last < *to } else { *from <= info.first || info.last < *to }
}

/// Estimates how many records of a segment are not between the two keys, going round from the first one.
fn records_left(info: &SegmentInfo, from: &Key, to: &Key) -> u64 {
    let (after_from, after_to) = (records_from(info, from), records_from(info, to));
    if from <= to { info.records + after_to - after_from } else { after_to.saturating_sub(after_from) }
}

/// Estimates how many records of a segment have this key or a greater one, as if its keys were spread evenly beyond the
/// bytes that all of them share.
pub(crate) fn records_from(info: &SegmentInfo, key: &Key) -> u64 {
    if *key <= info.first {
        return info.records;
    }
    if *key > info.last {
        return 0;
    }
    let shared = info.first.iter().zip(&info.last).take_while(|(first, last)| first == last).count();
    let head = |key: &Key| {
        let byte = |at: usize| key.get(shared + at).copied().unwrap_or(0);
        u128::from(u64::from_be_bytes(std::array::from_fn(byte)))
    };
    let (first, last, from) = (head(&info.first), head(&info.last), head(key));
    (u128::from(info.records) * (last - from) / (last - first).max(1)) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn records_from_a_key_on_are_those_of_its_share_of_the_keys() {
        let key = |head: u8| [head; 32];
        let info = SegmentInfo { id: 1, records: 1000, tombstones: 0, first: key(10), last: key(110) };
        for (from, expected) in [(0, 1000), (10, 1000), (60, 500), (110, 0), (200, 0)] {
            let found = records_from(&info, &key(from));
            assert!(found.abs_diff(expected) <= 1, "from={from} found={found} expected={expected}");
        }
        let alone = SegmentInfo { records: 1, last: key(10), ..info };
        assert_eq!((records_from(&alone, &key(10)), records_from(&alone, &key(11))), (1, 0));
    }

    proptest! {
        #[test]
        fn as_many_are_up_to_a_key_as_a_plain_search_says(
            mut firsts in proptest::collection::vec((0u8..3, 0u8..3), 0..12), (head, tail) in (0u8..3, 0u8..3),
        ) {
            // Many keys share the first eight bytes.
            let key = |(head, tail): (u8, u8)| {
                let mut key = [head; 32];
                key[31] = tail;
                key
            };
            firsts.sort_unstable();
            firsts.dedup();
            let keys: Vec<Key> = firsts.into_iter().map(key).collect();
            let wanted = key((head, tail));
            let expected = keys.partition_point(|first| *first <= wanted);
            prop_assert_eq!(Firsts::new(keys).up_to(&wanted), expected);
        }
    }
}
