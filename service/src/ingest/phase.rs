//! The phase of one stream's slots: catching up, live, or in a gap.
//!
//! Owns: the phase that the pages show, the end of a gap, and whether the newest connection was given up. Must not:
//! touch the engine or the assembler. Runs where the slots are taken.
//!
//! A gap does not end the service. The connection that showed it is given up, the assembler starts over after the last
//! applied slot, and the receiver connects again from there. The gap is over once its first slot, or a later one, is
//! applied. Until then the service is not ready, and each connection that does not send the slot reports the gap
//! again.
//!
//! A provider that contradicts the applied chain is distrusted, and its connection is given up. That is no gap as long
//! as another provider is trusted: the store stays where it is until the other one's slots arrive. The contradiction is noted
//! all the same, and readiness shows it while the other one sends nothing.

use std::time::Duration;

use engine_api::Code;
use tracing::{error, info};

use super::State;
use super::assemble::DEFAULT_SLOTS_MAX;
use super::progress::{Age, Awaited};
use crate::base::chain::{Gap, Phase};
use crate::base::figure::unix_ms;

/// The phase of one stream's slots, published through `state`.
#[derive(Debug)]
pub(super) struct StreamPhase {
    taker: Taker,
    state: State,
    /// Whether a whole slot was committed since the start, the last gap and the last commit that had to wait.
    live: bool,
    gap: Option<Gap>,
    /// Number of connections that the receiver has announced.
    connections: u64,
    /// Whether the newest connection was given up: its remaining inputs are skipped.
    given_up: bool,
    /// Index of the provider of the newest connection; `None` before the first.
    provider: Option<usize>,
    /// The stream of that connection.
    stream: u64,
    /// Index of the provider of the newest slot that was taken; `None` before the first, and after a heal.
    author: Option<usize>,
}

/// The part of the ingest that takes a stream's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taker {
    /// A map, whose slots confirm the chain before them.
    Map,
    /// A spool, which has a chain and a state of its own.
    Spool,
    /// The merging of several streams, which passes them on to one of the others. The state is that one's.
    Merge,
}

impl Taker {
    /// Follows the description of a gap.
    fn consequence(self) -> &'static str {
        match self {
            Self::Map => {
                "the store stays at the slot before, and the stream is asked again until it goes on from there"
            }
            Self::Spool => "the kept slots end before it, and the stream is asked again until it goes on from there",
            Self::Merge => "another provider is followed as well, and this one is asked again",
        }
    }
}

impl StreamPhase {
    /// Begins by catching up, before the first connection.
    pub(super) fn new(taker: Taker, state: State) -> Self {
        Self {
            taker,
            state,
            live: false,
            gap: None,
            connections: 0,
            given_up: false,
            provider: None,
            stream: 0,
            author: None,
        }
    }

    pub(super) fn taker(&self) -> Taker {
        self.taker
    }

    /// Publishes the phase, before the first message.
    pub(super) fn begin(&self) {
        self.publish();
    }

    /// Notes a new connection of this stream to the provider with this index. Returns whether the one before was to another
    /// provider.
    pub(super) fn reconnected(&mut self, provider: usize, stream: u64) -> bool {
        self.connections += 1;
        self.given_up = false;
        self.stream = stream;
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

    /// Notes that this slot of the newest connection's provider was taken.
    pub(super) fn taken(&mut self, slot: u64) {
        if self.taker == Taker::Merge {
            return;
        }
        self.author = self.provider;
        if let Some(provider) = self.provider.filter(|_| self.taker == Taker::Map) {
            self.state.progress.chain_goes_on(slot, provider);
        }
    }

    /// Notes that the newest slot that the merging has passed on is of this provider.
    pub(super) fn passed(&mut self, provider: usize) {
        self.author = Some(provider);
    }

    /// Publishes the slot that waits for its parent, or that there is none.
    pub(super) fn awaits(&self, awaited: Option<Awaited>) {
        if self.taker != Taker::Merge {
            self.state.progress.set_awaited(awaited);
        }
    }

    /// Whether slots are missing, or contradict the chain and no other provider is trusted.
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
        let (newest, applied) = (self.state.newest_slot(), self.state.resume.slot());
        let known = newest.max(applied).map_or(0, |slot| slot.saturating_add(1));
        let near = applied.map_or(0, |slot| slot.saturating_add(1 + DEFAULT_SLOTS_MAX as u64));
        gap.first_slot = gap.first_slot.min(known).min(near);
        self.awaits(None);
        if gap.contradicts {
            // The newest slot may be committed later than this, which decides nothing.
            let next_slot = applied.map_or(0, |slot| slot.saturating_add(1));
            let first_slot = gap.first_slot.max(next_slot);
            self.state.progress.contradict(&Gap { first_slot, ..gap.clone() }, self.author);
            if self.distrusts(&gap) {
                return false;
            }
        }
        let remedy = self.state.remedy(gap.contradicts);
        let (code, what) = match gap.contradicts {
            true => (Code::Contradiction, "the stream contradicts the applied chain"),
            false => (Code::Gap, "slots are missing"),
        };
        error!(
            first_slot = gap.first_slot,
            last_slot = gap.last_slot,
            detail = gap.detail,
            "{code}: gap: {what}; {}{}{remedy}",
            self.taker.consequence(),
            if remedy.is_empty() { "" } else { "; " }
        );
        self.live = false;
        self.gap = Some(gap);
        self.publish();
        true
    }

    /// Publishes a commit that ends with `slot`, which is newer than the commit before or has taken the place of its slot.
    /// `created_unix_ms` is the time at which the server made the slot's block meta, in ms since the Unix epoch; 0 counts
    /// as no lag.
    pub(super) fn committed(&mut self, slot: u64, created_unix_ms: u64) {
        if self.taker != Taker::Merge {
            self.state.progress.slot_applied(match created_unix_ms {
                0 => Age::Known(Duration::ZERO),
                created_unix_ms => self.state.age(created_unix_ms, unix_ms()),
            });
        }
        if let Some(gap) = self.gap.take_if(|gap| gap.first_slot <= slot) {
            info!(
                first_slot = gap.first_slot,
                last_slot = gap.last_slot,
                slot,
                "the gap is over: the missing slots have arrived"
            );
        }
        self.live = self.gap.is_none();
        self.publish();
    }

    /// Publishes that the store was brought to the slot of an archive: the slots after it are next. Trusts every provider
    /// again, because those that contradicted the store have contradicted a chain that it has left.
    pub(super) fn healed(&mut self) {
        (self.gap, self.live, self.author) = (None, false, None);
        if self.state.providers.trust_all() {
            info!("the store is healed: every provider is trusted again");
        }
        self.state.progress.contradiction_is_over();
        self.publish();
    }

    /// Distrusts the provider of the newest connection. Returns false where it stays trusted.
    fn distrusts(&self, gap: &Gap) -> bool {
        let providers = &self.state.providers;
        let Some(index) = self.provider.filter(|index| providers.distrust(*index, self.stream)) else { return false };
        let provider = providers.name(index);
        error!(
            provider,
            detail = gap.detail,
            "{}: the provider contradicts the applied chain: another one takes over, and this one is asked again after a \
             SIGHUP, a restart or a heal",
            Code::Contradiction
        );
        providers.failed(index, &gap.detail);
        true
    }

    fn publish(&self) {
        if self.taker == Taker::Merge {
            return;
        }
        self.state.progress.set_phase(match &self.gap {
            Some(gap) => Phase::Gap(gap.clone()),
            None if self.live => Phase::Live,
            None => Phase::CatchingUp,
        });
    }
}

#[cfg(test)]
mod tests {
    use engine_api::{Error, ErrorKind};
    use solana::ChainCheckpoint;

    use super::*;

    fn taken(phase: &mut StreamPhase, slot: u64, provider: usize) {
        phase.reconnected(provider, 0);
        phase.taken(slot);
    }

    fn gap(slot: u64) -> Gap {
        Gap { first_slot: slot, last_slot: slot, detail: String::new(), contradicts: false }
    }

    #[test]
    fn a_gap_is_over_once_its_first_slot_or_a_later_one_is_applied() {
        let state = State::at(ChainCheckpoint { slot: Some(7), ..ChainCheckpoint::default() });
        let mut phase = StreamPhase::new(Taker::Map, state.clone());
        phase.begin();
        assert!(!phase.reconnected(0, 0));
        phase.committed(8, 0);
        assert!(state.verdict().is_ready());
        state.providers.set_newest_slot(0, 11);
        phase.gap(gap(12));
        assert!(state.resume.is_given_up(1) && !state.resume.is_given_up(2));
        assert!(phase.has_given_up());
        assert!(!phase.reconnected(0, 0) && !phase.has_given_up());
        phase.committed(11, 0);
        assert_eq!(state.verdict().gap, Some(gap(12)), "the slots before it came again");
        phase.committed(13, 0);
        assert!(state.verdict().is_ready(), "slot 12 was skipped by the chain");
        phase.gap(gap(1 << 39));
        phase.committed(14, 0);
        assert!(state.verdict().is_ready(), "a slot that a message made up does not keep the gap open");
        state.resume.set_slot(14);
        state.providers.set_newest_slot(0, 5000);
        phase.gap(gap(4000));
        phase.committed(314, 0);
        assert!(state.verdict().gap.is_some(), "as many slots may wait for a parent");
        phase.committed(315, 0);
        assert_eq!(state.verdict().gap, None, "nothing has confirmed the block that is said to be the newest");
    }

    #[test]
    fn a_contradiction_is_shown_while_the_next_provider_cannot_be_reached() {
        let providers = ["a", "b"].map(str::to_owned);
        let state =
            State::at(ChainCheckpoint { slot: Some(7), ..ChainCheckpoint::default() }).with_providers(providers);
        let mut phase = StreamPhase::new(Taker::Map, state.clone());
        phase.begin();
        phase.reconnected(0, 0);
        let contradiction = Gap { contradicts: true, detail: "parent".to_owned(), ..gap(8) };
        assert!(!phase.gap(contradiction.clone()), "the other one is trusted");
        assert_eq!(state.verdict().gap, None, "it has not failed yet");
        state.providers.set_trouble(0, "cannot connect");
        let shown = state.verdict();
        assert_eq!(shown.gap, Some(contradiction));
        assert!(shown.not_ready.is_some_and(|why| why.starts_with("E-CONTRADICTION: the stream contradicts the applied chain: parent")));
        phase.committed(7, 0);
        assert!(state.verdict().is_ready(), "the slot before it");
        phase.committed(8, 0);
        state.published.publish(ChainCheckpoint { slot: Some(8), ..ChainCheckpoint::default() });
        state.progress.set_phase(Phase::CatchingUp);
        assert_eq!(state.verdict().gap, None, "the other one has sent it");
        assert!(state.providers.is_distrusted(0));
        phase.healed();
        assert!(!state.providers.is_distrusted(0), "it had contradicted a chain that the store has left");
    }

    #[test]
    fn a_contradiction_ends_once_another_provider_than_the_accused_one_goes_on() {
        let providers = ["a", "b", "c"].map(str::to_owned);
        let state =
            State::at(ChainCheckpoint { slot: Some(7), ..ChainCheckpoint::default() }).with_providers(providers);
        let (mut phase, mut lane) =
            (StreamPhase::new(Taker::Map, state.clone()), StreamPhase::new(Taker::Merge, state.clone()));
        let is_contradicted = || state.progress.contradiction().is_some();
        taken(&mut phase, 7, 0);
        state.resume.set_slot(7);
        phase.reconnected(1, 0);
        phase.gap(Gap { contradicts: true, ..gap(7) });
        phase.committed(7, 0);
        assert!(is_contradicted(), "slot 7 was committed late");
        taken(&mut phase, 7, 2);
        assert!(is_contradicted(), "slot 7 says nothing about itself");
        taken(&mut lane, 8, 2);
        assert!(is_contradicted(), "ingest-apply decides which slots it has");
        taken(&mut phase, 8, 0);
        phase.committed(8, 0);
        assert!(is_contradicted(), "the accused provider goes on with its own chain");
        phase.reconnected(0, 0);
        phase.gap(Gap { contradicts: true, ..gap(8) });
        taken(&mut phase, 9, 0);
        assert!(is_contradicted(), "it has named two blocks, and returned to the first one");
        taken(&mut phase, 10, 2);
        assert!(!is_contradicted(), "another one confirms that chain");
    }

    #[test]
    fn a_commit_that_waits_is_told_and_the_next_slot_ends_it() {
        let state = State::at(ChainCheckpoint { slot: Some(7), ..ChainCheckpoint::default() });
        let mut phase = StreamPhase::new(Taker::Map, state.clone());
        state.progress.commit_waits(&Error::new(ErrorKind::Retry, "no descriptors"));
        assert_eq!(state.progress.phase(), Phase::CommitWaits("no descriptors".to_owned()));
        state.progress.commit_waits(&Error::new(ErrorKind::FreeSpace, "full"));
        assert_eq!(state.progress.phase(), Phase::NoSpace("full".to_owned()));
        phase.committed(8, 0);
        assert_eq!(state.progress.phase(), Phase::Live);
    }
}
