//! The leaves that a scan comes to next, told to the kernel before it does.
//!
//! Owns: the walk over the branch pages of a snapshot. Must not: read leaves, or decide what a scan sees: a wrong number of
//! a page costs a read too many and nothing else. Runs on the scan's thread.
//!
//! The map is read without readahead, and keys next to each other lie anywhere in the file, so a scan of what is not in
//! memory would wait for the device once a leaf. Branch pages name their leaves in the order of the keys: `MADV_WILLNEED`
//! of the next ones keeps as many reads in flight.

use std::marker::PhantomData;

use lmdb::{Database, Transaction};

use crate::page::{
    BRANCH, NODE_HEADER_BYTES, PAGE_FLAGS_AT, PAGE_HEADER_BYTES, PAGE_LOWER_AT, TABLE_BYTES, TABLE_DEPTH_AT,
    TABLE_ROOT_AT, child_number, node, u16_at, u64_at,
};

/// Leaves announced at once: doubled each time, because a scan may be a short range.
const LEAVES_MIN: usize = 16;
/// 2 MiB, which keeps any device busy.
const LEAVES_MAX: usize = 512;

/// Where a walk stands in one branch page.
struct Level<'t> {
    page: &'t [u8],
    next: usize,
}

/// A walk over the leaves of a table in the order of their keys.
pub(crate) struct Ahead<'t> {
    map: Pages<'t>,
    /// Branch pages from the root down to the one above the leaves.
    levels: Vec<Level<'t>>,
    /// Leaves announced that the scan has not come to.
    announced: usize,
    /// Leaves to announce next.
    window: usize,
    leaves: Vec<u64>,
}

impl<'t> Ahead<'t> {
    /// A walk that begins after the leaf of `key`, whose bytes lie in the map. `None` where there is nothing to walk: the
    /// table is one leaf, or looks unlike what this knows.
    ///
    /// `main` is LMDB's table of tables, `used_bytes` what the map holds, and `key` what `txn` has returned.
    pub(crate) fn new<T: Transaction>(
        txn: &'t T,
        main: Database,
        table: &str,
        key: &'t [u8],
        page_bytes: usize,
        used_bytes: u64,
    ) -> Option<Self> {
        let record = txn.get(main, &table).ok().filter(|record| record.len() == TABLE_BYTES)?;
        let (depth, root) = (u16_at(record, TABLE_DEPTH_AT)?, u64_at(record, TABLE_ROOT_AT)?);
        let map = Pages::around(key, page_bytes, used_bytes)?;
        let mut levels = Vec::with_capacity(depth.into());
        let mut number = root;
        for _ in 1..depth {
            let page = map.branch(number)?;
            let child = child_of(page, key)?;
            number = child_number(page, child)?;
            levels.push(Level { page, next: child + 1 });
        }
        let some = !levels.is_empty();
        some.then_some(Self { map, levels, announced: 0, window: LEAVES_MIN, leaves: Vec::new() })
    }

    /// The scan has come to the next leaf: announces more once half of them are used up.
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
        // Leaves that lie side by side in the file are read at once.
        self.leaves.sort_unstable();
        for run in self.leaves.chunk_by(|a, b| a + 1 == *b) {
            self.map.announce(run[0], run.len());
        }
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

/// The map, as numbered pages.
#[derive(Clone, Copy)]
struct Pages<'t> {
    first: *const u8,
    page_bytes: usize,
    count: u64,
    snapshot: PhantomData<&'t [u8]>,
}

impl<'t> Pages<'t> {
    /// The map that `inside` lies in: a page begins with its number.
    fn around(inside: &'t [u8], page_bytes: usize, used_bytes: u64) -> Option<Self> {
        let within = inside.as_ptr().addr() % page_bytes;
        // SAFETY: LMDB's map begins at a page, so that the start of the page that `inside` lies in belongs to the map.
        let page = unsafe { inside.as_ptr().sub(within) };
        // SAFETY: as above; every page begins with its number in 8 bytes, at a multiple of 8.
        let number = unsafe { page.cast::<u64>().read() };
        let count = used_bytes / page_bytes as u64;
        let back = usize::try_from(number).ok()?.checked_mul(page_bytes).filter(|_| number < count)?;
        // SAFETY: the page has this number, so that the map begins so many pages before it.
        let first = unsafe { page.sub(back) };
        Some(Self { first, page_bytes, count, snapshot: PhantomData })
    }

    fn at(&self, number: u64) -> Option<*const u8> {
        let back = usize::try_from(number).ok()?.checked_mul(self.page_bytes).filter(|_| number < self.count)?;
        // SAFETY: within the part of the map that the file fills.
        Some(unsafe { self.first.add(back) })
    }

    /// The page of this number where it is a branch.
    fn branch(&self, number: u64) -> Option<&'t [u8]> {
        let start = self.at(number)?;
        // SAFETY: the page lies in the map, which stays in place for the snapshot, whose pages nobody writes to.
        let page = unsafe { std::slice::from_raw_parts(start, self.page_bytes) };
        (u64_at(page, 0)? == number && u16_at(page, PAGE_FLAGS_AT)? & BRANCH != 0).then_some(page)
    }

    /// Has the kernel read `count` pages. Whether it does is its own affair.
    fn announce(&self, number: u64, count: usize) {
        let Some(start) = self.at(number).filter(|_| number + count as u64 <= self.count) else { return };
        // SAFETY: whole pages of the map; the advice changes nothing but the page cache.
        unsafe { libc::madvise(start.cast_mut().cast(), count * self.page_bytes, libc::MADV_WILLNEED) };
    }
}

/// The child that `key` belongs to: the last one whose key is not greater. The first one's key counts as the least.
fn child_of(page: &[u8], key: &[u8]) -> Option<usize> {
    let mut low = 0;
    let mut high = usize::from(u16_at(page, PAGE_LOWER_AT)?).checked_sub(PAGE_HEADER_BYTES)? / 2;
    while low + 1 < high {
        let middle = low.midpoint(high);
        let at = node(page, middle)?;
        let bytes = usize::from(u16_at(page, at + 6)?);
        let found = page.get(at + NODE_HEADER_BYTES..at + NODE_HEADER_BYTES + bytes)?;
        if found <= key { low = middle } else { high = middle }
    }
    Some(low)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::ops::ControlFlow;
    use std::os::fd::AsRawFd as _;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use engine_api::{Checkpoint, Durability, Engine, Key};
    use lmdb::{Cursor, Transaction};

    use super::{Ahead, LEAVES_MIN};
    use crate::engine::PAIRS_TABLE;
    use crate::map::used_bytes;
    use crate::{FILE_NAME, LmdbEngine, LmdbOptions};

    /// Keys in no order: leaves split, and lie anywhere in the file.
    fn fill(engine: &LmdbEngine, pairs: u64) {
        for batch in 0..8 {
            let mut txn = engine.begin().unwrap();
            for number in (batch * pairs / 8)..((batch + 1) * pairs / 8) {
                let mut key: Key = [0; 32];
                key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
                txn.put(&key, &key).unwrap();
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
            let txn = engine.env().begin_ro_txn().unwrap();
            let page_bytes = engine.env().stat().unwrap().page_size() as usize;
            let mut cursor = txn.open_ro_cursor(engine.pairs()).unwrap();
            let keys: Vec<&[u8]> = cursor.iter_start().map(|pair| pair.unwrap().0).collect();
            let page_of = |key: &[u8]| key.as_ptr().addr() / page_bytes;
            for from in [0, keys.len() / 3, keys.len() - 1] {
                let mut scanned: Vec<usize> = keys[from..].iter().map(|key| page_of(key)).collect();
                scanned.dedup();
                let used = used_bytes(engine.env()).unwrap();
                let ahead = Ahead::new(&txn, engine.main(), PAIRS_TABLE, keys[from], page_bytes, used);
                let Some(mut ahead) = ahead else {
                    assert_eq!((pairs, scanned.len()), (10, 1), "a table of one leaf alone has nothing to walk");
                    continue;
                };
                let first = ahead.map.first.addr() / page_bytes;
                let told: Vec<usize> =
                    std::iter::from_fn(|| ahead.next_leaf()).map(|leaf| first + leaf as usize).collect();
                assert_eq!(told, scanned[1..], "pairs={pairs} from={from}");
            }
        }
    }

    /// Pages of `file` that are in the page cache, and all of its pages.
    fn cached(file: &Path) -> (usize, usize) {
        let file = File::open(file).unwrap();
        let bytes = file.metadata().unwrap().len() as usize;
        let mut pages = vec![0u8; bytes.div_ceil(4096)];
        // SAFETY: a mapping of our own, which is only asked about and then removed; `pages` has a byte for each page.
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
        if before == all {
            eprintln!("skipped: the file system of {} keeps its files in memory", dir.path().display());
            return;
        }
        let mut pairs = 0;
        // Three leaves or four.
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
