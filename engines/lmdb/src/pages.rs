//! The map of a snapshot as numbered pages: the root of a tree, and the branches that lead to a key.
//!
//! Owns: every pointer into the map that LMDB has not returned itself. Must not: read leaves. Runs on the snapshot's
//! thread.

use std::marker::PhantomData;

use engine_api::Result;
use lmdb::{Database, Environment, Transaction};

use crate::error;
use crate::page::{
    BRANCH, NODE_HEADER_BYTES, PAGE_FLAGS_AT, PAGE_HEADER_BYTES, PAGE_LOWER_AT, TABLE_BYTES, TABLE_DEPTH_AT,
    TABLE_ROOT_AT, node, u16_at, u64_at,
};

/// A table's tree of pages.
#[derive(Clone, Copy)]
pub(crate) struct Tree {
    /// Page number of the root.
    pub(crate) root: u64,
    /// Number of levels, the leaves included; 0 for an empty table.
    pub(crate) depth: u16,
}

impl Tree {
    /// Returns the tree of `table`, and the bytes of its record in the map. `None` if the record does not have the
    /// layout of LMDB 0.9.
    pub(crate) fn of<'t, T: Transaction>(txn: &'t T, main: Database, table: &str) -> Option<(Self, &'t [u8])> {
        let record = txn.get(main, &table).ok().filter(|record| record.len() == TABLE_BYTES)?;
        let tree = Self { root: u64_at(record, TABLE_ROOT_AT)?, depth: u16_at(record, TABLE_DEPTH_AT)? };
        Some((tree, record))
    }
}

/// The map as numbered pages.
#[derive(Clone, Copy)]
pub(crate) struct Pages<'t> {
    first: *const u8,
    page_bytes: usize,
    count: u64,
    snapshot: PhantomData<&'t [u8]>,
}

impl<'t> Pages<'t> {
    /// Finds the start of the map that `inside` lies in. Each page begins with its own number, so one address is
    /// enough.
    pub(crate) fn around(inside: &'t [u8], page_bytes: usize, used_bytes: u64) -> Option<Self> {
        let within = inside.as_ptr().addr() % page_bytes;
        // SAFETY: LMDB's map begins at a page boundary, so the start of the page that `inside` lies in belongs to the
        // map.
        let page = unsafe { inside.as_ptr().sub(within) };
        // SAFETY: as above; every page begins with its number in 8 bytes, at a multiple of 8.
        let number = unsafe { page.cast::<u64>().read() };
        let count = used_bytes / page_bytes as u64;
        let back = usize::try_from(number).ok()?.checked_mul(page_bytes).filter(|_| number < count)?;
        // SAFETY: the page has this number, so the map begins that many pages before it.
        let first = unsafe { page.sub(back) };
        Some(Self { first, page_bytes, count, snapshot: PhantomData })
    }

    /// Returns the address at which page `number` begins; `None` if the file has no such page.
    pub(crate) fn at(&self, number: u64) -> Option<*const u8> {
        let back = usize::try_from(number).ok()?.checked_mul(self.page_bytes).filter(|_| number < self.count)?;
        // SAFETY: the result is within the part of the map that the file fills.
        Some(unsafe { self.first.add(back) })
    }

    /// Returns page `number` if it is a branch, otherwise `None`.
    pub(crate) fn branch(&self, number: u64) -> Option<&'t [u8]> {
        let start = self.at(number)?;
        // SAFETY: the page lies in the map. The snapshot keeps the map in place, and nobody writes to the snapshot's
        // pages.
        let page = unsafe { std::slice::from_raw_parts(start, self.page_bytes) };
        (u64_at(page, 0)? == number && u16_at(page, PAGE_FLAGS_AT)? & BRANCH != 0).then_some(page)
    }

    /// Asks the kernel to read these pages. They are sorted here, because neighbouring pages of the file can be read at
    /// once.
    pub(crate) fn announce_all(&self, numbers: &mut [u64]) {
        numbers.sort_unstable();
        for run in numbers.chunk_by(|a, b| a + 1 == *b) {
            self.announce(run[0], run.len());
        }
    }

    /// Tells the kernel how all pages will be read. The kernel may ignore it.
    pub(crate) fn advise(&self, advice: libc::c_int) {
        let Ok(bytes) = usize::try_from(self.count * self.page_bytes as u64) else { return };
        // SAFETY: the part of the map that the file fills; advice about reading order changes no data.
        unsafe { libc::madvise(self.first.cast_mut().cast(), bytes, advice) };
    }

    /// Asks the kernel to read `count` pages from `number` on. The kernel may ignore it.
    pub(crate) fn announce(&self, number: u64, count: usize) {
        let Some(start) = self.at(number).filter(|_| number + count as u64 <= self.count) else { return };
        // SAFETY: these are whole pages of the map; the advice changes nothing but the page cache.
        unsafe { libc::madvise(start.cast_mut().cast(), count * self.page_bytes, libc::MADV_WILLNEED) };
    }
}

/// Returns the child that `key` belongs to: the last one whose key is not greater. The key of the first child counts as
/// the smallest.
pub(crate) fn child_of(page: &[u8], key: &[u8]) -> Option<usize> {
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

/// Returns the bytes of the map up to the last page ever used. Free pages before it are not subtracted, because readers
/// may hold them.
pub(crate) fn used_bytes(env: &Environment) -> Result<u64> {
    let info = env.info().map_err(|e| error::lmdb("cannot ask for LMDB's map use", e))?;
    Ok((info.last_pgno() as u64 + 1) * page_bytes(env)? as u64)
}

/// Returns the size in bytes of the store's pages.
pub(crate) fn page_bytes(env: &Environment) -> Result<usize> {
    Ok(env.stat().map_err(|e| error::lmdb("cannot ask for LMDB's page size", e))?.page_size() as usize)
}
