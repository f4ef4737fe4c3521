//! The service's account of itself: the answer to the question how it is.
//!
//! Owns: the content of this answer, which the Status rpc, `/status.json`, the dashboard and shared memory give alike.
//! Must not: block; every read is wait-free. Any thread.

use bytes::Bytes;
use proto::v1::{Checkpoint, Gap, StatusResponse};

use crate::ingest;

/// State of which the answer is made. Clones share it.
#[derive(Clone, Debug)]
pub struct Status {
    /// Label of the engine, as answers and metrics name it.
    pub engine: &'static str,
    pub ingest: ingest::State,
}

impl Status {
    /// Returns the answer at this moment.
    pub fn response(&self) -> StatusResponse {
        let checkpoint = self.ingest.published.checkpoint();
        let verdict = self.ingest.verdict();
        StatusResponse {
            engine: self.engine.to_owned(),
            pairs_estimate: self.ingest.figures.stats.load().pairs_estimate,
            checkpoint: Some(Checkpoint {
                seq: checkpoint.seq,
                slot: checkpoint.slot,
                blockhash: Bytes::copy_from_slice(&checkpoint.blockhash),
            }),
            lag_slots: self.ingest.lag_slots(),
            lag_ms: verdict.lag_ms,
            ready: verdict.is_ready(),
            not_ready_reason: verdict.not_ready.unwrap_or_default(),
            gap: verdict.gap.map(|gap| Gap {
                first_slot: gap.first_slot,
                last_slot: gap.last_slot,
                detail: gap.detail,
            }),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}
