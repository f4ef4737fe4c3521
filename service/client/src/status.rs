//! The service's account of itself.
//!
//! Owns: its form for callers, and the decoding of `solkv.v1.StatusResponse`, which shared memory carries as well. Must
//! not: need the generated types, which would bring gRPC into a program that reads shared memory alone.

use crate::error::{Error, Result};

/// The service's account of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Label of the engine in metrics: rocksdb, rocksdb_bloom, rocksdb_memory, rocksdb_tuned, lmdb, redb, strata.
    pub engine: String,
    /// Number of pairs: exact for lmdb and redb, an estimate for rocksdb; for strata at most so many.
    pub pairs_estimate: u64,
    /// The content of the store.
    pub checkpoint: Checkpoint,
    /// Slots between the newest slot that the stream has mentioned and the newest applied one. `None` before the first.
    pub lag_slots: Option<u64>,
    /// Age of the newest applied slot in milliseconds. `None` before the first slot after a start.
    pub lag_ms: Option<u64>,
    /// Whether the service follows the stream without a gap and within its limits.
    pub ready: bool,
    /// Reason for not being ready, in words; empty when ready.
    pub not_ready_reason: String,
    /// Set while slots are missing. The service asks the stream for them repeatedly.
    pub gap: Option<Gap>,
    /// Version of the service's program.
    pub version: String,
}

/// The content of a store, by the slot and the change that it reflects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checkpoint {
    /// Number of pairs loaded and changes committed since the store was created: the seq of the newest change.
    pub seq: u64,
    /// The last slot applied completely; `None` before the first.
    pub slot: Option<u64>,
    /// Blockhash of that slot; all zero if the slot did not come from a stream.
    pub blockhash: [u8; 32],
}

/// A range of missing slots, both ends included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gap {
    /// The first of the missing slots.
    pub first_slot: u64,
    /// The last of the missing slots.
    pub last_slot: u64,
    /// The observation that showed the gap, in words.
    pub detail: String,
}

impl Status {
    /// Decodes a StatusResponse. Fields that this version does not know are left out.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let wrong = || Error::failed(format!("not a status: bytes={}", bytes.len()));
        let mut status = Self::default();
        status.fill(bytes).ok_or_else(wrong)?;
        Ok(status)
    }

    fn fill(&mut self, bytes: &[u8]) -> Option<()> {
        fields(bytes, |number, field| {
            match (number, field) {
                (1, Field::Bytes(engine)) => self.engine = text(engine)?,
                (2, Field::Number(pairs)) => self.pairs_estimate = pairs,
                (3, Field::Bytes(checkpoint)) => self.checkpoint.fill(checkpoint)?,
                (4, Field::Number(slots)) => self.lag_slots = Some(slots),
                (5, Field::Number(ms)) => self.lag_ms = Some(ms),
                (6, Field::Number(ready)) => self.ready = ready != 0,
                (7, Field::Bytes(reason)) => self.not_ready_reason = text(reason)?,
                (8, Field::Bytes(gap)) => self.gap.get_or_insert_default().fill(gap)?,
                (9, Field::Bytes(version)) => self.version = text(version)?,
                _ => {}
            }
            Some(())
        })
    }
}

impl Checkpoint {
    fn fill(&mut self, bytes: &[u8]) -> Option<()> {
        fields(bytes, |number, field| {
            match (number, field) {
                (1, Field::Number(seq)) => self.seq = seq,
                (2, Field::Number(slot)) => self.slot = Some(slot),
                (3, Field::Bytes(blockhash)) => self.blockhash = blockhash.try_into().ok()?,
                _ => {}
            }
            Some(())
        })
    }
}

impl Gap {
    fn fill(&mut self, bytes: &[u8]) -> Option<()> {
        fields(bytes, |number, field| {
            match (number, field) {
                (1, Field::Number(slot)) => self.first_slot = slot,
                (2, Field::Number(slot)) => self.last_slot = slot,
                (3, Field::Bytes(detail)) => self.detail = text(detail)?,
                _ => {}
            }
            Some(())
        })
    }
}

/// The value of a field, as protobuf writes it.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Calls `each` with the number and the value of each field. Returns `None` if this is no message, or if `each` does.
fn fields<'a>(mut rest: &'a [u8], mut each: impl FnMut(u64, Field<'a>) -> Option<()>) -> Option<()> {
    while !rest.is_empty() {
        let tag = varint(&mut rest)?;
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut rest)?),
            1 => Field::Bytes(rest.split_off(..8)?),
            2 => {
                let len = usize::try_from(varint(&mut rest)?).ok()?;
                Field::Bytes(rest.split_off(..len)?)
            }
            5 => Field::Bytes(rest.split_off(..4)?),
            _ => return None,
        };
        each(tag >> 3, field)?;
    }
    Some(())
}

/// Takes a number off the front: seven bits a byte, the lowest first.
fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *rest.split_off_first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn text(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn a_status_is_decoded_as_it_was_encoded() {
        let wire = proto::v1::StatusResponse {
            engine: "strata".to_owned(),
            pairs_estimate: u64::MAX,
            checkpoint: Some(proto::v1::Checkpoint { seq: 300, slot: Some(0), blockhash: vec![7; 32].into() }),
            lag_slots: Some(1),
            lag_ms: Some(1 << 40),
            ready: true,
            not_ready_reason: "a gap".to_owned(),
            gap: Some(proto::v1::Gap { first_slot: 5, last_slot: 127, detail: "a parent".to_owned() }),
            version: "0.1.0".to_owned(),
        };
        let own = Status {
            engine: "strata".to_owned(),
            pairs_estimate: u64::MAX,
            checkpoint: Checkpoint { seq: 300, slot: Some(0), blockhash: [7; 32] },
            lag_slots: Some(1),
            lag_ms: Some(1 << 40),
            ready: true,
            not_ready_reason: "a gap".to_owned(),
            gap: Some(Gap { first_slot: 5, last_slot: 127, detail: "a parent".to_owned() }),
            version: "0.1.0".to_owned(),
        };
        let bytes = wire.encode_to_vec();
        assert_eq!(Status::decode(&bytes).unwrap(), own);
        assert_eq!(Status::decode(&[]).unwrap(), Status::default());
        // Fields of later versions: a number, eight bytes, a text, four bytes.
        let later = [&bytes[..], &[0x78, 1, 0x79], &[0; 8], &[0x7a, 1, b'x', 0x7d], &[0; 4]].concat();
        assert_eq!(Status::decode(&later).unwrap(), own);
    }

    #[test]
    fn what_is_no_status_is_an_error() {
        let cut = proto::v1::StatusResponse { engine: "strata".to_owned(), ..Default::default() }.encode_to_vec();
        let checkpoint = proto::v1::Checkpoint { blockhash: vec![7; 31].into(), ..Default::default() };
        let short = proto::v1::StatusResponse { checkpoint: Some(checkpoint), ..Default::default() }.encode_to_vec();
        for wrong in [&cut[..5], &short, &[0x0a, 1, 0xff], &[0x10], &[0x10, 0xff], &[0x13], &[0xff; 11]] {
            assert_eq!(Status::decode(wrong).unwrap_err().kind(), crate::ErrorKind::Failed, "{wrong:?}");
        }
    }
}
