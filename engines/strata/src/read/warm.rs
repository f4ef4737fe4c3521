//! Warm-up: brings the pages that have room in memory in by large reads, file after file.
//!
//! Owns: the order and the size of these reads. Must not: make room for pages, which is the division's decision, or
//! hold a version between two reads, because merges wait for its memory. Runs on the caller's thread.

use std::sync::Arc;

use engine_api::{Error, Pace, Result, Warmed};

use crate::read::lookup::Reads;
use crate::read::resident::Resident;
use crate::read::segment::Segment;
use crate::read::uring::{Pipeline, cannot_wait};
use crate::read::visible::Newest;
use crate::storage::PAGE_BYTES;

/// Number of pages of one read. A flash drive reaches its sequential rate with reads of 1 MiB, and a lookup that comes
/// meanwhile waits for [`IN_FLIGHT`] of them at most.
const STEP_PAGES: u32 = 256;

/// Number of reads under way. While the pages of one are checked and kept, the device has the others.
const IN_FLIGHT: usize = 4;

/// Number of failed reads after which the warm-up ends: the device may take seconds for each, and lookups wait meanwhile.
const FAILURES_MAX: usize = 16;

/// One read: pages of a segment.
#[derive(Clone, Copy, Debug)]
struct Step {
    segment: u64,
    first: u32,
    end: u32,
}

/// The reads of pages that are not in memory.
struct Steps<'v> {
    newest: &'v Newest,
    /// Ids of the segments after the present one.
    segments: std::vec::IntoIter<u64>,
    /// Id of the present segment, and the first page that was not looked at.
    at: Option<(u64, u32)>,
}

/// Reads the pages that are missing now. A segment that a merge replaces meanwhile is left out, because the merge keeps
/// the pages that it writes. Pages that cannot be read or are damaged stay missing, and the first error is returned after the
/// others have been read, or after [`FAILURES_MAX`] failed reads.
pub(crate) fn warm_up(newest: &Newest, reads: &Arc<Reads>, go_on: &mut dyn FnMut(Warmed) -> Pace) -> Result<()> {
    let segments = lacking(newest);
    let begun = look(newest, &segments);
    let mut warmed = Warmed { missing_bytes: begun.left_bytes, ..begun };
    let mut pace = go_on(warmed);
    if segments.is_empty() {
        return Ok(());
    }
    let mut steps = Steps { newest, segments: segments.clone().into_iter(), at: None };
    let mut pipeline = Pipeline::new(IN_FLIGHT, STEP_PAGES as usize, reads);
    let mut under_way: [Option<Step>; IN_FLIGHT] = [None; IN_FLIGHT];
    let mut failures = Vec::new();
    while pace != Pace::Stop && failures.len() < FAILURES_MAX {
        if pace == Pace::On {
            for (slot, free) in under_way.iter_mut().enumerate().filter(|(_, step)| step.is_none()) {
                let Some((segment, step)) = steps.next() else { break };
                pipeline.ask(slot, segment.file(), step.offset(), step.bytes());
                *free = Some(step);
            }
            pipeline.start();
        }
        let done = pipeline.wait().map_err(cannot_wait)?;
        let ended = done.is_none() && pace == Pace::On;
        if let Some((slot, outcome)) = done
            && let Some(step) = under_way[slot].take()
            && let Some(segment) = segment(newest, step.segment)
        {
            let read = outcome.map_err(|e| segment.file().failed(e, step.offset(), step.bytes()));
            let (kept_bytes, failure) = match read {
                Ok(()) => step.keep(&segment, &pipeline, slot),
                Err(e) => (0, Some(e)),
            };
            warmed.read_bytes += kept_bytes;
            failures.extend(failure);
        }
        if pace == Pace::On || under_way.iter().all(Option::is_none) {
            let Warmed { missing_bytes, read_bytes, .. } = warmed;
            warmed = Warmed { missing_bytes, read_bytes, ..look(newest, &segments) };
            pace = go_on(warmed);
        }
        if ended {
            break;
        }
    }
    failures.into_iter().next().map_or(Ok(()), Err)
}

impl Step {
    fn offset(self) -> u64 {
        u64::from(self.first) * PAGE_BYTES as u64
    }

    fn bytes(self) -> usize {
        (self.end - self.first) as usize * PAGE_BYTES
    }

    /// Checks the pages that were read into `slot` and are not in memory, and keeps those that are not damaged. Returns
    /// the bytes of the pages that were kept, and the first error.
    fn keep(self, segment: &Segment, pipeline: &Pipeline, slot: usize) -> (u64, Option<Error>) {
        let (mut kept_bytes, mut failure) = (0, None);
        for number in self.first..self.end {
            if segment.ready(number).is_none() {
                let page = pipeline.page(slot, (number - self.first) as usize);
                match segment.verify(page, number) {
                    Ok(_) => {
                        segment.keep(number, page);
                        kept_bytes += PAGE_BYTES as u64;
                    }
                    Err(e) => {
                        failure.get_or_insert(e);
                    }
                }
            }
        }
        (kept_bytes, failure)
    }
}

impl Iterator for Steps<'_> {
    /// A read, and the segment that it reads.
    type Item = (Arc<Segment>, Step);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (id, first) = match self.at.take() {
                Some(at) => at,
                None => (self.segments.next()?, 0),
            };
            let Some(segment) = segment(self.newest, id).filter(|segment| first < segment.pages()) else { continue };
            let end = segment.pages().min(first + STEP_PAGES);
            self.at = Some((id, end));
            if (first..end).any(|number| segment.ready(number).is_none()) {
                return Some((segment, Step { segment: id, first, end }));
            }
        }
    }
}

/// Returns the ids of the segments that have room for pages that are not in memory, in ascending order.
fn lacking(newest: &Newest) -> Vec<u64> {
    let visible = newest.load();
    let lacks = |segment: &&Arc<Segment>| segment.resident().is_some_and(|resident| resident.missing_bytes() > 0);
    let mut ids: Vec<u64> = visible.version.segments().filter(lacks).map(|segment| segment.info.id).collect();
    ids.sort_unstable();
    ids
}

/// Returns the sizes of the store and of its room as they are now. `left_bytes` has the pages that these segments lack.
fn look(newest: &Newest, lacking: &[u64]) -> Warmed {
    let visible = newest.load();
    let mut seen = Warmed::default();
    for segment in visible.version.segments() {
        seen.store_bytes += segment.page_bytes();
        seen.room_bytes += segment.resident_bytes();
        if lacking.binary_search(&segment.info.id).is_ok() {
            seen.left_bytes += segment.resident().map_or(0, Resident::missing_bytes);
        }
    }
    seen
}

/// Returns the segment if it is still in use and its pages still have room in memory.
fn segment(newest: &Newest, id: u64) -> Option<Arc<Segment>> {
    let visible = newest.load();
    visible.version.segments().find(|one| one.info.id == id && one.resident().is_some()).cloned()
}
