//! What a subscriber is sent of a dump: ranges of pairs, and before each the changes of the keys sent so far.
//!
//! Owns: the order of the messages; `feed::dump` says why it gives one map. Must not: ask for the next range before the
//! last one was handed over. Threads: the subscriber's task on the network edge.

use bytes::Bytes;
use proto::v1::subscribe_response::Kind;
use proto::v1::{DumpEnd, DumpPairs};
use tonic::Status;

use super::feed::{CHANGES_PER_MESSAGE, Dump, Ended, Subscription, closing};
use crate::feed::{DumpError, DumpRange, Scope, Tail};

/// Bytes of the pairs of one message: large enough that a message costs little, small enough to be held sixteen at a time.
const PAIRS_BYTES: usize = 1024 * 64;

impl Subscription {
    /// Sends the rest of the map after the keys that the subscriber has. Gives the place from which the tail goes on.
    pub(super) async fn dump(&mut self, mut tail: Tail, dump: Dump) -> Result<Tail, Ended> {
        let (mut after, mut pairs) = (dump.after, 0);
        loop {
            let range = self.workers.dumps().range(self.filter.clone(), after).await.map_err(failed)?;
            self.published(range.seq).await?;
            // Of the keys that the subscriber has; before the first range it has none.
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
        // The end of the last range is that of all keys.
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
        DumpError::Engine(error) => {
            tracing::error!(%error, "a dump for a subscriber failed");
            Status::internal(error.to_string())
        }
    })
}
