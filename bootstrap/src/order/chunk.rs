//! Chunks of pairs on their way to the engine, with marks up to which the spill is no longer needed.
//!
//! Owns: the counts of pairs, of duplicates and of the records taken from each run. Must not: read or write a file.
//! Runs on the thread `order`.

use std::sync::mpsc::{Receiver, SyncSender};

use anyhow::{Result, anyhow};
use engine_api::{Code, Key, Value};
use serde::{Deserialize, Serialize};

use super::OnDuplicate;
use crate::source::Record;

/// Counts of the pairs and duplicates from the first record of the order up to some position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Distinct pairs, including those before the resume position.
    pub(crate) pairs: u64,
    /// Records dropped because a later record has the same key.
    pub(crate) duplicates: u64,
    /// Number of duplicates with another value than the later record: only `--on-duplicate last` passes over them.
    pub(crate) replaced: u64,
    /// Keys without a pair, because their newest version in an archive has no value.
    #[serde(default)]
    pub(crate) absent: u64,
}

impl Tally {
    /// Returns the number of records counted.
    pub(crate) fn records(self) -> u64 {
        self.pairs + self.duplicates + self.absent
    }
}

/// A position in the order between two keys. Once the store holds the pairs before it durably, the spill's records
/// before it are not needed any more.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(super) tally: Tally,
    /// Number of records before the position in each run, in the order of the manifest's runs.
    pub(super) taken: Vec<u64>,
}

impl Mark {
    /// Returns the number of pairs before the position.
    pub(crate) fn pairs(&self) -> u64 {
        self.tally.pairs
    }
}

/// Pairs in order, none of which was in an earlier chunk.
pub(crate) struct Chunk {
    pub(crate) pairs: Vec<(Key, Value)>,
    /// Keys between those of the pairs, in order, whose newest version has no value; empty unless they are wanted.
    pub(crate) absent: Vec<Key>,
    /// Counts up to the last of the pairs.
    pub(crate) tally: Tally,
    /// Position after the last of the pairs, where the spill may be given back up to it.
    pub(crate) mark: Option<Mark>,
}

/// Number of records passed over between two chunks without pairs: far less than a second's.
const PASSED_RECORDS: u64 = 1 << 16;

/// Receives the memory of chunks that were taken. Filling it again costs less than new memory, whose pages the kernel
/// has to clear first.
pub(super) type Spare = Receiver<Vec<(Key, Value)>>;

/// How a [`Chunker`] makes chunks and hands them on.
pub(super) struct Outlet {
    /// Number of pairs in a chunk, with the keys that have none if those are wanted.
    pub(super) pairs: usize,
    /// Whether keys without a value are wanted.
    pub(super) with_absent: bool,
    /// Number of records between two marks. `None`: no marks are wanted.
    pub(super) mark_every: Option<u64>,
    pub(super) chunks: SyncSender<Chunk>,
    pub(super) spare: Spare,
}

/// Collects pairs into chunks, leaving out the pairs before the resume position.
pub(super) struct Chunker {
    skip: u64,
    chunk: Vec<(Key, Value)>,
    absent: Vec<Key>,
    tally: Tally,
    /// Number of records taken from each run.
    taken: Vec<u64>,
    /// Number of records at the last mark.
    marked: u64,
    /// Number of records that were passed over.
    passed: u64,
    to: Outlet,
}

impl Chunker {
    /// Begins after the records that `tally` counts and that `taken` has of each run. `skip`: number of pairs from the
    /// first one of the order that are not wanted.
    pub(super) fn new(tally: Tally, taken: Vec<u64>, skip: u64, to: Outlet) -> Self {
        let (skip, chunk) = (skip.saturating_sub(tally.pairs), Vec::with_capacity(to.pairs));
        Self { skip, chunk, absent: Vec::new(), tally, taken, marked: tally.records(), passed: 0, to }
    }

    /// Adds a pair from this run; returns `false` when no more are wanted.
    pub(super) fn push(&mut self, record: &Record, run: usize) -> Result<bool> {
        self.tally.pairs += 1;
        self.taken[run] += 1;
        if self.skip > 0 {
            self.skip -= 1;
            return Ok(self.pass_over());
        }
        self.chunk.push((record.1, record.2));
        Ok(self.send_if_full())
    }

    /// Counts a record that adds no pair. Now and then sends a chunk without pairs, so that the receiver can stop;
    /// returns `false` if it does.
    pub(super) fn pass_over(&mut self) -> bool {
        self.passed += 1;
        if !self.passed.is_multiple_of(PASSED_RECORDS) {
            return true;
        }
        let nothing = Chunk { pairs: Vec::new(), absent: Vec::new(), tally: self.tally, mark: None };
        self.to.chunks.send(nothing).is_ok()
    }

    /// Sends the chunk if it is full; returns `false` when no more are wanted.
    fn send_if_full(&mut self) -> bool {
        if self.chunk.len() + self.absent.len() < self.to.pairs {
            return true;
        }
        let (pairs, absent, mark) = (std::mem::take(&mut self.chunk), std::mem::take(&mut self.absent), self.mark());
        // A failed send means that the receiver is gone and wants no more chunks.
        let wanted = self.to.chunks.send(Chunk { pairs, absent, tally: self.tally, mark }).is_ok();
        self.chunk = self.to.spare.try_recv().unwrap_or_else(|_| Vec::with_capacity(self.to.pairs));
        self.chunk.clear();
        wanted
    }

    /// Handles two records of one key, of which `earlier` comes first in the source and is from this run: counts a
    /// duplicate, or fails if the values differ and `on_duplicate` says so.
    pub(super) fn duplicate(
        &mut self,
        earlier: &Record,
        run: usize,
        later: &Record,
        on_duplicate: OnDuplicate,
    ) -> Result<()> {
        if earlier.2 != later.2 {
            if on_duplicate == OnDuplicate::Error {
                let twice = anyhow!(
                    "a key is given twice with different values: key={} records={} and {} (counted from 1); \
                     --on-duplicate last takes the later one",
                    bs58::encode(earlier.1).into_string(),
                    earlier.0 + 1,
                    later.0 + 1
                );
                return Err(twice.context(Code::Input));
            }
            self.tally.replaced += 1;
        }
        self.tally.duplicates += 1;
        self.taken[run] += 1;
        Ok(())
    }

    /// Counts a version of a key, from this run, in whose place a newer one counts.
    pub(super) fn older_version(&mut self, run: usize) {
        self.tally.duplicates += 1;
        self.taken[run] += 1;
    }

    /// Counts a key that has no pair, and adds it if such keys are wanted. The version that says so is from this run.
    /// Returns `false` when no more are wanted.
    pub(super) fn absent(&mut self, key: &Key, run: usize) -> bool {
        self.tally.absent += 1;
        self.taken[run] += 1;
        if !self.to.with_absent {
            return self.pass_over();
        }
        self.absent.push(*key);
        self.send_if_full()
    }

    /// Returns a mark at the current position, if the last one is far enough away.
    fn mark(&mut self) -> Option<Mark> {
        let records = self.tally.records();
        if records - self.marked < self.to.mark_every? {
            return None;
        }
        self.marked = records;
        Some(Mark { tally: self.tally, taken: self.taken.clone() })
    }

    /// Sends the last pairs, and returns the counts of the whole pass.
    pub(super) fn finish(self) -> Tally {
        if !self.chunk.is_empty() || !self.absent.is_empty() {
            // If the receiver is gone, it did not want these pairs either.
            let last = Chunk { pairs: self.chunk, absent: self.absent, tally: self.tally, mark: None };
            self.to.chunks.send(last).ok();
        }
        self.tally
    }
}
