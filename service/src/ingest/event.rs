//! An account update after extraction, and a whole slot of such updates.

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
    /// Slot of the parent block: usually one less than `slot`, older where slots were skipped.
    pub parent_slot: u64,
    pub parent_blockhash: [u8; 32],
    /// When the server made the block meta, in ms since the Unix epoch; 0 when the server does not say.
    pub created_unix_ms: u64,
    /// Account updates of the slot. After assembly at most one a key remains: the last write wins.
    pub events: Vec<Event>,
}
