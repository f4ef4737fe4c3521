//! Memory that is read at random: anonymous pages, huge ones where the kernel gives them.
//!
//! Owns: how it is mapped, and the sharing of a mapping by small pieces. With pages of 4 KiB a probe that misses the
//! caches also misses the TLB, which costs as much again.

use std::io;
use std::sync::Arc;

use memmap2::{Advice, MmapMut, MmapRaw};
use parking_lot::Mutex;

use crate::format::page::PAGE_BYTES;

/// Pieces that are smaller share mappings of this many bytes. A mapping stays until its last piece is dropped; pieces
/// that are made one after the other are mostly dropped so too.
const SHARED_BYTES: usize = 8 << 20;

/// Where pieces of memory come from.
#[derive(Default)]
pub(crate) struct Pool {
    /// The mapping that is being handed out, and how much of it was.
    current: Mutex<Option<(Arc<MmapRaw>, usize)>>,
}

/// Bytes of whole pages that belong to their holder alone.
pub(crate) struct HugeBytes {
    map: Arc<MmapRaw>,
    start: usize,
    bytes: usize,
}

/// Maps `bytes`, rounded up to pages by the kernel.
///
/// # Errors
/// What the kernel says when there is no memory.
pub(crate) fn map_huge(bytes: usize) -> io::Result<MmapMut> {
    let map = MmapMut::map_anon(bytes)?;
    // Only advice: a kernel without huge pages gives small ones.
    map.advise(Advice::HugePage).ok();
    Ok(map)
}

/// Fetches the cache line of this byte: a hint, which may be given for any address.
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
    /// A piece of `bytes`, rounded up to pages.
    ///
    /// # Errors
    /// As [`map_huge`].
    pub(crate) fn take(&self, bytes: usize) -> io::Result<HugeBytes> {
        let whole = bytes.next_multiple_of(PAGE_BYTES);
        if whole > SHARED_BYTES / 2 {
            return Ok(HugeBytes { map: Arc::new(map_huge(whole)?.into()), start: 0, bytes });
        }
        let mut current = self.current.lock();
        let (map, used) = match current.take().filter(|(map, used)| used + whole <= map.len()) {
            Some(found) => found,
            None => (Arc::new(map_huge(SHARED_BYTES)?.into()), 0),
        };
        *current = Some((Arc::clone(&map), used + whole));
        Ok(HugeBytes { map, start: used, bytes })
    }
}

impl HugeBytes {
    /// All of its pages, as direct reads demand.
    pub(crate) fn whole_pages_mut(&mut self) -> &mut [u8] {
        let bytes = self.bytes.next_multiple_of(PAGE_BYTES);
        // SAFETY: the pages lie within the mapping, which lives as long as `self`; the pool hands every page out once,
        // and `self` is borrowed for as long as the slice lives. The kernel has made them zero.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().add(self.start), bytes) }
    }

    /// The bytes that were asked for.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: as above; nobody else has these pages, and writing takes `self` mutably.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(self.start), self.bytes) }
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
