//! A segment's directory in memory: the first eight bytes of each page's first key, and a guide to them.
//!
//! Owns: the choice of the page that may hold a key. Must not: do I/O, or use more of a key than its first eight bytes,
//! except through the ties (`format/ties.rs`). Used on any thread.
//!
//! The guide divides the directory's key range into equal parts and holds the entry where each part begins. It is small
//! enough to stay in the processor's caches. With uniform keys, such as hashes and pubkeys, a part has about 64
//! entries, and the key predicts the entry within its part to within a few entries. So a search touches two or three
//! cache lines whose addresses are known, and can be prefetched, before any of them was read. With other keys the whole
//! part is searched by bisection.

use std::ops::Range;
use std::sync::Arc;

use engine_api::Key;

use crate::format::page::prefix;
use crate::format::ties::Ties;
use crate::huge::{HugeBytes, prefetch};

/// Directory entries for each part of the guide. The guide thus adds 1/128 to the directory's memory.
const PART_ENTRIES: usize = 64;
/// Number of entries compared around the likeliest one. Of uniform keys, 19 of 20 are within them.
const NEAR_ENTRIES: usize = 16;
/// Number of entries in a cache line.
const LINE_ENTRIES: usize = 8;

/// The directory of a segment, which has at least one entry.
#[derive(Clone)]
pub(crate) struct Directory {
    entries: HugeBytes,
    ties: Ties,
    /// Number of entries before each part; the last item counts all entries.
    guide: Arc<[u32]>,
    first: u64,
    last: u64,
    /// Parts of the guide for each unit of key distance, times 2^64.
    scale: u64,
    /// First eight bytes of the segment's last key.
    end: u64,
}

/// Size in bytes of the guide to a directory of this size.
pub(crate) fn guide_bytes(directory_bytes: u64) -> u64 {
    (parts_of(directory_bytes as usize / size_of::<u64>()) + 1) as u64 * size_of::<u32>() as u64
}

fn parts_of(entries: usize) -> usize {
    entries.div_ceil(PART_ENTRIES)
}

impl Directory {
    /// Makes a directory of at least one entry, in ascending order. `end` is the first eight bytes of the segment's
    /// last key.
    pub(crate) fn new(entries: HugeBytes, ties: Ties, end: u64) -> Self {
        let words = entries.words();
        let (first, last) = (words[0], words[words.len() - 1]);
        let parts = parts_of(words.len());
        let scale = ((parts as u128) << 64) / (u128::from(last - first) + 1);
        let scale = u64::try_from(scale).unwrap_or(u64::MAX);
        let mut guide = Vec::with_capacity(parts + 1);
        for (at, word) in words.iter().enumerate() {
            let part = part_of(*word - first, scale);
            guide.resize(guide.len().max(part + 1), at as u32);
        }
        guide.resize(parts + 1, words.len() as u32);
        Self { guide: guide.into(), entries, ties, first, last, scale, end }
    }

    /// First eight bytes of the first key of each page.
    #[inline]
    pub(crate) fn words(&self) -> &[u64] {
        self.entries.words()
    }

    /// Prefetches the memory that [`Directory::up_to`] and [`Directory::part`] read for this key.
    #[inline]
    pub(crate) fn prefetch(&self, wanted: u64) {
        let (_, near) = self.place(wanted);
        let words = self.words().as_ptr();
        for at in [near, near + LINE_ENTRIES, near + NEAR_ENTRIES - 1] {
            prefetch(words.wrapping_add(at).cast());
        }
    }

    /// Returns the only page that may hold `key`, and the estimated position of the key in it, 0 to 1. `None` if every page
    /// begins with a greater key.
    #[inline]
    pub(crate) fn page_of(&self, key: &Key) -> Option<(usize, f64)> {
        let wanted = prefix(key);
        let last = self.up_to(wanted).checked_sub(1)?;
        let page = match self.words()[last] == wanted {
            // A key whose eight bytes begin a page is usually the first key of that page.
            true => self.ties.page_of(key, self.below(wanted)..last + 1, self.words().len()),
            false => last,
        };
        Some((page, self.part(page, wanted)))
    }

    /// Number of entries that are at most `wanted`.
    #[inline]
    fn up_to(&self, wanted: u64) -> usize {
        let (Range { start, end }, near) = self.place(wanted);
        if let Some(entries) = self.words()[near..].first_chunk::<NEAR_ENTRIES>() {
            // Compare all of them without branches, because a branch for each would be mispredicted.
            let count: usize = entries.iter().map(|entry| usize::from(*entry <= wanted)).sum();
            if 0 < count && count < NEAR_ENTRIES {
                return near + count;
            }
        }
        // Where all keys share eight bytes, the last entry decides.
        match self.words()[start..end].split_last() {
            Some((last, _)) if *last <= wanted => end,
            _ => start + self.words()[start..end].partition_point(|entry| *entry <= wanted),
        }
    }

    /// Number of entries that are less than `wanted`.
    fn below(&self, wanted: u64) -> usize {
        let (Range { start, end }, _) = self.place(wanted);
        // As in `up_to`, the first entry decides.
        match self.words()[start..end].first() {
            Some(first) if *first >= wanted => start,
            _ => start + self.words()[start..end].partition_point(|entry| *entry < wanted),
        }
    }

    /// Position of `wanted` between the first key of page `at` and that of the next page, 0 to 1.
    #[inline]
    fn part(&self, at: usize, wanted: u64) -> f64 {
        let words = self.words();
        let low = words[at];
        let high = words.get(at + 1).copied().unwrap_or(self.end);
        (wanted.saturating_sub(low) as f64 / high.saturating_sub(low).max(1) as f64).min(1.0)
    }

    /// Returns the entries of the part that `wanted` falls into. Entries before it are less than `wanted`, entries
    /// after it greater. Also returns the first of [`NEAR_ENTRIES`] entries around the likeliest one.
    #[inline]
    fn place(&self, wanted: u64) -> (Range<usize>, usize) {
        if wanted < self.first {
            return (0..0, 0);
        }
        let all = self.words().len();
        if wanted > self.last {
            return (all..all, all.saturating_sub(NEAR_ENTRIES));
        }
        let place = u128::from(wanted - self.first) * u128::from(self.scale);
        let (part, within) = ((place >> 64) as usize, place as u64);
        let (start, end) = (self.guide[part] as usize, self.guide[part + 1] as usize);
        let likeliest = start + ((u128::from(within) * (end - start) as u128) >> 64) as usize;
        (start..end, likeliest.saturating_sub(NEAR_ENTRIES / 2).min(all.saturating_sub(NEAR_ENTRIES)))
    }
}

/// Returns the part of the guide at this distance from the first entry.
fn part_of(distance: u64, scale: u64) -> usize {
    ((u128::from(distance) * u128::from(scale)) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::huge::Pool;

    fn directory(mut words: Vec<u64>, end: u64) -> Directory {
        words.sort_unstable();
        let mut bytes = Pool::default().take(words.len() * 8).expect("memory");
        let (entries, _) = bytes.whole_pages_mut().as_chunks_mut();
        entries.iter_mut().zip(&words).for_each(|(entry, word)| *entry = word.to_ne_bytes());
        Directory::new(bytes, Ties::new(Pool::default().take(0).expect("memory")), end)
    }

    fn assert_found(directory: &Directory, wanted: u64) {
        let words = directory.words();
        directory.prefetch(wanted);
        assert_eq!(directory.up_to(wanted), words.partition_point(|word| *word <= wanted), "{wanted:x}");
        assert_eq!(directory.below(wanted), words.partition_point(|word| *word < wanted), "{wanted:x}");
        for at in [0, words.len() - 1, directory.up_to(wanted).saturating_sub(1)] {
            assert!((0.0..=1.0).contains(&directory.part(at, wanted)));
        }
    }

    proptest! {
        #[test]
        fn a_search_finds_what_a_plain_one_does_however_the_keys_lie(
            words in proptest::collection::vec(any::<u64>(), 1..300), shift in 0u32..64, low in any::<u64>(),
            wanted in proptest::collection::vec(any::<u64>(), 0..20),
        ) {
            // A shift to the right brings them close together and makes many equal.
            let near = |word: &u64| (word >> shift).saturating_add(low);
            let end = words.iter().map(near).max().unwrap_or(0);
            let directory = directory(words.iter().map(near).collect(), end);
            let around = words.iter().map(near).flat_map(|word| [word, word.saturating_sub(1), word.saturating_add(1)]);
            for wanted in around.chain(wanted).chain([0, u64::MAX, end]) {
                assert_found(&directory, wanted);
            }
        }
    }

    #[test]
    fn uniform_keys_are_mostly_near_the_likeliest_place_and_the_guide_is_small() {
        let mix = |n: u64| (n ^ n >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let words: Vec<u64> = (0..60_000u64).map(|n| mix(mix(n) ^ mix(n) >> 29)).collect();
        let directory = directory(words.clone(), u64::MAX);
        let is_near = |wanted: &&u64| {
            let near = directory.place(**wanted).1;
            (near..near + NEAR_ENTRIES).contains(&(directory.up_to(**wanted) - 1))
        };
        let near = words.iter().filter(is_near).count();
        assert!(near > 57_000, "near={near}");
        assert!(guide_bytes(60_000 * 8) == 939 * 4 && directory.guide.len() == 939);
    }

    #[test]
    fn a_range_of_one_key_and_a_range_of_all_keys_are_searched() {
        for words in [vec![7], vec![7; 100], vec![0, u64::MAX], vec![u64::MAX; 9]] {
            let found = directory(words, u64::MAX);
            [0, 1, 6, 7, 8, u64::MAX - 1, u64::MAX].into_iter().for_each(|wanted| assert_found(&found, wanted));
        }
    }
}
