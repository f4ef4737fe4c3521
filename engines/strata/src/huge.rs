//! Memory that is read at random: anonymous pages, huge ones where the kernel gives them.
//!
//! Owns: how it is mapped, and how small pieces share a mapping. With pages of 4 KiB a read that misses the CPU caches
//! also misses the TLB, which costs as much again.

use std::io;
use std::sync::Arc;

use memmap2::{Advice, MmapMut, MmapRaw, UncheckedAdvice};
use parking_lot::Mutex;

use crate::storage::PAGE_BYTES;

/// Size of a mapping that smaller pieces share. The mapping stays until its last piece is dropped, and pieces that are
/// made one after the other are mostly dropped together too.
const SHARED_BYTES: usize = 8 << 20;

/// An allocator of pieces of mappings.
#[derive(Default)]
pub(crate) struct Pool {
    /// The mapping that pieces are taken from now, and the number of its bytes already handed out.
    current: Mutex<Option<(Arc<MmapRaw>, usize)>>,
}

/// Bytes in whole pages. A sole holder may write them. Once it was cloned, all holders only read.
#[derive(Clone)]
pub(crate) struct HugeBytes {
    at: *const u8,
    bytes: usize,
    piece: Arc<Piece>,
}

/// A part of a mapping. Its pages go back to the kernel when it is dropped.
struct Piece {
    map: Arc<MmapRaw>,
    start: usize,
    whole: usize,
}

// SAFETY: the pages lie in the piece's mapping, which lives as long as the piece. They are written by one holder before
// it shares them, and read by any number of holders that write nothing.
unsafe impl Send for HugeBytes {}
// SAFETY: as for `Send` above.
unsafe impl Sync for HugeBytes {}

/// Maps `bytes` of memory, which the kernel rounds up to pages, and asks for huge pages.
///
/// # Errors
/// The kernel's error when there is no memory.
pub(crate) fn map_huge(bytes: usize) -> io::Result<MmapMut> {
    let map = MmapMut::map_anon(bytes)?;
    // Only advice: a kernel without huge pages gives small ones.
    map.advise(Advice::HugePage).ok();
    Ok(map)
}

/// Gives back the pages after the first `used` bytes; they read as zeros afterwards. It is worth doing because a huge
/// page reaches beyond the bytes that were written.
pub(crate) fn release_tail(map: &mut MmapMut, used: usize) {
    let used = used.next_multiple_of(PAGE_BYTES);
    if let Some(rest) = map.len().checked_sub(used).filter(|rest| *rest > 0) {
        // SAFETY: the range lies within the mapping, which nobody else reads while it is borrowed mutably. If the
        // kernel refuses, memory is lost and nothing else.
        unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, used, rest) }.ok();
    }
}

/// Prefetches the cache line of this byte. It is only a hint, so the address may be any.
#[inline(always)]
pub(crate) fn prefetch(byte: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that reads nothing; SSE is part of the architecture.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(byte.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = byte;
}

impl Pool {
    /// Allocates a piece of `bytes`, rounded up to pages.
    ///
    /// # Errors
    /// As [`map_huge`].
    pub(crate) fn take(&self, bytes: usize) -> io::Result<HugeBytes> {
        let whole = bytes.next_multiple_of(PAGE_BYTES);
        if whole > SHARED_BYTES / 2 {
            return Ok(HugeBytes::new(Arc::new(map_huge(whole)?.into()), 0, bytes));
        }
        let mut current = self.current.lock();
        let (map, used) = match current.take().filter(|(map, used)| used + whole <= map.len()) {
            Some(found) => found,
            None => (Arc::new(map_huge(SHARED_BYTES)?.into()), 0),
        };
        *current = Some((Arc::clone(&map), used + whole));
        Ok(HugeBytes::new(map, used, bytes))
    }
}

impl HugeBytes {
    fn new(map: Arc<MmapRaw>, start: usize, bytes: usize) -> Self {
        let at = map.as_ptr().wrapping_add(start);
        Self { at, bytes, piece: Arc::new(Piece { map, start, whole: bytes.next_multiple_of(PAGE_BYTES) }) }
    }

    /// Returns all pages of the piece for writing, as direct reads demand; an empty slice if the piece is shared.
    pub(crate) fn whole_pages_mut(&mut self) -> &mut [u8] {
        let Some(piece) = Arc::get_mut(&mut self.piece) else { return &mut [] };
        // SAFETY: the pages lie within the mapping, which lives as long as `self`. The pool hands every page out once,
        // nobody shares this piece, and `self` is borrowed for as long as the slice lives. The kernel has made the
        // pages zero.
        unsafe { std::slice::from_raw_parts_mut(piece.map.as_mut_ptr().add(piece.start), piece.whole) }
    }

    /// Converts little-endian numbers of eight bytes, as files have them, to this machine's byte order.
    pub(crate) fn make_native(&mut self) {
        let (words, _) = self.whole_pages_mut().as_chunks_mut();
        words.iter_mut().for_each(|word| *word = u64::from_le_bytes(*word).to_ne_bytes());
    }

    /// Returns the requested bytes as numbers of eight bytes in this machine's byte order.
    #[inline(always)]
    pub(crate) fn words(&self) -> &[u64] {
        // SAFETY: as in `bytes`; the piece begins at a page, and any eight bytes are a valid number.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.bytes / size_of::<u64>()) }
    }

    /// Returns the bytes that were requested, without the padding to whole pages.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `at` points to this many bytes of the piece. Nobody writes them while `self` is borrowed, because
        // writing takes the only holder mutably.
        unsafe { std::slice::from_raw_parts(self.at, self.bytes) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if self.whole < self.map.len() {
            // The mapping stays for its other pieces. Without MADV_NOHUGEPAGE these pages could come back, because the
            // kernel fills missing pages with zeros when it makes a huge page of their neighbours.
            // SAFETY: the range lies within the mapping, and nobody holds these pages any more.
            unsafe {
                let at = self.map.as_mut_ptr().add(self.start).cast();
                libc::madvise(at, self.whole, libc::MADV_NOHUGEPAGE);
                libc::madvise(at, self.whole, libc::MADV_DONTNEED);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_do_not_overlap() {
        let pool = Pool::default();
        let sizes = [1, 4096, 4097, SHARED_BYTES / 2, SHARED_BYTES / 2 - 3, SHARED_BYTES, 100_000];
        let mut pieces: Vec<_> = sizes.iter().map(|bytes| pool.take(*bytes).expect("memory")).collect();
        for (n, piece) in pieces.iter_mut().enumerate() {
            piece.whole_pages_mut().fill(n as u8 + 1);
        }
        for (n, (piece, bytes)) in pieces.iter().zip(sizes).enumerate() {
            assert!(piece.bytes().len() == bytes && piece.bytes().iter().all(|byte| *byte == n as u8 + 1));
        }
    }
}
