//! Announces to the kernel the leaves that a scan will read next.
//!
//! Owns: the walk over the branch pages of a snapshot. Must not: read leaves, or affect the result of a scan: a wrong
//! page number costs one unnecessary read and nothing else. Runs on the scan's thread.
//!
//! The map is read without readahead, and neighbouring keys lie anywhere in the file. So a scan of data that is not in
//! memory would wait for the device once per leaf. Branch pages name their leaves in key order: `MADV_WILLNEED` for the
//! next ones keeps as many reads in flight.

use lmdb::{Database, Transaction};

use crate::page::child_number;
use crate::pages::{Pages, Tree, child_of};

/// Number of leaves in the first announcement. The number doubles each time, because a scan may be a short range.
const LEAVES_MIN: usize = 16;
/// Largest number of leaves in one announcement: 2 MiB, which keeps any device busy.
const LEAVES_MAX: usize = 512;

/// Position of a walk in one branch page.
struct Level<'t> {
    page: &'t [u8],
    next: usize,
}

/// A walk over the leaves of a table in the order of their keys.
pub(crate) struct Ahead<'t> {
    map: Pages<'t>,
    /// Branch pages from the root down to the one above the leaves.
    levels: Vec<Level<'t>>,
    /// Number of announced leaves that the scan has not reached yet.
    announced: usize,
    /// Number of leaves in the next announcement.
    window: usize,
    leaves: Vec<u64>,
}

impl<'t> Ahead<'t> {
    /// Starts a walk after the leaf of `key`, whose bytes lie in the map. `None` if there is nothing to walk: the table
    /// is a single leaf, or a page has a layout that this code does not know.
    ///
    /// `main` is LMDB's table of tables, `used_bytes` is the used part of the map, and `key` was returned by `txn`.
    pub(crate) fn new<T: Transaction>(
        txn: &'t T,
        main: Database,
        table: &str,
        key: &'t [u8],
        page_bytes: usize,
        used_bytes: u64,
    ) -> Option<Self> {
        let (tree, _) = Tree::of(txn, main, table)?;
        let map = Pages::around(key, page_bytes, used_bytes)?;
        let mut levels = Vec::with_capacity(tree.depth.into());
        let mut number = tree.root;
        for _ in 1..tree.depth {
            let page = map.branch(number)?;
            let child = child_of(page, key)?;
            number = child_number(page, child)?;
            levels.push(Level { page, next: child + 1 });
        }
        let some = !levels.is_empty();
        some.then_some(Self { map, levels, announced: 0, window: LEAVES_MIN, leaves: Vec::new() })
    }

    /// Notes that the scan has reached the next leaf. Announces more leaves once half of the announced ones are used
    /// up.
    pub(crate) fn at_leaf(&mut self) {
        self.announced = self.announced.saturating_sub(1);
        if self.announced > self.window / 2 {
            return;
        }
        self.leaves.clear();
        while self.leaves.len() < self.window {
            let Some(leaf) = self.next_leaf() else { break };
            self.leaves.push(leaf);
        }
        self.announced += self.leaves.len();
        self.window = (self.window * 2).min(LEAVES_MAX);
        self.map.announce_all(&mut self.leaves);
    }

    fn next_leaf(&mut self) -> Option<u64> {
        let bottom = self.levels.len() - 1;
        let mut level = bottom;
        loop {
            let at = &mut self.levels[level];
            match child_number(at.page, at.next) {
                Some(number) if level == bottom => {
                    at.next += 1;
                    return Some(number);
                }
                Some(number) => {
                    at.next += 1;
                    if let Some(sibling) = child_number(at.page, at.next) {
                        self.map.announce(sibling, 1);
                    }
                    level += 1;
                    self.levels[level] = Level { page: self.map.branch(number)?, next: 0 };
                }
                None => level = level.checked_sub(1)?,
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::File;
    use std::ops::ControlFlow;
    use std::os::fd::AsRawFd as _;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use conformance::{Ability, able};
    use engine_api::{Checkpoint, Durability, Engine, Key};
    use lmdb::{Cursor, Transaction};

    use super::{Ahead, LEAVES_MIN};
    use crate::pages::used_bytes;
    use crate::tables::PAIRS_TABLE;
    use crate::{FILE_NAME, LmdbEngine, LmdbOptions};

    /// Returns the key of a number. Keys of consecutive numbers lie far apart.
    pub(crate) fn key(number: u64) -> Key {
        let mut key: Key = [0; 32];
        key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        key
    }

    /// Inserts keys in no order, so that leaves split and lie anywhere in the file.
    pub(crate) fn fill(engine: &LmdbEngine, pairs: u64) {
        for batch in 0..8 {
            let mut txn = engine.begin().unwrap();
            for number in (batch * pairs / 8)..((batch + 1) * pairs / 8) {
                txn.put(&key(number), &key(number)).unwrap();
            }
            let checkpoint = Checkpoint { seq: batch + 1, ..Checkpoint::default() };
            txn.commit(&checkpoint, Durability::Buffered).unwrap();
        }
    }

    #[test]
    fn the_leaves_told_ahead_are_those_a_scan_comes_to() {
        for pairs in [10, 5_000, 300_000] {
            let dir = tempfile::tempdir().unwrap();
            let engine = LmdbEngine::open(dir.path(), &LmdbOptions::default()).unwrap();
            fill(&engine, pairs);
            let txn = engine.store.env.begin_ro_txn().unwrap();
            let page_bytes = engine.store.env.stat().unwrap().page_size() as usize;
            let mut cursor = txn.open_ro_cursor(engine.store.pairs).unwrap();
            let keys: Vec<&[u8]> = cursor.iter_start().map(|pair| pair.unwrap().0).collect();
            let page_of = |key: &[u8]| key.as_ptr().addr() / page_bytes;
            for from in [0, keys.len() / 3, keys.len() - 1] {
                let mut scanned: Vec<usize> = keys[from..].iter().map(|key| page_of(key)).collect();
                scanned.dedup();
                let used = used_bytes(&engine.store.env).unwrap();
                let ahead = Ahead::new(&txn, engine.store.main, PAIRS_TABLE, keys[from], page_bytes, used);
                let Some(mut ahead) = ahead else {
                    assert_eq!((pairs, scanned.len()), (10, 1), "a table of one leaf alone has nothing to walk");
                    continue;
                };
                let map = ahead.map;
                let told: Vec<usize> = std::iter::from_fn(|| ahead.next_leaf())
                    .map(|leaf| map.at(leaf).unwrap().addr() / page_bytes)
                    .collect();
                assert_eq!(told, scanned[1..], "pairs={pairs} from={from}");
            }
        }
    }

    /// Returns the number of pages of `file` that are in the page cache, and the number of all its pages.
    pub(crate) fn cached(file: &Path) -> (usize, usize) {
        let file = File::open(file).unwrap();
        let bytes = file.metadata().unwrap().len() as usize;
        let mut pages = vec![0u8; bytes.div_ceil(4096)];
        // SAFETY: a mapping of our own, which is only queried and then removed; `pages` has a byte for each page.
        unsafe {
            let map = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
            assert_ne!(map, libc::MAP_FAILED);
            assert_eq!(libc::mincore(map, bytes, pages.as_mut_ptr()), 0);
            libc::munmap(map, bytes);
        }
        (pages.iter().filter(|page| **page & 1 == 1).count(), pages.len())
    }

    #[test]
    fn a_scan_has_leaves_read_before_it_comes_to_them() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Box::new(LmdbEngine::open(dir.path(), &LmdbOptions::default()).unwrap());
        fill(&engine, 300_000);
        engine.close().unwrap();
        let path = dir.path().join(FILE_NAME);
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        // SAFETY: advice on an open file.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        let engine = LmdbEngine::open(dir.path(), &LmdbOptions::default()).unwrap();
        let (before, all) = cached(&path);
        let dropped = (before < all).then_some(()).ok_or("the file system of temporary files keeps them in memory");
        let Some(()) = able(Ability::Disk, dropped) else { return };
        let mut pairs = 0;
        // 100 pairs are three or four leaves.
        engine
            .reader()
            .unwrap()
            .scan(&mut |_, _| {
                pairs += 1;
                if pairs < 100 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .unwrap();
        let started = Instant::now();
        while cached(&path).0 < before + LEAVES_MIN {
            assert!(started.elapsed() < Duration::from_secs(60), "before={before} now={}", cached(&path).0);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
