//! The ties of a segment: the whole first key of each page that begins with the same eight bytes as the page before it
//! ends with. The directory, which has eight bytes a page, cannot tell which of two such pages holds a key.
//!
//! Owns: its bytes (FORMAT.md, "Ties"), and the search in them. Must not: do I/O. Used on any thread.
//!
//! Uniform keys have no ties. Keys that anybody makes alike, and those of a derived store, have one for each page.

use std::ops::Range;

use engine_api::Key;

use crate::format::page::prefix;
use crate::huge::HugeBytes;
use crate::search::near;

/// Bytes of a tie: the key, and the number of its page.
const TIE_BYTES: usize = 32 + 4;

/// Collects the directory and the ties of a segment from its pages.
#[derive(Default)]
pub(crate) struct DirectoryBuilder {
    words: Vec<u64>,
    keys: Vec<Key>,
    /// Number of the page of each of `keys`.
    tied: Vec<u32>,
}

/// The ties of a segment in memory: first all keys, ascending, then all numbers of pages.
#[derive(Clone)]
pub(crate) struct Ties {
    bytes: HugeBytes,
}

/// Whether a section of this size can be the ties of a segment with so many pages.
pub(crate) fn can_be(bytes: u64, pages: u64) -> bool {
    bytes.is_multiple_of(TIE_BYTES as u64) && bytes / (TIE_BYTES as u64) < pages
}

impl DirectoryBuilder {
    /// Adds the next page, which begins with `first`. `before` is the last key of the page before it.
    pub(crate) fn push(&mut self, first: &Key, before: Option<&Key>) {
        if before.is_some_and(|before| prefix(before) == prefix(first)) {
            self.keys.push(*first);
            self.tied.push(self.words.len() as u32);
        }
        self.words.push(prefix(first));
    }

    /// Number of pages so far.
    pub(crate) fn pages(&self) -> usize {
        self.words.len()
    }

    /// Sizes of the directory and of the ties in bytes.
    pub(crate) fn bytes(&self) -> [usize; 2] {
        [self.words.len() * 8, self.keys.len() * TIE_BYTES]
    }

    /// Writes the directory into `out`, which has its size.
    pub(crate) fn encode_directory(&self, out: &mut [u8]) {
        let (words, _) = out.as_chunks_mut();
        words.iter_mut().zip(&self.words).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
    }

    /// Writes the ties into `out`, which has their size.
    pub(crate) fn encode_ties(&self, out: &mut [u8]) {
        let (keys, pages) = out.split_at_mut(self.keys.len() * 32);
        keys.copy_from_slice(self.keys.as_flattened());
        let (pages, _) = pages.as_chunks_mut();
        pages.iter_mut().zip(&self.tied).for_each(|(bytes, page)| *bytes = page.to_le_bytes());
    }
}

impl Ties {
    pub(crate) fn new(bytes: HugeBytes) -> Self {
        Self { bytes }
    }

    fn count(&self) -> usize {
        self.bytes.bytes().len() / TIE_BYTES
    }

    fn key(&self, at: usize) -> &Key {
        self.bytes.bytes()[at * 32..].first_chunk().expect("a tie has a key")
    }

    fn page(&self, at: usize) -> u32 {
        let at = self.count() * 32 + at * 4;
        u32::from_le_bytes(*self.bytes.bytes()[at..].first_chunk().expect("a tie has a page"))
    }

    /// Checks that the ties are those of a directory: in order, with its eight bytes, and one for each page that begins
    /// with the same eight bytes as the page before it.
    pub(crate) fn check(&self, directory: &[u64]) -> Result<(), &'static str> {
        let mut at = 0;
        for (page, (before, first)) in (1u32..).zip(directory.iter().zip(&directory[1..])) {
            if at < self.count() && self.page(at) == page {
                if prefix(self.key(at)) != *first || (at > 0 && self.key(at - 1) >= self.key(at)) {
                    return Err("a tie is not of its page");
                }
                at += 1;
            } else if before == first {
                return Err("a tie is missing");
            }
        }
        if at < self.count() { Err("the ties are out of order") } else { Ok(()) }
    }

    /// Returns the page that may hold `key`. `pages` are all pages whose word in the directory is the key's first eight
    /// bytes, at least one. If the first of them has a tie with a greater key, the page before it may hold the key.
    #[cold]
    pub(crate) fn page_of(&self, key: &Key, pages: Range<usize>, all_pages: usize) -> usize {
        let end = self.count_before(pages.end, all_pages);
        let start = end - (pages.len() - 1);
        let is_first_tied = start > 0 && self.page(start - 1) as usize == pages.start;
        let start = start - usize::from(is_first_tied);
        if start == end {
            return pages.start;
        }
        let (before, behind) = (self.key(start), self.key(end - 1));
        // Guess by the first eight bytes in which these keys differ.
        let shared = before.iter().zip(behind).take_while(|(a, b)| a == b).count().min(24);
        let word = |key: &Key| u64::from_be_bytes(std::array::from_fn(|at| key[shared + at]));
        let (low, high) = (word(before), word(behind));
        let part = word(key).saturating_sub(low) as f64 / high.saturating_sub(low).max(1) as f64;
        let guess = start + (part.min(1.0) * (end - start) as f64) as usize;
        let found = near(start..end, guess, |at| self.key(at) <= key);
        match found - start {
            0 if is_first_tied => pages.start - 1,
            0 => pages.start,
            _ => self.page(found - 1) as usize,
        }
    }

    /// Number of ties of the pages before page `end`, of so many pages in all.
    fn count_before(&self, end: usize, all_pages: usize) -> usize {
        let guess = (end as u64 * self.count() as u64 / all_pages as u64) as usize;
        near(0..self.count(), guess, |at| (self.page(at) as usize) < end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::huge::Pool;

    /// Makes the directory and the ties of these pages of ascending keys.
    fn of(pages: &[Vec<Key>]) -> (Vec<u64>, Ties) {
        let mut builder = DirectoryBuilder::default();
        let mut before = None;
        for page in pages {
            builder.push(&page[0], before);
            before = page.last();
        }
        let [_, length] = builder.bytes();
        let mut bytes = Pool::default().take(length).expect("memory");
        builder.encode_ties(&mut bytes.whole_pages_mut()[..length]);
        (builder.words, Ties::new(bytes))
    }

    proptest! {
        #[test]
        fn every_key_is_in_the_page_that_is_found_whatever_the_keys_share(
            keys in proptest::collection::btree_set((0u8..4, 0u8..3, any::<u8>()), 1..200), per_page in 1usize..9,
        ) {
            let key = |(head, middle, tail): (u8, u8, u8)| {
                let mut key = [head; 32];
                (key[9], key[30]) = (middle, tail);
                key
            };
            let all: Vec<Key> = keys.iter().copied().map(key).collect();
            let pages: Vec<Vec<Key>> = all.chunks(per_page).map(<[Key]>::to_vec).collect();
            let (words, ties) = of(&pages);
            prop_assert_eq!(ties.check(&words), Ok(()));
            for (head, middle, tail) in (0..4).flat_map(|a| (0..3).flat_map(move |b| (0..=255).map(move |c| (a, b, c)))) {
                let wanted = key((head, middle, tail));
                let alike = words.partition_point(|word| *word < prefix(&wanted))
                    ..words.partition_point(|word| *word <= prefix(&wanted));
                if !alike.is_empty() {
                    let found = ties.page_of(&wanted, alike, words.len());
                    prop_assert!(pages[found].contains(&wanted) == all.contains(&wanted));
                    // A scan from the key begins here and misses none.
                    prop_assert!(found == 0 || pages[found - 1].last().expect("a key") < &wanted);
                    prop_assert!(pages.get(found + 1).is_none_or(|next| next[0] > wanted));
                }
            }
        }
    }

    #[test]
    fn ties_that_are_not_those_of_the_directory_are_refused() {
        let page = |first: u8| {
            vec![[first; 32], {
                let mut last = [first; 32];
                last[31] = 0xff;
                last
            }]
        };
        let mut second = page(3);
        second[0][31] = 4;
        let (words, ties) = of(&[page(2), page(3), second.clone(), page(9)]);
        assert_eq!((ties.count(), ties.check(&words)), (1, Ok(())));
        let (_, none) = of(&[page(2), page(3)]);
        assert_eq!(none.check(&words), Err("a tie is missing"));
        assert_eq!(ties.check(&[words[0], words[1], words[3], words[3]]), Err("a tie is not of its page"));
        assert_eq!(ties.check(&words[..2]), Err("the ties are out of order"));
        // Two ties of one word whose keys are in the wrong order.
        let alike = |last: u8| {
            vec![{
                let mut key = [5; 32];
                key[31] = last;
                key
            }]
        };
        let (words, ties) = of(&[alike(1), alike(9), alike(4)]);
        assert_eq!(ties.check(&words), Err("a tie is not of its page"));
        assert!(can_be(36, 2) && !can_be(36, 1) && !can_be(35, 9) && can_be(0, 1));
    }
}
