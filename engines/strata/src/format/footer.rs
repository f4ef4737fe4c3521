//! The footer: a segment's last page, which says what the segment holds and where.
//!
//! Owns: its bytes (FORMAT.md, "Segment"). Must not: do I/O. Decoding checks everything: the bytes come from a disk.

use std::mem::offset_of;

use engine_api::Key;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::filter::{PLANES, plane_bytes};
use crate::format::page::{PAGE_BYTES, PAGE_RECORDS_MAX, PageBytes};

/// The format written, and the only one read: an older one was never released.
pub(crate) const VERSION: u32 = 2;
const MAGIC: [u8; 8] = *b"stratasg";

/// What a manifest says of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentInfo {
    pub(crate) id: u64,
    /// Records, tombstones included.
    pub(crate) records: u64,
    pub(crate) tombstones: u64,
    pub(crate) first: Key,
    pub(crate) last: Key,
}

/// Where a part of the file lies, and its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) crc: u32,
}

/// A footer's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) info: SegmentInfo,
    pub(crate) pages: u32,
    pub(crate) planes: [Section; PLANES],
    pub(crate) directory: Section,
}

/// What is wrong with a footer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    Damaged(String),
    OtherVersion(u32),
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawSection {
    offset: U64,
    bytes: U64,
    crc: U32,
    zero: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawFooter {
    /// CRC32C of everything behind it, to the end of the page.
    crc: U32,
    version: U32,
    magic: [u8; 8],
    id: U64,
    records: U64,
    tombstones: U64,
    pages: U32,
    zero: U32,
    first: Key,
    last: Key,
    /// The filter planes, then the directory.
    sections: [RawSection; PLANES + 1],
}

const _: () = {
    assert!(size_of::<RawSection>() == 24 && size_of::<RawFooter>() == 208);
    assert!(
        offset_of!(RawFooter, version) == 4 && offset_of!(RawFooter, magic) == 8 && offset_of!(RawFooter, id) == 16
    );
    assert!(offset_of!(RawFooter, pages) == 40 && offset_of!(RawFooter, first) == 48);
    assert!(offset_of!(RawFooter, sections) == 112);
};

impl Footer {
    pub(crate) fn encode(&self) -> PageBytes {
        let section = |section: &Section| RawSection {
            offset: section.offset.into(),
            bytes: section.bytes.into(),
            crc: section.crc.into(),
            zero: U32::ZERO,
        };
        let raw = RawFooter {
            crc: U32::ZERO,
            version: VERSION.into(),
            magic: MAGIC,
            id: self.info.id.into(),
            records: self.info.records.into(),
            tombstones: self.info.tombstones.into(),
            pages: self.pages.into(),
            zero: U32::ZERO,
            first: self.info.first,
            last: self.info.last,
            sections: std::array::from_fn(|n| section(self.planes.get(n).unwrap_or(&self.directory))),
        };
        let mut out = [0; PAGE_BYTES];
        out[..size_of::<RawFooter>()].copy_from_slice(raw.as_bytes());
        let crc = crc32c::crc32c(&out[4..]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &PageBytes) -> Result<Self, Wrong> {
        let Ok((raw, _)) = RawFooter::ref_from_prefix(bytes) else {
            return Err(Wrong::Damaged("shorter than a footer".to_owned()));
        };
        let computed = crc32c::crc32c(&bytes[4..]);
        if raw.crc != computed {
            return Err(Wrong::Damaged(format!("footer checksum stored={:08x} computed={computed:08x}", raw.crc)));
        }
        if raw.magic != MAGIC {
            return Err(Wrong::Damaged("not a segment's footer".to_owned()));
        }
        if raw.version != VERSION {
            return Err(Wrong::OtherVersion(raw.version.get()));
        }
        let section = |n: usize| Section {
            offset: raw.sections[n].offset.get(),
            bytes: raw.sections[n].bytes.get(),
            crc: raw.sections[n].crc.get(),
        };
        let footer = Self {
            info: SegmentInfo {
                id: raw.id.get(),
                records: raw.records.get(),
                tombstones: raw.tombstones.get(),
                first: raw.first,
                last: raw.last,
            },
            pages: raw.pages.get(),
            planes: std::array::from_fn(section),
            directory: section(PLANES),
        };
        footer.check().map_err(Wrong::Damaged)?;
        Ok(footer)
    }

    /// Where the last section ends.
    pub(crate) fn end_bytes(&self) -> u64 {
        let sections = self.planes.iter().chain([&self.directory]);
        sections.map(|section| section.offset.saturating_add(section.bytes)).max().unwrap_or(0)
    }

    /// Whether the figures can be true of one file.
    fn check(&self) -> Result<(), String> {
        let (records, pages) = (self.info.records, u64::from(self.pages));
        if pages == 0 || records < pages || records > pages * PAGE_RECORDS_MAX as u64 {
            return Err(format!("records={records} pages={pages}"));
        }
        let planes = self.planes.iter().enumerate();
        let expected = planes.map(|(n, plane)| (plane, plane_bytes(n, records) as u64));
        for (section, bytes) in expected.chain([(&self.directory, pages * 8)]) {
            if !section.offset.is_multiple_of(PAGE_BYTES as u64) || section.bytes != bytes {
                return Err(format!(
                    "section offset={} bytes={} expected_bytes={bytes}",
                    section.offset, section.bytes
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_and_a_flipped_bit_or_another_version_is_not() {
        let section = |offset: u64, bytes: usize| Section { offset, bytes: bytes as u64, crc: 7 };
        let footer = Footer {
            info: SegmentInfo { id: 3, records: 100, tombstones: 4, first: [1; 32], last: [2; 32] },
            pages: 2,
            planes: std::array::from_fn(|n| section(8192 + n as u64 * 4096, plane_bytes(n, 100))),
            directory: section(24576, 16),
        };
        let bytes = footer.encode();
        assert_eq!(Footer::decode(&bytes), Ok(footer));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(Footer::decode(&flipped), Err(Wrong::Damaged(_))), "bit={bit}");
        }
        let mut newer = bytes;
        newer[4] = 3;
        let crc = crc32c::crc32c(&newer[4..]);
        newer[..4].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Footer::decode(&newer), Err(Wrong::OtherVersion(3)));
    }
}
