//! Asks the providers that send no slots at the moment for their newest slot.
//!
//! Owns: when they are asked, and whether an answer is plausible. Must not: subscribe, or choose the provider to follow.
//! Runs on the receiver's task.
//!
//! The answers show whether a takeover would work before it is needed, whether the followed provider lags, and how far the
//! store does. A distrusted provider is not asked.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::State;
use super::subscribe::Commitment;
use super::upstream::Upstream;
use crate::base::chain::SLOT_END;
use crate::base::plausible::reach;

/// Time between two rounds of questions. A round takes up to [`ANSWER_TIMEOUT`] longer.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// Maximum time for an answer, a new connection included.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks until dropped. `upstreams` are in the order of the providers in `state`.
pub(super) async fn probe<U: Upstream>(upstreams: &[U], state: &State, commitment: Commitment) {
    let providers = &state.providers;
    if upstreams.len() < 2 {
        std::future::pending::<()>().await;
    }
    loop {
        sleep(ASK_EVERY).await;
        let sends = |index: usize| providers.is_followed(index) && !providers.is_failing(index);
        let is_asked = |index: usize| !sends(index) && !providers.is_distrusted(index);
        let others = upstreams.iter().enumerate().filter(|(index, _)| is_asked(*index));
        join_all(others.map(|(index, upstream)| ask(index, upstream, state, commitment))).await;
    }
}

async fn ask<U: Upstream>(index: usize, upstream: &U, state: &State, commitment: Commitment) {
    let providers = &state.providers;
    let provider = providers.name(index);
    let why = match timeout(ANSWER_TIMEOUT, upstream.newest_slot(commitment)).await {
        Ok(Ok(slot)) => match implausible(slot, state) {
            Some(why) => {
                // It is evidence beside another provider's message all the same.
                providers.claim(index, slot);
                format!("the server says that its newest slot is slot={slot}, {why}")
            }
            None => {
                providers.set_newest_slot(index, slot);
                // The subscription alone shows whether a followed provider works.
                if providers.is_failing(index) && !providers.is_followed(index) {
                    info!(provider, slot, "the provider answers again");
                    providers.works(index);
                }
                return;
            }
        },
        Ok(Err(why)) => upstream.masked(&why),
        Err(_) => format!("no answer within {ANSWER_TIMEOUT:?}"),
    };
    providers.forget_newest(index);
    if !providers.is_followed(index) && providers.failed(index, &why) {
        warn!(provider, "the provider could not take over: {why}");
    }
}

/// Returns why no provider can have this slot; `None` if one can, or if the age of the store is unknown.
fn implausible(slot: u64, state: &State) -> Option<String> {
    if slot >= SLOT_END {
        return Some("which no chain has".to_owned());
    }
    let (applied, reach) = (state.published.slot()?, state.progress.applied_age().map(|age| reach(Some(age)))?);
    let is_beyond = slot > applied.saturating_add(reach);
    is_beyond.then(|| format!("which is more than reach={reach} slots above the applied slot={applied}"))
}
