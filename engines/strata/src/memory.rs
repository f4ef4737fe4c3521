//! Memory that is read at random: anonymous pages, huge ones where the kernel gives them.
//!
//! Owns: how it is mapped. With pages of 4 KiB a probe that misses the caches also misses the TLB, which here costs as
//! much again.

use std::io;
use std::ops::{Deref, DerefMut};

use memmap2::{Advice, MmapMut};

/// Zeroed bytes, as many as asked for, in whole pages.
pub(crate) struct HugeBytes {
    map: MmapMut,
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

impl HugeBytes {
    /// # Errors
    /// As [`map_huge`].
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        Ok(Self { map: map_huge(bytes.next_multiple_of(crate::page::PAGE_BYTES))?, bytes })
    }

    /// All of the mapping: whole pages, as direct reads demand.
    pub(crate) fn whole_pages_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

impl Deref for HugeBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map[..self.bytes]
    }
}

impl DerefMut for HugeBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map[..self.bytes]
    }
}
