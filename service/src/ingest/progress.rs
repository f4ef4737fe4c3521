//! How far the ingest has come: the phase, the newest applied slot, the slot that waits for its parent, and an open
//! contradiction of the chain.
//!
//! Owns: these, and when a contradiction is over. Must not: judge readiness, or block; every read and write is wait-free.
//! Writers: ingest-apply; a lane of the merging for contradictions; the task of a heal or a replay, for the phase and for a
//! contradiction that only the spool knows. Any thread reads.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use engine_api::{Error, ErrorKind};
// Outside of simulations this is the machine's monotonic clock.
use tokio::time::Instant;

use crate::base::chain::{Contradiction, Gap, Phase};

/// 2020-03-16, the day of the first slot of Solana's mainnet. No server can have created a message earlier.
pub(crate) const CHAIN_BEGAN_UNIX_MS: u64 = 1_584_316_800_000;

/// The state of the ingest relative to the chain.
#[derive(Debug)]
pub struct Progress {
    phase: ArcSwap<Phase>,
    applied: ArcSwapOption<Applied>,
    awaited: ArcSwapOption<Awaited>,
    /// The newest contradiction of the applied chain by a provider, until it is decided.
    contradiction: ArcSwapOption<Contradiction>,
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

/// Age of a slot at its commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// Time from the making of the block, as its block meta gives it, to the commit.
    Known(Duration),
    /// The server's time is impossible; holds that time, in ms since the Unix epoch.
    Absurd(u64),
}

/// The newest slot applied since the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Applied {
    pub(crate) at: Instant,
    pub(crate) age: Age,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            phase: ArcSwap::from_pointee(Phase::Starting),
            applied: ArcSwapOption::empty(),
            awaited: ArcSwapOption::empty(),
            contradiction: ArcSwapOption::empty(),
        }
    }
}

impl Progress {
    /// Publishes another phase. The one before is over.
    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase.into());
    }

    /// Publishes that a commit is retried, because it failed for lack of a resource that may become available.
    pub(crate) fn commit_waits(&self, failed: &Error) {
        let why = failed.to_string();
        self.set_phase(match failed.kind() {
            ErrorKind::FreeSpace => Phase::NoSpace(why),
            _ => Phase::CommitWaits(why),
        });
    }

    /// Returns the phase that was set last.
    pub fn phase(&self) -> Phase {
        Phase::clone(&self.phase.load())
    }

    /// Returns the gap in which the ingest is, if it is in one.
    pub fn gap(&self) -> Option<Gap> {
        match &**self.phase.load() {
            Phase::Gap(gap) => Some(gap.clone()),
            _ => None,
        }
    }

    /// Records that a whole slot of this age was committed just now.
    pub fn slot_applied(&self, age: Age) {
        self.applied.store(Some(Applied { at: Instant::now(), age }.into()));
    }

    pub(crate) fn applied(&self) -> Option<Applied> {
        self.applied.load().as_deref().copied()
    }

    /// Age of the newest applied slot at this moment; `None` before the first slot since the start, and if the server's time
    /// is impossible.
    pub(crate) fn applied_age(&self) -> Option<Duration> {
        match self.applied()? {
            Applied { at, age: Age::Known(age) } => Some(age.saturating_add(at.elapsed())),
            Applied { age: Age::Absurd(_), .. } => None,
        }
    }

    /// Sets the slot that waits for its parent, or `None`.
    pub fn set_awaited(&self, awaited: Option<Awaited>) {
        if self.awaited() != awaited {
            self.awaited.store(awaited.map(Into::into));
        }
    }

    /// Returns the slot that waits for its parent, if there is one.
    pub(crate) fn awaited(&self) -> Option<Awaited> {
        self.awaited.load().as_deref().copied()
    }

    /// Notes that a provider has contradicted the applied chain, whose newest slot is of the provider `author`. One that is
    /// accused already stays so.
    pub fn contradict(&self, gap: &Gap, author: Option<usize>) {
        self.contradiction.rcu(|open| {
            let accused = open.as_ref().and_then(|open| open.accused).or(author);
            Some(Arc::new(Contradiction { gap: gap.clone(), accused }))
        });
    }

    /// Returns the contradiction of the applied chain by a provider, if nothing has decided yet between its block and the
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
            None => self.contradict(gap, Some(by)),
        }
    }

    /// Notes that two sources name the store's block.
    pub fn contradiction_is_over(&self) {
        self.contradiction.store(None);
    }
}
