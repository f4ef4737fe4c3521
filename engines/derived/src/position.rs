//! Where a derived store stands: the bytes of its engine's checkpoint. The checkpoint's seq is that of the map.
//!
//! Owns: the layout, version 1. Must not: accept bytes that no derived store has.

use engine_api::{Checkpoint, Error, ErrorKind, Result};
use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::secret::{Secret, random};

const MAGIC: [u8; 4] = *b"sold";
const VERSION: u8 = 1;

/// Flags of a position's bytes.
const HAS_SLOT: u8 = 1;
const IS_WHOLE: u8 = 2;
const FOLLOWS: u8 = 4;

/// The map's state from which the store's entries follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The map at this checkpoint, from which the store was built. No change of it was followed yet.
    Map(Checkpoint),
    /// The map of the feed with this id, at the seq of the store's checkpoint.
    Feed(u64),
}

/// Where a derived store stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Names the store in cursors. Another build has another one.
    pub index: u64,
    pub secret: Secret,
    /// The last slot that the store has as a whole, as far as the feed or the map named it.
    pub slot: Option<u64>,
    /// Whether the store stands at the end of a slot, and not within a heal.
    pub is_whole: bool,
    pub origin: Origin,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    version: u8,
    flags: u8,
    /// Length of the checkpoint's bytes that follow; 0 if the store follows a feed.
    bytes: U16,
    index: U64,
    secret: [u8; Secret::BYTES],
    slot: U64,
    /// Id of the feed, or seq of the map's checkpoint.
    number: U64,
}

impl Position {
    /// Returns the position of a store that is built of the map at this checkpoint, which ends with `slot`.
    ///
    /// # Errors
    /// `Internal`: the kernel gives no random bytes.
    pub fn new(map: Checkpoint, slot: Option<u64>) -> Result<Self> {
        let index = u64::from_le_bytes(random()?);
        Ok(Self { index, secret: Secret::random()?, slot, is_whole: true, origin: Origin::Map(map) })
    }

    /// Returns the checkpoint of a derived store that stands here, at the map's `seq`.
    pub fn write(&self, seq: u64) -> Checkpoint {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let (number, bytes): (_, &[u8]) = match &self.origin {
            Origin::Map(map) => (map.seq, &map.bytes),
            Origin::Feed(id) => (*id, &[]),
        };
        let follows = matches!(self.origin, Origin::Feed(_));
        let raw = Raw {
            magic: MAGIC,
            version: VERSION,
            flags: flag(self.slot.is_some(), HAS_SLOT) | flag(self.is_whole, IS_WHOLE) | flag(follows, FOLLOWS),
            bytes: (bytes.len() as u16).into(),
            index: self.index.into(),
            secret: self.secret.to_bytes(),
            slot: self.slot.unwrap_or(0).into(),
            number: number.into(),
        };
        Checkpoint::new(seq, &[raw.as_bytes(), bytes].concat())
    }

    /// Reads the checkpoint of a derived store.
    ///
    /// # Errors
    /// `FixInput`: of another version; `DataDamaged`: bytes that no complete derived store has.
    pub fn read(checkpoint: &Checkpoint) -> Result<Self> {
        let no_position = || {
            Error::new(ErrorKind::DataDamaged, "the checkpoint is not that of a complete derived store: build it again")
        };
        let (raw, bytes) = Raw::ref_from_prefix(&checkpoint.bytes).map_err(|_| no_position())?;
        if raw.magic == MAGIC && raw.version != VERSION {
            let message = format!("derived store of another version={} known={VERSION}: build it again", raw.version);
            return Err(Error::new(ErrorKind::FixInput, message));
        }
        let follows = raw.flags & FOLLOWS != 0;
        if raw.magic != MAGIC
            || raw.flags > 7
            || usize::from(raw.bytes.get()) != bytes.len()
            || follows && !bytes.is_empty()
        {
            return Err(no_position());
        }
        let number = raw.number.get();
        Ok(Self {
            index: raw.index.get(),
            secret: Secret::from_bytes(raw.secret),
            slot: (raw.flags & HAS_SLOT != 0).then_some(raw.slot.get()),
            is_whole: raw.flags & IS_WHOLE != 0,
            origin: if follows { Origin::Feed(number) } else { Origin::Map(Checkpoint::new(number, bytes)) },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_survives_its_bytes_and_no_other_bytes_pass() {
        let built = Position::new(Checkpoint::new(7, b"chain"), Some(5)).unwrap();
        let follows = Position { slot: None, is_whole: false, origin: Origin::Feed(9), ..built.clone() };
        for position in [built, follows] {
            let written = position.write(7);
            assert_eq!((written.seq, Position::read(&written).unwrap()), (7, position));
            for cut in 0..written.bytes.len() {
                assert!(Position::read(&Checkpoint::new(7, &written.bytes[..cut])).is_err(), "{cut}");
            }
            let mut bytes = written.bytes.to_vec();
            bytes[4] += 1;
            assert_eq!(Position::read(&Checkpoint::new(7, &bytes)).unwrap_err().kind(), ErrorKind::FixInput);
            bytes.push(0);
            bytes[4] -= 1;
            assert_eq!(Position::read(&Checkpoint::new(7, &bytes)).unwrap_err().kind(), ErrorKind::DataDamaged);
        }
        assert!(Position::read(&Checkpoint::default()).is_err());
    }
}
