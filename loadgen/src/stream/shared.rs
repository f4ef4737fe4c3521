//! The state that all feeds of a stream share: the log, the keys, and the ways in which the server differs from a stock one.
//!
//! Owns: nothing else. Must not: send. Read on every feed's task.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::sync::Semaphore;

use crate::stream::account::Extract;
use crate::stream::chain::Block;
use crate::stream::keys::Keys;
use crate::stream::log::Log;
use crate::stream::options::Delivery;

/// State that all feeds of a server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) log: Log,
    /// Keys and values of the updates.
    pub(crate) keys: Arc<Keys>,
    /// Shape of the accounts in updates.
    pub(crate) extract: Extract,
    /// Pace and faults, and the kind of server that the stream is like.
    pub(crate) delivery: Delivery,
    /// Index of the event at which the next connection is cut. It is counted on the chain and not on connections,
    /// because a replay must not bring the cut forward. Otherwise a small period would never let a follower get on.
    pub(crate) next_cut: AtomicU64,
    /// Places for subscriptions; `None` without a limit.
    pub(crate) places: Option<Arc<Semaphore>>,
    /// Number of account updates sent to all subscribers.
    pub(crate) sent_events: AtomicU64,
}

impl Shared {
    /// Returns the blockhash that the block's meta has.
    pub(crate) fn told_hash(&self, block: &Block) -> [u8; 32] {
        if self.delivery.lies_at == Some(block.slot) { block.hash.map(|byte| !byte) } else { block.hash }
    }

    /// Returns the bank id that the block's messages have; 0 for none.
    pub(crate) fn told_bank(&self, block: &Block) -> u64 {
        if self.delivery.no_bank_ids { 0 } else { block.bank }
    }
}
