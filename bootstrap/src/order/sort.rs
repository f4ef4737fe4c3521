//! Computes the order of the records in a buffer without moving them.
//!
//! Owns: how the records of one run are sorted. Must not: know files. Runs on the thread that sorts.
//!
//! A record takes 72 bytes, and a sort would move each of them some twenty times. Here the sort moves numbers of eight
//! bytes: the upper bits are those of the record's rank, the lower bits the record's place in the buffer. Records whose
//! upper bits are equal are compared themselves; among uniform keys that is rare.

use std::hint::black_box;

use anyhow::Result;

use crate::rank::Rank;
use crate::source::Record;

/// Number of records that are fetched into the processor's caches at a time: two lines of 64 bytes each fill a small
/// part of its second cache.
const FETCHED: usize = 512;

/// Records of a buffer in order.
pub(super) struct Sorted {
    records: Vec<Record>,
    /// Upper bits of a rank, and below them a place in `records`.
    order: Vec<u64>,
    /// Mask of the bits of an entry of `order` that hold the place.
    places: u64,
}

impl Sorted {
    /// Sorts `records` by their ranks, and records of equal rank by comparing them.
    pub(super) fn of(records: Vec<Record>, rank: Rank) -> Self {
        let places = (records.len() as u64).next_power_of_two() - 1;
        let entry = |(at, record): (usize, &Record)| rank.of(&record.1) & !places | at as u64;
        let mut order: Vec<u64> = records.iter().enumerate().map(entry).collect();
        order.sort_unstable();
        let record = |entry: &u64| &records[(entry & places) as usize];
        for tied in order.chunk_by_mut(|a, b| (a ^ b) & !places == 0).filter(|tied| tied.len() > 1) {
            tied.sort_unstable_by(|a, b| rank.compare(record(a), record(b)));
        }
        Self { records, order, places }
    }

    /// Returns the number of records.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Calls `take` with each record in order until it fails.
    ///
    /// # Errors
    /// The first error of `take`.
    pub(super) fn try_for_each(&self, mut take: impl FnMut(&Record) -> Result<()>) -> Result<()> {
        let record = |entry: &u64| &self.records[(entry & self.places) as usize];
        for entries in self.order.chunks(FETCHED) {
            // The records lie anywhere in the buffer. Reading both ends of each one first lets the processor wait for
            // many of them at a time. `take` alone would wait for one after the other.
            black_box(entries.iter().map(record).fold(0, |sum, record| sum ^ record.0 ^ u64::from(record.2[31])));
            entries.iter().map(record).try_for_each(&mut take)?;
        }
        Ok(())
    }

    /// Returns the buffer, with the records as they were.
    pub(super) fn into_records(self) -> Vec<Record> {
        self.records
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn records_come_in_the_order_of_a_plain_sort(
            keys in prop::collection::vec((any::<u64>(), 0u8..3), 0..300), shift in 0u32..64,
        ) {
            // Shifted to the right, the ranks are close together. Shifted to the left, only their upper bits differ.
            for (near, rank) in [(true, Rank::Key), (false, Rank::Key), (true, Rank::Hash(7))] {
                let record = |(at, (word, last)): (usize, &(u64, u8))| {
                    let mut key = [*last; 32];
                    key[..8].copy_from_slice(&if near { word >> shift } else { word << shift }.to_be_bytes());
                    (at as u64, key, [9; 32])
                };
                let records: Vec<Record> = keys.iter().enumerate().map(record).collect();
                let mut expected = records.clone();
                expected.sort_unstable_by_key(|record| (rank.of(&record.1), record.1, record.0));
                let mut found = Vec::new();
                let sorted = Sorted::of(records.clone(), rank);
                let keep = |record: &Record| {
                    found.push(*record);
                    Ok(())
                };
                sorted.try_for_each(keep).unwrap();
                prop_assert_eq!(sorted.into_records(), records);
                prop_assert_eq!(found, expected);
            }
        }
    }
}
