//! The slots of one stream in the order of the chain: the stream's side of the ingest.
//!
//! Owns: the place in the chain, gaps, the wait for a parent, and the end of a connection that is of no more use. Must not:
//! read or write a map. It hands whole slots to their taker, which may be maps, a spool or the merging. Runs where the slots
//! are taken.
//!
//! For each message call [`Sequence::take`], then [`Sequence::next`] until there is no slot, each followed by
//! [`Sequence::taken`], and then [`Sequence::check`]. A gap that any of them returns ends in [`Sequence::start_over`], which
//! drops all slots that were not handed out. So hand out the whole slots before a gap of `take` first.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::State;
use super::assemble::{Assembler, HeldLimits, Input};
use super::late_updates::LateLines;
use super::parent_wait::ParentWait;
use super::phase::{StreamPhase, Taker};
use super::receive::Message;
use crate::base::chain::{Base, Gap, WholeSlot};

/// The assembler of one of several lanes may take 1/`LANE_SHARE` of the memory of a single one.
const LANE_SHARE: u64 = 2;

/// The slots of one stream.
pub(super) struct Sequence {
    state: State,
    pub(super) assembler: Assembler,
    /// A slot that came whole, until it is handed out.
    whole: Option<Box<WholeSlot>>,
    /// Whether the slots of the newest connection are assembled here.
    assembles: bool,
    pub(super) phase: StreamPhase,
    wait: ParentWait,
    late: LateLines,
}

impl Sequence {
    /// Begins after `base`, for a taker that has the state `state`. A whole slot waits for its parent for `gap_timeout`.
    pub(super) fn new(taker: Taker, state: State, base: Option<Base>, gap_timeout: Duration) -> Self {
        let share = if taker == Taker::Merge { LANE_SHARE } else { 1 };
        Self {
            assembler: Assembler::new(base, HeldLimits::within(probe::memory_limit().bytes / share)),
            whole: None,
            assembles: false,
            phase: StreamPhase::new(taker, state.clone()),
            wait: ParentWait::new(gap_timeout),
            late: LateLines::default(),
            state,
        }
    }

    /// The state of the taker, and of the receiver of this stream.
    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Index of the provider of the newest connection; before the first one, of the most preferred provider.
    pub(super) fn provider(&self) -> usize {
        self.phase.provider().unwrap_or(0)
    }

    /// Takes in one message. The error is the gap that it shows.
    pub(super) fn take(&mut self, message: Message) -> Result<(), Gap> {
        match message {
            Message::Batch(_) | Message::Slot(_) if self.phase.has_given_up() => {}
            Message::Batch(inputs) => {
                inputs.into_iter().try_for_each(|input| self.assembler.push(input))?;
                self.show();
            }
            Message::Slot(whole) => match self.assembler.gap_before(&whole.slot) {
                Some(gap) => return Err(gap),
                None => self.whole = Some(whole.slot),
            },
            Message::Reconnected { provider, stream } => {
                // The replay may have the missing slots.
                self.wait.pause();
                self.assembles = true;
                if self.phase.reconnected(provider, stream) {
                    // Only the earlier provider has sent the whole slots that wait for a parent, and nothing has confirmed them.
                    self.assembler.restart(self.assembler.last());
                }
                // That of an earlier connection may be of another chain.
                self.state.providers.forget_newest(provider);
                self.assembler.push(Input::Reconnected)?;
            }
            Message::From { provider, stream } => {
                self.assembles = false;
                self.phase.reconnected(provider, stream);
            }
            Message::Tick => {
                let gap = self.check_wait();
                self.state.resume.tick_taken(&self.assembler);
                return gap.map_or(Ok(()), Err);
            }
            Message::Gap(gap) => return Err(gap),
            Message::Heal(_) | Message::Beat => {}
        }
        Ok(())
    }

    /// Returns the next slot of the chain, if it is whole.
    pub(super) fn next(&mut self) -> Option<WholeSlot> {
        let Some(whole) = self.whole.take() else { return self.assembler.next() };
        self.assembler.restart(Some(whole.base()));
        Some(*whole)
    }

    /// Notes that a slot that was handed out is taken over: the next connection begins there.
    pub(super) fn taken(&mut self, slot: &WholeSlot) {
        self.phase.taken(slot.slot);
        self.state.resume.set_slot(slot.slot);
        self.wait.over();
        self.show();
    }

    /// Returns the gap before the slots that are held, or before one that has waited too long for its parent.
    pub(super) fn check(&mut self) -> Option<Gap> {
        self.assembler.check_gap().or_else(|| self.check_wait())
    }

    /// Returns the gap before a slot that has waited too long for its parent.
    pub(super) fn check_wait(&mut self) -> Option<Gap> {
        self.phase.awaits(self.wait.awaited(&self.assembler));
        self.wait.check(&self.assembler)
    }

    /// Ends the connection because of `gap`, and begins after `base`. Returns false where the provider is distrusted
    /// for it, which is no gap as long as another one is trusted.
    pub(super) fn start_over(&mut self, base: Option<Base>, gap: Gap) -> bool {
        self.restart(base);
        self.wait.over();
        self.phase.gap(gap)
    }

    /// Gives up the connection, and begins after `base`.
    pub(super) fn give_up(&mut self, base: Option<Base>) {
        self.restart(base);
        self.wait.over();
        self.phase.give_up();
    }

    /// Begins after `base`, which the next connection is asked for.
    pub(super) fn restart(&mut self, base: Option<Base>) {
        self.whole = None;
        self.assembler.restart(base);
        if let Some(base) = base {
            self.state.resume.set_slot(base.slot);
        }
    }

    /// Begins after `to`, the block of an archive that the store was brought to.
    pub(super) fn healed(&mut self, to: Base) {
        self.assembler.begin_anew(to);
        self.state.resume.set_slot(to.slot);
        self.phase.healed();
    }

    /// Continues after `last`, the newest slot that was passed on, if this stream lacks it or slots before it, or has no
    /// connection that could send them. A gap that begins at or before `last` is over. Returns the whole slots that are
    /// passed over.
    pub(super) fn pass_over(&mut self, last: Base) -> Vec<WholeSlot> {
        self.phase.committed(last.slot, 0);
        let own = self.assembler.last();
        let sends = self.state.resume.is_open() && !self.phase.has_given_up();
        let lacks = own.is_none() || !sends || self.assembler.awaits_parent().is_some();
        if !lacks || own.is_some_and(|own| own.slot >= last.slot) {
            return Vec::new();
        }
        self.wait.over();
        self.state.resume.set_slot(last.slot);
        self.assembler.advance(last)
    }

    /// Shows the receiver and the pages how far the newest connection is.
    fn show(&mut self) {
        if !self.assembles {
            return;
        }
        let (provider, dropped) = (self.phase.provider(), self.assembler.dropped());
        self.state.show_handed_out(provider, self.phase.connection(), &self.assembler);
        self.late.log(dropped.late_updates, provider, &self.state.providers);
        if self.phase.taker() == Taker::Map {
            let figures = &self.state.figures;
            // ORDERING: Relaxed: statistics.
            figures.slots_dead.store(dropped.dead_slots, Ordering::Relaxed);
            figures.slots_duplicate.store(dropped.duplicate_slots, Ordering::Relaxed);
            figures.updates_duplicate.store(dropped.duplicate_updates, Ordering::Relaxed);
        }
    }
}
