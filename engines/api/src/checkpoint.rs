//! [`Checkpoint`] names the state that a commit leaves in a store; [`Durability`] says which failures the commit
//! survives.
//!
//! Owns: the checkpoint's one byte layout, which every engine stores unchanged under its own metadata key. Must not:
//! interpret [`Checkpoint::bytes`], which belong to whoever commits.

use std::fmt;
use std::sync::Arc;

use crate::{Error, ErrorKind, Result};

/// Names a state of the store. Each batch is written in one engine transaction with the checkpoint that follows it.
///
/// After any crash an engine holds exactly the batches up to one committed checkpoint, and returns that checkpoint
/// unchanged.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Number of the newest change. A bootstrap counts the pairs that it has consumed, and each key that the stream
    /// sets or removes adds one. Never decreases over the commits of one store, because the change feed counts by it.
    pub seq: u64,
    /// Data of the writer, at most [`Checkpoint::BYTES_MAX`] bytes: the writer finds here whatever it needs in addition
    /// to `seq` to continue. Engines store the bytes and never read them. Shared, so that a clone copies no bytes.
    pub bytes: Arc<[u8]>,
}

impl Checkpoint {
    /// Largest length of [`Checkpoint::bytes`]: a commit with more is refused.
    pub const BYTES_MAX: usize = 1024;
    /// Length in bytes of the encoding of a checkpoint whose [`Checkpoint::bytes`] are empty.
    pub const ENCODED_MIN: usize = 16;
    /// Length in bytes of the longest encoding.
    pub const ENCODED_MAX: usize = Self::ENCODED_MIN + Self::BYTES_MAX;
    /// Version of the encoding. Version 1 was 64 bytes long and held a slot and a blockhash.
    const VERSION: u8 = 2;

    /// Builds a checkpoint from a sequence number and a copy of `bytes`. The length is not checked here.
    pub fn new(seq: u64, bytes: &[u8]) -> Self {
        Self { seq, bytes: bytes.into() }
    }

    /// Checks the length of [`Checkpoint::bytes`]. Every commit and every load of sorted pairs calls this before it
    /// changes anything.
    ///
    /// # Errors
    /// [`ErrorKind::FixInput`] for more than [`Checkpoint::BYTES_MAX`] bytes.
    pub fn check(&self) -> Result<()> {
        if self.bytes.len() <= Self::BYTES_MAX {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::FixInput,
            format!(
                "checkpoint is too long: bytes={} most={}: keep in it only what names the state",
                self.bytes.len(),
                Self::BYTES_MAX
            ),
        ))
    }

    /// Encodes the checkpoint as: version u8, zero u8, length of the bytes u16, 4 zero bytes, seq u64, the bytes.
    /// Integers are little-endian. Other data may follow the encoding, because it states its own length.
    ///
    /// # Errors
    /// [`ErrorKind::FixInput`] for more than [`Checkpoint::BYTES_MAX`] bytes.
    pub fn encode(&self) -> Result<Vec<u8>> {
        self.check()?;
        let mut out = Vec::with_capacity(Self::ENCODED_MIN + self.bytes.len());
        out.extend_from_slice(&[Self::VERSION, 0]);
        out.extend_from_slice(&(self.bytes.len() as u16).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.seq.to_le_bytes());
        out.extend_from_slice(&self.bytes);
        Ok(out)
    }

    /// Decodes the output of [`Checkpoint::encode`] and refuses anything else, trailing bytes included.
    ///
    /// # Errors
    /// [`ErrorKind::DataDamaged`] for a wrong length or padding; [`ErrorKind::FixInput`] for another version, where the
    /// message names the version and the way out.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        match Self::decode_first(bytes)? {
            (checkpoint, []) => Ok(checkpoint),
            (_, rest) => Err(damaged(&format!("bytes_too_many={}", rest.len()))),
        }
    }

    /// Decodes a checkpoint from the start of `bytes`, and returns it with the bytes that follow it.
    ///
    /// # Errors
    /// [`ErrorKind::DataDamaged`] for a wrong length or padding; [`ErrorKind::FixInput`] for another version, where the
    /// message names the version and the way out.
    pub fn decode_first(bytes: &[u8]) -> Result<(Self, &[u8])> {
        match bytes.first() {
            Some(&version) if version > Self::VERSION => {
                return Err(other_version("a newer", version, "use that version"));
            }
            Some(1) => return Err(other_version("an older", 1, "load the store again with bootstrap")),
            Some(0) => return Err(damaged("version=0")),
            _ => {}
        }
        let (head, rest) = bytes
            .split_first_chunk::<{ Self::ENCODED_MIN }>()
            .ok_or_else(|| damaged(&format!("bytes={} least={}", bytes.len(), Self::ENCODED_MIN)))?;
        let length = usize::from(u16::from_le_bytes([head[2], head[3]]));
        if head[1] != 0 || head[4..8] != [0; 4] || length > Self::BYTES_MAX {
            return Err(damaged("its head has a value that solkv never writes"));
        }
        let (bytes, rest) = rest
            .split_at_checked(length)
            .ok_or_else(|| damaged(&format!("bytes_named={length} bytes_there={}", rest.len())))?;
        let seq = u64::from_le_bytes(std::array::from_fn(|i| head[8 + i]));
        Ok((Self::new(seq, bytes), rest))
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checkpoint {{ seq: {}, bytes: {} (", self.seq, self.bytes.len())?;
        self.bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(") }")
    }
}

fn damaged(why: &str) -> Error {
    Error::new(ErrorKind::DataDamaged, format!("checkpoint is damaged: {why}"))
}

fn other_version(which: &str, version: u8, way_out: &str) -> Error {
    Error::new(
        ErrorKind::FixInput,
        format!("checkpoint was written by {which} solkv: version={version} known={}: {way_out}", Checkpoint::VERSION),
    )
}

/// Failures that a commit survives once it has returned.
///
/// | | process killed | OS crash or power loss |
/// |---|---|---|
/// | `Buffered` | kept | the newest commits may be missing, never a part of one; the state is that of a checkpoint |
/// | `Synced` | kept | kept, provided the device honours a flush |
///
/// The documentation of each engine's crate names the flags that implement its two rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The commit is handed to the kernel and not flushed. A power loss may undo the newest ones.
    Buffered,
    /// The commit is flushed to the device before it returns.
    #[default]
    Synced,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_at_every_length() {
        for length in [0, 1, 63, 64, 255, 256, Checkpoint::BYTES_MAX] {
            let bytes: Vec<u8> = (0..length).map(|n| n as u8 ^ 0xa5).collect();
            let checkpoint = Checkpoint::new(u64::MAX - length as u64, &bytes);
            let mut encoded = checkpoint.encode().unwrap();
            assert_eq!(encoded.len(), Checkpoint::ENCODED_MIN + length);
            assert_eq!(Checkpoint::decode(&encoded).unwrap(), checkpoint);
            for cut in 0..encoded.len() {
                assert_eq!(
                    Checkpoint::decode(&encoded[..cut]).unwrap_err().kind(),
                    ErrorKind::DataDamaged,
                    "cut={cut}"
                );
            }
            encoded.extend_from_slice(b"rest");
            assert_eq!(Checkpoint::decode_first(&encoded).unwrap(), (checkpoint, b"rest".as_slice()));
            assert_eq!(Checkpoint::decode(&encoded).unwrap_err().kind(), ErrorKind::DataDamaged);
        }
    }

    #[test]
    fn a_byte_too_many_is_refused_on_the_way_in_and_on_the_way_out() {
        let long = Checkpoint::new(7, &[1; Checkpoint::BYTES_MAX + 1]);
        for refused in [long.check().unwrap_err(), long.encode().unwrap_err()] {
            assert_eq!(refused.kind(), ErrorKind::FixInput);
            assert!(refused.to_string().contains("bytes=1025 most=1024"), "{refused}");
        }
        let mut encoded = Checkpoint::new(7, &[1; Checkpoint::BYTES_MAX]).encode().unwrap();
        encoded[2..4].copy_from_slice(&1025u16.to_le_bytes());
        encoded.push(1);
        assert_eq!(Checkpoint::decode(&encoded).unwrap_err().kind(), ErrorKind::DataDamaged);
    }

    #[test]
    fn other_versions_are_refused_by_name_and_damage_is_damage() {
        // The 64 bytes of a checkpoint of version 1.
        let mut old = [0; 64];
        old[0] = 1;
        let older = Checkpoint::decode(&old).unwrap_err();
        assert_eq!(older.kind(), ErrorKind::FixInput);
        assert!(older.to_string().contains("an older solkv: version=1 known=2: load the store again"), "{older}");
        let sound = Checkpoint::new(3, &[5; 20]).encode().unwrap();
        let mut newer = sound.clone();
        newer[0] = 3;
        let newer = Checkpoint::decode(&newer).unwrap_err();
        assert_eq!(newer.kind(), ErrorKind::FixInput);
        assert!(newer.to_string().contains("a newer solkv: version=3"), "{newer}");
        for at in [1, 4, 5, 6, 7] {
            let mut damaged = sound.clone();
            damaged[at] = 1;
            assert_eq!(Checkpoint::decode(&damaged).unwrap_err().kind(), ErrorKind::DataDamaged, "at={at}");
        }
        assert_eq!(Checkpoint::decode(&[]).unwrap_err().kind(), ErrorKind::DataDamaged);
        assert_eq!(Checkpoint::decode(&[0; 16]).unwrap_err().kind(), ErrorKind::DataDamaged);
    }
}
