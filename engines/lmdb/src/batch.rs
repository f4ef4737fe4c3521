//! Many lookups at once: in the order of their keys, after the pages that they come to are on their way into memory.
//!
//! Owns: the order, and the rule that says when the kernel is told of the pages. Must not: read leaves other than through
//! LMDB; a wrong guess costs time and never an answer. Runs on the reader's thread.
//!
//! A get of a pair that is not in memory waits for the device, so a loop of gets keeps one read in flight. The branch pages
//! name the leaves beforehand: level after level, the pages that all keys of a window need are looked for in memory
//! (`mincore`), and those that are missing are announced (`MADV_WILLNEED`), before the first get.
//!
//! Looking costs about as much as the gets of a batch that is in memory. So the pages of a window are looked for only if
//! it is the reader's first, or if the window before it was cold: at least one page in [`KEYS_A_COLD_PAGE`] keys had to
//! be read. Where the pages were looked for, the missing ones are counted; otherwise the thread's major faults are, which
//! the kernel counts anyway; those of single gets between two batches count as well, because they say the same of the
//! store. A reader whose batches are in memory therefore pays for the sort and for one `getrusage` a window.
//!
//! The lookups are gets and not moves of one cursor. A cursor first compares with both ends of the leaf that it stands in,
//! which are two cache misses more, and the keys of a batch seldom share a leaf.

use engine_api::{Key, Result, Value, one_slot_per_key};
use lmdb::RoTransaction;

use crate::engine::{LmdbEngine, PAIRS_TABLE};
use crate::error;
use crate::map::used_bytes;
use crate::page::child_number;
use crate::pages::{Pages, Tree, child_of};
use crate::reader::get;

/// Keys whose pages are announced at once: 2 MiB of leaves, which keep any device busy and are used before they are evicted.
const WINDOW_KEYS: usize = 512;

/// One page to read for so many keys makes a window cold. Looking for the pages of 32 keys costs about as much as one read of
/// a flash drive.
const KEYS_A_COLD_PAGE: usize = 32;

/// What a reader knows of its batches.
pub(crate) struct Batches {
    /// The newest window was cold, or there was none.
    cold: bool,
    /// The thread's major faults after the newest window.
    faults: u64,
    /// The first bytes of each key, and its place in the batch.
    order: Vec<(u64, usize)>,
    /// The page that each key of a window leads to, and room for those that are missing.
    pages: Vec<u64>,
    missing: Vec<u64>,
}

impl Batches {
    pub(crate) fn new() -> Self {
        Self { cold: true, faults: 0, order: Vec::new(), pages: Vec::new(), missing: Vec::new() }
    }

    /// Looks up `keys[i]` into `values[i]`.
    ///
    /// # Errors
    /// `FixInput` when the two lengths differ; else LMDB's.
    pub(crate) fn get_many(
        &mut self,
        engine: &LmdbEngine,
        txn: &RoTransaction<'_>,
        keys: &[Key],
        values: &mut [Option<Value>],
    ) -> Result<()> {
        one_slot_per_key(keys, values)?;
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        // Keys of the same eight bytes stay unordered, which costs nothing but time.
        order.extend(keys.iter().enumerate().map(|(at, key)| (first_bytes(key), at)));
        order.sort_unstable();
        for window in order.chunks(WINDOW_KEYS) {
            let looked_for = self.cold;
            let missing = if looked_for { self.announce(engine, txn, keys, window)? } else { 0 };
            for (_, at) in window {
                values[*at] = get(txn, engine.pairs(), &keys[*at])?;
            }
            let faults = major_faults();
            let waited = if looked_for { missing as u64 } else { faults.saturating_sub(self.faults) };
            self.cold = waited * KEYS_A_COLD_PAGE as u64 >= window.len() as u64;
            self.faults = faults;
        }
        self.order = order;
        Ok(())
    }

    /// Has the kernel read the pages that lookups of the window's keys come to, as far as they are not in memory. Returns how
    /// many these are. A page that looks unlike what this knows ends the walk.
    fn announce(
        &mut self,
        engine: &LmdbEngine,
        txn: &RoTransaction<'_>,
        keys: &[Key],
        window: &[(u64, usize)],
    ) -> Result<usize> {
        let stat = engine.env().stat().map_err(|e| error::lmdb("cannot ask for LMDB's page size", e))?;
        let (page_bytes, used_bytes) = (stat.page_size() as usize, used_bytes(engine.env())?);
        let mut missing = 0;
        let mut walk = || {
            let (tree, record) = Tree::of(txn, engine.main(), PAIRS_TABLE)?;
            let map = Pages::around(record, page_bytes, used_bytes)?;
            self.pages.clear();
            self.pages.resize(window.len(), tree.root);
            for _ in 1..tree.depth {
                for (number, (_, at)) in self.pages.iter_mut().zip(window) {
                    let page = map.branch(*number)?;
                    *number = child_number(page, child_of(page, &keys[*at])?)?;
                }
                missing += map.announce_missing(&self.pages, &mut self.missing);
            }
            Some(())
        };
        // `None` is a page of an unknown kind: the lookups find their way without this.
        let _ = walk();
        Ok(missing)
    }
}

fn first_bytes(key: &Key) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&key[..8]);
    u64::from_be_bytes(bytes)
}

/// Faults of this thread that waited for a device, since it began.
fn major_faults() -> u64 {
    // SAFETY: zeros are a value of every field, all of which are numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `rusage`. It fails for no thread that asks for itself.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_majflt as u64
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd as _;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use engine_api::{Engine as _, Key};
    use lmdb::Transaction as _;

    use super::{Batches, WINDOW_KEYS, get};
    use crate::ahead::tests::{cached, fill, key};
    use crate::map::used_bytes;
    use crate::pages::Pages;
    use crate::{FILE_NAME, LmdbEngine, LmdbOptions};

    const PAIRS: u64 = 300_000;

    fn open(dir: &Path) -> LmdbEngine {
        LmdbEngine::open(dir, &LmdbOptions::default()).unwrap()
    }

    /// Present, absent and repeated keys in no order.
    fn asked(count: u64) -> Vec<Key> {
        (0..count).map(|number| key(number * 7919 % (PAIRS * 2))).chain([key(1), key(PAIRS + 1), key(1)]).collect()
    }

    #[test]
    fn a_batch_finds_what_gets_find_whether_its_pages_are_looked_for_or_not() {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(dir.path());
        let txn = engine.env().begin_ro_txn().unwrap();
        let mut values = vec![Some([7; 32]); 1];
        Batches::new().get_many(&engine, &txn, &[key(1)], &mut values).unwrap();
        assert_eq!(values, [None], "an empty store has no pages at all");
        drop(txn);
        fill(&engine, PAIRS);
        let txn = engine.env().begin_ro_txn().unwrap();
        for cold in [true, false] {
            for count in [0, 1, 63, 3 * WINDOW_KEYS as u64, 20_000] {
                let keys = asked(count);
                let mut values = vec![Some([7; 32]); keys.len()];
                let mut batches = Batches { cold, ..Batches::new() };
                batches.get_many(&engine, &txn, &keys, &mut values).unwrap();
                for (key, value) in keys.iter().zip(&values) {
                    assert_eq!(get(&txn, engine.pairs(), key).unwrap(), *value, "cold={cold} count={count}");
                }
            }
        }
    }

    #[test]
    fn the_pages_told_are_those_of_the_pairs() {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(dir.path());
        fill(&engine, PAIRS);
        let txn = engine.env().begin_ro_txn().unwrap();
        let page_bytes = engine.env().stat().unwrap().page_size() as usize;
        let keys: Vec<Key> = (0..WINDOW_KEYS as u64).map(|number| key(number * 577)).collect();
        let window: Vec<(u64, usize)> = (0..keys.len()).map(|at| (0, at)).collect();
        let mut batches = Batches::new();
        batches.announce(&engine, &txn, &keys, &window).unwrap();
        for (key, told) in keys.iter().zip(&batches.pages) {
            let value = txn.get(engine.pairs(), key).unwrap();
            let map = Pages::around(value, page_bytes, used_bytes(engine.env()).unwrap()).unwrap();
            assert_eq!(map.at(*told).unwrap().addr(), value.as_ptr().addr() / page_bytes * page_bytes);
        }
    }

    #[test]
    fn pages_are_looked_for_until_a_window_is_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Box::new(open(dir.path()));
        fill(&engine, PAIRS);
        engine.close().unwrap();
        let path = dir.path().join(FILE_NAME);
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        // SAFETY: advice on an open file.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        let engine = open(dir.path());
        let (before, all) = cached(&path);
        if before == all {
            eprintln!("skipped: the file system of {} keeps its files in memory", dir.path().display());
            return;
        }
        let txn = engine.env().begin_ro_txn().unwrap();
        let keys: Vec<Key> = (0..WINDOW_KEYS as u64).map(|number| key(number * 577)).collect();
        let window: Vec<(u64, usize)> = (0..keys.len()).map(|at| (0, at)).collect();
        let mut batches = Batches::new();
        let mut values = vec![None; keys.len()];
        let missing = batches.announce(&engine, &txn, &keys, &window).unwrap();
        assert!(missing > WINDOW_KEYS / 2, "missing={missing} cached={before} all={all}");
        // Told, and not one leaf looked at: a page counts as missing until the kernel has read it.
        let started = Instant::now();
        while batches.announce(&engine, &txn, &keys, &window).unwrap() > 0 {
            assert!(started.elapsed() < Duration::from_secs(60), "the pages told are not read");
            std::thread::sleep(Duration::from_millis(10));
        }
        batches.get_many(&engine, &txn, &keys, &mut values).unwrap();
        assert!(values.iter().all(Option::is_some));
        assert!(!batches.cold, "every page was in memory");
        let others: Vec<Key> = (0..WINDOW_KEYS as u64).map(|number| key(number * 577 + 250)).collect();
        let major = super::major_faults();
        batches.get_many(&engine, &txn, &others, &mut values).unwrap();
        assert!(super::major_faults() > major, "the leaves of other keys were not in memory");
        assert!(batches.cold, "the gets had to wait for the device");
    }
}
