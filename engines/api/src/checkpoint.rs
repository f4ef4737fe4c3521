//! What a commit stands for ([`Checkpoint`]) and what it survives ([`Durability`]).
//!
//! Owns: the checkpoint's one byte layout, which every engine stores verbatim under its own metadata key.

use crate::{Error, ErrorKind, Result};

/// Identifies the source a checkpoint counts in (a bootstrap source or a stream), so that a resume against a
/// different source is refused instead of silently mixing two. Zero means none yet.
pub type SourceId = u64;

/// Names the state the store is in: written in the same engine transaction as the batch it follows.
///
/// After any crash an engine holds exactly the batches up to one committed checkpoint, and returns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The number of the newest change: pairs consumed while bootstrapping, then one more for each key that a stream
    /// set or removed. Never decreases over the commits of one store; the change feed counts by it.
    pub seq: u64,
    /// The last Solana slot applied as a whole. `None` until a slot is known.
    pub slot: Option<u64>,
    /// Blockhash of `slot`; all-zero when the slot came from outside a stream (`bootstrap --slot`).
    pub blockhash: [u8; 32],
    /// Which source `seq` counts in.
    pub source: SourceId,
}

impl Checkpoint {
    /// Length of the encoding in bytes.
    pub const BYTES: usize = 64;
    const VERSION: u8 = 1;

    /// Encodes as: version u8, has_slot u8, 6 zero bytes, seq u64, slot u64, source u64, blockhash 32 bytes;
    /// integers little-endian.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0u8; Self::BYTES];
        out[0] = Self::VERSION;
        out[1] = u8::from(self.slot.is_some());
        out[8..16].copy_from_slice(&self.seq.to_le_bytes());
        out[16..24].copy_from_slice(&self.slot.unwrap_or(0).to_le_bytes());
        out[24..32].copy_from_slice(&self.source.to_le_bytes());
        out[32..64].copy_from_slice(&self.blockhash);
        out
    }

    /// Decodes what [`Checkpoint::encode`] wrote.
    ///
    /// # Errors
    /// [`ErrorKind::DataDamaged`] for a wrong length, flag or padding; [`ErrorKind::FixInput`] for a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().map_err(|_| {
            Error::new(
                ErrorKind::DataDamaged,
                format!("checkpoint has a wrong length: bytes={} expected={}", bytes.len(), Self::BYTES),
            )
        })?;
        if bytes[0] > Self::VERSION {
            return Err(Error::new(
                ErrorKind::FixInput,
                format!("checkpoint was written by a newer solkv: version={} known={}", bytes[0], Self::VERSION),
            ));
        }
        if bytes[0] == 0 || bytes[1] > 1 || bytes[2..8] != [0u8; 6] {
            return Err(Error::new(ErrorKind::DataDamaged, "checkpoint header is damaged"));
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Ok(Self {
            seq: word(8),
            slot: (bytes[1] == 1).then(|| word(16)),
            source: word(24),
            blockhash: std::array::from_fn(|i| bytes[32 + i]),
        })
    }
}

/// What a commit survives once it has returned.
///
/// | | process killed | OS crash or power loss |
/// |---|---|---|
/// | `Buffered` | kept | the newest commits may be missing, never a part of one; what is kept ends at a checkpoint |
/// | `Synced` | kept | kept, provided the device honours a flush |
///
/// Each engine's crate documents the flags behind its two rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Handed to the kernel, not flushed.
    Buffered,
    /// Flushed to the device before the commit returns.
    #[default]
    Synced,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoint_round_trips_and_refuses_damage() {
        let full = Checkpoint { seq: u64::MAX, slot: Some(0), blockhash: [0xff; 32], source: 7 };
        for checkpoint in [Checkpoint::default(), full] {
            assert_eq!(Checkpoint::decode(&checkpoint.encode()).unwrap(), checkpoint);
        }
        let mut newer = full.encode();
        newer[0] = 2;
        assert_eq!(Checkpoint::decode(&newer).unwrap_err().kind(), ErrorKind::FixInput);
        let mut damaged = full.encode();
        damaged[3] = 1;
        assert_eq!(Checkpoint::decode(&damaged).unwrap_err().kind(), ErrorKind::DataDamaged);
        assert_eq!(Checkpoint::decode(&[]).unwrap_err().kind(), ErrorKind::DataDamaged);
    }
}
