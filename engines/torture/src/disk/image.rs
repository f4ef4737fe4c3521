//! The content of one file, page by page.
//!
//! Owns: holes, reserved pages, the size. Must not: know which bytes are durable. Used under the file system's lock.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Size of a page, the unit of the page cache and of allocation.
pub(crate) const PAGE_BYTES: u64 = 4096;

type Page = [u8; PAGE_BYTES as usize];

/// Content of a file. Clones share their pages until one of them is written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Image {
    size: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Image {
    /// Returns the length in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Returns the number of allocated pages, including those reserved past the end.
    pub(crate) fn pages(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Returns the number of pages in this range that are not allocated yet.
    pub(crate) fn missing(&self, offset: u64, bytes: u64) -> u64 {
        let pages = page_range(offset, bytes);
        pages.end - pages.start - self.pages.range(pages).count() as u64
    }

    /// Reads at most `bytes` from `offset` on, up to the end of the file.
    pub(crate) fn read(&self, offset: u64, bytes: u64) -> Vec<u8> {
        let bytes = bytes.min(self.size.saturating_sub(offset));
        let mut out = vec![0; bytes as usize];
        for (at, part) in pieces(offset, bytes) {
            if let Some(page) = self.pages.get(&(at / PAGE_BYTES)) {
                let from = (at % PAGE_BYTES) as usize;
                let to = (at - offset) as usize;
                out[to..to + part].copy_from_slice(&page[from..from + part]);
            }
        }
        out
    }

    /// Writes `bytes` at `offset`, and grows the file if they end past its end.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.put(offset, bytes);
        self.size = self.size.max(offset + bytes.len() as u64);
    }

    /// Writes `bytes` at `offset` without growing the file.
    pub(crate) fn put(&mut self, offset: u64, bytes: &[u8]) {
        for (at, part) in pieces(offset, bytes.len() as u64) {
            let page = Arc::make_mut(self.pages.entry(at / PAGE_BYTES).or_insert_with(zero_page));
            let to = (at % PAGE_BYTES) as usize;
            let from = (at - offset) as usize;
            page[to..to + part].copy_from_slice(&bytes[from..from + part]);
        }
    }

    /// Cuts or grows the file. Bytes that were cut off read as zeros if the file grows again.
    pub(crate) fn set_size(&mut self, size: u64) {
        if size < self.size {
            drop(self.pages.split_off(&size.div_ceil(PAGE_BYTES)));
            self.zero(size, size.next_multiple_of(PAGE_BYTES) - size);
        }
        self.size = size;
    }

    /// Allocates this range without changing its content.
    pub(crate) fn reserve(&mut self, offset: u64, bytes: u64) {
        let zero = zero_page();
        for page in page_range(offset, bytes) {
            self.pages.entry(page).or_insert_with(|| Arc::clone(&zero));
        }
    }

    /// Makes this range zero and frees its whole pages.
    pub(crate) fn punch(&mut self, offset: u64, bytes: u64) {
        let end = offset + bytes;
        let whole = offset.div_ceil(PAGE_BYTES)..(end / PAGE_BYTES).max(offset.div_ceil(PAGE_BYTES));
        self.pages.retain(|page, _| !whole.contains(page));
        self.zero(offset, bytes.min(offset.next_multiple_of(PAGE_BYTES) - offset));
        let tail = (end / PAGE_BYTES * PAGE_BYTES).max(offset);
        self.zero(tail, end - tail);
    }

    fn zero(&mut self, offset: u64, bytes: u64) {
        for (at, part) in pieces(offset, bytes) {
            if let Some(page) = self.pages.get_mut(&(at / PAGE_BYTES)) {
                let from = (at % PAGE_BYTES) as usize;
                Arc::make_mut(page)[from..from + part].fill(0);
            }
        }
    }
}

fn zero_page() -> Arc<Page> {
    Arc::new([0; PAGE_BYTES as usize])
}

fn page_range(offset: u64, bytes: u64) -> std::ops::Range<u64> {
    offset / PAGE_BYTES..(offset + bytes).div_ceil(PAGE_BYTES).max(offset / PAGE_BYTES)
}

/// Cuts a range at page boundaries, and returns offset and length of each piece.
fn pieces(offset: u64, bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    let end = offset + bytes;
    let mut at = offset;
    std::iter::from_fn(move || {
        let next = (at / PAGE_BYTES + 1) * PAGE_BYTES;
        let piece = (at, (next.min(end).saturating_sub(at)) as usize);
        at = next;
        (piece.1 > 0).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_reads_what_was_written_and_zero_elsewhere() {
        let mut image = Image::default();
        image.write(PAGE_BYTES - 2, b"abcd");
        assert_eq!(image.read(PAGE_BYTES - 3, 10), b"\0abcd");
        assert_eq!((image.size(), image.pages()), (PAGE_BYTES + 2, 2));
        image.set_size(PAGE_BYTES - 1);
        image.set_size(PAGE_BYTES + 1);
        assert_eq!(image.read(PAGE_BYTES - 2, 10), b"a\0\0", "what was cut off does not come back");
        image.reserve(0, 4 * PAGE_BYTES);
        assert_eq!((image.pages(), image.size(), image.missing(0, 5 * PAGE_BYTES)), (4, PAGE_BYTES + 1, 1));
        image.punch(PAGE_BYTES, 3 * PAGE_BYTES);
        assert_eq!(image.pages(), 1);
        image.punch(10, 20);
        assert_eq!(image.pages(), 1, "a part of a page is not given back");
    }
}
