//! Merges sorted runs through a heap: on their way to the engine, or several into one run when memory has no room for a
//! block of each.
//!
//! Its memory is bounded for any keys: one block of each run. Runs on the thread that takes the records.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::path::Path;

use anyhow::Result;

use super::chunk::Chunker;
use super::run::{Reader, Run, Writer};
use super::{OnDuplicate, Rank, Ranked};
use crate::source::Record;

/// The next record of one run. The order is reversed: the greatest in the heap is the first in the source's order.
struct Head {
    ranked: Ranked,
    run: usize,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        other.ranked.cmp(&self.ranked)
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

/// Reads several sorted runs as one.
pub(super) struct Merge {
    rank: Rank,
    readers: Vec<Reader>,
    heap: BinaryHeap<Head>,
}

impl Merge {
    /// Opens the runs where their first needed records are, and checks each of them before it returns the first record of
    /// any.
    ///
    /// # Errors
    /// A run that is missing or damaged, named with the way out; I/O errors of reading.
    pub(super) fn open(dir: &Path, spill: u64, runs: &[Run], rank: Rank) -> Result<Self> {
        let mut readers = runs.iter().map(|run| Reader::open(dir, spill, *run)).collect::<Result<Vec<_>>>()?;
        let mut heap = BinaryHeap::with_capacity(runs.len());
        for (run, reader) in readers.iter_mut().enumerate() {
            if let Some(record) = reader.next()? {
                heap.push(Head { ranked: rank.of(record), run });
            }
        }
        Ok(Self { rank, readers, heap })
    }

    /// Returns the next record in order, and the place of its run among the runs; `None` after the last.
    ///
    /// # Errors
    /// A damaged block, named with file and offset; I/O errors of reading.
    pub(super) fn next(&mut self) -> Result<Option<(Record, usize)>> {
        let Some(mut first) = self.heap.peek_mut() else { return Ok(None) };
        let taken = (first.ranked.record, first.run);
        match self.readers[first.run].next()? {
            Some(next) => first.ranked = self.rank.of(next),
            None => drop(PeekMut::pop(first)),
        }
        Ok(Some(taken))
    }
}

/// Merges the needed records of `runs` into one run with this number. Calls `progress` every 65,536 records, which may stop it.
///
/// # Errors
/// A damaged run; I/O errors of reading or writing, naming the file; errors of `progress`.
pub(super) fn combine(
    dir: &Path,
    spill: u64,
    runs: &[Run],
    number: u32,
    rank: Rank,
    progress: &mut dyn FnMut() -> Result<()>,
) -> Result<Run> {
    let mut merge = Merge::open(dir, spill, runs, rank)?;
    let records = runs.iter().map(|run| run.left()).sum();
    let mut writer = Writer::create(dir, spill, Run::whole(number, records))?;
    let mut written = 0u64;
    while let Some((record, _)) = merge.next()? {
        writer.push(&record)?;
        written += 1;
        if written.is_multiple_of(1 << 16) {
            progress()?;
        }
    }
    writer.finish()
}

/// Passes one pair for each key to `chunker`, and the other copies of the key to [`Chunker::duplicate`]. A record is
/// held until the next one has another key, so that a mark is never between two copies of a key. Returns `false` when
/// no more are wanted.
///
/// # Errors
/// Errors of `next`; two different values for one key, if `rule` forbids them.
pub(super) fn unique(
    next: &mut dyn FnMut() -> Result<Option<(Record, usize)>>,
    rule: OnDuplicate,
    chunker: &mut Chunker<'_>,
) -> Result<bool> {
    let mut held: Option<(Record, usize)> = None;
    while let Some((record, run)) = next()? {
        match held.replace((record, run)) {
            Some((last, from)) if last.1 == record.1 => chunker.duplicate(&last, from, &record, rule)?,
            Some((last, from)) if !chunker.push(&last, from)? => return Ok(false),
            _ => {}
        }
    }
    match held {
        Some((last, from)) => chunker.push(&last, from),
        None => Ok(true),
    }
}
