//! The number of each version of an account: the order in which versions count.
//!
//! Owns: the numbers, their bits, and the slots in which the order of reading is not that of the files. Must not: read an
//! archive. Runs on the thread that reads the archive; [`Files`] on any.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, ensure};
use serde::{Deserialize, Serialize};
use solana::archive::Version;

use super::Record;

/// Bits of a number below the slot: a place, and whether the version has a value.
const SLOT_SHIFT: u32 = 32;
/// Largest number of versions in one slot, because their places have 31 bits. A validator that writes a whole archive
/// under one slot has 1.1 billion on mainnet.
const PLACES_MAX: u64 = 1 << (SLOT_SHIFT - 1);
/// Largest number of slots. Archives of agave have 432,000; this many take 300 MB of memory.
const SLOTS_MAX: usize = 4_000_000;

/// Whether the record's version gives its key no value: a closed account, or one that the extraction leaves out.
pub(crate) fn has_no_value(record: &Record) -> bool {
    record.0 & 1 == 1
}

/// Numbers the versions in the order in which they are read: 32 bits for the slot, 31 for the place within the slot,
/// and the lowest for [`has_no_value`]. Of two versions of a key the one with the greater number counts, unless
/// [`Files`] says otherwise.
#[derive(Default)]
pub(super) struct Numbers {
    slots: BTreeMap<u32, Slot>,
    /// Slot, file and next place of the file that is being read.
    current: Option<(u64, u64, u64)>,
}

/// The part of one slot that was read so far.
#[derive(Default)]
struct Slot {
    /// First place of each file, and the file's number.
    files: Vec<(u32, u64)>,
    /// Number of places in use.
    places: u64,
}

impl Numbers {
    /// Returns the number of the next version, without the lowest bit.
    pub(super) fn of(&mut self, version: &Version<'_>) -> Result<u64> {
        let (slot, file) = (version.slot, version.file);
        let place = match self.current {
            Some((at, of, next)) if (at, of) == (slot, file) => next,
            _ => self.begin(slot, file)?,
        };
        ensure!(place < PLACES_MAX, "too many accounts in one slot: slot={slot} maximum={PLACES_MAX}");
        self.current = Some((slot, file, place + 1));
        Ok(slot << SLOT_SHIFT | place << 1)
    }

    /// Begins a file, and returns the place of its first version.
    fn begin(&mut self, slot: u64, file: u64) -> Result<u64> {
        self.end();
        let small =
            u32::try_from(slot).map_err(|_| anyhow!("a slot is out of range: slot={slot} maximum={}", u32::MAX))?;
        let known = self.slots.len();
        let of = self.slots.entry(small).or_default();
        let first = u32::try_from(of.places).map_err(|_| anyhow!("too many accounts in one slot: slot={slot}"))?;
        of.files.push((first, file));
        ensure!(known < SLOTS_MAX, "too many slots in the archives: maximum={SLOTS_MAX}");
        Ok(of.places)
    }

    /// Ends the file that is being read.
    fn end(&mut self) {
        if let Some((slot, _, next)) = self.current.take()
            && let Some(of) = u32::try_from(slot).ok().and_then(|slot| self.slots.get_mut(&slot))
        {
            of.places = next;
        }
    }

    /// Returns the files of slots in which a file was read after one with a greater number.
    pub(super) fn files(mut self) -> Files {
        self.end();
        let disordered = self.slots.into_iter().filter(|(_, of)| !of.files.is_sorted_by_key(|(_, file)| *file));
        let files = disordered
            .flat_map(|(slot, of)| of.files.into_iter().map(move |(place, file)| FileOfSlot { slot, place, file }));
        Files(files.collect())
    }
}

/// First place of a file within its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FileOfSlot {
    slot: u32,
    place: u32,
    file: u64,
}

/// Files of the slots that have several, in an order in the archives which is not that of their numbers. No validator is
/// known to write one account into two files of a slot; if one does, the file with the greater number counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Files(Vec<FileOfSlot>);

impl Files {
    /// Whether there are no such slots.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the version that was read first counts. Both are of one key, and `earlier` has the smaller number.
    pub(crate) fn is_earlier_newer(&self, earlier: &Record, later: &Record) -> bool {
        let slot = |record: &Record| (record.0 >> SLOT_SHIFT) as u32;
        !self.is_empty() && slot(earlier) == slot(later) && self.file_of(earlier) > self.file_of(later)
    }

    /// Returns the number of the record's file; `None` in a slot whose files are in order.
    fn file_of(&self, record: &Record) -> Option<u64> {
        let (slot, place) = ((record.0 >> SLOT_SHIFT) as u32, (record.0 as u32) >> 1);
        let after = self.0.partition_point(|file| (file.slot, file.place) <= (slot, place));
        self.0[..after].last().filter(|file| file.slot == slot).map(|file| file.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(slot: u64, file: u64) -> Version<'static> {
        let (key, owner, data) = (&[7; 32], &[0; 32], &[][..]);
        Version { slot, file, offset: 0, key, lamports: 1, owner, executable: false, data_len: 0, data }
    }

    /// Numbers versions of these slots and files.
    fn numbered(read: &[(u64, u64)]) -> (Vec<Record>, Files) {
        let mut numbers = Numbers::default();
        let records = read.iter().map(|(slot, file)| (numbers.of(&version(*slot, *file)).unwrap(), [7; 32], [0; 32]));
        let records = records.collect();
        (records, numbers.files())
    }

    #[test]
    fn numbers_ascend_by_slot_and_then_by_place() {
        let (records, files) = numbered(&[(9, 1), (9, 1), (5, 2), (9, 3), (u64::from(u32::MAX), 0)]);
        let expected = [9 << 32, 9 << 32 | 2, 5 << 32, 9 << 32 | 4, u64::from(u32::MAX) << 32];
        assert_eq!(records.iter().map(|record| record.0).collect::<Vec<_>>(), expected);
        assert!(files.is_empty());
    }

    #[test]
    fn files_of_a_slot_count_by_their_numbers() {
        let (records, files) = numbered(&[(9, 5), (9, 5), (9, 3), (8, 7), (9, 4)]);
        assert_eq!(files.0.len(), 3);
        let newer = |earlier: usize, later: usize| files.is_earlier_newer(&records[earlier], &records[later]);
        assert!(!newer(0, 1), "one file, the later place");
        assert!(newer(1, 2) && newer(0, 4), "file 5 came before files 3 and 4");
        assert!(!newer(2, 4), "files 3 and 4 came in order");
        assert!(!newer(3, 0), "another slot");
    }

    #[test]
    fn a_slot_that_no_number_has_room_for_is_refused() {
        let mut numbers = Numbers::default();
        let error = numbers.of(&version(1 << 32, 0)).unwrap_err().to_string();
        assert!(error.contains("slot=4294967296 maximum=4294967295"), "{error}");
        numbers.current = Some((1, 1, PLACES_MAX));
        let error = numbers.of(&version(1, 1)).unwrap_err().to_string();
        assert!(error.contains("too many accounts in one slot: slot=1"), "{error}");
    }
}
