//! Plain types of the chain that several parts of the service share.
//!
//! Owns: their meaning. Must not: depend on anything else of the service, do I/O, or hold state.

/// Upper bound of slots, exclusive. At five slots a second the chain reaches it in seven thousand years, so a higher
/// number is no slot: a Yellowstone server that has just started answers `u64::MAX` for "none yet".
pub const SLOT_END: u64 = 1 << 40;

/// A range of missing slots, both ends included.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Gap {
    pub first_slot: u64,
    pub last_slot: u64,
    /// Observation that showed the gap, in words.
    pub detail: String,
}

/// State of the service relative to the chain, as far as events show it. Readiness depends on the clock as well: see
/// [`Readiness`](crate::readiness::Readiness).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The store is being opened.
    Starting,
    /// No slot has been applied since the start, a gap, or a commit that had to wait.
    CatchingUp,
    /// The newest event is that a whole slot was applied.
    Live,
    /// Slots are missing. The service asks the stream for them repeatedly.
    Gap(Gap),
    /// The disk is full; holds the engine's message. The commit is retried.
    NoSpace(String),
    /// A commit lacks another resource that may become available, such as file descriptors; holds the engine's message.
    /// The commit is retried.
    CommitWaits(String),
}
