//! The state that all feeds of a stream share: the log, the keys, and the ways in which the server differs from a stock one.
//!
//! Owns: nothing else. Must not: send. Read on every feed's task.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::sync::Semaphore;

use crate::stream::account::Extract;
use crate::stream::chain::Block;
use crate::stream::compress::Compression;
use crate::stream::filter::Limits;
use crate::stream::keys::Keys;
use crate::stream::like::Like;
use crate::stream::log::Log;

/// State that all feeds of a server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) log: Log,
    /// Keys and values of the updates.
    pub(crate) keys: Arc<Keys>,
    /// Shape of the accounts in updates.
    pub(crate) extract: Extract,
    /// Whether replays start earlier than asked.
    pub(crate) duplicates: bool,
    /// Whether blocks are confirmed later than they are processed, so that the two commitments see different streams.
    pub(crate) confirms_later: bool,
    /// Number of events between two cut connections; 0 for no cuts.
    pub(crate) disconnect_every: u64,
    /// Index of the event at which the next connection is cut. It is counted on the chain and not on connections,
    /// because a replay must not bring the cut forward. Otherwise a small period would never let a follower get on.
    pub(crate) next_cut: AtomicU64,
    /// Slot whose block meta has another blockhash than the chain.
    pub(crate) lies_at: Option<u64>,
    /// Kind of server that the stream is like.
    pub(crate) like: Like,
    /// Encoding that messages are compressed in.
    pub(crate) compression: Compression,
    pub(crate) filter_limits: Limits,
    /// Places for subscriptions; `None` without a limit.
    pub(crate) places: Option<Arc<Semaphore>>,
    /// Whether the calls that answer once are refused.
    pub(crate) unary_disabled: bool,
    /// Whether messages name their bank.
    pub(crate) bank_ids: bool,
    /// Number of account updates sent to all subscribers.
    pub(crate) sent_events: AtomicU64,
}

impl Shared {
    /// Returns the blockhash that the block's meta has.
    pub(crate) fn told_hash(&self, block: &Block) -> [u8; 32] {
        if self.lies_at == Some(block.slot) { block.hash.map(|byte| !byte) } else { block.hash }
    }

    /// Returns the bank id that the block's messages have; 0 for none.
    pub(crate) fn told_bank(&self, block: &Block) -> u64 {
        if self.bank_ids { block.bank } else { 0 }
    }
}
