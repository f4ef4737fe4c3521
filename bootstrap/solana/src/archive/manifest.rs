//! [`Manifest`]: the blockhash and the accounts files that a snapshot's manifest names.
//!
//! Owns: the walk over the manifest's fields as far as the list of files, as the bytes come, in bounded memory. Must not:
//! compare the list with the archive, or take a layout that it does not know for damage. Runs on the thread that reads
//! the archive.
//!
//! A manifest is bincode: little-endian numbers, a byte before an optional value, and a count before the elements of a
//! list. The layout is that of agave 4.2 (`DeserializableVersionedBank`, then `AccountsDbFields`). Two slots, one on
//! each side of the stakes and of the list, have to be the archive's: any other layout is unknown.

use super::error::Fault;

/// One field of the manifest.
#[derive(Clone, Copy, Debug)]
enum Field {
    /// Bytes without a meaning here.
    Skip(u64),
    /// A byte that is 0 or 1.
    Flag,
    /// The slot of the archive.
    Slot,
    /// The newest blockhash, which is that of the archive's slot: a bank registers it with its last tick.
    Blockhash,
    /// A blockhash of the queue. The newest one is among them, because a bank looks up its fee there.
    QueuedBlockhash,
    /// A byte that tells whether the fields follow.
    Optional(&'static [Self]),
    /// A count, and the fields of each element.
    List(&'static [Self]),
    /// A count of bytes, and the bytes.
    Bytes,
    /// Slot of the accounts files that follow.
    FileSlot,
    /// Number of an accounts file.
    FileNumber,
    /// Length of that accounts file in bytes.
    FileBytes,
}

use Field::{Blockhash, Bytes, FileBytes, FileNumber, FileSlot, Flag, List, Optional, QueuedBlockhash, Skip, Slot};

const EPOCH_SCHEDULE: [Field; 3] = [Skip(16), Flag, Skip(16)];
/// Key, stake, and the account: lamports, data, owner, executable, rent epoch.
const VOTE_ACCOUNT: &[Field] = &[Skip(32 + 8 + 8), Bytes, Skip(32), Flag, Skip(8)];

/// The manifest as far as this walk goes.
const FIELDS: &[Field] = &[
    // The queue of blockhashes: last index, last hash, (hash, fee, index, time) of each, greatest age.
    Skip(8),
    Optional(&[Blockhash]),
    List(&[QueuedBlockhash, Skip(8 + 8 + 8)]),
    Skip(8),
    // Ancestors, hash, parent's hash and slot, hard forks.
    List(&[Skip(16)]),
    Skip(32 + 32 + 8),
    List(&[Skip(16)]),
    // Transactions, ticks, signatures, capitalization, greatest tick, hashes a tick.
    Skip(5 * 8),
    Optional(&[Skip(8)]),
    // Ticks a slot, nanoseconds a slot, genesis, slots a year, bytes of account data.
    Skip(8 + 16 + 8 + 8 + 8),
    Slot,
    // Epoch, height, leader, leader's fees, fee, governor of fees, rent that was collected.
    Skip(8 + 8 + 32 + 8 + 8 + 33 + 8),
    // The collector of rent: epoch, schedule, slots a year, rent.
    Skip(8),
    EPOCH_SCHEDULE[0],
    EPOCH_SCHEDULE[1],
    EPOCH_SCHEDULE[2],
    Skip(8 + 17),
    EPOCH_SCHEDULE[0],
    EPOCH_SCHEDULE[1],
    EPOCH_SCHEDULE[2],
    // Inflation.
    Skip(6 * 8),
    // Stakes: vote accounts, delegations, two numbers, history.
    List(VOTE_ACCOUNT),
    List(&[Skip(32 + 32 + 4 * 8)]),
    Skip(16),
    List(&[Skip(4 * 8)]),
    // Three sets of accounts and the stakes of epochs, all of them unused, and whether the bank is frozen.
    List(&[Skip(32)]),
    List(&[Skip(32)]),
    List(&[Skip(32 + 8)]),
    List(&[Skip(8)]),
    Flag,
    // The accounts files, a write version, the slot.
    List(&[FileSlot, List(&[FileNumber, FileBytes])]),
    Skip(8),
    Slot,
];

/// Most bytes that are skipped at once. A longer field, of which no manifest has one, is an unknown layout.
const FIELD_BYTES_MAX: u64 = 1 << 30;

/// Fields of one list, optional value, or the manifest, on the way through them.
#[derive(Clone, Copy, Debug)]
struct Level {
    fields: &'static [Field],
    at: usize,
    /// Number of elements that are left, the current one included.
    elements: u64,
}

/// The walk through one manifest.
#[derive(Debug)]
pub(super) struct Manifest {
    slot: u64,
    levels: Vec<Level>,
    /// Number of bytes to leave out before the next field.
    skip: u64,
    /// The first bytes of a field that the last call ended in. A number has the first eight of them at most.
    start: [u8; 32],
    have: usize,
    is_known: bool,
    blockhash: [u8; 32],
    /// Whether the queue has blockhashes, and whether the newest one is among them.
    has_queue: bool,
    is_queued: bool,
    file_slot: u64,
    file_number: u64,
}

/// An accounts file as the manifest lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) slot: u64,
    pub(super) file: u64,
    pub(super) bytes: u64,
}

impl Manifest {
    /// Begins the manifest of an archive of `slot`.
    pub(super) fn new(slot: u64) -> Self {
        Self {
            slot,
            levels: vec![Level { fields: FIELDS, at: 0, elements: 1 }],
            skip: 0,
            start: [0; 32],
            have: 0,
            is_known: true,
            blockhash: [0; 32],
            has_queue: false,
            is_queued: false,
            file_slot: 0,
            file_number: 0,
        }
    }

    /// Takes the next bytes, and passes each file on to `list`. The files count only if [`finish`](Self::finish) says
    /// so; `list` returns whether it can take more of them.
    pub(super) fn push(&mut self, mut bytes: &[u8], list: &mut impl FnMut(Listed) -> bool) {
        while self.is_known && !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len() as u64);
                self.skip -= skipped;
                bytes = &bytes[skipped as usize..];
                continue;
            }
            let Some(field) = self.field() else { return };
            if let Skip(length) = field {
                self.skip = length;
                self.advance();
                continue;
            }
            let width = match field {
                Flag | Optional(_) => 1,
                Blockhash | QueuedBlockhash => 32,
                _ => 8,
            };
            let taken = (width - self.have).min(bytes.len());
            self.start[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have == width {
                let whole = std::mem::take(&mut self.start);
                self.have = 0;
                self.is_known = self.take(field, whole, list);
            }
        }
    }

    /// Ends the manifest. Returns the blockhash of its slot, all zeros if it names none; `None` if its layout is unknown,
    /// so that files may be missing from those that were passed on.
    ///
    /// # Errors
    /// The manifest names two newest blockhashes, because one of them is damaged.
    pub(super) fn finish(mut self) -> Result<Option<[u8; 32]>, Fault> {
        if !self.is_known || self.skip > 0 || self.field().is_some() {
            return Ok(None);
        }
        let is_damaged = self.blockhash != [0; 32] && self.has_queue && !self.is_queued;
        if is_damaged { Err(Fault::Blockhash) } else { Ok(Some(self.blockhash)) }
    }

    /// Takes a field's bytes. Returns whether they may be there.
    fn take(&mut self, field: Field, bytes: [u8; 32], list: &mut impl FnMut(Listed) -> bool) -> bool {
        self.advance();
        let number = u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
        match field {
            Skip(_) => true,
            Blockhash => {
                self.blockhash = bytes;
                true
            }
            QueuedBlockhash => {
                self.has_queue = true;
                self.is_queued |= bytes == self.blockhash;
                true
            }
            Flag => number <= 1,
            Slot => number == self.slot,
            Optional(fields) => {
                self.enter(fields, number);
                number <= 1
            }
            List(fields) => {
                self.enter(fields, number);
                true
            }
            Bytes => {
                self.skip = number;
                number <= FIELD_BYTES_MAX
            }
            FileSlot => {
                self.file_slot = number;
                number <= self.slot
            }
            FileNumber => {
                self.file_number = number;
                true
            }
            FileBytes => list(Listed { slot: self.file_slot, file: self.file_number, bytes: number }),
        }
    }

    fn enter(&mut self, fields: &'static [Field], elements: u64) {
        if elements > 0 {
            self.levels.push(Level { fields, at: 0, elements });
        }
    }

    fn advance(&mut self) {
        if let Some(level) = self.levels.last_mut() {
            level.at += 1;
        }
    }

    /// Returns the next field; `None` after the last one.
    fn field(&mut self) -> Option<Field> {
        while let Some(level) = self.levels.last_mut() {
            if let Some(field) = level.fields.get(level.at) {
                return Some(*field);
            }
            level.at = 0;
            level.elements -= 1;
            if level.elements == 0 {
                self.levels.pop();
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A manifest of slot 9 in which everything is empty but one vote account and the list.
    fn manifest(files: &[Listed]) -> Vec<u8> {
        let mut bytes = vec![0; 202];
        bytes.extend(9u64.to_le_bytes());
        bytes.extend([0; 8 + 8 + 32 + 8 + 8 + 33 + 8 + 66 + 33 + 48]);
        bytes.extend(1u64.to_le_bytes());
        bytes.extend([0; 32 + 8 + 8]);
        bytes.extend(3u64.to_le_bytes());
        bytes.extend([7; 3]);
        bytes.extend([0; 32 + 1 + 8]);
        bytes.extend([0; 8 + 16 + 8 + 24 + 8 + 1]);
        bytes.extend((files.len() as u64).to_le_bytes());
        for file in files {
            for number in [file.slot, 1, file.file, file.bytes] {
                bytes.extend(number.to_le_bytes());
            }
        }
        bytes.extend([0; 8]);
        bytes.extend(9u64.to_le_bytes());
        bytes
    }

    fn walk(slot: u64, bytes: &[u8], piece: usize) -> (Vec<Listed>, bool) {
        let (mut walk, mut files) = (Manifest::new(slot), Vec::new());
        for piece in bytes.chunks(piece) {
            walk.push(piece, &mut |file| {
                files.push(file);
                true
            });
        }
        (files, walk.finish().unwrap().is_some())
    }

    #[test]
    fn files_are_listed_however_the_bytes_are_cut() {
        let files = [Listed { slot: 3, file: 1, bytes: 500 }, Listed { slot: 9, file: 2, bytes: 0 }];
        for piece in [1, 2, 3, 7, 8, 100, 10_000] {
            assert_eq!(walk(9, &manifest(&files), piece), (files.to_vec(), true), "{piece}");
        }
        // Whatever comes after the second slot is for validators.
        let longer = [manifest(&files), vec![0xff; 1000]].concat();
        assert_eq!(walk(9, &longer, 64), (files.to_vec(), true));
    }

    #[test]
    fn the_newest_blockhash_is_that_of_the_slot() {
        let mut bytes = manifest(&[]);
        // An index, then the newest hash, if there is one.
        bytes[8] = 1;
        bytes.splice(9..9, [5; 32]);
        for piece in [1, 31, 10_000] {
            let mut walk = Manifest::new(9);
            bytes.chunks(piece).for_each(|piece| walk.push(piece, &mut |_| true));
            assert_eq!(walk.finish(), Ok(Some([5; 32])), "{piece}");
        }
        let mut none = Manifest::new(9);
        none.push(&manifest(&[]), &mut |_| true);
        assert_eq!(none.finish(), Ok(Some([0; 32])));
    }

    /// A flipped bit in either of both places would make every stream one of another chain.
    #[test]
    fn the_newest_blockhash_is_in_the_queue() {
        let mut good = manifest(&[]);
        good[8] = 1;
        good.splice(9..9, [5; 32]);
        // The number of hashes, and three of them with 24 bytes each.
        let hashes = [[4; 32], [5; 32], [6; 32]].map(|hash| [&hash[..], &[0; 24]].concat()).concat();
        good[41] = 3;
        good.splice(49..49, hashes);
        let ends = |bytes: &[u8], piece: usize| {
            let mut walk = Manifest::new(9);
            bytes.chunks(piece).for_each(|piece| walk.push(piece, &mut |_| true));
            walk.finish()
        };
        for piece in [1, 40, 10_000] {
            assert_eq!(ends(&good, piece), Ok(Some([5; 32])), "{piece}");
        }
        for at in (9..41).chain(49 + 56..49 + 56 + 32) {
            let mut damaged = good.clone();
            damaged[at] ^= 4;
            assert_eq!(ends(&damaged, 64), Err(Fault::Blockhash), "{at}");
        }
    }

    #[test]
    fn any_other_layout_is_unknown() {
        let good = manifest(&[Listed { slot: 3, file: 1, bytes: 500 }]);
        assert!(!walk(8, &good, 64).1, "a manifest of another slot");
        for length in 0..good.len() {
            assert!(!walk(9, &good[..length], 64).1, "cut at {length}");
        }
        for (at, byte) in [(8, 2), (202, 8), (good.len() - 8, 8)] {
            let mut other = good.clone();
            other[at] = byte;
            assert!(!walk(9, &other, 64).1, "{at}");
        }
        for filler in [0, 1, 9, 0xff] {
            assert!(!walk(9, &[filler; 4096], 64).1, "{filler}");
        }
        let full = Manifest::new(9);
        let mut walk = full;
        walk.push(&good, &mut |_| false);
        assert_eq!(walk.finish(), Ok(None), "more files than can be kept");
    }
}
