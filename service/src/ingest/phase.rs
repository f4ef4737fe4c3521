//! The standing of ingest-apply on the chain: catching up or live, in a gap, or held up by a commit.
//!
//! Owns: the phase that readiness gets, the end of a gap, and whether the newest connection was given up. Must not:
//! touch the engine or the assembler. Runs on the ingest-apply thread.
//!
//! A gap does not end the service. The connection that showed it is given up, the assembler starts over after the last
//! applied slot, and the receiver connects again from there. The gap is over once its first slot, or a later one, is
//! applied. Until then the service is not ready, and each connection that does not bring the slot reports the gap
//! again.
//!
//! A provider that contradicts the applied chain is distrusted, and its connection is given up. That is no gap as long
//! as another provider is trusted: the store stays where it is until the other one's slots arrive. Readiness gets
//! the contradiction all the same, and shows it while the other one sends nothing.

use std::time::Duration;

use engine_api::{Error, ErrorKind};
use tracing::{error, info};

use super::State;
use super::assemble::DEFAULT_SLOTS_MAX;
use crate::base::chain::{Gap, Phase};
use crate::base::figure::unix_ms;
use crate::readiness::Age;

/// The standing of ingest-apply, published through `state`.
#[derive(Debug)]
pub(super) struct StreamPhase {
    state: State,
    /// Whether a whole slot was applied since the start, the last gap and the last commit that had to wait.
    live: bool,
    gap: Option<Gap>,
    /// Number of connections that the receiver has announced.
    connections: u64,
    /// Whether the newest connection was given up: its remaining inputs are skipped.
    given_up: bool,
    /// Index of the provider of the newest connection; `None` before the first.
    provider: Option<usize>,
    /// Index of the provider of the newest applied slot; `None` before the first, and after a heal.
    author: Option<usize>,
    role: Role,
}

/// The part of the ingest that a standing is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// ingest-apply, which has the store.
    Apply,
    /// A spool. A contradiction that another provider may resolve is no gap in it.
    Spool,
    /// One of several lanes, which has no store of its own, so that its slots end no contradiction.
    Lane,
}

impl Role {
    /// Follows the description of a gap.
    fn consequence(self) -> &'static str {
        match self {
            Self::Apply => {
                "the store stays at the slot before, and the stream is asked again until it goes on from there"
            }
            Self::Spool => "the kept slots end before it, and the stream is asked again until it goes on from there",
            Self::Lane => "another provider is followed as well, and this one is asked again",
        }
    }
}

impl StreamPhase {
    /// Creates the standing at the start: catching up, before the first connection.
    pub(super) fn new(state: State) -> Self {
        Self::of(Role::Apply, state)
    }

    /// Creates the standing of a spool.
    pub(super) fn of_spool(state: State) -> Self {
        Self::of(Role::Spool, state)
    }

    /// Creates the standing of one of several lanes.
    pub(super) fn of_lane(state: State) -> Self {
        Self::of(Role::Lane, state)
    }

    fn of(role: Role, state: State) -> Self {
        Self { state, live: false, gap: None, connections: 0, given_up: false, provider: None, author: None, role }
    }

    /// Publishes the phase, before the first message.
    pub(super) fn begin(&self) {
        self.tell();
    }

    /// Notes a new connection to the provider with this index. Returns whether the one before was to another provider.
    pub(super) fn reconnected(&mut self, provider: usize) -> bool {
        self.connections += 1;
        self.given_up = false;
        self.provider.replace(provider).is_some_and(|before| before != provider)
    }

    /// Number of the newest connection, from 1; 0 before the first.
    pub(super) fn connection(&self) -> u64 {
        self.connections
    }

    /// Index of the provider of the newest connection; `None` before the first.
    pub(super) fn provider(&self) -> Option<usize> {
        self.provider
    }

    /// Notes that the newest applied slot is `slot` of this provider.
    pub(super) fn applied(&mut self, slot: u64, provider: Option<usize>) {
        self.author = provider;
        // A lane's slot may be one that ingest-apply has of another provider.
        if let Some(provider) = provider.filter(|_| self.role == Role::Apply) {
            self.state.readiness.chain_goes_on(slot, provider);
        }
    }

    /// Whether slots are missing, or contradict the chain and nobody else is trusted.
    pub(super) fn is_in_gap(&self) -> bool {
        self.gap.is_some()
    }

    /// Gives up the newest connection.
    pub(super) fn give_up(&mut self) {
        self.given_up = true;
        self.state.resume.give_up(self.connections);
    }

    /// Whether the newest connection was given up. Its inputs must not reach the assembler, which has started over.
    pub(super) fn has_given_up(&self) -> bool {
        self.given_up
    }

    /// Enters a gap: slots are missing on the newest connection, or the server says that it cannot send them. Returns
    /// false where the provider is distrusted instead, because it contradicts the chain.
    pub(super) fn gap(&mut self, mut gap: Gap) -> bool {
        self.give_up();
        // A message may name any slot. With these bounds the gap is over once slots are applied that were known when the
        // gap was found. If the known slot is old, the gap only ends earlier. One block meta that nothing has confirmed
        // may be the newest known slot; so the gap begins no further ahead than slots may wait for a parent.
        let (newest, applied) = (self.state.readiness.newest_slot(), self.state.resume.slot());
        let known = newest.max(applied).map_or(0, |slot| slot.saturating_add(1));
        let near = applied.map_or(0, |slot| slot.saturating_add(1 + DEFAULT_SLOTS_MAX as u64));
        gap.first_slot = gap.first_slot.min(known).min(near);
        if gap.contradicts {
            if self.role != Role::Spool {
                // The newest slot may be committed later than this, which decides nothing.
                let next_slot = self.state.resume.slot().map_or(0, |slot| slot.saturating_add(1));
                let first_slot = gap.first_slot.max(next_slot);
                self.state.readiness.set_contradiction(&Gap { first_slot, ..gap.clone() }, self.author);
            }
            if self.distrusts(&gap) {
                return false;
            }
        }
        let remedy = self.state.readiness.remedy(gap.contradicts);
        let what = if gap.contradicts { "the stream contradicts the applied chain" } else { "slots are missing" };
        error!(
            first_slot = gap.first_slot,
            last_slot = gap.last_slot,
            detail = gap.detail,
            "gap: {what}; {}{}{remedy}",
            self.role.consequence(),
            if remedy.is_empty() { "" } else { "; " }
        );
        self.live = false;
        self.gap = Some(gap);
        self.tell();
        true
    }

    /// Publishes that a commit is retried, because it failed for lack of a resource that may become available.
    pub(super) fn commit_waits(&self, failed: &Error) {
        let why = failed.to_string();
        self.state.readiness.set_phase(match failed.kind() {
            ErrorKind::FreeSpace => Phase::NoSpace(why),
            _ => Phase::CommitWaits(why),
        });
    }

    /// Publishes a commit that ends with `slot`, which is newer than the commit before or has taken the place of its slot.
    /// `created_unix_ms` is the time at which the server made the slot's block meta, in ms since the Unix epoch; 0 counts
    /// as no lag.
    pub(super) fn committed(&mut self, slot: u64, created_unix_ms: u64) {
        let readiness = &self.state.readiness;
        readiness.slot_applied(match created_unix_ms {
            0 => Age::Known(Duration::ZERO),
            created_unix_ms => readiness.age(created_unix_ms, unix_ms()),
        });
        if let Some(gap) = self.gap.take_if(|gap| gap.first_slot <= slot) {
            info!(
                first_slot = gap.first_slot,
                last_slot = gap.last_slot,
                slot,
                "the gap is over: the missing slots have arrived"
            );
        }
        self.live = self.gap.is_none();
        self.tell();
    }

    /// Publishes that the store was brought to the slot of an archive: the slots after it are next. Trusts every provider
    /// again, because those that contradicted the store have contradicted a chain that it has left.
    pub(super) fn healed(&mut self) {
        (self.gap, self.live, self.author) = (None, false, None);
        if self.state.providers.trust_all() {
            info!("the store is healed: every provider is trusted again");
        }
        self.state.readiness.contradiction_is_over();
        self.tell();
    }

    /// Distrusts the provider of the newest connection. Returns false where it is the last one that is trusted.
    fn distrusts(&self, gap: &Gap) -> bool {
        let providers = &self.state.providers;
        let Some(index) = self.provider.filter(|index| providers.distrust(*index)) else { return false };
        let provider = providers.name(index);
        error!(
            provider,
            detail = gap.detail,
            "the provider contradicts the applied chain: another one takes over, and this one is asked again after a \
             SIGHUP, a restart or a heal"
        );
        providers.failed(index, &gap.detail);
        true
    }

    fn tell(&self) {
        self.state.readiness.set_phase(match &self.gap {
            Some(gap) => Phase::Gap(gap.clone()),
            None if self.live => Phase::Live,
            None => Phase::CatchingUp,
        });
    }
}

#[cfg(test)]
mod tests {
    use solana::ChainCheckpoint;

    use super::*;

    fn gap(slot: u64) -> Gap {
        Gap { first_slot: slot, last_slot: slot, detail: String::new(), contradicts: false }
    }

    #[test]
    fn a_gap_is_over_once_its_first_slot_or_a_later_one_is_applied() {
        let state = State::at(ChainCheckpoint { slot: Some(7), ..ChainCheckpoint::default() });
        let mut standing = StreamPhase::new(state.clone());
        standing.begin();
        assert!(!standing.reconnected(0));
        standing.committed(8, 0);
        assert!(state.readiness.verdict().is_ready());
        state.readiness.set_newest_slot(11);
        standing.gap(gap(12));
        assert!(state.resume.is_given_up(1) && !state.resume.is_given_up(2));
        assert!(standing.has_given_up());
        assert!(!standing.reconnected(0) && !standing.has_given_up());
        standing.committed(11, 0);
        assert_eq!(state.readiness.verdict().gap, Some(gap(12)), "the slots before it came again");
        standing.committed(13, 0);
        assert!(state.readiness.verdict().is_ready(), "slot 12 was skipped by the chain");
        standing.gap(gap(1 << 39));
        standing.committed(14, 0);
        assert!(state.readiness.verdict().is_ready(), "a slot that a message made up does not keep the gap open");
        state.resume.set_slot(14);
        state.readiness.set_newest_slot(5000);
        standing.gap(gap(4000));
        standing.committed(314, 0);
        assert!(state.readiness.verdict().gap.is_some(), "as many slots may wait for a parent");
        standing.committed(315, 0);
        assert_eq!(
            state.readiness.verdict().gap,
            None,
            "nothing has confirmed the block that is said to be the newest"
        );
    }

    #[test]
    fn a_contradiction_is_shown_while_the_next_provider_cannot_be_reached() {
        let providers = ["a", "b"].map(str::to_owned);
        let state =
            State::at(ChainCheckpoint { slot: Some(7), ..ChainCheckpoint::default() }).with_providers(providers);
        let mut standing = StreamPhase::new(state.clone());
        standing.begin();
        standing.reconnected(0);
        let contradiction = Gap { contradicts: true, detail: "parent".to_owned(), ..gap(8) };
        assert!(!standing.gap(contradiction.clone()), "the other one is trusted");
        assert_eq!(state.readiness.verdict().gap, None, "it has not failed yet");
        state.readiness.set_trouble("cannot connect");
        let verdict = state.readiness.verdict();
        assert_eq!(verdict.gap, Some(contradiction));
        assert!(
            verdict.not_ready.is_some_and(|why| why.starts_with("the stream contradicts the applied chain: parent"))
        );
        standing.committed(7, 0);
        assert!(state.readiness.verdict().is_ready(), "the slot before it");
        standing.committed(8, 0);
        state.published.publish(ChainCheckpoint { slot: Some(8), ..ChainCheckpoint::default() });
        state.readiness.set_phase(Phase::CatchingUp);
        assert_eq!(state.readiness.verdict().gap, None, "the other one has brought it");
        assert!(state.providers.is_distrusted(0));
        standing.healed();
        assert!(!state.providers.is_distrusted(0), "it had contradicted a chain that the store has left");
    }

    #[test]
    fn a_contradiction_ends_once_another_provider_than_the_accused_one_goes_on() {
        let providers = ["a", "b", "c"].map(str::to_owned);
        let state =
            State::at(ChainCheckpoint { slot: Some(7), ..ChainCheckpoint::default() }).with_providers(providers);
        let (mut standing, mut lane) = (StreamPhase::new(state.clone()), StreamPhase::of_lane(state.clone()));
        let is_contradicted = || state.readiness.contradiction().is_some();
        standing.applied(7, Some(0));
        state.resume.set_slot(7);
        standing.reconnected(1);
        standing.gap(Gap { contradicts: true, ..gap(7) });
        standing.committed(7, 0);
        assert!(is_contradicted(), "slot 7 was committed late");
        standing.applied(7, Some(2));
        assert!(is_contradicted(), "slot 7 says nothing about itself");
        lane.applied(8, Some(2));
        assert!(is_contradicted(), "ingest-apply decides which slots it has");
        standing.applied(8, Some(0));
        standing.committed(8, 0);
        assert!(is_contradicted(), "the accused provider goes on with its own chain");
        standing.reconnected(0);
        standing.gap(Gap { contradicts: true, ..gap(8) });
        standing.applied(9, Some(0));
        assert!(is_contradicted(), "it has named two blocks, and returned to the first one");
        standing.applied(10, Some(2));
        assert!(!is_contradicted(), "another one confirms that chain");
    }

    #[test]
    fn a_commit_that_waits_is_told_and_the_next_slot_ends_it() {
        let state = State::at(ChainCheckpoint { slot: Some(7), ..ChainCheckpoint::default() });
        let mut standing = StreamPhase::new(state.clone());
        standing.commit_waits(&Error::new(ErrorKind::Retry, "no descriptors"));
        assert_eq!(state.readiness.phase(), Phase::CommitWaits("no descriptors".to_owned()));
        standing.commit_waits(&Error::new(ErrorKind::FreeSpace, "full"));
        assert_eq!(state.readiness.phase(), Phase::NoSpace("full".to_owned()));
        standing.committed(8, 0);
        assert_eq!(state.readiness.phase(), Phase::Live);
    }
}
