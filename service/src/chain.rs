//! Plain types of the chain that several parts of the service speak of.
//!
//! Owns: their meaning. Must not: depend on anything else of the service, do I/O, or hold state.

/// The greatest slot that is taken for one, exclusive. At five slots a second the chain gets there in seven thousand
/// years, so a higher number is no slot: a Yellowstone server that has just started answers `u64::MAX` for "none yet".
pub const SLOT_END: u64 = 1 << 40;

/// Slots that are missing, both ends included.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Gap {
    /// First missing slot.
    pub first_slot: u64,
    /// Last missing slot.
    pub last_slot: u64,
    /// What was seen that shows the gap.
    pub detail: String,
}

/// Where the service stands on the chain, as far as events tell. Whether it is ready depends on the clock as well: see
/// [`Readiness`](crate::readiness::Readiness).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Opening the store.
    Starting,
    /// No slot was applied yet since the start, a gap or a commit that had to wait.
    CatchingUp,
    /// The newest thing that happened is that a whole slot was applied.
    Live,
    /// Slots are missing. The stream is asked for them again and again.
    Gap(Gap),
    /// The disk is full, in the engine's words. The commit is tried again.
    NoSpace(String),
    /// A commit lacks something else that may come back, such as descriptors, in the engine's words. It is tried again.
    CommitWaits(String),
}
