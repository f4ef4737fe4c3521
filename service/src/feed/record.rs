//! The bytes of the feed's log: the header of a segment, the header of a frame, the record of a change.
//!
//! Owns: the layouts and their checks. Must not: touch a file. Integers are little-endian.
//!
//! A segment is one [`SegmentHeader`], then frames one after another, then zeros. It has its full length from the
//! start, so that appending never waits for space. A frame is one [`FrameHeader`], then `count` [`Record`]s, then
//! `ends` [`EndRecord`]s. It holds the changes of one commit and the slots that end in it.

use std::mem::size_of;

use engine_api::{Error, ErrorKind, Key, Result, Value};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// One committed change of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Slot that the change was written in.
    pub slot: u64,
    pub key: Key,
    /// Value of the key before the change; `None` when it was not in the map.
    pub old: Option<Value>,
    /// Value of the key after the change; `None` when it was removed.
    pub new: Option<Value>,
}

/// End of a slot in the feed. A slot that changes nothing has no end there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotEnd {
    /// Sequence number of the slot's last change.
    pub seq: u64,
    pub slot: u64,
    pub blockhash: [u8; 32],
    /// Slot of the parent block; after a heal the slot at which the store stood before it.
    pub parent_slot: u64,
    /// Whether a heal has brought the map here, so that an archive names every value. Only the log keeps this.
    pub is_healed: bool,
}

/// The changes of one commit. The change `changes[i]` has the sequence number `first_seq + i`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Sequence number of the first change.
    pub first_seq: u64,
    /// When the changes were committed, in ms since the Unix epoch.
    pub committed_unix_ms: u64,
    /// The changes in the order of the chain: at least one, at most [`FRAME_CHANGES_MAX`].
    pub changes: Vec<Change>,
    /// Ends of the slots that end in this frame, ascending.
    pub ends: Vec<SlotEnd>,
}

/// Maximum number of changes of one frame: 117 MB, or 185 MB where each change ends a slot. It bounds the memory that a
/// damaged length can make a reader allocate.
pub(crate) const FRAME_CHANGES_MAX: usize = 1 << 20;

pub(super) const SEGMENT_HEADER_BYTES: u64 = size_of::<SegmentHeader>() as u64;
pub(super) const FRAME_HEADER_BYTES: usize = size_of::<FrameHeader>();
/// Bytes of a change in the log.
pub(crate) const RECORD_BYTES: usize = size_of::<Record>();

const MAGIC: [u8; 8] = *b"solkvfed";
const VERSION: u32 = 2;

const HAS_OLD: u8 = 1;
const HAS_NEW: u8 = 2;
const IS_HEALED: u8 = 1;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct SegmentHeader {
    magic: [u8; 8],
    version: U32,
    /// CRC32C of the following fields of the header.
    crc: U32,
    feed_id: U64,
    first_seq: U64,
    /// Id of the boot without flushes, or 0: see [`Identity::boot`].
    boot: U64,
    /// [`Beginning::after_slot`] plus one, or 0 for `None`.
    after_slot: U64,
    reserved: [u8; 16],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct FrameHeader {
    /// CRC32C of the rest of the header, of the records and of the slot ends.
    crc: U32,
    /// Number of records after the header.
    count: U32,
    first_seq: U64,
    committed_unix_ms: U64,
    /// Number of slot ends after the records, at most as many as records.
    ends: U32,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Record {
    key: Key,
    /// The old value; zeros without [`HAS_OLD`].
    old: Value,
    /// The new value; zeros without [`HAS_NEW`].
    new: Value,
    slot: U64,
    /// Which values are set: bits [`HAS_OLD`] and [`HAS_NEW`].
    flags: u8,
    reserved: [u8; 7],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct EndRecord {
    seq: U64,
    slot: U64,
    parent_slot: U64,
    /// Of its bits only [`IS_HEALED`] has a meaning.
    flags: u8,
    reserved: [u8; 7],
    blockhash: [u8; 32],
}

const _: () = assert!(size_of::<SegmentHeader>() == 64 && size_of::<FrameHeader>() == 32);
const _: () = assert!(size_of::<Record>() == 112 && size_of::<EndRecord>() == 64);

/// Identity of the feed that a segment is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// Id of the feed. Sequence numbers are comparable within one feed only.
    pub(super) feed_id: u64,
    /// Id of the machine's boot during which the segment was written without flushes; 0 where every frame was flushed.
    pub(super) boot: u64,
}

/// Place of a segment in the store's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beginning {
    /// Sequence number of the segment's first change.
    pub(super) first_seq: u64,
    /// Slot that the store stood at before that change: every later slot's changes are in this segment and the next
    /// ones. `None` where the store knew no slot.
    pub(super) after_slot: Option<u64>,
}

/// Returns the header of a segment.
pub(super) fn segment_header(identity: Identity, begins: Beginning) -> [u8; SEGMENT_HEADER_BYTES as usize] {
    let mut header = SegmentHeader {
        magic: MAGIC,
        version: VERSION.into(),
        crc: U32::ZERO,
        feed_id: identity.feed_id.into(),
        first_seq: begins.first_seq.into(),
        boot: identity.boot.into(),
        after_slot: begins.after_slot.map_or(0, |slot| slot.saturating_add(1)).into(),
        reserved: [0; 16],
    };
    header.crc = crc32c::crc32c(&header.as_bytes()[16..]).into();
    zerocopy::transmute!(header)
}

/// Decodes the identity and the beginning of a segment.
///
/// # Errors
/// A description of the defect: too short, not a segment, of another version, or a wrong checksum.
pub(super) fn read_segment_header(bytes: &[u8]) -> std::result::Result<(Identity, Beginning), String> {
    let header = SegmentHeader::ref_from_bytes(bytes).map_err(|_| format!("too short: bytes={}", bytes.len()))?;
    if header.magic != MAGIC {
        return Err("not a segment of a feed".to_owned());
    }
    if header.version.get() != VERSION {
        return Err(format!("of another version: version={} known={VERSION}", header.version));
    }
    if header.crc.get() != crc32c::crc32c(&bytes[16..]) {
        return Err("the header's checksum does not match".to_owned());
    }
    let begins = Beginning { first_seq: header.first_seq.get(), after_slot: header.after_slot.get().checked_sub(1) };
    Ok((Identity { feed_id: header.feed_id.get(), boot: header.boot.get() }, begins))
}

/// Content at the place of a frame's header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// A frame of `count` changes from `first_seq` on. It takes `bytes` bytes, if its checksum holds.
    Frame { count: usize, first_seq: u64, bytes: usize },
    /// Zeros: no frame was ever written here.
    End,
    /// Neither a plausible header nor zeros.
    Damaged,
}

impl Frame {
    /// Sequence number of the last change.
    pub fn last_seq(&self) -> u64 {
        self.first_seq + (self.changes.len() as u64 - 1)
    }

    /// Bytes of the frame in the log.
    pub(super) fn log_bytes(&self) -> usize {
        frame_bytes(self.changes.len(), self.ends.len())
    }

    /// Returns the first slot end of this frame at or after the change `seq`.
    pub(super) fn next_end(&self, seq: u64) -> Option<&SlotEnd> {
        self.ends.get(self.ends.partition_point(|end| end.seq < seq))
    }

    /// Encodes the frame into `out`, replacing its content.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        let header = FrameHeader {
            crc: U32::ZERO,
            count: (self.changes.len() as u32).into(),
            first_seq: self.first_seq.into(),
            committed_unix_ms: self.committed_unix_ms.into(),
            ends: (self.ends.len() as u32).into(),
            reserved: U32::ZERO,
        };
        out.extend_from_slice(header.as_bytes());
        for change in &self.changes {
            let flag = |set: bool, flag: u8| if set { flag } else { 0 };
            let record = Record {
                key: change.key,
                old: change.old.unwrap_or_default(),
                new: change.new.unwrap_or_default(),
                slot: change.slot.into(),
                flags: flag(change.old.is_some(), HAS_OLD) | flag(change.new.is_some(), HAS_NEW),
                reserved: [0; 7],
            };
            out.extend_from_slice(record.as_bytes());
        }
        for SlotEnd { seq, slot, blockhash, parent_slot, is_healed } in self.ends.iter().copied() {
            let (seq, slot, parent_slot) = (seq.into(), slot.into(), parent_slot.into());
            let flags = if is_healed { IS_HEALED } else { 0 };
            let record = EndRecord { seq, slot, parent_slot, flags, reserved: [0; 7], blockhash };
            out.extend_from_slice(record.as_bytes());
        }
        let crc = crc32c::crc32c(&out[4..]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Classifies the bytes of a header. `bytes` must have [`FRAME_HEADER_BYTES`] bytes.
    pub(super) fn header(bytes: &[u8]) -> Header {
        let Ok(header) = FrameHeader::ref_from_bytes(bytes) else { return Header::Damaged };
        let (count, ends) = (header.count.get() as usize, header.ends.get() as usize);
        if bytes.iter().all(|byte| *byte == 0) {
            Header::End
        } else if (1..=FRAME_CHANGES_MAX).contains(&count) && ends <= count {
            Header::Frame { count, first_seq: header.first_seq.get(), bytes: frame_bytes(count, ends) }
        } else {
            Header::Damaged
        }
    }

    /// Decodes a frame from all its bytes: header, records and slot ends.
    ///
    /// # Errors
    /// [`ErrorKind::DataDamaged`] when the checksum does not match, the length is not that of the counts, or slot ends
    /// lie outside of the frame.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let damaged = |what: &str| Error::new(ErrorKind::DataDamaged, format!("a frame of the feed's log {what}"));
        let (header, records) =
            FrameHeader::ref_from_prefix(bytes).map_err(|_| damaged("is shorter than its header"))?;
        if header.crc.get() != crc32c::crc32c(&bytes[4..]) {
            return Err(damaged("does not match its checksum"));
        }
        let (count, ends) = (header.count.get() as usize, header.ends.get() as usize);
        let (records, ends) = <[Record]>::ref_from_prefix_with_elems(records, count)
            .ok()
            .and_then(|(records, rest)| Some((records, <[EndRecord]>::ref_from_bytes(rest).ok()?)))
            .filter(|(records, found)| !records.is_empty() && found.len() == ends)
            .ok_or_else(|| damaged("has another number of records than its header says"))?;
        let seqs = header.first_seq.get()..header.first_seq.get().saturating_add(records.len() as u64);
        if !ends.is_sorted_by(|a, b| a.seq.get() < b.seq.get()) || ends.iter().any(|end| !seqs.contains(&end.seq.get()))
        {
            return Err(damaged("has slots that end outside of it"));
        }
        let ends = ends.iter().map(|end| SlotEnd {
            seq: end.seq.get(),
            slot: end.slot.get(),
            blockhash: end.blockhash,
            parent_slot: end.parent_slot.get(),
            is_healed: end.flags & IS_HEALED != 0,
        });
        let changes = records.iter().map(|record| Change {
            slot: record.slot.get(),
            key: record.key,
            old: (record.flags & HAS_OLD != 0).then_some(record.old),
            new: (record.flags & HAS_NEW != 0).then_some(record.new),
        });
        Ok(Self {
            first_seq: header.first_seq.get(),
            committed_unix_ms: header.committed_unix_ms.get(),
            changes: changes.collect(),
            ends: ends.collect(),
        })
    }
}

fn frame_bytes(changes: usize, ends: usize) -> usize {
    FRAME_HEADER_BYTES + changes * RECORD_BYTES + ends * size_of::<EndRecord>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_survives_its_bytes_and_no_flipped_bit_passes() {
        let change = Change { slot: 9, key: [1; 32], old: None, new: Some([0; 32]) };
        let removed = Change { slot: 10, key: [2; 32], old: Some([3; 32]), new: None };
        let ends = vec![SlotEnd { seq: 7, slot: 9, blockhash: [4; 32], parent_slot: 5, is_healed: true }];
        let frame = Frame { first_seq: 7, committed_unix_ms: 8, changes: vec![change, removed], ends };
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        assert_eq!(bytes.len(), frame.log_bytes());
        assert_eq!(
            Frame::header(&bytes[..FRAME_HEADER_BYTES]),
            Header::Frame { count: 2, first_seq: 7, bytes: bytes.len() }
        );
        assert_eq!(Frame::decode(&bytes).unwrap(), frame);
        assert_eq!(Frame::header(&[0; FRAME_HEADER_BYTES]), Header::End);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Frame::decode(&bytes).unwrap_err().kind(), ErrorKind::DataDamaged);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for len in 0..bytes.len() {
            assert!(Frame::decode(&bytes[..len]).is_err());
        }
    }

    #[test]
    fn a_segment_header_names_what_is_wrong() {
        let identity = Identity { feed_id: 5, boot: 7 };
        let begins = Beginning { first_seq: 6, after_slot: Some(0) };
        let header = segment_header(identity, begins);
        assert_eq!(read_segment_header(&header), Ok((identity, begins)));
        let unknown = Beginning { after_slot: None, ..begins };
        assert_eq!(read_segment_header(&segment_header(identity, unknown)), Ok((identity, unknown)));
        let with = |at: usize| {
            let mut header = header;
            header[at] ^= 1;
            read_segment_header(&header).unwrap_err()
        };
        assert!(with(0).contains("not a segment"));
        assert!(with(8).contains("version"));
        assert!(with(20).contains("checksum") && with(60).contains("checksum"));
        assert!(read_segment_header(&header[1..]).is_err());
    }
}
