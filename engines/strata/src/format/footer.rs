//! The footer: the last page of a segment, which describes the segment's records and the place of each section.
//!
//! Owns: its bytes (FORMAT.md, "Segment"). Must not: do I/O. Decoding checks everything, because the bytes come from a
//! disk.

use std::fmt;
use std::mem::offset_of;

use engine_api::{Checkpoint, Key, Result};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::NUMBER_MAX;
use crate::format::filter::{PLANES, plane_bytes, plane_kind};
use crate::format::page::{PAGE_RECORDS_MAX, VERSION};
use crate::format::secret::{SEED_BYTES, Seed};
use crate::format::ties;
use crate::storage::{PAGE_BYTES, PageBytes};

const MAGIC: [u8; 8] = *b"stratasg";

/// Description of a segment, the same in the manifest and in the footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentInfo {
    pub(crate) id: u64,
    /// Number of records, tombstones included.
    pub(crate) records: u64,
    pub(crate) tombstones: u64,
    pub(crate) first: Key,
    pub(crate) last: Key,
}

impl SegmentInfo {
    /// Whether the ranges of both have a key in common.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Place of a section in the file and its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) crc: u32,
}

/// A range of keys that a step of the merge into the base has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MergedRange {
    pub(crate) from: Key,
    /// The first key after the range; `None` if there is none.
    pub(crate) to: Option<Key>,
    /// For the keys of the range, the base has the records of all deltas that were there when it was written and are of
    /// this batch or an older one.
    pub(crate) batch: u64,
}

/// Origin of a segment's records. A lost manifest is rebuilt from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The store's seed, which the filters are made with.
    pub(crate) seed: Seed,
    /// The newest batch that may have a record in this segment.
    pub(crate) batch: u64,
    /// Whether the segment was written for the base.
    pub(crate) base: bool,
    /// Checkpoint of that batch, or of the load that wrote the segment.
    pub(crate) checkpoint: Checkpoint,
    /// Whether the flush, load or replay has written other segments after this one. Without them it has only a part of the
    /// records up to its batch and checkpoint.
    pub(crate) part: bool,
    /// The part of the merge into the base that this segment is; `None` if it was not written by that merge. A delta has
    /// one if the step could not read the base there.
    pub(crate) merged: Option<MergedRange>,
}

/// Decoded content of a footer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) info: SegmentInfo,
    pub(crate) pages: u32,
    pub(crate) planes: [Section; PLANES],
    pub(crate) directory: Section,
    pub(crate) ties: Section,
    pub(crate) origin: Origin,
}

/// Reason why a footer cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    Damaged(String),
    OtherVersion(u32),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(why) => f.write_str(why),
            Self::OtherVersion(version) => write!(f, "written by another strata: version={version} known={VERSION}"),
        }
    }
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
    /// CRC32C of the rest of the page.
    crc: U32,
    version: U32,
    magic: [u8; 8],
    id: U64,
    records: U64,
    tombstones: U64,
    pages: U32,
    /// 1 if the segment is a part of a flush or a load and not the last one, otherwise 0.
    part: U32,
    first: Key,
    last: Key,
    /// The filter planes in order, then directory and ties.
    sections: [RawSection; PLANES + 2],
    seed: [u8; SEED_BYTES],
    batch: U64,
    /// 1 if the segment was written for the base, otherwise 0.
    base: U32,
    /// Number of leading key bytes that the filters are made of.
    prefix_bytes: U32,
    /// Length in bytes of the checkpoint, which follows this struct.
    checkpoint_bytes: U32,
    /// Kind of the next three fields: [`NOT_MERGED`], [`MERGED`] or [`MERGED_TO_THE_END`].
    merged: U32,
    merged_batch: U64,
    merged_from: Key,
    merged_to: Key,
}

/// The segment has no merged range, and its three fields are zero.
const NOT_MERGED: u32 = 0;
const MERGED: u32 = 1;
/// No key comes after the merged range, and the field of that key is zero.
const MERGED_TO_THE_END: u32 = 2;

const _: () = {
    assert!(size_of::<RawFooter>() + Checkpoint::ENCODED_MAX <= PAGE_BYTES);
    assert!(size_of::<RawSection>() == 24 && size_of::<RawFooter>() == 408);
    assert!(
        offset_of!(RawFooter, version) == 4 && offset_of!(RawFooter, magic) == 8 && offset_of!(RawFooter, id) == 16
    );
    assert!(offset_of!(RawFooter, pages) == 40 && offset_of!(RawFooter, first) == 48);
    assert!(offset_of!(RawFooter, sections) == 112 && offset_of!(RawFooter, seed) == 232);
    assert!(
        offset_of!(RawFooter, batch) == 312
            && offset_of!(RawFooter, base) == 320
            && offset_of!(RawFooter, prefix_bytes) == 324
            && offset_of!(RawFooter, checkpoint_bytes) == 328
            && offset_of!(RawFooter, merged) == 332
            && offset_of!(RawFooter, merged_from) == 344
    );
};

impl Footer {
    /// Encodes the footer as one page.
    ///
    /// # Errors
    /// `FixInput`: the checkpoint is too long.
    pub(crate) fn encode(&self) -> Result<PageBytes> {
        let section = |section: &Section| RawSection {
            offset: section.offset.into(),
            bytes: section.bytes.into(),
            crc: section.crc.into(),
            zero: U32::ZERO,
        };
        let checkpoint = self.origin.checkpoint.encode()?;
        let (merged, range) = match self.origin.merged {
            None => (NOT_MERGED, MergedRange { from: [0; 32], to: None, batch: 0 }),
            Some(range) => (if range.to.is_some() { MERGED } else { MERGED_TO_THE_END }, range),
        };
        let raw = RawFooter {
            crc: U32::ZERO,
            version: VERSION.into(),
            magic: MAGIC,
            id: self.info.id.into(),
            records: self.info.records.into(),
            tombstones: self.info.tombstones.into(),
            pages: self.pages.into(),
            part: u32::from(self.origin.part).into(),
            first: self.info.first,
            last: self.info.last,
            sections: std::array::from_fn(|n| section(self.sections()[n])),
            seed: self.origin.seed.to_bytes(),
            batch: self.origin.batch.into(),
            base: u32::from(self.origin.base).into(),
            prefix_bytes: (self.origin.seed.prefix_bytes() as u32).into(),
            checkpoint_bytes: (checkpoint.len() as u32).into(),
            merged: merged.into(),
            merged_batch: range.batch.into(),
            merged_from: range.from,
            merged_to: range.to.unwrap_or_default(),
        };
        let mut out = [0; PAGE_BYTES];
        out[size_of::<RawFooter>()..][..checkpoint.len()].copy_from_slice(&checkpoint);
        out[..size_of::<RawFooter>()].copy_from_slice(raw.as_bytes());
        let crc = crc32c::crc32c(&out[4..]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        Ok(out)
    }

    pub(crate) fn decode(bytes: &PageBytes) -> Result<Self, Wrong> {
        let Ok((raw, rest)) = RawFooter::ref_from_prefix(bytes) else {
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
        let checkpoint =
            rest.get(..raw.checkpoint_bytes.get() as usize).and_then(|bytes| Checkpoint::decode(bytes).ok());
        let seed = Seed::from_bytes(&raw.seed, raw.prefix_bytes.get());
        let is_kind = raw.base.get() <= 1 && raw.merged.get() <= MERGED_TO_THE_END;
        let (Some(checkpoint), Some(seed), true) = (checkpoint, seed, is_kind) else {
            let (base, prefix, bytes) = (raw.base, raw.prefix_bytes, raw.checkpoint_bytes);
            let merged = raw.merged;
            let why = format!("base={base} merged={merged} prefix_bytes={prefix} checkpoint_bytes={bytes}");
            return Err(Wrong::Damaged(why));
        };
        let merged = (raw.merged.get() != NOT_MERGED).then(|| MergedRange {
            from: raw.merged_from,
            to: (raw.merged.get() == MERGED).then_some(raw.merged_to),
            batch: raw.merged_batch.get(),
        });
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
            ties: section(PLANES + 1),
            origin: Origin {
                seed,
                batch: raw.batch.get(),
                base: raw.base.get() == 1,
                checkpoint,
                part: raw.part.get() == 1,
                merged,
            },
        };
        footer.check().map_err(Wrong::Damaged)?;
        Ok(footer)
    }

    /// Returns all sections in the order in which they are in the file.
    pub(crate) fn sections(&self) -> [&Section; PLANES + 2] {
        std::array::from_fn(|n| match n {
            PLANES => &self.directory,
            plane if plane < PLANES => &self.planes[plane],
            _ => &self.ties,
        })
    }

    /// Returns the offset of the footer itself, which follows the last section.
    pub(crate) fn offset(&self) -> u64 {
        self.ties.offset + self.ties.bytes.next_multiple_of(PAGE_BYTES as u64)
    }

    /// Checks that the figures are consistent with each other and with the layout of a segment.
    fn check(&self) -> Result<(), String> {
        let SegmentInfo { records, tombstones, first, last, .. } = self.info;
        let pages = u64::from(self.pages);
        let tombstones_max = if self.origin.base { 0 } else { records };
        if pages == 0 || records < pages || records > pages * PAGE_RECORDS_MAX as u64 || tombstones > tombstones_max {
            return Err(format!("records={records} tombstones={tombstones} pages={pages} base={}", self.origin.base));
        }
        if self.info.id.max(self.origin.batch) > NUMBER_MAX {
            return Err(format!("id={} batch={}", self.info.id, self.origin.batch));
        }
        if first > last {
            return Err("the first key is after the last".to_owned());
        }
        if let Some(MergedRange { from, to, batch }) = &self.origin.merged
            && (first < *from || to.is_some_and(|to| to <= last) || *batch > self.origin.batch)
        {
            return Err(format!("records outside of the merged range, or merged_batch={batch} is none of theirs"));
        }
        if !ties::can_be(self.ties.bytes, pages) {
            return Err(format!("ties_bytes={} pages={pages}", self.ties.bytes));
        }
        let planes = (0..PLANES).map(|plane| plane_bytes(plane_kind(plane, || self.origin.base), records) as u64);
        let expected = planes.chain([pages * 8, self.ties.bytes]);
        // The sections follow each other, beginning after the last page.
        let mut offset = pages * PAGE_BYTES as u64;
        for (section, bytes) in self.sections().into_iter().zip(expected) {
            if section.offset != offset || section.bytes != bytes {
                return Err(format!(
                    "section offset={} bytes={} expected_offset={offset} expected_bytes={bytes}",
                    section.offset, section.bytes
                ));
            }
            offset += bytes.next_multiple_of(PAGE_BYTES as u64);
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
            info: SegmentInfo { id: 3, records: 100, tombstones: 0, first: [1; 32], last: [2; 32] },
            pages: 2,
            planes: std::array::from_fn(|n| section(8192 + n as u64 * 4096, plane_bytes(n, 100))),
            directory: section(20480, 16),
            ties: section(24576, 36),
            origin: Origin {
                seed: Seed::fixed(),
                batch: 17,
                base: true,
                checkpoint: Checkpoint::new(9, &[8; 24]),
                part: true,
                merged: Some(MergedRange { from: [1; 32], to: Some([3; 32]), batch: 16 }),
            },
        };
        let bytes = footer.encode().expect("short enough");
        assert_eq!(Footer::decode(&bytes), Ok(footer));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(Footer::decode(&flipped), Err(Wrong::Damaged(_))), "bit={bit}");
        }
        let with = |at: usize, byte: u8| {
            let mut other = bytes;
            other[at] = byte;
            let crc = crc32c::crc32c(&other[4..]);
            other[..4].copy_from_slice(&crc.to_le_bytes());
            Footer::decode(&other)
        };
        assert_eq!(with(4, 5), Err(Wrong::OtherVersion(5)));
        assert_eq!(with(4, 7), Err(Wrong::OtherVersion(7)));
        let to_the_end = with(332, 2).expect("another kind of range");
        assert_eq!(to_the_end.origin.merged.and_then(|range| range.to), None);
        // With a right checksum: a tombstone in the base, a first key greater than the last, a plane at another
        // place, ties for more pages than there are, a delta with the planes of the base, a value that means neither, a prefix that
        // no store has, a checkpoint of another length, a range of an unknown kind, of a later batch, and without the
        // first or the last key.
        let cases = [(32, 1), (48, 3), (113, 0x30), (216, 72), (320, 0), (320, 2), (324, 7), (328, 65)];
        for (at, byte) in cases.into_iter().chain([(332, 3), (336, 18), (344, 2), (376, 1)]) {
            assert!(matches!(with(at, byte), Err(Wrong::Damaged(_))), "at={at}");
        }
    }
}
