//! [`ChainCheckpoint`]: the part of an engine's checkpoint that describes a chain, and its bytes.
//!
//! Owns: the layout, version 1. Must not: accept bytes that no chain checkpoint has, or guess at an unknown version.

use std::fmt;

use engine_api::{Checkpoint, Error, ErrorKind, Key, Result};
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Identifies the source that a load's position refers to. A resume from a different source can then be refused instead
/// of silently mixing the two. Zero means no source.
pub type SourceId = u64;

/// How much of the map a store holds, stored with each batch. It does not say whether the service is up to date now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MapPhase {
    /// Only part of the map: a load has not finished.
    Loading,
    /// The whole map, as of the checkpoint's slot.
    #[default]
    Ready,
    /// A gap is being closed from another source. Keys below `next_key` are as of `to_slot`, the others still as of the
    /// checkpoint's slot. Healing continues at `next_key`.
    Healing {
        /// Slot to which the map is being brought.
        to_slot: u64,
        /// First key that was not looked at yet.
        next_key: Key,
    },
}

impl fmt::Display for MapPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loading => f.write_str("loading"),
            Self::Ready => f.write_str("ready"),
            Self::Healing { .. } => f.write_str("healing"),
        }
    }
}

/// An engine's checkpoint, with its bytes decoded into a chain's position.
///
/// The default is the checkpoint of a new store: slot and source are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainCheckpoint {
    /// Number of the last applied write, the same as [`Checkpoint::seq`].
    pub seq: u64,
    /// Last slot that was applied as a whole. `None` until a slot is known.
    pub slot: Option<u64>,
    /// Blockhash of `slot`. All-zero when the slot came from outside a stream (`bootstrap --slot`).
    pub blockhash: [u8; 32],
    /// Source that the load's position refers to.
    pub source: SourceId,
    /// How much of the map the store holds.
    pub phase: MapPhase,
}

const MAGIC: [u8; 4] = *b"solc";
const VERSION: u8 = 1;
const LOADING: u8 = 1;
const READY: u8 = 2;
const HEALING: u8 = 3;

/// Layout of version 1. Fields that do not apply are zero.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, PartialEq, Eq)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    version: u8,
    phase: u8,
    has_slot: u8,
    zero: u8,
    slot: U64,
    source: U64,
    blockhash: [u8; 32],
    healing_to_slot: U64,
    healing_next_key: Key,
}

const _: () = assert!(size_of::<Raw>() == 96 && size_of::<Raw>() <= Checkpoint::BYTES_MAX);

impl ChainCheckpoint {
    /// Decodes the chain's position from a store's checkpoint. A checkpoint without bytes gives the default, with its
    /// `seq`.
    ///
    /// # Errors
    /// [`ErrorKind::FixInput`] for bytes that are not a chain checkpoint, or are of a newer version;
    /// [`ErrorKind::DataDamaged`] for a chain checkpoint that contradicts itself.
    pub fn read(checkpoint: &Checkpoint) -> Result<Self> {
        let bytes = &*checkpoint.bytes;
        if bytes.is_empty() {
            return Ok(Self { seq: checkpoint.seq, ..Self::default() });
        }
        let Some(&version) = bytes.strip_prefix(&MAGIC).and_then(<[u8]>::first) else {
            return Err(Error::new(
                ErrorKind::FixInput,
                format!(
                    "not a chain's checkpoint: bytes={}: a program that is not solkv's wrote this store",
                    bytes.len()
                ),
            ));
        };
        if version > VERSION {
            return Err(Error::new(
                ErrorKind::FixInput,
                format!(
                    "the chain's checkpoint was written by a newer solkv: version={version} known={VERSION}: use that \
                     version"
                ),
            ));
        }
        let raw = Raw::read_from_bytes(bytes).map_err(|_| damaged(&format!("bytes={}", bytes.len())))?;
        let phase = match raw.phase {
            LOADING => MapPhase::Loading,
            READY => MapPhase::Ready,
            HEALING => MapPhase::Healing { to_slot: raw.healing_to_slot.get(), next_key: raw.healing_next_key },
            other => return Err(damaged(&format!("phase={other}"))),
        };
        let found = Self {
            seq: checkpoint.seq,
            slot: (raw.has_slot == 1).then(|| raw.slot.get()),
            blockhash: raw.blockhash,
            source: raw.source.get(),
            phase,
        };
        // Every checkpoint has exactly one encoding. This finds flags that are neither 0 nor 1, a slot without its
        // flag, and a healing key in another phase.
        if found.raw() != raw {
            return Err(damaged("it has a value that solkv never writes"));
        }
        Ok(found)
    }

    /// Encodes it as an engine's checkpoint, ready to commit.
    pub fn write(&self) -> Checkpoint {
        Checkpoint::new(self.seq, self.raw().as_bytes())
    }

    /// Fails for a store that does not hold the whole map of one slot.
    ///
    /// # Errors
    /// [`ErrorKind::FixInput`] with the phase, for [`MapPhase::Loading`] and [`MapPhase::Healing`].
    pub fn refuse_unless_whole(&self) -> Result<()> {
        let way_out = match self.phase {
            MapPhase::Ready => return Ok(()),
            MapPhase::Loading => "continue with bootstrap --resume, or remove the directory and load again",
            MapPhase::Healing { .. } => "start the service with --heal-from, which goes on with it, or load again",
        };
        Err(Error::new(
            ErrorKind::FixInput,
            format!("the store does not hold the whole map: phase={} seq={}: {way_out}", self.phase, self.seq),
        ))
    }

    /// Says how the heal of a copied store ends; `None` if no heal was under way.
    fn unfinished_heal(&self) -> Option<String> {
        let MapPhase::Healing { to_slot, .. } = self.phase else { return None };
        let slot = self.slot.map_or("none".to_owned(), |slot| slot.to_string());
        Some(format!(
            "the store that was copied is in the middle of a heal, and so is the copy: slot={slot} to_slot={to_slot}: a service \
             answers no lookup from it until the heal has ended, and goes on with the heal if it has heal_from"
        ))
    }

    fn raw(&self) -> Raw {
        let (phase, to_slot, next_key) = match self.phase {
            MapPhase::Loading => (LOADING, 0, [0; 32]),
            MapPhase::Ready => (READY, 0, [0; 32]),
            MapPhase::Healing { to_slot, next_key } => (HEALING, to_slot, next_key),
        };
        Raw {
            magic: MAGIC,
            version: VERSION,
            phase,
            has_slot: u8::from(self.slot.is_some()),
            zero: 0,
            slot: self.slot.unwrap_or(0).into(),
            source: self.source.into(),
            blockhash: self.blockhash,
            healing_to_slot: to_slot.into(),
            healing_next_key: next_key,
        }
    }
}

/// Writes seq, slot and blockhash in the form that every program prints.
impl fmt::Display for ChainCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slot = self.slot.map_or("none".to_owned(), |slot| slot.to_string());
        // An all-zero blockhash means that no block is known yet.
        let known = Some(self.blockhash).filter(|blockhash| *blockhash != [0; 32]);
        let blockhash = known.map_or("none".to_owned(), |blockhash| bs58::encode(blockhash).into_string());
        write!(f, "seq={} slot={slot} blockhash={blockhash}", self.seq)
    }
}

/// Formats any store's checkpoint for a person: the chain's position, or the reason why it has none.
pub fn shown(checkpoint: &Checkpoint) -> String {
    match ChainCheckpoint::read(checkpoint) {
        Ok(found) => found.to_string(),
        Err(error) => format!("seq={} {error}", checkpoint.seq),
    }
}

/// Formats the checkpoint of a copy as [`shown`] does, with the phase. If a heal was under way, a second line says how it
/// ends.
pub fn shown_of_copy(checkpoint: &Checkpoint) -> String {
    match ChainCheckpoint::read(checkpoint) {
        Ok(found) => {
            let heal = found.unfinished_heal().map_or(String::new(), |words| format!("\n{words}"));
            format!("{found} phase={}{heal}", found.phase)
        }
        Err(_) => shown(checkpoint),
    }
}

fn damaged(why: &str) -> Error {
    Error::new(ErrorKind::DataDamaged, format!("the chain's checkpoint is damaged: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> [ChainCheckpoint; 4] {
        let full = ChainCheckpoint {
            seq: u64::MAX,
            slot: Some(0),
            blockhash: [0xff; 32],
            source: u64::MAX,
            phase: MapPhase::Healing { to_slot: u64::MAX, next_key: [0xff; 32] },
        };
        [
            ChainCheckpoint::default(),
            full,
            ChainCheckpoint { phase: MapPhase::Loading, slot: None, ..full },
            ChainCheckpoint { phase: MapPhase::Ready, slot: Some(u64::MAX), ..full },
        ]
    }

    #[test]
    fn a_copy_is_shown_with_its_phase_and_the_end_of_a_heal_that_is_left() {
        let store = ChainCheckpoint { seq: 5, slot: Some(7), ..ChainCheckpoint::default() };
        assert_eq!(shown_of_copy(&store.write()), "seq=5 slot=7 blockhash=none phase=ready");
        let phase = MapPhase::Healing { to_slot: 40, next_key: [1; 32] };
        let said = shown_of_copy(&ChainCheckpoint { phase, ..store }.write());
        let (line, words) = said.split_once('\n').unwrap();
        assert_eq!(line, "seq=5 slot=7 blockhash=none phase=healing");
        assert!(words.contains("slot=7 to_slot=40") && words.contains("heal_from"), "{words}");
        assert!(shown_of_copy(&Checkpoint::new(5, b"other")).starts_with("seq=5 not a chain's checkpoint"));
    }

    #[test]
    fn what_is_written_is_read_and_a_store_that_is_new_says_nothing() {
        for sample in samples() {
            assert_eq!(ChainCheckpoint::read(&sample.write()).unwrap(), sample);
            assert_eq!(sample.write().bytes.len(), 96);
        }
        assert_eq!(ChainCheckpoint::read(&Checkpoint::default()).unwrap(), ChainCheckpoint::default());
        let counted = ChainCheckpoint { seq: 5, ..ChainCheckpoint::default() };
        assert_eq!(ChainCheckpoint::read(&Checkpoint::new(5, &[])).unwrap(), counted);
    }

    #[test]
    fn a_byte_changed_is_another_checkpoint_or_an_error() {
        for sample in samples() {
            let written = sample.write();
            for at in 0..written.bytes.len() {
                for byte in 0..=u8::MAX {
                    let mut bytes = written.bytes.to_vec();
                    bytes[at] = byte;
                    let changed = Checkpoint::new(sample.seq, &bytes);
                    if let Ok(found) = ChainCheckpoint::read(&changed) {
                        assert_eq!(found.write(), changed, "at={at} byte={byte}");
                    }
                }
            }
            for length in 1..written.bytes.len() {
                assert!(ChainCheckpoint::read(&Checkpoint::new(1, &written.bytes[..length])).is_err(), "{length}");
            }
        }
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let kind_of = |bytes: &[u8]| {
            let error = ChainCheckpoint::read(&Checkpoint::new(9, bytes)).unwrap_err();
            (error.kind(), error.to_string())
        };
        let (kind, message) = kind_of(b"another program's");
        assert!(kind == ErrorKind::FixInput && message.contains("not a chain's checkpoint: bytes=17"), "{message}");
        assert_eq!(kind_of(b"solc").0, ErrorKind::FixInput, "too short for a version");
        let mut bytes = samples()[1].write().bytes.to_vec();
        bytes[4] = 2;
        // A newer version is reported as such at any length.
        for bytes in [&bytes[..], &bytes[..50]] {
            let (kind, message) = kind_of(bytes);
            assert!(kind == ErrorKind::FixInput && message.contains("newer solkv: version=2 known=1"), "{message}");
        }
        bytes[4] = 1;
        for (at, byte) in [(5, 0), (5, 4), (6, 2), (7, 1)] {
            let mut damaged = bytes.clone();
            damaged[at] = byte;
            assert_eq!(kind_of(&damaged).0, ErrorKind::DataDamaged, "at={at}");
        }
        assert_eq!(kind_of(&bytes[..95]).0, ErrorKind::DataDamaged);
    }

    #[test]
    fn only_a_store_that_is_ready_is_gone_on_from() {
        let [ready, healing, loading, _] = samples();
        assert!(ready.refuse_unless_whole().is_ok());
        for (unfinished, phase) in [(healing, "phase=healing"), (loading, "phase=loading")] {
            let refused = unfinished.refuse_unless_whole().unwrap_err();
            assert!(refused.kind() == ErrorKind::FixInput && refused.to_string().contains(phase), "{refused}");
        }
    }

    #[test]
    fn any_checkpoint_can_be_shown() {
        let chain = ChainCheckpoint { seq: 3, slot: Some(7), ..ChainCheckpoint::default() };
        assert_eq!(shown(&chain.write()), "seq=3 slot=7 blockhash=none");
        let known = ChainCheckpoint { blockhash: [1; 32], ..chain };
        assert_eq!(shown(&known.write()), format!("seq=3 slot=7 blockhash={}", bs58::encode([1; 32]).into_string()));
        assert_eq!(shown(&Checkpoint::default()), "seq=0 slot=none blockhash=none");
        assert!(shown(&Checkpoint::new(3, b"other")).starts_with("seq=3 not a chain's checkpoint: bytes=5"));
    }
}
