//! Pages of a segment in anonymous memory, brought in as they are asked for.
//!
//! Owns: which pages are there, and how they become visible. Must not: verify them. Used on any thread at once.

use std::sync::atomic::{AtomicU8, Ordering};

use memmap2::{MmapMut, MmapRaw};

use crate::budget::Share;
use crate::page::{PAGE_BYTES, Page, PageBytes, offset_at};

/// State of a page.
const ABSENT: u8 = 0;
const LOADING: u8 = 1;
const READY: u8 = 2;

/// Pages that are kept in memory once they were read.
pub(crate) struct Resident {
    map: MmapRaw,
    states: Box<[AtomicU8]>,
    _share: Share,
}

impl Resident {
    /// Room for `pages` pages in `map`, none of which is there yet.
    pub(crate) fn new(map: MmapMut, pages: u32, share: Share) -> Self {
        let states = (0..pages).map(|_| AtomicU8::new(ABSENT)).collect();
        Self { map: map.into(), states, _share: share }
    }

    /// All of `pages` pages, which are in `map` already.
    pub(crate) fn filled(map: MmapMut, pages: u32, share: Share) -> Self {
        let states = (0..pages).map(|_| AtomicU8::new(READY)).collect();
        Self { map: map.into(), states, _share: share }
    }

    /// Page `number`, if it is there.
    pub(crate) fn ready(&self, number: u32) -> Option<Page<'_>> {
        // ORDERING: Acquire pairs with the Release in `keep`: whoever sees READY sees the page.
        if self.states[number as usize].load(Ordering::Acquire) != READY {
            return None;
        }
        // SAFETY: the page lies within the mapping, was wholly written before READY was released, and is never written
        // again.
        let bytes = unsafe { &*self.at(number).cast::<PageBytes>() };
        Some(Page::verified(bytes))
    }

    /// Fetches what a search of page `number` reads first, while its state is still being looked at.
    pub(crate) fn prefetch(&self, number: u32, part: f64) {
        let page = self.at(number);
        for offset in [0, offset_at(part)] {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a hint that reads nothing; SSE is part of the architecture.
            unsafe {
                std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(page.wrapping_add(offset).cast());
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = (page, offset);
        }
    }

    /// Copies a verified page in, unless another thread is doing so.
    pub(crate) fn keep(&self, number: u32, bytes: &PageBytes) {
        let state = &self.states[number as usize];
        // ORDERING: Relaxed: winning gives the right to write; what is written is released below.
        if state.compare_exchange(ABSENT, LOADING, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            // SAFETY: the page lies within the mapping; this thread alone won LOADING, and nobody reads before READY.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(number), PAGE_BYTES) };
            // ORDERING: Release: see `ready`.
            state.store(READY, Ordering::Release);
        }
    }

    fn at(&self, number: u32) -> *mut u8 {
        let offset = number as usize * PAGE_BYTES;
        assert!(offset + PAGE_BYTES <= self.map.len(), "a page beyond its segment");
        self.map.as_mut_ptr().wrapping_add(offset)
    }
}
