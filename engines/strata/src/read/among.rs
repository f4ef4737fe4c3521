//! Search for a key among pages that begin with the same eight bytes, which the directory cannot tell apart.
//!
//! Owns: the choice of the next page to read. Must not: read one. Runs on the readers' threads.
//!
//! Anybody can make keys that share eight bytes (vanity addresses, or an attack). The next bytes are then mostly
//! uniform. So the page is guessed by interpolation between the nearest known keys. Each page that was read adds two
//! known keys. Keys made against interpolation waste only every second guess, because the other guesses halve the range
//! that is left.

use std::ops::Range;

use engine_api::Key;

use crate::format::footer::SegmentInfo;
use crate::format::page::prefix;

/// Number of guesses by interpolation alone, before every second guess halves the pages that are left.
const INTERPOLATIONS: u32 = 3;

/// Consecutive pages that may hold a key.
pub(crate) struct Among {
    pages: Range<u32>,
    /// Greatest key known to come before these pages.
    before: Key,
    /// Least key known to come after these pages.
    behind: Key,
    guesses: u32,
}

impl Among {
    /// Begins a search in these pages of a segment, which hold keys with the first eight bytes of `key`.
    pub(crate) fn new(key: &Key, pages: Range<u32>, segment: &SegmentInfo) -> Self {
        let filled = |byte| {
            let mut filled = [byte; 32];
            filled[..8].copy_from_slice(&prefix(key).to_be_bytes());
            filled
        };
        Self { pages, before: filled(0).max(segment.first), behind: filled(0xff).min(segment.last), guesses: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Returns the page to look at next. The search must not be empty.
    pub(crate) fn guess(&self, key: &Key) -> u32 {
        let Range { start, end } = self.pages;
        let count = end - start;
        if self.guesses >= INTERPOLATIONS && self.guesses % 2 == 1 {
            return start + count / 2;
        }
        // Interpolate with the first eight bytes in which the keys around it differ.
        let shared = self.before.iter().zip(&self.behind).take_while(|(a, b)| a == b).count().min(24);
        let word = |key: &Key| u64::from_be_bytes(std::array::from_fn(|i| key[shared + i]));
        let (before, behind) = (word(&self.before), word(&self.behind));
        let part = word(key).saturating_sub(before) as f64 / behind.saturating_sub(before).max(1) as f64;
        start + ((part * f64::from(count)) as u32).min(count - 1)
    }

    /// Narrows the search after `key` was not in page `number`, whose first and last key are given.
    pub(crate) fn narrow(&mut self, key: &Key, number: u32, first: &Key, last: &Key) {
        self.guesses += 1;
        if key < first {
            self.pages.end = self.pages.end.min(number);
            self.behind = *first;
        } else {
            self.pages.start = self.pages.start.max(number + 1);
            self.before = *last;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PER_PAGE: usize = 66;

    /// Returns a pseudorandom number that follows from `n`.
    fn mix(n: u64) -> u64 {
        let x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^ (x >> 27)
    }

    /// Returns the mean and the maximum number of pages looked at for some of the keys; half of the keys asked for are
    /// absent.
    fn looks(mut keys: Vec<Key>) -> (f64, u32) {
        keys.sort_unstable();
        let pages: Vec<&[Key]> = keys.chunks(PER_PAGE).collect();
        let info = SegmentInfo { id: 1, records: 1, tombstones: 0, first: keys[0], last: keys[keys.len() - 1] };
        let (mut sum, mut most, mut asked) = (0, 0, 0);
        for (n, there) in keys.iter().enumerate().step_by(97) {
            let mut key = *there;
            key[31] ^= (n % 2) as u8;
            let mut among = Among::new(&key, 0..pages.len() as u32, &info);
            let mut looks = 0;
            let mut found = false;
            while !among.is_empty() && !found {
                looks += 1;
                let at = among.guess(&key);
                let (first, last) = (pages[at as usize][0], pages[at as usize][pages[at as usize].len() - 1]);
                if first <= key && key <= last {
                    found = true;
                    assert_eq!(pages[at as usize].contains(&key), keys.binary_search(&key).is_ok());
                } else {
                    among.narrow(&key, at, &first, &last);
                }
            }
            assert!(found || keys.binary_search(&key).is_err(), "a key that is there was not found");
            (sum, most, asked) = (sum + looks, most.max(looks), asked + 1);
        }
        (f64::from(sum) / f64::from(asked), most)
    }

    fn key(shared: usize, n: u64) -> Key {
        std::array::from_fn(|at| if at < shared { 7 } else { mix(n * 32 + at as u64) as u8 })
    }

    #[test]
    fn uniform_keys_behind_any_number_of_shared_bytes_take_few_looks() {
        for shared in [8, 9, 15, 16, 20, 24] {
            let (mean, most) = looks((0..200_000).map(|n| key(shared, n)).collect());
            assert!(mean < 3.0 && most <= 9, "shared={shared} mean={mean} most={most}");
        }
    }

    #[test]
    fn keys_made_against_the_guesses_take_twice_the_looks_of_halving_at_most() {
        // Each key is half as far from the first as the key before, so every interpolation is wrong.
        let halved = (0..20_000u64).map(|n| {
            let mut key = [7; 32];
            key[8..].fill(0);
            let bit = (n % 184) as usize;
            key[8 + bit / 8] |= 0x80 >> (bit % 8);
            key[31] = n as u8;
            key[30] |= (n >> 8) as u8;
            key
        });
        let mut keys: Vec<Key> = halved.collect();
        keys.sort_unstable();
        keys.dedup();
        let halvings = (keys.len().div_ceil(PER_PAGE) as f64).log2().ceil() as u32;
        let (_, most) = looks(keys);
        assert!(most <= 2 * halvings + INTERPOLATIONS + 1, "most={most} halvings={halvings}");
    }
}
