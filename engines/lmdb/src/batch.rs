//! Batches of lookups: they run in key order, after the pages that they need were announced to the kernel.
//!
//! Owns: the order, and the rule that says when pages are announced. Must not: read leaves other than through LMDB. A
//! wrong guess costs time and never changes an answer. Runs on the reader's thread.
//!
//! A get of a pair that is not in memory waits for the device, so a loop of gets keeps one read in flight. Branch pages
//! name the leaves beforehand. So each window of keys is looked up level by level before its first get: `mincore` tells
//! which pages of the level are not in memory, and `MADV_WILLNEED` announces those.
//!
//! This check costs about as much as the gets of a batch that is in memory. So the pages of a window are checked only
//! if it is the store's first, or if the window before it was cold: at least one page in [`KEYS_A_COLD_PAGE`] keys had
//! to be read. A new reader takes this over from the reader that read last, because the ingest opens one for each slot.
//! While the kernel reads ahead, the pages around each missing one are announced as well, as a get would read them.
//!
//! In a window that was checked, the missing pages are counted. In another one the thread's major faults are counted,
//! which the kernel keeps anyway. Faults of single gets between two batches count as well, because they
//! show the same about the store. A reader whose batches are in memory therefore pays for the sort and for one
//! `getrusage` per window.
//!
//! The lookups are gets and not moves of one cursor. A cursor first compares the key with both ends of its present
//! leaf, which are two more cache misses, and the keys of a batch seldom share a leaf.

use std::sync::atomic::Ordering;

use engine_api::{Key, Result, Value, one_slot_per_key};
use lmdb::RoTransaction;

use crate::error;
use crate::map::used_bytes;
use crate::page::child_number;
use crate::pages::{Pages, Tree, child_of};
use crate::store::Store;
use crate::tables::{PAIRS_TABLE, get};

/// Number of keys whose pages are announced at once: 2 MiB of leaves, which keep any device busy and are used before
/// they are evicted.
const WINDOW_KEYS: usize = 512;

/// Number of pages in the block around a missing page that is announced while the kernel reads ahead: 128 KiB, Linux's default
/// readahead.
const READ_AROUND_PAGES: u64 = 32;

/// Largest number of keys per missing page at which a window counts as cold. Checking the pages of 32 keys costs about
/// as much as one read from a flash drive.
const KEYS_A_COLD_PAGE: usize = 32;

/// State that a reader keeps between its batches of lookups.
pub(crate) struct Batches {
    /// Whether the newest window was cold.
    cold: bool,
    /// Major faults of the thread after the newest window.
    faults: u64,
    /// First eight bytes of each key, and its index in the batch.
    order: Vec<(u64, usize)>,
    /// Page that each key of a window leads to, and in `missing` room for those that are not in memory.
    pages: Vec<u64>,
    missing: Vec<u64>,
}

impl Batches {
    /// Creates the state of a new reader of `store` on this thread.
    pub(crate) fn new(store: &Store) -> Self {
        // ORDERING: Relaxed: a guess, which costs only time.
        let cold = store.is_cold.load(Ordering::Relaxed);
        Self { cold, faults: major_faults(), order: Vec::new(), pages: Vec::new(), missing: Vec::new() }
    }

    /// Looks up every `keys[i]` into `values[i]`.
    ///
    /// # Errors
    /// `FixInput` if the two lengths differ; otherwise an error of LMDB's gets.
    pub(crate) fn get_many(
        &mut self,
        store: &Store,
        txn: &RoTransaction<'_>,
        keys: &[Key],
        values: &mut [Option<Value>],
    ) -> Result<()> {
        one_slot_per_key(keys, values)?;
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        // Keys with the same eight bytes stay unordered, which costs only time.
        order.extend(keys.iter().enumerate().map(|(at, key)| (first_bytes(key), at)));
        order.sort_unstable();
        for window in order.chunks(WINDOW_KEYS) {
            let looked_for = self.cold;
            let missing = if looked_for { self.announce(store, txn, keys, window)? } else { 0 };
            for (_, at) in window {
                values[*at] = get(txn, store.pairs(), &keys[*at])?;
            }
            let faults = major_faults();
            let waited = if looked_for { missing as u64 } else { faults.saturating_sub(self.faults) };
            self.cold = waited * KEYS_A_COLD_PAGE as u64 >= window.len() as u64;
            self.faults = faults;
        }
        self.order = order;
        // ORDERING: Relaxed: as in `new`.
        store.is_cold.store(self.cold, Ordering::Relaxed);
        Ok(())
    }

    /// Announces the pages that lookups of the window's keys need and that are not in memory, and returns their number.
    /// The walk ends at a page with a layout that this code does not know.
    fn announce(
        &mut self,
        store: &Store,
        txn: &RoTransaction<'_>,
        keys: &[Key],
        window: &[(u64, usize)],
    ) -> Result<usize> {
        let stat = store.env().stat().map_err(|e| error::lmdb("cannot ask for LMDB's page size", e))?;
        let (page_bytes, used_bytes) = (stat.page_size() as usize, used_bytes(store.env())?);
        let around_pages = if store.readahead().is_on() { READ_AROUND_PAGES } else { 1 };
        let mut missing = 0;
        let mut walk = || {
            let (tree, record) = Tree::of(txn, store.main(), PAIRS_TABLE)?;
            let map = Pages::around(record, page_bytes, used_bytes)?;
            self.pages.clear();
            self.pages.resize(window.len(), tree.root);
            for _ in 1..tree.depth {
                for (number, (_, at)) in self.pages.iter_mut().zip(window) {
                    let page = map.branch(*number)?;
                    *number = child_number(page, child_of(page, &keys[*at])?)?;
                }
                missing += map.announce_missing(&self.pages, around_pages, &mut self.missing);
            }
            Some(())
        };
        // `None` means a page of an unknown kind: the lookups find their way without the announcement.
        let _ = walk();
        Ok(missing)
    }
}

fn first_bytes(key: &Key) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&key[..8]);
    u64::from_be_bytes(bytes)
}

/// Returns the faults of this thread that waited for a device, since the thread began.
fn major_faults() -> u64 {
    // SAFETY: zero is a valid value of every field, because all are numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `rusage`. The call cannot fail for a thread that asks for itself.
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

    /// Returns present, absent and repeated keys in no order.
    fn asked(count: u64) -> Vec<Key> {
        (0..count).map(|number| key(number * 7919 % (PAIRS * 2))).chain([key(1), key(PAIRS + 1), key(1)]).collect()
    }

    #[test]
    fn a_batch_finds_what_gets_find_whether_its_pages_are_looked_for_or_not() {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(dir.path());
        let txn = engine.store.env().begin_ro_txn().unwrap();
        let mut values = vec![Some([7; 32]); 1];
        Batches::new(&engine.store).get_many(&engine.store, &txn, &[key(1)], &mut values).unwrap();
        assert_eq!(values, [None], "an empty store has no pages at all");
        drop(txn);
        fill(&engine, PAIRS);
        let txn = engine.store.env().begin_ro_txn().unwrap();
        for cold in [true, false] {
            for count in [0, 1, 63, 3 * WINDOW_KEYS as u64, 20_000] {
                let keys = asked(count);
                let mut values = vec![Some([7; 32]); keys.len()];
                let mut batches = Batches { cold, ..Batches::new(&engine.store) };
                batches.get_many(&engine.store, &txn, &keys, &mut values).unwrap();
                for (key, value) in keys.iter().zip(&values) {
                    assert_eq!(get(&txn, engine.store.pairs(), key).unwrap(), *value, "cold={cold} count={count}");
                }
            }
        }
    }

    #[test]
    fn the_pages_told_are_those_of_the_pairs() {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(dir.path());
        fill(&engine, PAIRS);
        let txn = engine.store.env().begin_ro_txn().unwrap();
        let page_bytes = engine.store.env().stat().unwrap().page_size() as usize;
        let keys: Vec<Key> = (0..WINDOW_KEYS as u64).map(|number| key(number * 577)).collect();
        let window: Vec<(u64, usize)> = (0..keys.len()).map(|at| (0, at)).collect();
        let mut batches = Batches::new(&engine.store);
        batches.announce(&engine.store, &txn, &keys, &window).unwrap();
        for (key, told) in keys.iter().zip(&batches.pages) {
            let value = txn.get(engine.store.pairs(), key).unwrap();
            let map = Pages::around(value, page_bytes, used_bytes(engine.store.env()).unwrap()).unwrap();
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
        let txn = engine.store.env().begin_ro_txn().unwrap();
        let keys: Vec<Key> = (0..WINDOW_KEYS as u64).map(|number| key(number * 577)).collect();
        let window: Vec<(u64, usize)> = (0..keys.len()).map(|at| (0, at)).collect();
        let mut batches = Batches::new(&engine.store);
        let mut values = vec![None; keys.len()];
        let missing = batches.announce(&engine.store, &txn, &keys, &window).unwrap();
        assert!(missing > WINDOW_KEYS / 2, "missing={missing} cached={before} all={all}");
        // The pages were announced, and no leaf was read: a page counts as missing until the kernel has read it.
        let started = Instant::now();
        while batches.announce(&engine.store, &txn, &keys, &window).unwrap() > 0 {
            assert!(started.elapsed() < Duration::from_secs(60), "the pages told are not read");
            std::thread::sleep(Duration::from_millis(10));
        }
        batches.get_many(&engine.store, &txn, &keys, &mut values).unwrap();
        assert!(values.iter().all(Option::is_some));
        assert!(!batches.cold, "every page was in memory");
        assert!(!Batches::new(&engine.store).cold, "the next reader need not look for its pages either");
        let others: Vec<Key> = (0..WINDOW_KEYS as u64).map(|number| key(number * 577 + 250)).collect();
        let major = super::major_faults();
        batches.get_many(&engine.store, &txn, &others, &mut values).unwrap();
        assert!(super::major_faults() > major, "the leaves of other keys were not in memory");
        assert!(batches.cold && Batches::new(&engine.store).cold, "the gets had to wait for the device");
    }
}
