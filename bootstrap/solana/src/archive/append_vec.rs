//! [`AppendVec`]: the records of one accounts file, parsed from slices as they come.
//!
//! Owns: the layout of a record, and of the end of a file. Must not: do I/O, keep more of a file than the head
//! of one record, or panic on any bytes. Runs on the thread that reads the archive.
//!
//! A record is a header of 136 bytes, the account's data, and bytes up to the next multiple of 8 of the file. The last
//! record may end with its data, or be followed by zeros up to the end of the file, as validators wrote earlier. So a
//! header of zeros is no record but the beginning of these zeros.
//!
//! A record whose head (header and first [`HEAD_BYTES`] of its data) lies in one slice is parsed where it is; only a
//! head across two slices is copied.

use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::error::{Fault, Stop};
use super::{HEAD_BYTES, Take, Version};

/// Bytes of a record before the account's data.
pub const HEADER_BYTES: usize = size_of::<Header>();

/// Most data that an account can have, in bytes: Solana's `MAX_PERMITTED_DATA_LENGTH`.
pub const DATA_BYTES_MAX: u64 = 10 << 20;

/// Records begin at multiples of this many bytes.
const ALIGNMENT: u64 = 8;

/// Bytes of a record that have to be together before it can be handed on.
const RECORD_HEAD_BYTES: usize = HEADER_BYTES + HEAD_BYTES;

/// Parser of one accounts file, which is pushed in any number of slices.
pub struct AppendVec {
    slot: u64,
    file: u64,
    file_bytes: u64,
    /// Offset in the file of the first byte that is neither used up nor carried.
    at: u64,
    /// Bytes of the current record still to be skipped.
    skip: u64,
    /// The records have ended, and only zeros may follow.
    is_padding: bool,
    /// Beginning of a record whose head continues in the next slice.
    carry: [u8; RECORD_HEAD_BYTES],
    /// Number of bytes in `carry`.
    carried: usize,
    versions: u64,
}

/// Reason why a slice was refused.
#[derive(Debug)]
pub enum Refusal {
    /// The file is damaged at this offset.
    Fault(u64, Fault),
    /// The taker of versions stopped the reading.
    Stopped(Stop),
}

/// The bytes of a record before the account's data.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    /// Formerly the order of writes within a slot; now always zero.
    _write_version: U64,
    data_len: U64,
    key: [u8; 32],
    lamports: U64,
    _rent_epoch: U64,
    owner: [u8; 32],
    executable: u8,
    /// Padding of the validator's own structure: whatever was in its memory.
    _uninitialised: [u8; 7],
    /// Formerly the hash of the account; now always zero.
    _hash: [u8; 32],
}

const _: () = {
    assert!(size_of::<Header>() == 136);
    assert!(std::mem::offset_of!(Header, data_len) == 0x08);
    assert!(std::mem::offset_of!(Header, key) == 0x10);
    assert!(std::mem::offset_of!(Header, lamports) == 0x30);
    assert!(std::mem::offset_of!(Header, owner) == 0x40);
    assert!(std::mem::offset_of!(Header, executable) == 0x60);
};

impl AppendVec {
    /// Begins the file `accounts/SLOT.FILE`, which has `file_bytes` bytes.
    pub fn new(slot: u64, file: u64, file_bytes: u64) -> Self {
        Self {
            slot,
            file,
            file_bytes,
            at: 0,
            skip: 0,
            is_padding: false,
            carry: [0; RECORD_HEAD_BYTES],
            carried: 0,
            versions: 0,
        }
    }

    /// Parses the next bytes of the file, and hands each version to `take` as soon as its head is complete.
    ///
    /// # Errors
    /// The bytes are no accounts file, are more than the file has, or `take` stops. Nothing may be pushed afterwards.
    pub fn push(&mut self, bytes: &[u8], take: &mut Take<'_>) -> Result<(), Refusal> {
        if bytes.len() as u64 > self.file_bytes - self.at - self.carried as u64 {
            return Err(Refusal::Fault(self.file_bytes, Fault::FileSize(self.file_bytes)));
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.skip > 0 {
                let skipped = rest.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX));
                rest = &rest[skipped..];
                self.skip -= skipped as u64;
                self.at += skipped as u64;
            } else if self.is_padding {
                if let Some(at) = rest.iter().position(|byte| *byte != 0) {
                    return Err(Refusal::Fault(self.at + at as u64, Fault::Padding));
                }
                self.at += rest.len() as u64;
                rest = &[];
            } else if self.carried > 0 {
                rest = self.join(rest, take)?;
            } else if let Some(length) = self.record(rest, take)? {
                self.skip = length;
            } else {
                self.carry[..rest.len()].copy_from_slice(rest);
                self.carried = rest.len();
                rest = &[];
            }
        }
        Ok(())
    }

    /// Ends the file, and returns the number of versions in it.
    ///
    /// # Errors
    /// Fewer bytes were pushed than the file has.
    pub fn finish(self) -> Result<u64, Refusal> {
        let is_whole = self.at == self.file_bytes && self.carried == 0;
        is_whole.then_some(self.versions).ok_or(Refusal::Fault(self.at, Fault::FileSize(self.file_bytes)))
    }

    /// Completes the carried head from `rest`, and returns the bytes of `rest` that are still to be pushed.
    fn join<'b>(&mut self, rest: &'b [u8], take: &mut Take<'_>) -> Result<&'b [u8], Refusal> {
        let carried = self.carried;
        let added = rest.len().min(RECORD_HEAD_BYTES - carried);
        self.carry[carried..carried + added].copy_from_slice(&rest[..added]);
        let head = self.carry;
        let Some(length) = self.record(&head[..carried + added], take)? else {
            // A whole head is a record in any case: so all of `rest` was added.
            self.carried = carried + added;
            return Ok(&rest[added..]);
        };
        // A record is never shorter than the part of it that was not enough of a head.
        self.at += carried as u64;
        self.skip = length - carried as u64;
        self.carried = 0;
        Ok(rest)
    }

    /// Hands on the record that begins with `bytes`, and returns the distance to the next one, or to the end of the
    /// file. `None` when the record's head continues after `bytes`.
    fn record(&mut self, bytes: &[u8], take: &mut Take<'_>) -> Result<Option<u64>, Refusal> {
        let left = self.file_bytes - self.at;
        let fault = |at: u64, fault| Err(Refusal::Fault(at, fault));
        let Ok((header, data)) = Header::ref_from_prefix(bytes) else {
            if (bytes.len() as u64) < left {
                return Ok(None);
            }
            if bytes.iter().any(|byte| *byte != 0) {
                return fault(self.at, Fault::RecordEnd(self.file_bytes));
            }
            return Ok(Some(left));
        };
        let data_len = header.data_len.get();
        if data_len == 0 && header.lamports.get() == 0 && bytes.iter().take(HEADER_BYTES).all(|byte| *byte == 0) {
            self.is_padding = true;
            return Ok(Some(HEADER_BYTES as u64));
        }
        if header.executable > 1 {
            return fault(self.at, Fault::Executable(header.executable));
        }
        if data_len > DATA_BYTES_MAX {
            return fault(self.at, Fault::DataLength { len: data_len, limit: DATA_BYTES_MAX });
        }
        let end = HEADER_BYTES as u64 + data_len;
        if end > left {
            return fault(self.at, Fault::RecordEnd(self.file_bytes));
        }
        let Some(data) = data.get(..data_len.min(HEAD_BYTES as u64) as usize) else { return Ok(None) };
        let version = Version {
            slot: self.slot,
            file: self.file,
            offset: self.at,
            key: &header.key,
            lamports: header.lamports.get(),
            owner: &header.owner,
            executable: header.executable == 1,
            data_len,
            data,
        };
        take(&version).map_err(Refusal::Stopped)?;
        self.versions += 1;
        Ok(Some(end.next_multiple_of(ALIGNMENT).min(left)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a record with its padding, whose data are `data_len` times its number.
    fn record(number: u8, data_len: usize) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[0x08..0x10].copy_from_slice(&(data_len as u64).to_le_bytes());
        bytes[0x10..0x30].fill(number);
        bytes[0x30..0x38].copy_from_slice(&u64::from(number).to_le_bytes());
        bytes[0x40..0x60].fill(100 + number);
        bytes[0x60] = number % 2;
        // As validators leave them.
        bytes[0x61..0x68].fill(0xfe);
        bytes.extend(vec![number; data_len]);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    /// Number, offset and length of each version, or the place and kind of the fault.
    type Parsed = Result<Vec<(u8, u64, u64)>, (u64, Fault)>;

    /// Parses a file that is pushed in pieces of `piece` bytes.
    fn parse(bytes: &[u8], piece: usize) -> Parsed {
        let mut found = Vec::new();
        let mut file = AppendVec::new(7, 3, bytes.len() as u64);
        let mut take = |version: &Version<'_>| {
            let number = version.key[0];
            assert_eq!((version.slot, version.file), (7, 3));
            assert_eq!(version.owner, &[100 + number; 32]);
            assert_eq!((version.lamports, version.executable), (u64::from(number), number % 2 == 1));
            assert_eq!(version.data, vec![number; version.data_len.min(HEAD_BYTES as u64) as usize]);
            found.push((number, version.offset, version.data_len));
            Ok(())
        };
        let outcome = bytes.chunks(piece).try_for_each(|part| file.push(part, &mut take));
        let outcome = outcome.and_then(|()| file.finish());
        match outcome {
            Ok(versions) => {
                assert_eq!(versions, found.len() as u64);
                Ok(found)
            }
            Err(Refusal::Fault(offset, fault)) => Err((offset, fault)),
            Err(Refusal::Stopped(error)) => panic!("{error}"),
        }
    }

    const PIECES: [usize; 8] = [1, 7, 135, 136, 137, 300, 302, 1 << 20];

    #[test]
    fn records_are_found_however_they_are_cut() {
        let lens = [0, 1, 7, 8, 165, 166, 167, 400, 0, 21];
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (number, len) in (1..).zip(lens) {
            expected.push((number, bytes.len() as u64, len as u64));
            bytes.extend(record(number, len));
        }
        // With and without the padding of the last record, with a part of it, and with zeros after it.
        let exact = bytes.len() - 3;
        for end in [exact, exact + 1, exact + 3, exact + 4, exact + 138, exact + 139, exact + 5000] {
            bytes.resize(end, 0);
            for piece in PIECES {
                assert_eq!(parse(&bytes, piece).as_ref(), Ok(&expected), "end={end} piece={piece}");
            }
        }
        assert_eq!(parse(&[], 1), Ok(vec![]));
    }

    #[test]
    fn damage_is_named_at_its_record() {
        let good = [record(1, 20), record(2, 30)].concat();
        let second = 160;
        let with = |at: usize, bytes: &[u8]| {
            let mut damaged = good.clone();
            damaged[at..at + bytes.len()].copy_from_slice(bytes);
            damaged
        };
        let too_long = DATA_BYTES_MAX + 1;
        let cases = [
            (with(second + 0x60, &[2]), second, Fault::Executable(2)),
            (with(0x60, &[255]), 0, Fault::Executable(255)),
            (
                with(second + 8, &too_long.to_le_bytes()),
                second,
                Fault::DataLength { len: too_long, limit: DATA_BYTES_MAX },
            ),
            (with(8, &[255; 8]), 0, Fault::DataLength { len: u64::MAX, limit: DATA_BYTES_MAX }),
            (with(second + 8, &[41]), second, Fault::RecordEnd(328)),
            (good[..second + 135].to_vec(), second, Fault::RecordEnd(295)),
            (good[..second + 136 + 29].to_vec(), second, Fault::RecordEnd(325)),
            ([&good[..], &[0; 200], &[1]].concat(), 328 + 200, Fault::Padding),
            ([&good[..], &[0, 0, 1]].concat(), 328, Fault::RecordEnd(331)),
        ];
        for (bytes, offset, fault) in cases {
            for piece in PIECES {
                assert_eq!(parse(&bytes, piece), Err((offset as u64, fault.clone())), "piece={piece}");
            }
        }
        // The longest data that an account may have.
        let long = record(1, DATA_BYTES_MAX as usize);
        assert_eq!(parse(&long, 1000), Ok(vec![(1, 0, DATA_BYTES_MAX)]));
    }

    #[test]
    fn a_file_has_the_size_that_was_said() {
        let bytes = record(1, 20);
        let mut nothing = |_: &Version<'_>| Ok(());
        let mut file = AppendVec::new(1, 1, bytes.len() as u64);
        file.push(&bytes[..100], &mut nothing).unwrap();
        assert!(matches!(file.finish(), Err(Refusal::Fault(0, Fault::FileSize(160)))));
        let mut file = AppendVec::new(1, 1, bytes.len() as u64);
        file.push(&bytes[..100], &mut nothing).unwrap();
        let error = file.push(&bytes[99..], &mut nothing).unwrap_err();
        assert!(matches!(error, Refusal::Fault(160, Fault::FileSize(160))));
    }
}
