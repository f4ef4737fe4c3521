//! Sorts a source and merges it with a scan of a store, or looks its keys up there: the comparison of `verify`, of an
//! audit and of a heal.
//!
//! Owns: the sorted source, and the order of the two steps. Must not: write to the store, or hold either map in memory.
//! Threads: main sorts and merges; `store` scans the store.

use std::path::Path;

use anyhow::{Context, Result};
use bytesize::ByteSize;
use engine_api::{Code, Engine, Key, Reader, Value};
use engines::EngineOptions;

use crate::limits;
use crate::order::{Chunk, OnDuplicate, Ordered, WorkDir};
use crate::progress::Progress;
use crate::rank::Order;
use crate::scan::scan_memory;
use crate::seen::Seen;
use crate::sides::{self, Counts, base58, base58_or_nothing};
use crate::signal::Stop;
use crate::source::Source;
use crate::undo::{LostChanges, Undo};

/// Largest number of differences that are named.
const SHOWN_MAX: u64 = 10;

/// Takes a key that differs, with its value in the source and in the store.
pub(crate) type Differs<'a> = dyn FnMut(&Key, Option<&Value>, Option<&Value>) + 'a;

/// A source, and the store that it is compared with.
pub(crate) struct SideBySide<'a> {
    pub(crate) source: &'a Source,
    /// Seed of a synthetic source.
    pub(crate) seed: u64,
    /// Number of records in the source, if it is known before reading.
    pub(crate) records: Option<u64>,
    pub(crate) engine: &'a dyn Engine,
    /// Directory of the store, whose marker names the engine.
    pub(crate) dir: &'a Path,
    /// Memory of the engine, if the user has named one.
    pub(crate) memory: Option<ByteSize>,
    /// Changes of the store that are taken back first.
    pub(crate) undo: &'a Undo,
    /// Directory in which the source is sorted.
    pub(crate) work: &'a WorkDir,
    /// Whether to sort even where the disk looks too small.
    pub(crate) skip_disk_check: bool,
    pub(crate) stop: &'a Stop,
}

/// Result of comparing a source with a store.
pub(crate) struct Compared {
    /// Number of the source's records.
    pub(crate) records: u64,
    /// Blockhash of the source's slot; all zeros if it is unknown.
    pub(crate) blockhash: [u8; 32],
    /// Differences, of which this side is the source.
    pub(crate) counts: Counts,
    /// Changed keys whose newest value is not in the store.
    pub(crate) lost: LostChanges,
}

/// Facts of archives that were read to their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Number of pairs: accounts that have a value. Of an incremental archive without its full one, number of keys that
    /// were looked up: accounts with or without a value.
    pub pairs: u64,
    /// Blockhash of the newest archive's slot; all zeros if it is unknown.
    pub blockhash: [u8; 32],
}

impl SideBySide<'_> {
    /// Sorts the source and merges it with a scan of the store. Calls `name` with a line for each of the first keys that
    /// differ.
    ///
    /// # Errors
    /// Errors of reading and sorting the source, and of the scan; the stop.
    pub(crate) fn compare(&self, name: &mut dyn FnMut(&str)) -> Result<Compared> {
        self.differences(SHOWN_MAX, &Seen::default(), &mut |key, expected, found| {
            name(&difference(key, expected, found));
        })
    }

    /// Compares as [`Self::compare`] does, and calls `take` for each of the first `show` keys that differ. The order is
    /// ascending, and `take` gets the values in the source and in the store.
    ///
    /// # Errors
    /// Those of [`Self::compare`].
    pub(crate) fn differences(&self, show: u64, seen: &Seen, take: &mut Differs<'_>) -> Result<Compared> {
        let ordered = self.sort(seen)?;
        let pairs = self.engine.stats()?.pairs_estimate;
        let mut merging = Progress::new(Some(pairs), "comparing with the store").seen_by(seen);
        let store = (self.engine, self.undo, "store");
        let compared = sides::merge(store, show, take, |both| {
            let mut merged = 0;
            ordered.for_each(0, OnDuplicate::Last, &mut |chunk| {
                chunk.pairs.iter().for_each(|(key, value)| both.push(key, value));
                merged += chunk.pairs.len() as u64;
                merging.set(merged);
                Ok(self.stop.asked().is_none())
            })?;
            self.stop.look()
        });
        merging.clear();
        let (records, blockhash, (counts, lost)) = (ordered.records, ordered.blockhash, compared?);
        ordered.discard()?;
        Ok(Compared { records, blockhash, counts, lost })
    }

    /// Sorts an incremental archive and looks its keys up in the store. Calls `take` for each key with another value in the
    /// store, in ascending order. A key without a version in the archive gets the value that it had before the changes
    /// that are taken back. The store's other keys are not looked at.
    ///
    /// # Errors
    /// Errors of reading and sorting the archive, and of the lookups; the stop.
    pub(crate) fn changes(&self, seen: &Seen, take: &mut Differs<'_>) -> Result<Contents> {
        let ordered = self.sort(seen)?;
        let mut looking = Progress::new(Some(ordered.records), "looking up in the store").seen_by(seen);
        let mut reader = self.engine.reader()?;
        let (mut keys, mut stored, mut looked_up) = (Vec::new(), Vec::new(), 0);
        let mut undone = self.undo.old_values().peekable();
        let tally = ordered.for_each_version(&mut |chunk| {
            let versions = versions_of(chunk);
            keys.clear();
            keys.extend(versions.iter().map(|(key, _)| **key));
            stored.clear();
            stored.resize(keys.len(), None);
            reader.get_many(&keys, &mut stored)?;
            for ((key, new), old) in versions.iter().zip(&stored) {
                while let Some((undone, before)) = undone.next_if(|(undone, _)| undone < key) {
                    take_back(&mut *reader, undone, before, take)?;
                }
                undone.next_if(|(undone, _)| undone == key);
                if *new != old.as_ref() {
                    take(key, *new, old.as_ref());
                }
            }
            looked_up += keys.len() as u64;
            looking.set(looked_up);
            self.stop.look().map(|()| true)
        });
        looking.clear();
        let (tally, blockhash) = (tally?, ordered.blockhash);
        undone.try_for_each(|(undone, before)| take_back(&mut *reader, undone, before, take))?;
        ordered.discard()?;
        Ok(Contents { pairs: tally.pairs + tally.absent, blockhash })
    }

    /// Sorts the source by key. Continues with the spill of an earlier comparison with the same source.
    fn sort(&self, seen: &Seen) -> Result<Ordered> {
        let engine = engines::inspect(self.dir)?.map_or_else(engines::default_engine, |known| known.engine);
        let options = EngineOptions { memory: Some(scan_memory(self.memory)), ..EngineOptions::new(engine) };
        let (_, buffers) = limits::divide(&options, Order::Sorted, self.undo.bytes())?;
        let records = self.records.or_else(|| self.source.packed_count_hint());
        if let (Some(records), false) = (records, self.skip_disk_check) {
            let spill_bytes = limits::spill_bytes(records, &buffers);
            let needed_bytes = spill_bytes.saturating_sub(probe::disk_bytes(&self.work.path));
            probe::check_disk(&self.work.path, needed_bytes).context(Code::Space)?;
        }
        let mut progress = Progress::of_source(self.source, "sorting the source")?.seen_by(seen);
        let (order, mut look) = (Order::Sorted, |records| {
            progress.set_read(self.source, records);
            self.stop.look()
        });
        let ordered = Ordered::prepare(self.source, order, self.seed, self.work, &buffers, 0, &mut look);
        progress.clear();
        ordered.context("cannot sort the source")
    }
}

/// Calls `take` if the store does not hold the value of `key` from before the changes that are taken back.
fn take_back(reader: &mut dyn Reader, key: &Key, before: Option<&Value>, take: &mut Differs<'_>) -> Result<()> {
    let stored = reader.get(key)?;
    if stored.as_ref() != before {
        take(key, before, stored.as_ref());
    }
    Ok(())
}

/// Returns the keys of a chunk in ascending order, each with its value if it has one.
fn versions_of(chunk: &Chunk) -> Vec<(&Key, Option<&Value>)> {
    let mut versions: Vec<_> = chunk.absent.iter().map(|key| (key, None)).collect();
    versions.extend(chunk.pairs.iter().map(|(key, value)| (key, Some(value))));
    versions.sort_unstable_by_key(|(key, _)| *key);
    versions
}

/// Names a key that differs, with its value in the source and in the store.
fn difference(key: &Key, expected: Option<&Value>, found: Option<&Value>) -> String {
    let kind = match (expected, found) {
        (Some(_), None) => "missing",
        (None, _) => "only in store",
        _ => "different",
    };
    let (expected, found) = (base58_or_nothing(expected), base58_or_nothing(found));
    format!("{kind}: key={} expected={expected} found={found}", base58(key))
}
