//! The moment at which only an archive can bring the store on.
//!
//! Owns: how long missing slots and a contradiction have to last. Must not: look for an archive. Runs on the task that
//! follows the stream.

use tokio::time::{Duration, Instant, sleep};

use super::LOOK_EVERY;
use crate::chain::Phase;
use crate::ingest::State;

/// How long slots have to be missing. Another provider would take over in less time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Returns once slots have been missing for [`PATIENCE`], or the store has stood at a contradicted block for `gap_timeout`
/// longer, in which another provider's block would have decided.
pub(crate) async fn needed(state: &State, gap_timeout: Duration) {
    let mut missing_since: Option<Instant> = None;
    let mut contradicted: Option<(Option<u64>, Instant)> = None;
    loop {
        let is_missing = matches!(state.readiness.phase(), Phase::Gap(gap) if !gap.contradicts);
        missing_since = is_missing.then(|| missing_since.unwrap_or_else(Instant::now));
        let slot = state.published.slot();
        contradicted = state.readiness.contradiction().map(|_| {
            let stands = contradicted.filter(|(contradicted_slot, _)| *contradicted_slot == slot);
            stands.unwrap_or_else(|| (slot, Instant::now()))
        });
        if missing_since.is_some_and(|since| since.elapsed() >= PATIENCE)
            || contradicted.is_some_and(|(_, since)| since.elapsed() >= PATIENCE + gap_timeout)
        {
            return;
        }
        sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use solana::ChainCheckpoint;
    use tokio::time::timeout;

    use super::*;
    use crate::chain::Gap;

    const GAP_TIMEOUT: Duration = Duration::from_secs(20);

    fn gap(contradicts: bool) -> Gap {
        Gap { first_slot: 8, last_slot: 8, detail: String::new(), contradicts }
    }

    fn at(slot: u64) -> ChainCheckpoint {
        ChainCheckpoint { slot: Some(slot), ..ChainCheckpoint::default() }
    }

    /// Whole seconds until a store is healed; `None` if it is not healed within an hour.
    async fn seconds(state: &State) -> Option<u64> {
        let begun = Instant::now();
        let healed = timeout(Duration::from_secs(3600), needed(state, GAP_TIMEOUT)).await;
        healed.ok().map(|()| begun.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn missing_slots_wait_for_a_takeover_and_a_contradiction_for_a_decision() {
        let state = State::at(at(7));
        assert_eq!(seconds(&state).await, None, "nothing is missing");
        state.readiness.set_phase(Phase::Gap(gap(false)));
        assert_eq!(seconds(&state).await, Some(5));
        state.readiness.set_phase(Phase::Gap(gap(true)));
        state.readiness.set_contradiction(gap(true));
        assert_eq!(seconds(&state).await, Some(25));
        state.readiness.set_phase(Phase::CatchingUp);
        assert_eq!(seconds(&state).await, Some(25), "the trusted provider brings nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_goes_on_is_not_healed_whatever_a_provider_says() {
        let state = State::at(at(7));
        state.readiness.set_contradiction(Gap { first_slot: u64::MAX, ..gap(true) });
        let goes_on = async {
            for slot in 8..100 {
                sleep(Duration::from_secs(20)).await;
                state.published.publish(at(slot));
            }
        };
        tokio::select! {
            () = needed(&state, GAP_TIMEOUT) => panic!("the store was not at a standstill"),
            () = goes_on => {}
        }
        assert_eq!(seconds(&state).await, Some(25));
    }
}
