//! Pages of a segment in anonymous memory, brought in when they are asked for.
//!
//! Owns: the state of each page, and how a page becomes visible. Must not: verify pages. Used on any thread at once.

use memmap2::{MmapMut, MmapRaw};

use crate::budget::Share;
use crate::format::page::{Page, offset_at};
use crate::huge::prefetch;
use crate::storage::{PAGE_BYTES, PageBytes};
use crate::sync::{AtomicBool, AtomicU8, AtomicU32, Ordering, UnsafeCell};

/// Cache lines that are prefetched on either side of the one where a record most likely begins. The record is within
/// them more often than not, and an unneeded line costs little compared with a miss.
const AROUND_LINES: usize = 2;
/// Length of a cache line.
const LINE_BYTES: usize = 64;

/// State of a page that is not in memory.
const ABSENT: u8 = 0;
/// State of a page that one thread is copying in.
const LOADING: u8 = 1;
/// State of a page that is in memory and never changes again.
const READY: u8 = 2;

/// Pages of one segment that stay in memory once they were read.
pub(crate) struct Resident {
    map: MmapRaw,
    slots: Box<[Slot]>,
    /// Number of pages that are not in memory yet.
    missing: AtomicU32,
    huge: AtomicBool,
    _share: Share,
}

/// State of a page, one byte long.
struct Slot {
    state: AtomicU8,
    /// Stands for the page's bytes in the mapping, whose accesses loom cannot follow.
    bytes: UnsafeCell<()>,
}

// SAFETY: the bytes are written only by the thread that won LOADING, and read only after READY.
unsafe impl Sync for Slot {}

impl Resident {
    /// Makes room for `pages` pages in `map`, all absent. The mapping has small pages, because the first touch of a
    /// huge one zeroes two mebibytes, which a get would pay for.
    pub(crate) fn new(map: MmapMut, pages: u32, share: Share) -> Self {
        Self::with_state(map, pages, share, ABSENT, pages)
    }

    /// Wraps `pages` pages that are in `map` already.
    pub(crate) fn filled(map: MmapMut, pages: u32, share: Share) -> Self {
        Self::with_state(map, pages, share, READY, 0)
    }

    fn with_state(map: MmapMut, pages: u32, share: Share, state: u8, missing: u32) -> Self {
        let slot = |_| Slot { state: AtomicU8::new(state), bytes: UnsafeCell::new(()) };
        Self {
            map: map.into(),
            slots: (0..pages).map(slot).collect(),
            missing: AtomicU32::new(missing),
            huge: AtomicBool::new(missing == 0),
            _share: share,
        }
    }

    /// Returns page `number` if it is in memory.
    #[inline]
    pub(crate) fn ready(&self, number: u32) -> Option<Page<'_>> {
        // ORDERING: both Acquires pair with the Releases in `keep`: whoever sees READY, or that none is missing, sees
        // the page. Once all pages are there, the state is not loaded, because that would be a cache miss.
        let slot = &self.slots[number as usize];
        if self.missing.load(Ordering::Acquire) != 0 && slot.state.load(Ordering::Acquire) != READY {
            return None;
        }
        // SAFETY: the page lies within the mapping, was wholly written before READY was released, and is never written
        // again.
        let bytes = slot.bytes.with(|_| unsafe { &*self.at(number).cast::<PageBytes>() });
        Some(Page::verified(bytes))
    }

    /// Prefetches the memory that a search of page `number` reads: its header, and the records around the likeliest
    /// one.
    #[inline]
    pub(crate) fn prefetch(&self, number: u32, part: f64) {
        let page = self.at(number);
        prefetch(page);
        let likeliest = page.wrapping_add(offset_at(part));
        for line in 0..=2 * AROUND_LINES {
            prefetch(likeliest.wrapping_add(line * LINE_BYTES).wrapping_sub(AROUND_LINES * LINE_BYTES));
        }
    }

    /// Copies a verified page in, unless it is there or another thread is copying it.
    pub(crate) fn keep(&self, number: u32, bytes: &PageBytes) {
        let slot = &self.slots[number as usize];
        // ORDERING: Relaxed: winning gives the right to write; the written bytes are released below.
        if slot.state.compare_exchange(ABSENT, LOADING, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            // SAFETY: the page lies within the mapping; this thread alone won LOADING, and nobody reads before READY.
            slot.bytes
                .with_mut(|_| unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(number), PAGE_BYTES) });
            // ORDERING: Release: see `ready`.
            slot.state.store(READY, Ordering::Release);
            // ORDERING: Release: see `ready`. Each of these subtractions continues the release sequence of the one
            // before, so a thread that sees zero sees the pages of all of them.
            self.missing.fetch_sub(1, Ordering::Release);
        }
    }

    /// Size of the pages that are not in memory yet, in bytes.
    pub(crate) fn missing_bytes(&self) -> u64 {
        self.slots.len() as u64 * PAGE_BYTES as u64 - self.filled_bytes()
    }

    /// Size of the pages that are in memory, in bytes.
    pub(crate) fn filled_bytes(&self) -> u64 {
        // ORDERING: Relaxed: a statistic.
        (self.slots.len() as u64 - u64::from(self.missing.load(Ordering::Relaxed))) * PAGE_BYTES as u64
    }

    /// Whether the mapping may still be turned into huge pages.
    pub(crate) fn is_small(&self) -> bool {
        // ORDERING: Relaxed: set once, and guards no other memory.
        !self.huge.load(Ordering::Relaxed)
    }

    /// Turns the mapping into huge pages once every page is in memory. Gets continue meanwhile; a get that hits the two
    /// mebibytes being copied waits for the copy.
    pub(crate) fn make_huge(&self) {
        // ORDERING: Relaxed: a stale value delays this by a second.
        if self.missing.load(Ordering::Relaxed) > 0 || !self.is_small() {
            return;
        }
        // SAFETY: the range is this mapping, whose content the kernel keeps. A kernel that does not know the advice, or
        // has no huge pages, leaves it as it is.
        unsafe { libc::madvise(self.map.as_mut_ptr().cast(), self.map.len(), libc::MADV_COLLAPSE) };
        // ORDERING: Relaxed: as above.
        self.huge.store(true, Ordering::Relaxed);
    }

    fn at(&self, number: u32) -> *mut u8 {
        let offset = number as usize * PAGE_BYTES;
        assert!(offset + PAGE_BYTES <= self.map.len(), "a page beyond its segment");
        self.map.as_mut_ptr().wrapping_add(offset)
    }
}

#[cfg(test)]
fn two_pages() -> Resident {
    let map = MmapMut::map_anon(2 * PAGE_BYTES).expect("memory");
    let share = crate::budget::Budget::new(0).take_always(0);
    Resident::new(map, 2, share)
}

#[cfg(test)]
fn sealed(number: u32) -> PageBytes {
    let mut builder = crate::format::page::PageBuilder::new();
    builder.push(&[number as u8; 32], Some(&[7; 32]));
    builder.seal(1, number, |bytes| *bytes)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_there_once_it_was_kept_whoever_keeps_it() {
        let resident = two_pages();
        let pages = [sealed(0), sealed(1)];
        let read = |number: u32| resident.ready(number).map(|page| page.key(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for number in 0..2 {
                        assert!(read(number).is_none_or(|key| key == [number as u8; 32]));
                        resident.keep(number, &pages[number as usize]);
                    }
                });
            }
        });
        assert_eq!((read(0), read(1)), (Some([0; 32]), Some([1; 32])));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    #[test]
    fn a_page_that_two_threads_bring_in_is_read_whole_or_not_at_all() {
        loom::model(|| {
            let resident = Arc::new(two_pages());
            let bring_in = |resident: &Resident| {
                for _ in 0..2 {
                    match resident.ready(1) {
                        Some(page) => assert_eq!(page.key(0), [1; 32]),
                        None => resident.keep(1, &sealed(1)),
                    }
                }
            };
            let other = Arc::clone(&resident);
            let thread = thread::spawn(move || bring_in(&other));
            bring_in(&resident);
            thread.join().expect("no thread panics");
            assert!(resident.ready(1).is_some() && resident.ready(0).is_none());
        });
    }
}
