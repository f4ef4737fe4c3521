//! Checks that LMDB's file is as long as its newest commit needs. Touching a page past the end through the map would
//! end the process.
//!
//! Owns: reading meta pages and branches with `pread`. Must not: read through a map, or change anything. Runs on the
//! thread that opens the store.
//!
//! LMDB does not write a page that one transaction has both allocated and freed, so a sound file may end before its
//! last page. So if the file is too short for its last page, this checks only that it has every page that its tables
//! name.

use std::fs::File;
use std::io::{self, ErrorKind as Io};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use engine_api::{Error, ErrorKind, Result};

use crate::page::{
    BRANCH, NODE_HEADER_BYTES, PAGE_FLAGS_AT, TABLE_BYTES, TABLE_DEPTH_AT, TABLE_ROOT_AT, child_number, node, u16_at,
    u32_at, u64_at,
};

// Layout of `MDB_meta` of 0.9 on 64 bits, which follows the header of its page.
const META_AT: usize = 16;
const MAGIC: u32 = 0xbeef_c0de;
const PAGE_BYTES_AT: usize = META_AT + 24;
const FREE_TABLE_AT: usize = META_AT + 24;
const MAIN_TABLE_AT: usize = FREE_TABLE_AT + TABLE_BYTES;
const LAST_PAGE_AT: usize = MAIN_TABLE_AT + TABLE_BYTES;
const COMMIT_AT: usize = LAST_PAGE_AT + 8;
const META_BYTES: usize = COMMIT_AT + 8;

const NODE_FLAGS_AT: usize = 4;
const NODE_KEY_BYTES_AT: usize = 6;
/// Node flag: the data are on other pages, and the node holds the number of the first one.
const ELSEWHERE: u16 = 1;
/// Node flag: the node holds the record of a table.
const TABLE: u16 = 2;
const OVERFLOW_PAGES_AT: usize = 12;
/// Root of an empty table.
const NO_PAGE: u64 = u64::MAX;
/// LMDB's own limit of a tree's depth, `CURSOR_STACK`.
const DEPTH_MAX: u16 = 32;

/// Refuses a file that ends before a page that it names. A file that is missing, or not LMDB's, is left to LMDB.
///
/// # Errors
/// `DataDamaged` if a page is missing; I/O errors of reading the file. The message names the file.
pub(crate) fn check(path: &Path) -> Result<()> {
    let failed = |e: io::Error| Error::io(format!("cannot read file={} reason={e}", path.display()), e);
    let file = match File::open(path) {
        Err(e) if e.kind() == Io::NotFound => return Ok(()),
        opened => opened.map_err(failed)?,
    };
    let bytes = file.metadata().map_err(failed)?.len();
    let Some((meta, page_bytes)) = newest_meta(&file).map_err(failed)? else { return Ok(()) };
    let needed_bytes = u64_at(&meta, LAST_PAGE_AT).unwrap_or(0).saturating_add(1).saturating_mul(page_bytes as u64);
    if bytes >= needed_bytes {
        return Ok(());
    }
    let pages = Pages { file: &file, page_bytes, count: bytes / page_bytes as u64 };
    let [free, main] = [FREE_TABLE_AT, MAIN_TABLE_AT].map(|at| &meta[at..at + TABLE_BYTES]);
    if pages.hold(free, Kind::Free).map_err(failed)? && pages.hold(main, Kind::Main).map_err(failed)? {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::DataDamaged,
        format!("the LMDB file is cut or damaged: file={} bytes={bytes} needed_bytes={needed_bytes}", path.display()),
    )
    .with_way_out("restore a snapshot, or remove the directory and load again"))
}

/// Returns the meta page of the newest commit and the size of a page; `None` if the file is not one of LMDB's.
fn newest_meta(file: &File) -> io::Result<Option<([u8; META_BYTES], usize)>> {
    let Some(first) = meta_at(file, 0)? else { return Ok(None) };
    let page_bytes = u32_at(&first, PAGE_BYTES_AT).unwrap_or(0) as usize;
    if !page_bytes.is_power_of_two() || !(512..=64 << 10).contains(&page_bytes) {
        return Ok(None);
    }
    let Some(second) = meta_at(file, page_bytes as u64)? else { return Ok(Some((first, page_bytes))) };
    let newest = if u64_at(&first, COMMIT_AT) < u64_at(&second, COMMIT_AT) { second } else { first };
    Ok(Some((newest, page_bytes)))
}

fn meta_at(file: &File, at: u64) -> io::Result<Option<[u8; META_BYTES]>> {
    let mut meta = [0; META_BYTES];
    match file.read_exact_at(&mut meta, at) {
        Err(e) if e.kind() == Io::UnexpectedEof => Ok(None),
        Err(e) => Err(e),
        Ok(()) => Ok((u32_at(&meta, META_AT) == Some(MAGIC)).then_some(meta)),
    }
}

/// Kind of a table, which decides how its leaves are checked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The table of tables: leaves hold records of other tables.
    Main,
    /// The table of free pages: leaves hold lists of pages, and the longer lists are on pages of their own.
    Free,
    /// Any other table: leaves are not read.
    Other,
}

/// The pages that are in a file.
struct Pages<'f> {
    file: &'f File,
    page_bytes: usize,
    count: u64,
}

impl Pages<'_> {
    /// Whether the file holds every page of a table and of the tables in it.
    fn hold(&self, table: &[u8], kind: Kind) -> io::Result<bool> {
        match (u16_at(table, TABLE_DEPTH_AT), u64_at(table, TABLE_ROOT_AT)) {
            (_, Some(NO_PAGE)) => Ok(true),
            (Some(depth @ 1..=DEPTH_MAX), Some(root)) => self.hold_below(root, depth, kind),
            _ => Ok(false),
        }
    }

    fn hold_below(&self, number: u64, depth: u16, kind: Kind) -> io::Result<bool> {
        if number >= self.count || depth == 1 && kind == Kind::Other {
            return Ok(number < self.count);
        }
        let mut page = vec![0; self.page_bytes];
        self.file.read_exact_at(&mut page, number * self.page_bytes as u64)?;
        let is_branch = u16_at(&page, PAGE_FLAGS_AT).is_some_and(|flags| flags & BRANCH != 0);
        if u64_at(&page, 0) != Some(number) || is_branch != (depth > 1) {
            return Ok(false);
        }
        for child in 0.. {
            let Some(at) = node(&page, child) else { break };
            let held = match child_number(&page, child) {
                Some(number) if is_branch => self.hold_below(number, depth - 1, kind)?,
                _ => self.hold_data(&page, at, kind)?,
            };
            if !held {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the file holds the pages that a node of a leaf names.
    fn hold_data(&self, page: &[u8], at: usize, kind: Kind) -> io::Result<bool> {
        let flags = u16_at(page, at + NODE_FLAGS_AT).unwrap_or(0);
        let key_bytes = u16_at(page, at + NODE_KEY_BYTES_AT).unwrap_or(0);
        let data_at = at + NODE_HEADER_BYTES + usize::from(key_bytes);
        if kind == Kind::Main && flags & TABLE != 0 {
            return page.get(data_at..data_at + TABLE_BYTES).map_or(Ok(false), |table| self.hold(table, Kind::Other));
        }
        if flags & ELSEWHERE == 0 {
            return Ok(true);
        }
        let Some(number) = u64_at(page, data_at).filter(|number| *number < self.count) else { return Ok(false) };
        let mut head = [0; META_AT];
        self.file.read_exact_at(&mut head, number * self.page_bytes as u64)?;
        let pages = u64::from(u32_at(&head, OVERFLOW_PAGES_AT).unwrap_or(0));
        Ok(number.saturating_add(pages) <= self.count)
    }
}
