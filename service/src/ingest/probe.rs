//! Asks the providers that are not followed for their newest slot.
//!
//! Owns: when they are asked. Must not: subscribe, or choose the provider to follow. Runs on the receiver's task.
//!
//! The answers show whether a takeover would work before it is needed, and whether the followed provider lags. A
//! distrusted provider is not asked.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::providers::Providers;
use super::subscribe::Commitment;
use super::upstream::Upstream;
use crate::chain::SLOT_END;

/// Time between two rounds of questions. A round takes up to [`ANSWER_TIMEOUT`] longer.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// Maximum time for an answer, a new connection included.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks until dropped. `upstreams` are in the order of `providers`.
pub(super) async fn probe<U: Upstream>(upstreams: &[U], providers: &Providers, commitment: Commitment) {
    if upstreams.len() < 2 {
        std::future::pending::<()>().await;
    }
    loop {
        sleep(ASK_EVERY).await;
        let is_asked = |index: usize| !providers.is_followed(index) && !providers.is_distrusted(index);
        let others = upstreams.iter().enumerate().filter(|(index, _)| is_asked(*index));
        join_all(others.map(|(index, upstream)| ask(index, upstream, providers, commitment))).await;
    }
}

async fn ask<U: Upstream>(index: usize, upstream: &U, providers: &Providers, commitment: Commitment) {
    let provider = providers.name(index);
    let why = match timeout(ANSWER_TIMEOUT, upstream.newest_slot(commitment)).await {
        Ok(Ok(slot)) if slot < SLOT_END => {
            providers.set_newest_slot(index, slot);
            if providers.is_failing(index) {
                info!(provider, slot, "the provider answers again");
                providers.works(index);
            }
            return;
        }
        Ok(Ok(slot)) => format!("the server says that its newest slot is slot={slot}, which no chain has"),
        Ok(Err(why)) => upstream.masked(&why),
        Err(_) => format!("no answer within {ANSWER_TIMEOUT:?}"),
    };
    if providers.failed(index, &why) {
        warn!(provider, "the provider could not take over: {why}");
    }
}
