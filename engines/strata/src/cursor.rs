//! Cursors: records in order, of one run, of a sorted list, and of several merged with the newest winning.
//!
//! Owns: reading ahead of a scan or a merge. Must not: keep pages in memory.

use std::sync::Arc;

use engine_api::{Key, Result, Value};

use crate::file::PageBuffer;
use crate::page::{PAGE_BYTES, Page};
use crate::version::Run;

/// Pages read at once: large enough for any device to be busy.
const READ_PAGES: usize = 64;

/// A record: a key with its value, or a tombstone.
pub(crate) type Record = (Key, Option<Value>);

/// Records in ascending order.
pub(crate) enum Cursor {
    Run(RunCursor),
    List(std::vec::IntoIter<Record>),
}

/// A run from a key on.
pub(crate) struct RunCursor {
    run: Arc<Run>,
    segment: usize,
    /// Pages of the segment that are in the buffer.
    pages: std::ops::Range<u32>,
    /// The page and record that come next.
    page: u32,
    record: usize,
    buffer: PageBuffer,
    from: Key,
    /// The first key that is no longer wanted.
    to: Option<Key>,
}

/// Several cursors as one: of equal keys the first cursor's record is given, the others' are passed over.
pub(crate) struct Merged {
    /// Newest first, each with its next record.
    cursors: Vec<(Option<Record>, Cursor)>,
}

impl RunCursor {
    /// Records with `from <= key < to`.
    pub(crate) fn new(run: &Arc<Run>, from: &Key, to: Option<Key>) -> Self {
        let segment = run.segment_for(from).unwrap_or(0);
        let page = run.segments.get(segment).map_or(0, |segment| segment.first_page_from(from));
        let buffer = PageBuffer::new(READ_PAGES);
        Self { run: Arc::clone(run), segment, pages: 0..0, page, record: 0, buffer, from: *from, to }
    }

    fn next(&mut self) -> Result<Option<Record>> {
        loop {
            let Some(segment) = self.run.segments.get(self.segment) else { return Ok(None) };
            if self.page == segment.pages() {
                self.segment += 1;
                (self.page, self.record, self.pages) = (0, 0, 0..0);
                continue;
            }
            if !self.pages.contains(&self.page) {
                let count = (segment.pages() - self.page).min(self.buffer.pages() as u32);
                segment.read_pages(self.page, &mut self.buffer.bytes_mut()[..count as usize * PAGE_BYTES])?;
                self.pages = self.page..self.page + count;
                for number in self.pages.clone() {
                    segment.verify(self.buffer.page((number - self.pages.start) as usize), number)?;
                }
            }
            let page = Page::verified(self.buffer.page((self.page - self.pages.start) as usize));
            if self.record == page.len() {
                (self.page, self.record) = (self.page + 1, 0);
                continue;
            }
            let (key, value) = (*page.key(self.record), page.value(self.record));
            self.record += 1;
            if key < self.from {
                continue;
            }
            if self.to.is_some_and(|to| key >= to) {
                return Ok(None);
            }
            return Ok(Some((key, value)));
        }
    }
}

impl Cursor {
    fn next(&mut self) -> Result<Option<Record>> {
        match self {
            Self::Run(cursor) => cursor.next(),
            Self::List(records) => Ok(records.next()),
        }
    }
}

impl Merged {
    /// Merges `cursors`, newest first.
    pub(crate) fn new(cursors: Vec<Cursor>) -> Result<Self> {
        let with_next = |mut cursor: Cursor| Ok((cursor.next()?, cursor));
        Ok(Self { cursors: cursors.into_iter().map(with_next).collect::<Result<_>>()? })
    }

    /// The next key with its newest record.
    pub(crate) fn next(&mut self) -> Result<Option<Record>> {
        let heads = self.cursors.iter().filter_map(|(head, _)| head.as_ref());
        // Of equal keys `min_by_key` gives the first, which is the newest.
        let Some(newest) = heads.min_by_key(|record| record.0).copied() else { return Ok(None) };
        for (head, cursor) in &mut self.cursors {
            if head.as_ref().is_some_and(|record| record.0 == newest.0) {
                *head = cursor.next()?;
            }
        }
        Ok(Some(newest))
    }
}
