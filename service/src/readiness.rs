//! Readiness: whether lookups reflect the live chain. One computation by the clock, which every page, probe and metric
//! asks.
//!
//! Owns: the limits, and the events that they apply to. Must not: block; each read and write is wait-free. Writers are
//! ingest-apply (phase, applied slots) and the stream's receivers (trouble, newest slots); any thread reads.
//!
//! Nothing here is a latch that must be reset. The stored values are events with their times, and each reader compares
//! these with the clock. So readiness ends without an event if the stream is dead, silent or slow, the ingest lags, or
//! a commit hangs. Only a whole slot applied within the limits brings it back.
//!
//! The newest known slot is that of the newest connection, once its parent was announced by number and blockhash. A
//! later slot counts for `NAMED_FOR` after a provider has named it. A slot that the age of the store does not allow
//! never counts (`plausible`). The age is that of the block's own time if this is more than 30 s before the message's
//! time, because a server may send old blocks as new messages. If a time is impossible, the age is unknown and the
//! service is not ready.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
// Outside of simulations this is the machine's monotonic clock.
use tokio::time::Instant;

use crate::base::chain::{Contradiction, Gap, Phase};
use crate::base::plausible;
use crate::base::published::Published;
use crate::base::setting::{DAY, Given as _, settings};

/// Time after the newest slot that does not count as lag, because the next slot is not due yet.
const BETWEEN_SLOTS: Duration = Duration::from_secs(1);

/// 2020-03-16, the day of the first slot of Solana's mainnet. No server can have created a message earlier.
pub(crate) const CHAIN_BEGAN_UNIX_MS: u64 = 1_584_316_800_000;

/// How long the newest slot counts that a provider has named in an answer. The providers are asked every 2 s, and one may
/// take 5 s to answer.
const NAMED_FOR: Duration = Duration::from_secs(10);

/// Upper bound on the length of a server's message in a reason, in bytes, because probes and status lines show it.
const TROUBLE_BYTES_MAX: usize = 400;

/// Lag in slots at which the service is not ready, however old the newest applied slot is: a minute of slots. A `max_lag` of more than a minute allows as many slots as it lasts.
const LAG_SLOTS: u64 = 150;

/// Nominal duration of a slot.
const SLOT_TIME: Duration = Duration::from_millis(400);

settings! {
    /// ReadinessSettings beyond which the service is not ready.
    #[derive(Copy)]
    pub struct ReadinessSettings from ReadinessGiven {
        /// Not ready once the newest applied slot is older than this, or is 150 slots behind the newest known one; for readers that
        /// need fresher values, or prefer older ones to none. More than a minute allows more slots as well [default: 10s]
        #[arg(value_name = "DURATION", value_parser = humantime::parse_duration)]
        #[serde(with = "crate::base::setting::duration")]
        max_lag: Duration = Duration::from_secs(10), within Duration::from_millis(1)..=DAY;
    }
}

impl Limits {
    /// Returns the lag in slots at which the service is not ready.
    fn lag_slots(self) -> u64 {
        LAG_SLOTS.max((self.max_lag.as_millis() / SLOT_TIME.as_millis()) as u64)
    }
}

impl Default for ReadinessSettings {
    fn default() -> Self {
        ReadinessGiven::default().in_effect().expect("the defaults are within their bounds")
    }
}

/// The events from which readiness is computed.
#[derive(Debug)]
pub struct Readiness {
    limits: ReadinessSettings,
    published: Arc<Published>,
    /// The newest slot mentioned on the newest connection to the stream, if it is plausible; 0 before the first.
    newest_slot: AtomicU64,
    /// The newest plausible slot that any provider has named lately beside that connection.
    named: ArcSwapOption<Named>,
    phase: ArcSwap<Phase>,
    applied: ArcSwapOption<Applied>,
    awaited: ArcSwapOption<Awaited>,
    trouble: ArcSwapOption<String>,
    /// The newest contradiction of the applied chain by a provider, until it is decided. Lanes share it.
    contradiction: Arc<ArcSwapOption<Contradiction>>,
    /// Whether archives heal the store; `None` where others have the word.
    heals: Option<bool>,
}

/// A whole slot that cannot be applied, because its parent is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    pub slot: u64,
    pub parent_slot: u64,
    /// Time at which slots began to wait, moved on by the time without a connection.
    pub since: Instant,
    /// How long slots may wait before a parent counts as missing.
    pub gap_timeout: Duration,
}

/// A slot that a provider has named.
#[derive(Clone, Copy, Debug)]
struct Named {
    slot: u64,
    at: Instant,
}

/// Age of a slot at its commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// Time from the making of the block, as far as its block meta tells it, to the commit.
    Known(Duration),
    /// The server's time is impossible; holds that time, in ms since the Unix epoch.
    Absurd(u64),
}

/// The newest slot applied since the start.
#[derive(Clone, Copy, Debug)]
struct Applied {
    at: Instant,
    age: Age,
}

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

impl Readiness {
    /// Returns the readiness at start: no event yet. `published` names the newest applied slot.
    pub fn new(published: Arc<Published>, limits: ReadinessSettings) -> Self {
        Self {
            limits,
            published,
            newest_slot: AtomicU64::new(0),
            named: ArcSwapOption::empty(),
            phase: ArcSwap::from_pointee(Phase::Starting),
            applied: ArcSwapOption::empty(),
            awaited: ArcSwapOption::empty(),
            trouble: ArcSwapOption::empty(),
            contradiction: Arc::default(),
            heals: None,
        }
    }

    /// Has missing slots and contradictions reported with the remedy: the archives of `heal_from`, or a person.
    #[must_use]
    pub fn with_remedy(self, heals: bool) -> Self {
        Self { heals: Some(heals), ..self }
    }

    /// The remedy of a gap that no server closes, or of a contradiction that no provider decides, in words; empty where there
    /// is none to name.
    pub fn remedy(&self, contradicts: bool) -> &'static str {
        match (self.heals, contradicts) {
            (None, _) => "",
            (Some(true), false) => {
                "if no server sends the missing slots, the service heals the store from the archives of heal_from"
            }
            (Some(false), false) => "if no server sends the missing slots, set heal_from or load a newer snapshot",
            (Some(true), true) => {
                "if no provider decides it, the service heals the store from a full archive of heal_from"
            }
            (Some(false), true) => {
                "if no provider decides it, set heal_from, or find out which block is right and load a snapshot of its chain"
            }
        }
    }

    /// Returns a readiness at start with the limits and the applied slot of this one. Both share the contradiction.
    pub fn anew(&self) -> Self {
        let contradiction = Arc::clone(&self.contradiction);
        Self { contradiction, ..Self::new(Arc::clone(&self.published), self.limits) }
    }

    /// Sets the newest slot mentioned on the newest connection to the stream; 0 for none. Writer: the receiver.
    pub fn set_newest_slot(&self, slot: u64) {
        // ORDERING: Relaxed: a statistic, also in the reads.
        self.newest_slot.store(slot, Ordering::Relaxed);
    }

    /// Notes that a provider names this slot as its newest one, beside the newest connection. An implausible one does not
    /// count, because a provider that errs would keep the service from being ready. Writer: the receivers' task.
    pub fn name(&self, slot: u64) {
        let is_older = |named: &Named| slot < named.slot && named.at.elapsed() < NAMED_FOR;
        let is_plausible = self.published.slot().is_some_and(|applied| slot <= applied.saturating_add(self.reach()));
        if is_plausible && !self.named.load().as_deref().is_some_and(is_older) {
            self.named.store(Some(Named { slot, at: Instant::now() }.into()));
        }
    }

    /// The newest slot mentioned on the newest connection to the stream; `None` before the first.
    pub(crate) fn mentioned_slot(&self) -> Option<u64> {
        Some(self.newest_slot.load(Ordering::Relaxed)).filter(|newest| *newest > 0)
    }

    /// The newest known slot: the one mentioned on the newest connection to the stream, or a later one that any provider
    /// has named lately and the store has not. `None` if there is neither.
    pub fn newest_slot(&self) -> Option<u64> {
        let named = self.named.load();
        let named = named.as_deref().filter(|named| named.at.elapsed() < NAMED_FOR);
        self.mentioned_slot().max(named.map(|named| named.slot).filter(|slot| Some(*slot) > self.published.slot()))
    }

    /// Returns the largest number of slots that can have passed since the newest applied one, by its age.
    pub(crate) fn reach(&self) -> u64 {
        plausible::reach(self.applied_age())
    }

    /// Age of the newest applied slot at this moment; `None` before the first slot since the start, and if the server's time
    /// is impossible.
    pub(crate) fn applied_age(&self) -> Option<Duration> {
        match **self.applied.load().as_ref()? {
            Applied { at, age: Age::Known(age) } => Some(age.saturating_add(at.elapsed())),
            Applied { age: Age::Absurd(_), .. } => None,
        }
    }

    /// Returns the number of slots between the newest one mentioned and the newest applied; `None` before the first of
    /// either.
    pub fn lag_slots(&self) -> Option<u64> {
        let applied = self.published.slot()?;
        Some(self.newest_slot()?.saturating_sub(applied))
    }

    /// Sets the phase. Writer: ingest-apply.
    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase.into());
    }

    /// Returns the phase that was set last.
    pub fn phase(&self) -> Phase {
        Phase::clone(&self.phase.load())
    }

    /// Records that a whole slot of this age was committed just now. Writer: ingest-apply.
    pub fn slot_applied(&self, age: Age) {
        self.applied.store(Some(Applied { at: Instant::now(), age }.into()));
    }

    /// Returns the age at `now_unix_ms` of a slot whose block meta was created at `created_unix_ms`, by another
    /// machine's clock. The age is absurd if the creation is before the chain's first slot, or so far in the future
    /// that it would hide a lag over the limit.
    pub fn age(&self, created_unix_ms: u64, now_unix_ms: u64) -> Age {
        let limit_ms = self.limits.max_lag.as_millis();
        match now_unix_ms.checked_sub(created_unix_ms) {
            _ if created_unix_ms < CHAIN_BEGAN_UNIX_MS => Age::Absurd(created_unix_ms),
            None if u128::from(created_unix_ms - now_unix_ms) >= limit_ms => Age::Absurd(created_unix_ms),
            age_ms => Age::Known(Duration::from_millis(age_ms.unwrap_or(0))),
        }
    }

    /// Notes that a provider has contradicted the applied chain, whose newest slot is of the provider `author`. One that is
    /// accused already stays so. Writer: ingest-apply, or the lane of the provider; the replay of a spool.
    pub fn set_contradiction(&self, gap: &Gap, author: Option<usize>) {
        self.contradiction.rcu(|open| {
            let accused = open.as_ref().and_then(|open| open.accused).or(author);
            Some(Arc::new(Contradiction { gap: gap.clone(), accused }))
        });
    }

    /// Returns the contradiction of the applied chain by a provider, if nobody has decided yet between its block and the
    /// store's: the store may hold values of a wrong block.
    pub fn contradiction(&self) -> Option<Arc<Contradiction>> {
        self.contradiction.load_full()
    }

    /// Notes that this slot of a provider was applied. It confirms the chain before it, which ends a contradiction there,
    /// unless the accused provider only goes on.
    pub fn chain_goes_on(&self, slot: u64, by: usize) {
        let open = self.contradiction.load_full();
        let Some(Contradiction { gap, accused }) = open.as_deref().filter(|open| open.gap.first_slot <= slot) else {
            return;
        };
        match accused {
            Some(accused) if *accused == by => {}
            Some(_) => self.contradiction_is_over(),
            None => self.set_contradiction(gap, Some(by)),
        }
    }

    /// Notes that two sources name the store's block.
    pub fn contradiction_is_over(&self) {
        self.contradiction.store(None);
    }

    /// Sets the slot that waits for its parent, or `None`. Writer: ingest-apply.
    pub fn set_awaited(&self, awaited: Option<Awaited>) {
        if self.awaited.load().as_deref() != awaited.as_ref() {
            self.awaited.store(awaited.map(Into::into));
        }
    }

    /// Sets the reason why the stream brings nothing at the moment. Writer: the receiver.
    pub fn set_trouble(&self, why: &str) {
        let end = why.floor_char_boundary(TROUBLE_BYTES_MAX);
        self.trouble.store(Some(why[..end].to_owned().into()));
    }

    /// Returns the reason why the stream brings nothing at the moment; `None` if it does.
    pub fn trouble(&self) -> Option<Arc<String>> {
        self.trouble.load_full()
    }

    /// Shows the trouble of the receiver of a spool, `of`, while no other one is connected. Writer: the task of a heal or a
    /// replay.
    pub(crate) fn mirror_trouble(&self, of: &Self) {
        self.trouble.store(of.trouble.load_full());
    }

    /// Clears the trouble, because the stream brings slots. Writer: the receiver, for each slot.
    pub fn clear_trouble(&self) {
        if self.trouble.load().is_some() {
            self.trouble.store(None);
        }
    }

    /// Computes readiness and lag at this moment. Every report of the service's readiness comes from here.
    pub fn verdict(&self) -> Verdict {
        self.verdict_at(self.lag_slots())
    }

    /// Computes readiness at this moment. `lag_slots` is the distance to the newest known slot.
    fn verdict_at(&self, lag_slots: Option<u64>) -> Verdict {
        let (phase, applied) = (self.phase.load(), self.applied.load());
        let since = applied.as_ref().map(|applied| applied.at.elapsed());
        let age = applied.as_ref().map(|applied| applied.age);
        let lag = age.zip(since).and_then(|(age, since)| match age {
            Age::Known(age) if since > BETWEEN_SLOTS => Some(age.saturating_add(since)),
            Age::Known(age) => Some(age),
            Age::Absurd(_) => None,
        });
        let trouble = self.trouble.load();
        let gap = match &**phase {
            Phase::Gap(gap) => Some(gap.clone()),
            // The other providers bring nothing, so the contradiction is all that is known of the next slot.
            Phase::CatchingUp | Phase::Live if trouble.is_some() => {
                let contradiction = self.contradiction.load();
                let gap = contradiction.as_ref().map(|contradiction| &contradiction.gap);
                gap.filter(|gap| self.published.slot() < Some(gap.first_slot)).cloned()
            }
            _ => None,
        };
        let why = match &**phase {
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
        let not_ready = why.map(|why| match (&**phase, &*trouble) {
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
            true => format!("the stream contradicts the applied chain: {detail}{before}{remedy}"),
            false => {
                let detail = &detail[..detail.floor_char_boundary(TROUBLE_BYTES_MAX)];
                format!("slots are missing: first_slot={first_slot} last_slot={last_slot}: {detail}{before}{remedy}")
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
        let Awaited { slot, parent_slot, since, gap_timeout } = **self.awaited.load().as_ref()?;
        Some(format!(
            "slot={slot} has waited {} s for its parent_slot={parent_slot}: gap_timeout={gap_timeout:?}",
            since.elapsed().as_secs()
        ))
    }
}

#[cfg(test)]
mod tests;
