//! Computes the order of the records in a buffer without moving them.
//!
//! Owns: how the records of one run are sorted. Must not: know files. Runs on the thread that sorts.
//!
//! A record takes 72 bytes, and a sort would move each of them some twenty times. Here the sort moves numbers of eight
//! bytes: the upper bits are those of the record's rank, the lower bits the record's place in the buffer. Records whose
//! upper bits are equal are compared themselves; among uniform keys that is rare. Where many are equal, as the entries of one value
//! in a derived store are, they are sorted by the first eight bytes in which their keys differ.

use std::hint::black_box;

use anyhow::Result;
use engine_api::Key;

use crate::rank::Rank;
use crate::source::Record;

/// Number of records that are fetched into the processor's caches at a time: two lines of 64 bytes each fill a small
/// part of its second cache.
const FETCHED: usize = 512;

/// Number of records with equal upper bits from which on their keys are not compared one with the other: each comparison waits
/// for memory twice.
const TIED_MANY: usize = 32;

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
            match rank {
                Rank::Key if tied.len() >= TIED_MANY => sort_by_difference(tied, &record),
                _ => tied.sort_unstable_by(|a, b| rank.compare(record(a), record(b))),
            }
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

/// Sorts entries of `order` by their records' keys, and by their places in the source.
fn sort_by_difference<'r>(tied: &mut [u64], record: &impl Fn(&u64) -> &'r Record) {
    let first = &record(&tied[0]).1;
    let shared_by = |key: &Key| key.iter().zip(first).take_while(|(a, b)| a == b).count();
    let shared = tied.iter().map(|entry| shared_by(&record(entry).1)).min().unwrap_or(0);
    let differs = |key: &Key| {
        let bytes: [u8; 8] = std::array::from_fn(|n| key.get(shared + n).copied().unwrap_or(0));
        u64::from_be_bytes(bytes)
    };
    let mut ranked: Vec<(u64, u64)> = tied.iter().map(|entry| (differs(&record(entry).1), *entry)).collect();
    ranked.sort_unstable();
    for equal in ranked.chunk_by_mut(|a, b| a.0 == b.0).filter(|equal| equal.len() > 1) {
        equal.sort_unstable_by(|(_, a), (_, b)| Rank::Key.compare(record(a), record(b)));
    }
    tied.iter_mut().zip(ranked).for_each(|(entry, (_, sorted))| *entry = sorted);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn records_come_in_the_order_of_a_plain_sort(
            keys in prop::collection::vec((any::<u64>(), 0u8..3), 0..300), shift in 0u32..64, start in 0usize..25,
        ) {
            // Shifted to the right, the ranks are close together. Shifted to the left, only their upper bits differ.
            for (near, rank) in [(true, Rank::Key), (false, Rank::Key), (true, Rank::Hash(7))] {
                let record = |(at, (word, last)): (usize, &(u64, u8))| {
                    let mut key = [*last; 32];
                    // Further to the right, all keys share the bytes before.
                    key[..start].fill(7);
                    key[start..start + 8].copy_from_slice(&if near { word >> shift } else { word << shift }.to_be_bytes());
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
