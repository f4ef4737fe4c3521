//! The bytes of the spool: the header of the file, and one frame for each slot.
//!
//! Owns: the layouts and their checks. Must not: touch a file. Integers are little-endian.
//!
//! A frame is one [`FrameHeader`] and then the slot's events, packed with zstd. The checksum covers the header and the
//! packed bytes, so damage is found before anything is unpacked.

use std::mem::size_of;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::base::chain::{Base, Event, WholeSlot};

/// Maximum number of events of one slot. No block of the chain can write-lock a third as many accounts. The number
/// bounds the memory that a damaged length can make a reader allocate.
pub(crate) const EVENTS_MAX: usize = 1 << 20;

pub(super) const HEADER_BYTES: usize = size_of::<FileHeader>();
pub(super) const FRAME_HEADER_BYTES: usize = size_of::<FrameHeader>();

/// Maximum number of packed bytes of one frame: random events do not get smaller, and zstd adds less than 1/128.
const PACKED_BYTES_MAX: usize = EVENTS_MAX * size_of::<EventRecord>() / 127 * 128;

const MAGIC: [u8; 8] = *b"solkvspl";
const VERSION: u32 = 1;

/// zstd's fastest regular level. The keys are random, so higher levels only take more time.
const LEVEL: i32 = 1;

const HAS_VALUE: u8 = 1;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct FileHeader {
    magic: [u8; 8],
    version: U32,
    /// CRC32C of the following fields.
    crc: U32,
    slot: U64,
    blockhash: [u8; 32],
    /// [`Origin::meaning`], filled up with zeros.
    meaning: [u8; MEANING_BYTES],
}

const MEANING_BYTES: usize = 40;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct FrameHeader {
    /// CRC32C of the rest of the header and of the packed events.
    crc: U32,
    packed_bytes: U32,
    events: U32,
    /// [`source_of`] the provider that the slot came from; 0 for one that is not known.
    source: U32,
    slot: U64,
    parent_slot: U64,
    created_unix_ms: U64,
    blockhash: [u8; 32],
    parent_blockhash: [u8; 32],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct EventRecord {
    key: [u8; 32],
    /// The value; zeros without [`HAS_VALUE`].
    value: [u8; 32],
    write_version: U64,
    flags: u8,
    reserved: [u8; 7],
}

const _: () = assert!(size_of::<FileHeader>() == 96 && size_of::<FrameHeader>() == 104);
const _: () = assert!(size_of::<EventRecord>() == 80 && PACKED_BYTES_MAX < u32::MAX as usize);

/// Beginning of a spool, which never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Block that the first slot of the spool follows.
    pub base: Base,
    /// The accounts and the value that the events are about, such as `token-owner exact`.
    pub meaning: String,
}

impl Origin {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut meaning = [0; MEANING_BYTES];
        let taken = self.meaning.len().min(MEANING_BYTES);
        meaning[..taken].copy_from_slice(&self.meaning.as_bytes()[..taken]);
        let mut header = FileHeader {
            magic: MAGIC,
            version: VERSION.into(),
            crc: U32::ZERO,
            slot: self.base.slot.into(),
            blockhash: self.base.blockhash,
            meaning,
        };
        header.crc = crc32c::crc32c(&header.as_bytes()[16..]).into();
        zerocopy::transmute!(header)
    }

    /// Decodes the file's header.
    ///
    /// # Errors
    /// A description of the defect: too short, no spool, of another version, or a wrong checksum.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let header = FileHeader::ref_from_bytes(bytes).map_err(|_| format!("too short: bytes={}", bytes.len()))?;
        if header.magic != MAGIC {
            return Err("not a spool".to_owned());
        }
        if header.version.get() != VERSION {
            return Err(format!("of another version: version={} known={VERSION}", header.version));
        }
        if header.crc.get() != crc32c::crc32c(&bytes[16..]) {
            return Err("the header's checksum does not match".to_owned());
        }
        let meaning = String::from_utf8_lossy(&header.meaning).trim_end_matches('\0').to_owned();
        Ok(Self { base: Base { slot: header.slot.get(), blockhash: header.blockhash }, meaning })
    }
}

/// The place of a slot in the chain and in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) block: Base,
    pub(super) parent_slot: u64,
    /// [`source_of`] the provider that the slot came from; 0 for one that is not known.
    pub(super) source: u32,
    /// Bytes of the whole frame.
    pub(super) bytes: usize,
}

impl Head {
    /// Reads the header of a frame. `None` if the bytes cannot be one: the file ends here, or is damaged.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let header = FrameHeader::ref_from_bytes(bytes).ok()?;
        let (packed_bytes, events) = (header.packed_bytes.get() as usize, header.events.get() as usize);
        let (slot, parent_slot) = (header.slot.get(), header.parent_slot.get());
        let plausible = packed_bytes <= PACKED_BYTES_MAX && events <= EVENTS_MAX && parent_slot < slot;
        let block = Base { slot, blockhash: header.blockhash };
        plausible.then_some(Self {
            block,
            parent_slot,
            source: header.source.get(),
            bytes: FRAME_HEADER_BYTES + packed_bytes,
        })
    }

    /// Whether the slot is the child of `parent`, as far as the numbers tell.
    pub(super) fn follows(&self, parent: Base) -> bool {
        self.parent_slot == parent.slot
    }
}

/// Returns the number by which a frame names a provider. Their order in the configuration may change.
pub(crate) fn source_of(provider: &str) -> u32 {
    crc32c::crc32c(provider.as_bytes())
}

/// Encodes a slot that came from `source` into `out`, replacing its content. Returns `false` if it has more events than
/// a frame can hold.
///
/// # Errors
/// zstd has failed.
pub(super) fn encode(slot: &WholeSlot, source: u32, out: &mut Vec<u8>) -> std::io::Result<bool> {
    out.clear();
    if slot.events.len() > EVENTS_MAX {
        return Ok(false);
    }
    let mut records = Vec::with_capacity(slot.events.len() * size_of::<EventRecord>());
    for event in &slot.events {
        let record = EventRecord {
            key: event.key,
            value: event.value.unwrap_or_default(),
            write_version: event.write_version.into(),
            flags: if event.value.is_some() { HAS_VALUE } else { 0 },
            reserved: [0; 7],
        };
        records.extend_from_slice(record.as_bytes());
    }
    let packed = zstd::bulk::compress(&records, LEVEL)?;
    let header = FrameHeader {
        crc: U32::ZERO,
        packed_bytes: (packed.len() as u32).into(),
        events: (slot.events.len() as u32).into(),
        source: source.into(),
        slot: slot.slot.into(),
        parent_slot: slot.parent.slot.into(),
        created_unix_ms: slot.created_unix_ms.into(),
        blockhash: slot.blockhash,
        parent_blockhash: slot.parent.blockhash,
    };
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(&packed);
    let crc = crc32c::crc32c(&out[4..]);
    out[..4].copy_from_slice(&crc.to_le_bytes());
    Ok(true)
}

/// Whether all bytes of a frame are as they were written.
pub(super) fn is_whole(frame: &[u8]) -> bool {
    frame.len() >= FRAME_HEADER_BYTES && frame[..4] == crc32c::crc32c(&frame[4..]).to_le_bytes()
}

/// Decodes a frame from all its bytes.
///
/// # Errors
/// A description of the defect: a wrong checksum, or another number of events than the header says.
pub(super) fn decode(frame: &[u8]) -> Result<WholeSlot, String> {
    if !is_whole(frame) {
        return Err("does not match its checksum".to_owned());
    }
    let (header, packed) = FrameHeader::ref_from_prefix(frame).map_err(|_| "is too short".to_owned())?;
    let events = header.events.get() as usize;
    if events > EVENTS_MAX {
        return Err(format!("has too many events: events={events}"));
    }
    let unpacked = zstd::bulk::decompress(packed, events * size_of::<EventRecord>())
        .map_err(|error| format!("cannot be unpacked: reason={error}"))?;
    let records = <[EventRecord]>::ref_from_bytes(&unpacked).ok().filter(|records| records.len() == events);
    let records =
        records.ok_or_else(|| format!("has another number of events than its header says: events={events}"))?;
    let event = |record: &EventRecord| Event {
        key: record.key,
        value: (record.flags & HAS_VALUE != 0).then_some(record.value),
        write_version: record.write_version.get(),
    };
    Ok(WholeSlot {
        slot: header.slot.get(),
        blockhash: header.blockhash,
        parent: Base { slot: header.parent_slot.get(), blockhash: header.parent_blockhash },
        created_unix_ms: header.created_unix_ms.get(),
        events: records.iter().map(event).collect(),
        late: 0,
    })
}
