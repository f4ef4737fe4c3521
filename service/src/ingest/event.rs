//! What an account update comes down to, and a whole slot of them.

/// One account update after extraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The account's address.
    pub key: [u8; 32],
    /// The extracted value; `None` when the account is closed or no longer watched.
    pub value: Option<[u8; 32]>,
    /// Orders several updates of one account within one slot on one server; means nothing beyond.
    pub write_version: u64,
}

/// A confirmed slot with everything in it, in the order it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeSlot {
    /// The slot's number.
    pub slot: u64,
    /// Its blockhash.
    pub blockhash: [u8; 32],
    /// Slot of its parent: usually one less, older where slots were skipped.
    pub parent_slot: u64,
    /// Blockhash of its parent.
    pub parent_blockhash: [u8; 32],
    /// When the server made the block meta, ms since the Unix epoch; 0 when it does not say.
    pub created_unix_ms: u64,
    /// Updates, at most one a key after assembly (the last write wins).
    pub events: Vec<Event>,
}
