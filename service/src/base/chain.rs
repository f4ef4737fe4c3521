//! Plain types of the chain that several parts of the service share.
//!
//! Owns: their meaning. Must not: depend on anything else of the service, do I/O, or hold state.

use std::collections::HashMap;

use foldhash::fast::RandomState;

/// A map by the chain's keys. The standard library's hasher takes an eighth of ingest-apply's time with a store in
/// memory. This one has a seed of its own in each map, which nobody who chooses keys can learn.
pub(crate) type KeyMap<V> = HashMap<[u8; 32], V, RandomState>;

/// Upper bound of slots, exclusive. At five slots a second the chain reaches it in seven thousand years, so a higher
/// number is no slot. Messages, answers and checkpoints with one are refused where they come in, so the rest of the
/// service may add to a slot.
pub(crate) const SLOT_END: u64 = 1 << 40;

/// The block that the data stands at. The next slot handed out is its child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Base {
    pub slot: u64,
    /// Blockhash of the slot; all zeros when not known.
    pub blockhash: [u8; 32],
}

/// The message that the block of a slot is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockMeta {
    pub base: Base,
    pub parent: Base,
    /// When the server made this message, in ms since the Unix epoch; 0 when the server does not say.
    pub created_unix_ms: u64,
}

/// One account update after extraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Address of the account; the key in the map.
    pub key: [u8; 32],
    /// The extracted value; `None` when the account is closed or no longer watched.
    pub value: Option<[u8; 32]>,
    /// Order of several updates of one account within one slot, as one server numbers them. Not comparable between
    /// slots or servers.
    pub write_version: u64,
}

/// A confirmed slot with all its updates, in the order in which they arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeSlot {
    pub slot: u64,
    pub blockhash: [u8; 32],
    /// The block that this slot follows: usually that of the slot before, older where slots were skipped.
    pub parent: Base,
    /// When the block was made, as far as its block meta tells, in ms since the Unix epoch; 0 when it does not.
    pub created_unix_ms: u64,
    /// Account updates of the slot. After assembly at most one a key remains: the last write wins.
    pub events: Vec<Event>,
    /// Number of the first of these that belong to slots before this one, because they came late.
    pub late: usize,
}

impl WholeSlot {
    /// Returns this slot's block, which the next slot follows.
    pub fn base(&self) -> Base {
        Base { slot: self.slot, blockhash: self.blockhash }
    }

    /// The updates that belong to this slot.
    pub fn own_events(&self) -> &[Event] {
        &self.events[self.late..]
    }
}

/// How settled the data of an answer are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Commitment {
    /// State of the newest bank on the processed fork; it may still vanish.
    Processed,
    /// State that the engine holds.
    #[default]
    Confirmed,
    /// State at the newest rooted slot.
    Finalized,
}

impl Commitment {
    const NAMES: [(Self, &str); 3] =
        [(Self::Processed, "processed"), (Self::Confirmed, "confirmed"), (Self::Finalized, "finalized")];

    /// Returns the commitment of this name, in letters of any case.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(_, known)| known.eq_ignore_ascii_case(name)).map(|(commitment, _)| commitment)
    }

    pub(crate) fn name(self) -> &'static str {
        Self::NAMES.into_iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }

    /// Returns the commitment with this number in a request; none given means confirmed. `None` if no commitment has it.
    pub(crate) fn from_wire(number: i32) -> Option<Self> {
        use proto::v1::Commitment as Wire;
        Some(match Wire::try_from(number).ok()? {
            Wire::Processed => Self::Processed,
            Wire::Unspecified | Wire::Confirmed => Self::Confirmed,
            Wire::Finalized => Self::Finalized,
        })
    }
}

/// A range of missing slots, both ends included.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Gap {
    pub first_slot: u64,
    pub last_slot: u64,
    /// Observation that showed the gap, in words.
    pub detail: String,
    /// Whether the stream contradicts a block that is applied, by a blockhash or a parent. Otherwise slots are missing.
    pub contradicts: bool,
}

/// A contradiction of the applied chain by a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contradiction {
    pub gap: Gap,
    /// Index of the provider that had brought the newest slot, which the contradiction is of. `None` if it is not known:
    /// then it is the first one that goes on with the store's chain.
    pub accused: Option<usize>,
}

/// State of the service relative to the chain, as far as events show it. Readiness depends on the clock as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The store is being opened.
    Starting,
    /// The store is loaded from an archive; holds the progress in words.
    Loading(String),
    /// No slot has been applied since the start, a gap, or a commit that had to wait.
    CatchingUp,
    /// The newest event is that a whole slot was applied.
    Live,
    /// Slots are missing. The service asks the stream for them repeatedly.
    Gap(Gap),
    /// A gap is being closed from snapshot archives; holds the progress in words.
    Healing(String),
    /// The disk is full; holds the engine's message. The commit is retried.
    NoSpace(String),
    /// A commit lacks another resource that may become available, such as file descriptors; holds the engine's message.
    /// The commit is retried.
    CommitWaits(String),
}
