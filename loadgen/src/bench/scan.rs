//! Short scans: a few pairs from a key on, and the check of their result.
//!
//! Owns: which pairs a scan has to see. Must not: time it. Runs on the thread of its reader.

use std::ops::ControlFlow;

use anyhow::{Result, ensure};
use engine_api::{Key, Reader, Value};
use workload::Pairs;

/// Scans that end after `pairs` pairs, or with the last pair of the store.
#[derive(Clone, Debug)]
pub(crate) struct ShortScan {
    pairs: usize,
    /// The greatest keys of the store, as many as a scan sees. They tell how many pairs are left for a scan near the end.
    greatest: Vec<Key>,
}

impl ShortScan {
    /// Prepares scans of a store with the first `count` pairs. It makes each key once, which takes a second for 50 million.
    pub(crate) fn new(pairs: u32, store: &Pairs, count: u64) -> Self {
        let mut greatest: Vec<Key> = (0..count.min(pairs.into())).map(|index| store.key(index)).collect();
        greatest.sort_unstable();
        for key in (pairs.into()..count).map(|index| store.key(index)) {
            if key > greatest[0] {
                greatest[0] = key;
                greatest.sort_unstable();
            }
        }
        Self { pairs: pairs as usize, greatest }
    }

    /// Scans from `first` on and puts the pairs into `seen`.
    pub(crate) fn scan(&self, reader: &mut dyn Reader, first: &Key, seen: &mut Vec<(Key, Value)>) -> Result<()> {
        seen.clear();
        reader.scan_from(first, &mut |key, value| {
            seen.push((*key, *value));
            if seen.len() < self.pairs { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(())
    }

    /// Returns the value of `first`, which is a key of the store.
    ///
    /// # Errors
    /// The scan did not begin with this key, did not ascend, or saw more or fewer pairs than there are.
    pub(crate) fn check(&self, first: &Key, seen: &[(Key, Value)]) -> Result<Option<Value>> {
        let due = self.greatest.iter().filter(|key| *key >= first).count();
        ensure!(seen.len() == due, "a scan saw {} pairs and not {due}: first={first:x?}", seen.len());
        ensure!(seen.is_sorted_by(|(one, _), (next, _)| one < next), "a scan does not ascend: first={first:x?}");
        let at_first = seen.first().filter(|(key, _)| key == first);
        Ok(at_first.map(|(_, value)| *value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_sees_as_many_pairs_as_there_are_in_order_from_its_first_key_on() {
        let store = Pairs::new(3);
        let mut all: Vec<(Key, Value)> = (0..1000).map(|n| (store.key(n), store.value(n, 0))).collect();
        all.sort_unstable();
        let scan = ShortScan::new(10, &store, 1000);
        let check = |first: usize, seen: &[(Key, Value)]| scan.check(&all[first].0, seen);
        for first in [0, 500, 990, 991, 999] {
            let end = 1000.min(first + 10);
            assert_eq!(check(first, &all[first..end]).unwrap(), Some(all[first].1));
            assert!(check(first, &all[first..end - 1]).is_err(), "one is missing at the end: first={first}");
        }
        assert!(check(500, &all[500..511]).is_err(), "it did not stop");
        assert!(check(0, &all[1..11]).unwrap().is_none(), "the first key is missing");
        let mut swapped = all[500..510].to_vec();
        swapped.swap(8, 9);
        assert!(check(500, &swapped).is_err());
        swapped[8] = swapped[9];
        assert!(check(500, &swapped).is_err(), "a key came twice");
        // A store may have fewer pairs than a scan asks for.
        all.retain(|(key, _)| (0..4).any(|n| store.key(n) == *key));
        assert!(ShortScan::new(10, &store, 4).check(&all[0].0, &all).is_ok());
    }
}
