//! The moment from which only an archive can close a gap.
//!
//! Owns: how long missing slots and a contradiction have to last. Must not: look for an archive. Runs on the task that
//! follows the stream.
//!
//! After a contradiction only a full archive heals, because the fork may have begun before the newest slot. Archive and
//! stream have to name the same block of the archive's slot, so one source alone changes nothing.

use tokio::time::{Duration, Instant, sleep};

use super::LOOK_EVERY;
use crate::base::chain::Phase;
use crate::ingest::State;

/// How long slots have to be missing. Another provider would take over in less time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// How long a contradicted store has to get nothing from the providers that are trusted. A stock server keeps the slots of a
/// minute, so one that returns later has a gap to heal anyway.
const SILENCE: Duration = Duration::from_secs(600);

/// Returns once slots have been missing for [`PATIENCE`]; or all providers have contradicted the store for `gap_timeout`
/// longer, in which another one's block would have decided; or the store is contradicted, and those that have not done so
/// have sent nothing for [`SILENCE`].
pub(crate) async fn needed(state: &State, gap_timeout: Duration) {
    let mut lasting: Option<(Reason, Instant)> = None;
    loop {
        let need = Reason::of(state);
        lasting = need.map(|need| {
            let before = lasting.and_then(|(before, since)| Some((before.with(need)?, since)));
            before.unwrap_or_else(|| (need, Instant::now()))
        });
        let patience = |need| match need {
            Reason::Missing => PATIENCE,
            Reason::Contradicted => PATIENCE + gap_timeout,
            Reason::Silence { .. } => SILENCE,
        };
        if lasting.is_some_and(|(need, since)| since.elapsed() >= patience(need)) {
            return;
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Reason to heal, if it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// The stream lacks slots, and contradicts nothing.
    Missing,
    /// Every provider contradicts the store.
    Contradicted,
    /// The store is contradicted, and is at this slot.
    Silence { slot: Option<u64> },
}

impl Reason {
    /// Returns this reason if it lasts with `later`. Providers may contradict the store and lack its slots by turns, which is a
    /// contradiction.
    fn with(self, later: Self) -> Option<Self> {
        match (self, later) {
            (Self::Contradicted, Self::Missing) | (Self::Missing, Self::Contradicted) => Some(Self::Contradicted),
            _ => (self == later).then_some(self),
        }
    }

    fn of(state: &State) -> Option<Self> {
        match state.progress.phase() {
            Phase::Gap(gap) => Some(if gap.contradicts { Self::Contradicted } else { Self::Missing }),
            Phase::CatchingUp | Phase::Live => {
                state.progress.contradiction().map(|_| Self::Silence { slot: state.published.slot() })
            }
            // A commit that waits is no silence.
            Phase::NoSpace(_) | Phase::CommitWaits(_) | Phase::Starting | Phase::Loading(_) | Phase::Healing(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use solana::ChainCheckpoint;
    use tokio::time::timeout;

    use super::*;
    use crate::base::chain::Gap;

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
        state.progress.set_phase(Phase::Gap(gap(false)));
        assert_eq!(seconds(&state).await, Some(5));
        state.progress.set_phase(Phase::Gap(gap(true)));
        assert_eq!(seconds(&state).await, Some(25));
        let by_turns = async {
            for turn in 0..1000 {
                state.progress.set_phase(Phase::Gap(gap(turn % 2 == 0)));
                sleep(Duration::from_secs(3)).await;
            }
        };
        let healed = tokio::select! {
            seconds = seconds(&state) => seconds,
            () = by_turns => None,
        };
        assert_eq!(healed, Some(25), "a contradiction, although the last provider lacks slots");
        state.progress.set_phase(Phase::CatchingUp);
        assert_eq!(seconds(&state).await, None, "a slow stream");
        state.progress.contradict(&gap(true), None);
        assert_eq!(seconds(&state).await, Some(600), "the trusted providers send nothing");
        state.progress.set_phase(Phase::NoSpace("full".to_owned()));
        assert_eq!(seconds(&state).await, None, "an archive brings no room");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_goes_on_is_not_healed_whatever_a_provider_says() {
        let state = State::at(at(7));
        state.progress.set_phase(Phase::Live);
        state.progress.contradict(&gap(true), Some(0));
        let goes_on = async {
            for slot in 8..100 {
                sleep(Duration::from_secs(400)).await;
                state.published.publish(at(slot));
            }
        };
        tokio::select! {
            () = needed(&state, GAP_TIMEOUT) => panic!("the store was not at a standstill"),
            () = goes_on => {}
        }
        assert_eq!(seconds(&state).await, Some(600));
    }
}
