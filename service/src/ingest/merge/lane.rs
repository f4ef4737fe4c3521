//! One lane of a merge: the slots of one subscription, assembled by themselves.
//!
//! Owns: the lane's place in the chain, and the end of its connection. Must not: send anything, or know another lane.
//! Runs on the receivers' task.

use std::time::Duration;

use crate::base::chain::{Base, Event, Gap, WholeSlot};
use crate::ingest::State;
use crate::ingest::assemble::{Assembler, DEFAULT_SLOTS_MAX, HeldLimits, Input};
use crate::ingest::late_updates::LateLines;
use crate::ingest::parent_wait::ParentWait;
use crate::ingest::phase::StreamPhase;
use crate::ingest::receive::Message;

/// The lanes' assemblers may take 1/`MEMORY_SHARE` of the memory that the one of ingest-apply may take.
const MEMORY_SHARE: u64 = 2;

/// One subscription of a merge.
pub(crate) struct Lane {
    state: State,
    assembler: Assembler,
    standing: StreamPhase,
    waiting: ParentWait,
    /// The lines about updates that came after their slot.
    late: LateLines,
}

impl Lane {
    /// Creates a lane of the ingest with this state. A whole slot waits for its parent for `gap_timeout`.
    pub(crate) fn new(ingest: &State, gap_timeout: Duration) -> Self {
        let state = ingest.of_lane();
        Self {
            assembler: Assembler::new(None, HeldLimits::within(probe::memory_limit().bytes / MEMORY_SHARE)),
            standing: StreamPhase::of_lane(state.clone()),
            waiting: ParentWait::new(gap_timeout),
            late: LateLines::default(),
            state,
        }
    }

    /// The state of the lane's receiver.
    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Index of the provider of the newest connection; before the first one, of the most preferred provider.
    pub(super) fn provider(&self) -> usize {
        self.standing.provider().unwrap_or(0)
    }

    /// Notes that the newest slot that was passed on is `slot` of this provider.
    pub(super) fn passed(&mut self, slot: u64, provider: usize) {
        self.standing.applied(slot, Some(provider));
    }

    /// The newest slot that the lane's provider is known to have, unless it is so far ahead of the lane's own slots that it
    /// may be of another chain.
    pub(super) fn newest_joined_slot(&self) -> Option<u64> {
        let newest = self.state.readiness.newest_slot()?;
        let last = self.assembler.last().map_or(newest, |last| last.slot);
        (newest <= last.saturating_add(DEFAULT_SLOTS_MAX as u64)).then_some(newest)
    }

    /// Whether the lane lacks slots that have not come from anywhere.
    pub(super) fn is_in_gap(&self) -> bool {
        self.standing.is_in_gap()
    }

    /// Begins after `base`, which the next connection is asked for.
    pub(super) fn restart(&mut self, base: Option<Base>) {
        self.assembler.restart(base);
        if let Some(base) = base {
            self.state.resume.set_slot(base.slot);
        }
    }

    /// Gives up the connection, and begins after `base`.
    pub(super) fn give_up(&mut self, base: Option<Base>) {
        self.restart(base);
        self.waiting.over();
        self.standing.give_up();
    }

    /// Takes in one message of the receiver. Returns the gap that it leads to.
    pub(super) fn take(&mut self, message: Message) -> Option<Gap> {
        match message {
            Message::Batch(inputs) => {
                let gap = inputs.into_iter().find_map(|input| self.input(input));
                let (provider, assembler) = (self.standing.provider(), &self.assembler);
                self.state.brought(provider, self.standing.connection(), assembler);
                self.late.tell(assembler.dropped().late_updates, provider, &self.state.providers);
                gap
            }
            Message::Reconnected { provider } => {
                self.waiting.pause();
                if self.standing.reconnected(provider) {
                    // Whole slots that wait for a parent are the earlier provider's word, which nothing has confirmed.
                    self.assembler.restart(self.assembler.last());
                }
                // That of an earlier connection may be of another chain.
                self.state.readiness.set_newest_slot(0);
                self.input(Input::Reconnected)
            }
            Message::Tick => {
                self.state.resume.tick_taken(&self.assembler);
                self.check_waiting()
            }
            Message::Gap(gap) => self.lack(self.assembler.last(), gap),
            // A lane gets its messages from a receiver alone, which sends none of these.
            Message::Slot(_) | Message::Heal(_) | Message::Beat => None,
        }
    }

    /// Removes and returns the updates that came after their slot, each with that slot. The lane's next slot may not be the one
    /// that is passed on.
    pub(super) fn take_late(&mut self) -> Vec<(u64, Event)> {
        self.assembler.take_late()
    }

    /// Returns the next slot of the lane's chain, if it is whole.
    pub(super) fn next(&mut self) -> Option<WholeSlot> {
        let slot = self.assembler.next()?;
        self.waiting.over();
        self.state.resume.set_slot(slot.slot);
        self.state.brought(self.standing.provider(), self.standing.connection(), &self.assembler);
        self.standing.committed(slot.slot, slot.created_unix_ms);
        Some(slot)
    }

    /// Continues after `last`, the newest slot that was passed on, if this lane lacks it or slots before it, or has no
    /// connection that could bring them. A gap that begins at or before `last` is over. Returns the whole slots that are
    /// passed over.
    pub(super) fn pass_over(&mut self, last: Base) -> Vec<WholeSlot> {
        self.standing.committed(last.slot, 0);
        let own = self.assembler.last();
        let brings = self.state.resume.is_open() && !self.standing.has_given_up();
        let lacks = own.is_none() || !brings || self.assembler.awaits_parent().is_some();
        if !lacks || own.is_some_and(|own| own.slot >= last.slot) {
            return Vec::new();
        }
        self.waiting.over();
        self.state.resume.set_slot(last.slot);
        self.assembler.advance(last)
    }

    /// Returns the gap if a slot has waited too long for its parent. The time without a connection does not count.
    pub(super) fn check_waiting(&mut self) -> Option<Gap> {
        if !self.state.resume.is_open() {
            return None;
        }
        let gap = self.waiting.check(&self.assembler)?;
        self.lack(self.assembler.last(), gap)
    }

    /// Returns the gap before the slots that are held, which may have come before the lane's last one. Call it once
    /// [`Lane::next`] returns `None`.
    pub(super) fn check_gap(&mut self) -> Option<Gap> {
        let gap = self.assembler.check_gap()?;
        self.lack(self.assembler.last(), gap)
    }

    /// Ends the connection because of `gap`, and begins after `base`. Returns the gap, unless the provider is distrusted
    /// for it.
    pub(super) fn lack(&mut self, base: Option<Base>, gap: Gap) -> Option<Gap> {
        self.restart(base);
        self.waiting.over();
        self.standing.gap(gap.clone()).then_some(gap)
    }

    fn input(&mut self, input: Input) -> Option<Gap> {
        if self.standing.has_given_up() {
            return None;
        }
        let gap = self.assembler.push(input).err()?;
        self.lack(self.assembler.last(), gap)
    }
}
