//! Warm-up: brings the pages that have room in memory in by large reads, file after file.
//!
//! Owns: the order and the size of these reads. Must not: make room for pages, which is the division's decision, or
//! hold a version between two reads, because merges wait for its memory. Runs on the caller's thread.

use std::sync::Arc;

use arc_swap::ArcSwap;
use engine_api::{Result, Warmed};

use crate::budget::Budget;
use crate::file::PageBuffer;
use crate::read::segment::Segment;
use crate::read::visible::Visible;
use crate::storage::PAGE_BYTES;

/// Number of pages of one read. A flash drive reaches its sequential rate with reads of 1 MiB, and a lookup that comes
/// meanwhile waits for one of them at most.
const STEP_PAGES: u32 = 256;

/// Reads the pages that are missing now. A segment that a merge replaces meanwhile is left out, because the merge keeps
/// the pages that it writes.
pub(crate) fn warm_up(
    newest: &ArcSwap<Visible>,
    budget: &Arc<Budget>,
    go_on: &mut dyn FnMut(Warmed) -> bool,
) -> Result<()> {
    let (ids, missing_bytes) = missing(newest);
    let mut warmed = Warmed { read_bytes: 0, missing_bytes };
    if missing_bytes == 0 || !go_on(warmed) {
        return Ok(());
    }
    let mut buffer = PageBuffer::new(STEP_PAGES as usize);
    let _share = budget.take_for_work(buffer.bytes_mut().len() as u64);
    for id in ids {
        let mut first = 0;
        while let Some(segment) = segment(newest, id).filter(|segment| first < segment.pages()) {
            let end = segment.pages().min(first + STEP_PAGES);
            if (first..end).any(|number| segment.ready(number).is_none()) {
                warmed.read_bytes += read(&segment, first, end, &mut buffer)?;
                drop(segment);
                if !go_on(warmed) {
                    return Ok(());
                }
            }
            first = end;
        }
    }
    Ok(())
}

/// Returns the segments that have room for pages that are not in memory, and the size of these pages in bytes.
fn missing(newest: &ArcSwap<Visible>) -> (Vec<u64>, u64) {
    let visible = newest.load();
    let missing = visible.version.segments().filter_map(|segment| {
        let bytes = segment.resident()?.missing_bytes();
        (bytes > 0).then_some((segment.info.id, bytes))
    });
    missing.fold((Vec::new(), 0), |(mut ids, sum), (id, bytes)| {
        ids.push(id);
        (ids, sum + bytes)
    })
}

/// Returns the segment if it is still in use and its pages still have room in memory.
fn segment(newest: &ArcSwap<Visible>, id: u64) -> Option<Arc<Segment>> {
    let visible = newest.load();
    visible.version.segments().find(|one| one.info.id == id && one.resident().is_some()).cloned()
}

/// Reads the pages from `first` up to `end`, checks those that are not in memory and keeps them. Returns the number of
/// bytes read.
fn read(segment: &Segment, first: u32, end: u32, buffer: &mut PageBuffer) -> Result<u64> {
    let bytes = (end - first) as usize * PAGE_BYTES;
    segment.file().read(&mut buffer.bytes_mut()[..bytes], u64::from(first) * PAGE_BYTES as u64)?;
    for number in first..end {
        if segment.ready(number).is_none() {
            let page = buffer.page((number - first) as usize);
            segment.verify(page, number)?;
            segment.keep(number, page);
        }
    }
    Ok(bytes as u64)
}
