//! Whether lookups stand for the live chain: one computation, by the clock, that every page, probe and metric asks.
//!
//! Owns: the limits, and what they are compared with. Must not: block; each read and write is wait-free. Writers are
//! ingest-apply (phase, applied slots) and the stream's receiver (trouble); any thread reads.
//!
//! Nothing here is a latch that somebody has to take back. What is stored are events with their times, and each reader
//! compares these with the clock, so that a stream that is dead, silent or slow, an ingest that is behind and a commit
//! that hangs all end readiness by themselves. Only a whole slot that was applied within the limits brings it back.

use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
// Outside of a simulation this is the machine's monotonic clock.
use tokio::time::Instant;

use crate::chain::{Gap, Phase};

/// While slots come as they should, the time since the newest one is no lag: the next is simply not there yet.
const BETWEEN_SLOTS: Duration = Duration::from_secs(1);

/// Upper bound on the words of a server in a reason, in bytes: probes and status lines show them.
const TROUBLE_BYTES_MAX: usize = 400;

/// Beyond these the service is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Age of the newest applied slot.
    pub max_lag: Duration,
    /// Slots between the newest heard of and the newest applied.
    pub max_lag_slots: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_lag: Duration::from_secs(10), max_lag_slots: 150 }
    }
}

/// The events that readiness follows from.
#[derive(Debug)]
pub struct Readiness {
    limits: ArcSwap<Limits>,
    phase: ArcSwap<Phase>,
    applied: ArcSwapOption<Applied>,
    trouble: ArcSwapOption<String>,
}

/// The newest slot that was applied since the start.
#[derive(Clone, Copy, Debug)]
struct Applied {
    at: Instant,
    /// From the creation of its block meta to its commit.
    took: Duration,
}

/// What follows from them now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Why lookups do not stand for the live chain; `None` when they do.
    pub not_ready: Option<String>,
    /// The slots that are missing, if it is that.
    pub gap: Option<Gap>,
    /// How old the newest applied slot is, in ms: from its creation to its commit, and all the time since once the next
    /// one is overdue. `None` before the first.
    pub lag_ms: Option<u64>,
}

impl Verdict {
    /// Lookups stand for the live chain.
    pub fn is_ready(&self) -> bool {
        self.not_ready.is_none()
    }
}

impl Default for Readiness {
    fn default() -> Self {
        Self {
            limits: ArcSwap::from_pointee(Limits::default()),
            phase: ArcSwap::from_pointee(Phase::Starting),
            applied: ArcSwapOption::empty(),
            trouble: ArcSwapOption::empty(),
        }
    }
}

impl Readiness {
    /// Sets the limits, once, before anybody asks.
    pub fn set_limits(&self, limits: Limits) {
        self.limits.store(limits.into());
    }

    /// Sets the phase. Writer: ingest-apply.
    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase.into());
    }

    /// The phase that was set last.
    pub fn phase(&self) -> Phase {
        Phase::clone(&self.phase.load())
    }

    /// A whole slot was committed just now, `took` after the creation of its block meta. Writer: ingest-apply.
    pub fn slot_applied(&self, took: Duration) {
        self.applied.store(Some(Applied { at: Instant::now(), took }.into()));
    }

    /// Why the stream brings nothing at the moment. Writer: the receiver.
    pub fn set_trouble(&self, why: &str) {
        let end = why.floor_char_boundary(TROUBLE_BYTES_MAX);
        self.trouble.store(Some(why[..end].to_owned().into()));
    }

    /// The stream brings slots. Writer: the receiver, for each of them.
    pub fn clear_trouble(&self) {
        if self.trouble.load().is_some() {
            self.trouble.store(None);
        }
    }

    /// Whether the service is ready at this moment, `lag_slots` behind the newest slot heard of.
    pub fn verdict(&self, lag_slots: Option<u64>) -> Verdict {
        let (limits, phase, applied) = (**self.limits.load(), self.phase.load(), self.applied.load());
        let since = applied.as_ref().map(|applied| applied.at.elapsed());
        let lag = applied.as_ref().zip(since).map(|(applied, since)| match since > BETWEEN_SLOTS {
            true => applied.took.saturating_add(since),
            false => applied.took,
        });
        let gap = if let Phase::Gap(gap) = &**phase { Some(gap.clone()) } else { None };
        let why = match &**phase {
            Phase::Starting => Some("starting".to_owned()),
            Phase::CatchingUp => Some("catching up with the stream".to_owned()),
            Phase::Gap(gap) => {
                Some(format!("slots are missing: first_slot={} last_slot={}", gap.first_slot, gap.last_slot))
            }
            Phase::NoSpace(why) => Some(format!("no space: {why}")),
            Phase::Live => behind(limits, since, lag, lag_slots),
        };
        let trouble = self.trouble.load();
        let not_ready = why.map(|why| match (&**phase, &*trouble) {
            (Phase::CatchingUp | Phase::Live | Phase::Gap(_), Some(trouble)) => format!("{why}; stream: {trouble}"),
            _ => why,
        });
        Verdict { not_ready, gap, lag_ms: lag.map(|lag| u64::try_from(lag.as_millis()).unwrap_or(u64::MAX)) }
    }
}

/// Which limit is passed, in words.
fn behind(limits: Limits, since: Option<Duration>, lag: Option<Duration>, lag_slots: Option<u64>) -> Option<String> {
    let max_lag_ms = limits.max_lag.as_millis();
    if let Some(since) = since.filter(|since| *since >= limits.max_lag) {
        return Some(format!("no slot was applied for {} s: max_lag_ms={max_lag_ms}", seconds(since)));
    }
    if let Some(lag) = lag.filter(|lag| *lag >= limits.max_lag) {
        return Some(format!("the newest applied slot is {} s old: max_lag_ms={max_lag_ms}", seconds(lag)));
    }
    lag_slots
        .filter(|slots| *slots >= limits.max_lag_slots)
        .map(|slots| format!("{slots} slots behind the newest one heard of: max_lag_slots={}", limits.max_lag_slots))
}

fn seconds(duration: Duration) -> u64 {
    duration.as_secs()
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn live(took: Duration) -> Readiness {
        let readiness = Readiness::default();
        readiness.slot_applied(took);
        readiness.set_phase(Phase::Live);
        readiness
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_readiness_and_a_slot_brings_it_back() {
        let readiness = live(SECOND / 50);
        advance(SECOND / 2).await;
        assert_eq!(readiness.verdict(Some(0)), Verdict { not_ready: None, gap: None, lag_ms: Some(20) });
        advance(SECOND * 9).await;
        assert_eq!(readiness.verdict(Some(0)), Verdict { not_ready: None, gap: None, lag_ms: Some(9520) });
        advance(SECOND).await;
        let verdict = readiness.verdict(Some(0));
        assert_eq!(verdict.not_ready.as_deref(), Some("no slot was applied for 10 s: max_lag_ms=10000"));
        advance(SECOND * 90).await;
        readiness.set_trouble("cannot connect");
        let verdict = readiness.verdict(Some(0));
        let reason = "no slot was applied for 100 s: max_lag_ms=10000; stream: cannot connect";
        assert_eq!((verdict.not_ready.as_deref(), verdict.lag_ms), (Some(reason), Some(100_520)));
        readiness.slot_applied(SECOND / 50);
        assert!(readiness.verdict(Some(0)).is_ready(), "trouble alone is no reason");
    }

    #[tokio::test(start_paused = true)]
    async fn applying_old_slots_is_not_live() {
        let readiness = live(SECOND * 38);
        let why = "the newest applied slot is 38 s old: max_lag_ms=10000";
        assert_eq!(readiness.verdict(Some(0)).not_ready.as_deref(), Some(why));
        readiness.slot_applied(SECOND * 9);
        assert!(readiness.verdict(Some(149)).is_ready());
        let why = "150 slots behind the newest one heard of: max_lag_slots=150";
        assert_eq!(readiness.verdict(Some(150)).not_ready.as_deref(), Some(why));
        advance(SECOND * 2).await;
        assert!(!readiness.verdict(Some(0)).is_ready(), "nine seconds old when it came, and two more");
    }

    #[test]
    fn limits_are_settings() {
        let readiness = live(SECOND * 38);
        readiness.set_limits(Limits { max_lag: SECOND * 40, max_lag_slots: 1000 });
        assert!(readiness.verdict(Some(900)).is_ready());
        assert!(!readiness.verdict(Some(1000)).is_ready());
    }

    #[test]
    fn every_phase_but_live_is_a_reason() {
        let readiness = live(SECOND);
        let gap = Gap { first_slot: 8, last_slot: 9, detail: "parent".to_owned() };
        for (phase, why) in [
            (Phase::Starting, "starting"),
            (Phase::CatchingUp, "catching up with the stream"),
            (Phase::Gap(gap.clone()), "slots are missing: first_slot=8 last_slot=9"),
            (Phase::NoSpace("full".to_owned()), "no space: full"),
        ] {
            readiness.set_phase(phase.clone());
            let verdict = readiness.verdict(None);
            assert_eq!(verdict.not_ready.as_deref(), Some(why));
            assert_eq!(verdict.gap, matches!(phase, Phase::Gap(_)).then(|| gap.clone()));
        }
    }

    #[test]
    fn a_servers_long_answer_is_cut_short() {
        let readiness = Readiness::default();
        readiness.set_phase(Phase::CatchingUp);
        readiness.set_trouble(&"ä".repeat(100_000));
        assert!(readiness.verdict(None).not_ready.is_some_and(|why| why.len() < 2 * TROUBLE_BYTES_MAX));
    }
}
