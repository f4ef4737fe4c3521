//! Merges sorted runs: on their way to the engine, or several into one run when memory has no room for a block of each.
//!
//! Its memory is bounded for any keys: a piece of each run. Runs on the thread that takes the records.

use std::path::Path;

use anyhow::Result;

use super::OnDuplicate;
use super::chunk::Chunker;
use super::heads::{ENDED, Heads};
use super::run::{NO_RECORD, Reader, Run, Writer};
use crate::rank::Rank;
use crate::source::{Files, Record, has_no_value};

/// Reads several sorted runs as one.
pub(super) struct Merge {
    rank: Rank,
    readers: Vec<Reader>,
    heads: Heads,
}

impl Merge {
    /// Opens each run at the first record that is still needed, and checks all of them before any record is returned.
    /// `bytes` is the memory for pieces of all runs.
    ///
    /// # Errors
    /// A run that is missing or damaged, named with the way out; I/O errors of reading.
    pub(super) fn open(dir: &Path, spill: u64, runs: &[Run], rank: Rank, bytes: usize) -> Result<Self> {
        let piece_bytes = bytes / runs.len().max(1);
        let open = |run: &Run| Reader::open(dir, spill, *run, piece_bytes);
        let mut readers = runs.iter().map(open).collect::<Result<Vec<_>>>()?;
        let ranks = readers.iter_mut().map(|reader| rank_of_next(reader, rank)).collect::<Result<_>>()?;
        let heads = Heads::new(ranks, |a, b| precedes(&readers, rank, a, b));
        Ok(Self { rank, readers, heads })
    }

    /// Copies the next record in order to `into`, and returns the place of its run among the runs; `None` after the
    /// last record.
    ///
    /// # Errors
    /// A damaged block, named with file and offset; I/O errors of reading.
    pub(super) fn next(&mut self, into: &mut Record) -> Result<Option<usize>> {
        let Self { rank, readers, heads } = self;
        let Some(run) = heads.first() else { return Ok(None) };
        if !readers[run].next(into)? {
            return Ok(None);
        }
        let next = rank_of_next(&mut readers[run], *rank)?;
        heads.replace_first(next, |a, b| precedes(readers, *rank, a, b));
        Ok(Some(run))
    }
}

/// Returns the rank of the run's next record.
fn rank_of_next(reader: &mut Reader, rank: Rank) -> Result<u64> {
    Ok(reader.next_key()?.map_or(ENDED, |key| rank.of(key)))
}

/// Whether the next record of run `a` comes before that of run `b`. A run that has ended comes last.
#[cold]
fn precedes(readers: &[Reader], rank: Rank, a: usize, b: usize) -> bool {
    match (readers[a].peek(), readers[b].peek()) {
        (Some(a), Some(b)) => rank.compare(&a, &b).is_lt(),
        (a, _) => a.is_some(),
    }
}

/// Merges the needed records of `runs` into one run with this number, with `bytes` of memory for their pieces. Calls
/// `progress` every 65,536 records, which may stop it.
///
/// # Errors
/// A damaged run; I/O errors of reading or writing, naming the file; errors of `progress`.
pub(super) fn combine(
    dir: &Path,
    spill: u64,
    runs: &[Run],
    number: u32,
    rank: Rank,
    bytes: usize,
    progress: &mut dyn FnMut() -> Result<()>,
) -> Result<Run> {
    let mut merge = Merge::open(dir, spill, runs, rank, bytes)?;
    let records = runs.iter().map(|run| run.left()).sum();
    let mut writer = Writer::create(dir, spill, Run::whole(number, records))?;
    let (mut written, mut record) = (0u64, NO_RECORD);
    while merge.next(&mut record)?.is_some() {
        writer.push(&record)?;
        written += 1;
        if written.is_multiple_of(1 << 16) {
            progress()?;
        }
    }
    writer.end()?.flush()
}

/// Which of the records of one key counts.
#[derive(Clone, Copy)]
pub(super) enum Rule<'a> {
    /// The last one in the source, if two values of a key are allowed at all.
    OnDuplicate(OnDuplicate),
    /// The newest version of an account. Its key has no pair if that version has no value.
    Newest(&'a Files),
}

/// Passes one pair for each key to `chunker`, and counts the other records of the key there. A record is held until the
/// next one has another key, so that a mark is never between two records of a key. Returns `false` when no more are
/// wanted.
///
/// # Errors
/// Errors of `next`; two different values for one key, if `rule` forbids them.
pub(super) fn unique(
    mut next: impl FnMut(&mut Record) -> Result<Option<usize>>,
    rule: Rule<'_>,
    chunker: &mut Chunker,
) -> Result<bool> {
    let end = |chunker: &mut Chunker, held: &Record, run: usize| match rule {
        Rule::Newest(_) if has_no_value(held) => Ok(chunker.absent(&held.1, run)),
        _ => chunker.push(held, run),
    };
    // Two records take turns, because copying one for each key would cost time.
    let (mut one, mut other) = (NO_RECORD, NO_RECORD);
    let (mut held, mut later) = (&mut one, &mut other);
    let Some(mut held_run) = next(held)? else { return Ok(true) };
    while let Some(run) = next(later)? {
        if held.1 != later.1 {
            if !end(chunker, held, held_run)? {
                return Ok(false);
            }
        } else if !chunker.pass_over() {
            return Ok(false);
        } else {
            match rule {
                Rule::OnDuplicate(rule) => chunker.duplicate(held, held_run, later, rule)?,
                Rule::Newest(files) if files.is_earlier_newer(held, later) => {
                    chunker.older_version(run);
                    continue;
                }
                Rule::Newest(_) => chunker.older_version(held_run),
            }
        }
        std::mem::swap(&mut held, &mut later);
        held_run = run;
    }
    end(chunker, held, held_run)
}
