//! Messages of a dump: ranges of pairs, and before each range the changes of the keys sent so far.
//!
//! Owns: the order of the messages; `feed::dump` explains why it gives one consistent map. Must not: ask for the next
//! range before the last one was passed on. Threads: the subscriber's task on the network edge.

use bytes::Bytes;
use engine_api::{ErrorKind, Key};
use proto::v1::subscribe_response::Kind;
use proto::v1::{DumpEnd, DumpPairs};

use super::subscription::{CHANGES_PER_MESSAGE, Ended, Subscription, closing};
use crate::ask::places::Taking;
use crate::ask::refusal::{Cause, Refusal};
use crate::feed::{DumpError, DumpRange, Scope, Tail};

/// Bytes of pairs in one message: enough that the cost of a message is small, and few enough that sixteen may be
/// queued.
const PAIRS_BYTES: usize = 1024 * 64;

/// The dump at the beginning of a subscription.
pub(super) struct Dump {
    /// The last key that the subscriber already has; `None` for a dump from the beginning.
    pub(super) after: Option<Key>,
    /// The place among all dumps, released when the dump ends.
    pub(super) _place: Taking,
}

impl Subscription {
    /// Sends the rest of the map, after the keys that the subscriber already has. Returns the position from which the
    /// tail continues.
    pub(super) async fn dump(&mut self, mut tail: Tail, dump: Dump) -> Result<Tail, Ended> {
        let (mut after, mut pairs) = (dump.after, 0);
        loop {
            let range = self.workers.dumps().range(self.filter.clone(), after).await.map_err(failed)?;
            self.published(range.seq).await?;
            // Changes of keys that the subscriber already has; before the first range there are none.
            let mut more = after.is_some();
            let scope = Scope { last_seq: range.seq, last_key: after, most: CHANGES_PER_MESSAGE };
            while more {
                (tail, more) = self.piece(tail, scope).await?;
            }
            tail.skip_to(range.seq + 1);
            self.told_seq = range.seq;
            pairs += range.packed_pairs.len() as u64 / 64;
            let (seq, slot) = (range.seq, range.slot);
            after = range.through;
            self.pairs(range).await?;
            if after.is_none() {
                self.send(Kind::DumpEnd(DumpEnd { seq, slot, pairs })).await?;
                return Ok(tail);
            }
        }
    }

    async fn pairs(&mut self, range: DumpRange) -> Result<(), Ended> {
        // The last range ends with the greatest possible key.
        let through = range.through.unwrap_or([0xff; 32]);
        let mut rest = Bytes::from(range.packed_pairs);
        loop {
            let packed_pairs = rest.split_to(rest.len().min(PAIRS_BYTES));
            let last_key = || packed_pairs.rchunks_exact(64).next().map(|pair| Bytes::copy_from_slice(&pair[..32]));
            let through_key =
                last_key().filter(|_| !rest.is_empty()).unwrap_or_else(|| Bytes::copy_from_slice(&through));
            self.send(Kind::DumpPairs(DumpPairs { packed_pairs, seq: range.seq, through_key })).await?;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }
}

fn failed(error: DumpError) -> Ended {
    Some(match error {
        DumpError::Stopped => closing(),
        // The store is between two slots for a while.
        DumpError::Engine(error) if error.kind() == ErrorKind::Retry => {
            Refusal::new(Cause::Unavailable, error.to_string())
        }
        DumpError::Engine(error) => {
            tracing::error!(%error, "a dump for a subscriber failed");
            Refusal::new(Cause::Internal, error.to_string())
        }
    })
}
