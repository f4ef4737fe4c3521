//! Readiness: whether lookups reflect the live chain. One computation by the clock, which every page, probe and metric
//! asks.
//!
//! Owns: the verdict on the state of the ingest, and its words. Must not: change that state, or block; the ingest itself does
//! not ask for it. Any thread.
//!
//! Nothing here is a latch that must be reset. The ingest's state has events with their times, and each question compares
//! these with the clock. So readiness ends without an event if the stream is dead, silent or slow, the ingest lags, or
//! a commit hangs. Only a whole slot applied within the limits makes the service ready again.

use std::time::Duration;

use crate::base::chain::{Gap, Phase};
use crate::ingest::State;
use crate::ingest::progress::{Age, Applied, Awaited};
use crate::ingest::providers::TROUBLE_BYTES_MAX;
use engine_api::Code;

/// Time after the newest slot that does not count as lag, because the next slot is not due yet.
const BETWEEN_SLOTS: Duration = Duration::from_secs(1);

/// Readiness at one moment, with its reason and the lag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Reason why lookups do not reflect the live chain; `None` if they do.
    pub not_ready: Option<String>,
    /// The missing slots, or those of the contradiction; `None` unless a gap is the reason.
    pub gap: Option<Gap>,
    /// Age of the newest applied slot, in ms: from the time at which the block was made to its commit, plus all the time
    /// since once the next slot is overdue. `None` before the first slot, and if the server's time is impossible.
    pub lag_ms: Option<u64>,
}

impl Verdict {
    /// Whether lookups reflect the live chain.
    pub fn is_ready(&self) -> bool {
        self.not_ready.is_none()
    }
}

impl State {
    /// Returns the number of slots between the newest one mentioned and the newest applied; `None` before the first of
    /// either.
    pub fn lag_slots(&self) -> Option<u64> {
        let applied = self.published.slot()?;
        Some(self.newest_slot()?.saturating_sub(applied))
    }

    /// Computes readiness and lag at this moment. Every report of the service's readiness comes from here.
    pub fn verdict(&self) -> Verdict {
        self.verdict_at(self.lag_slots())
    }

    /// Computes readiness at this moment. `lag_slots` is the distance to the newest known slot.
    fn verdict_at(&self, lag_slots: Option<u64>) -> Verdict {
        let (progress, trouble) = (&self.progress, self.providers.trouble());
        let (phase, applied) = (progress.phase(), progress.applied());
        let since = applied.map(|applied| applied.at.elapsed());
        let age = applied.map(|Applied { age, .. }| age);
        let lag = age.zip(since).and_then(|(age, since)| match age {
            Age::Known(age) if since > BETWEEN_SLOTS => Some(age.saturating_add(since)),
            Age::Known(age) => Some(age),
            Age::Absurd(_) => None,
        });
        let gap = match &phase {
            Phase::Gap(gap) => Some(gap.clone()),
            // The other providers send nothing, so the contradiction is all that is known of the next slot.
            Phase::CatchingUp | Phase::Live if trouble.is_some() => {
                let contradiction = progress.contradiction();
                let gap = contradiction.as_ref().map(|contradiction| &contradiction.gap);
                gap.filter(|gap| self.published.slot() < Some(gap.first_slot)).cloned()
            }
            _ => None,
        };
        let why = match &phase {
            Phase::Starting => Some("starting".to_owned()),
            Phase::Loading(progress) => Some(format!("loading: {progress}")),
            Phase::CatchingUp => Some(self.awaits().map_or_else(
                || "catching up with the stream".to_owned(),
                |awaits| format!("catching up with the stream: {awaits}"),
            )),
            Phase::Gap(gap) => Some(self.lacks(gap)),
            Phase::Healing(progress) => Some(format!("healing: {progress}")),
            Phase::NoSpace(why) => Some(format!("no space: {why}")),
            Phase::CommitWaits(why) => Some(format!("a commit has to wait: {why}")),
            Phase::Live => self.behind(since, age, lag, lag_slots),
        };
        let gap = gap.filter(|_| why.is_some());
        let why = why.map(|why| gap.as_ref().map_or(why, |gap| self.lacks(gap)));
        let not_ready = why.map(|why| match (&phase, &trouble) {
            (Phase::CatchingUp | Phase::Live | Phase::Gap(_), Some(trouble)) => format!("{why}; stream: {trouble}"),
            _ => why,
        });
        Verdict { not_ready, gap, lag_ms: lag.map(|lag| u64::try_from(lag.as_millis()).unwrap_or(u64::MAX)) }
    }

    /// Describes missing slots, or a contradiction.
    fn lacks(&self, gap: &Gap) -> String {
        let Gap { first_slot, last_slot, detail, contradicts } = gap;
        let remedy = self.remedy(*contradicts);
        let before = if remedy.is_empty() { "" } else { "; " };
        match contradicts {
            true => {
                format!("{}: the stream contradicts the applied chain: {detail}{before}{remedy}", Code::Contradiction)
            }
            false => {
                let detail = &detail[..detail.floor_char_boundary(TROUBLE_BYTES_MAX)];
                let code = Code::Gap;
                format!(
                    "{code}: slots are missing: first_slot={first_slot} last_slot={last_slot}: {detail}{before}{remedy}"
                )
            }
        }
    }

    /// Returns the limit that is exceeded, in words; `None` if all are kept.
    fn behind(
        &self,
        since: Option<Duration>,
        age: Option<Age>,
        lag: Option<Duration>,
        lag_slots: Option<u64>,
    ) -> Option<String> {
        let limits = self.limits;
        let (max_lag, shown) = (limits.max_lag, humantime::format_duration(limits.max_lag));
        if let Some(since) = since.filter(|since| *since >= max_lag) {
            return Some(match self.awaits() {
                Some(awaits) => format!("{awaits}; max_lag={shown}"),
                None => format!("no slot was applied for {} s: max_lag={shown}", since.as_secs()),
            });
        }
        if let Some(Age::Absurd(created_unix_ms)) = age {
            return Some(format!(
                "the age of the newest applied slot is unknown: the server says created_unix_ms={created_unix_ms}; \
                 its clock is wrong, or this machine's"
            ));
        }
        if let Some(lag) = lag.filter(|lag| *lag >= max_lag) {
            return Some(format!("the newest applied slot is {} s old: max_lag={shown}", lag.as_secs()));
        }
        lag_slots
            .filter(|slots| *slots >= limits.lag_slots())
            .map(|slots| format!("{slots} slots behind the newest known one: limit_slots={}", limits.lag_slots()))
    }

    /// Describes the slot that waits for its parent, if there is one.
    fn awaits(&self) -> Option<String> {
        let Awaited { slot, parent_slot, since, gap_timeout } = self.progress.awaited()?;
        Some(format!(
            "slot={slot} has waited {} s for its parent_slot={parent_slot}: gap_timeout={gap_timeout:?}",
            since.elapsed().as_secs()
        ))
    }
}

#[cfg(test)]
mod tests;
