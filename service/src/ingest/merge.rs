//! Merges two subscriptions by slot: of each slot, the first whole one goes to ingest-apply.
//!
//! Owns: the slots that were passed on, and the comparison of the other lane's slots with them. Must not: connect,
//! choose a provider, or guess which of two is right. Runs on the receivers' task.
//!
//! A *lane* is one subscription. Its slots are assembled by themselves, so that each lane has a chain without holes. A
//! lane that lacks a slot continues after it as soon as the other lane has sent it. So the chain has a gap only
//! where both lanes lack a slot, or where one does and the other's provider fails.
//!
//! Two lanes may name different blocks for one slot. The block that came first stays, because ingest-apply has it. The
//! other lane contradicts the applied chain, as a provider that takes over may, and the same rule distrusts it.
//!
//! Two lanes may also send different accounts of one block. A blockhash does not cover the accounts that a server
//! sends, so nothing in the stream shows which of them is right: the difference is reported, and an audit decides. An
//! update that comes after its slot is no difference: it goes out with the next slot that is passed on, of either lane.

mod differing;
mod passed;

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use tracing::error;

use self::differing::{Difference, Differing};
use self::passed::{Passed, Place};
use super::State;
use super::assemble::Input;
use super::late_updates::LateUpdates;
use super::receive::{Message, Wholes};
use super::sequence::Sequence;
use crate::base::chain::{Base, Gap, WholeSlot};

/// How often the lanes' state is looked at while nothing arrives.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Maximum number of late updates that wait for the next slot. More of them come from a server that errs.
const LATE_MAX: usize = 1 << 18;

/// The end of the merging, because ingest-apply has ended.
struct Closed;

/// The merging of several lanes.
pub(super) struct Merge {
    lanes: Vec<Sequence>,
    passed: Passed,
    out: Wholes,
    /// The state of ingest-apply. Each lane has one of its own.
    state: State,
    /// The provider of the newest slot that was passed on, and the number of the connection that ingest-apply takes it
    /// for; `None` before the first slot, and after a gap.
    sent_of: Option<(usize, u64)>,
    /// The newest gap of a lane and its provider, until it is over or was sent.
    gap: Option<(usize, Gap)>,
    differing: Differing,
    /// The late updates of all lanes, until the next slot is passed on.
    late: LateUpdates,
}

impl Merge {
    /// Begins after the newest slot that ingest-apply, which has the state `state`, has taken over.
    pub(super) fn new(mut lanes: Vec<Sequence>, out: mpsc::Sender<Message>, state: State) -> Self {
        let base = applied(&state);
        lanes.iter_mut().for_each(|lane| lane.restart(base));
        let (differing, late) = (Differing::default(), LateUpdates::default());
        let out = Wholes::new(out);
        Self { lanes, passed: Passed::after(base), out, state, sent_of: None, gap: None, differing, late }
    }

    /// Takes the messages of the lanes' receivers until one of them or ingest-apply ends.
    pub(super) async fn run(mut self, mut received: Vec<mpsc::Receiver<Message>>) {
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (out, mut turn) = (self.out.queue().clone(), 0);
        loop {
            let goes_on = tokio::select! {
                biased;
                () = out.closed() => return,
                _ = ticks.tick() => self.look(),
                (lane, message) = next(&mut received, turn) => {
                    // The other lane has its turn after this one, if both have messages.
                    turn = lane + 1;
                    let Some(message) = message else { return };
                    self.take(lane, message).await
                }
            };
            if goes_on.is_err() || self.send_gap().await.is_err() {
                return;
            }
        }
    }

    /// Looks at waits, at lines that are due, and at ingest-apply, which a message may not come for.
    fn look(&mut self) -> Result<(), Closed> {
        self.start_over_if_given_up();
        self.differing.log(&self.state.providers);
        for at in 0..self.lanes.len() {
            // The time without a connection does not count.
            let is_open = self.lanes[at].state().resume.is_open();
            if let Some(gap) = is_open.then(|| self.lanes[at].check_wait()).flatten() {
                self.lack(at, self.lanes[at].assembler.last(), gap);
            }
        }
        // A full queue needs no tick.
        match self.out.queue().try_send(Message::Tick) {
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Closed),
            Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => Ok(()),
        }
    }

    /// Takes in one message of a lane.
    async fn take(&mut self, at: usize, message: Message) -> Result<(), Closed> {
        self.start_over_if_given_up();
        if matches!(message, Message::Reconnected { .. })
            && let Some(last) = self.passed.last()
        {
            // The connection begins at a slot that was passed on. The lane may lack slots before it.
            self.lanes[at].restart(Some(last));
        }
        let ends_slot = matches!(&message, Message::Batch(inputs)
            if !matches!(inputs.last(), Some(Input::Account { .. })));
        let taken = self.lanes[at].take(message);
        self.gather_late(at);
        if let Err(gap) = taken {
            self.lack(at, self.lanes[at].assembler.last(), gap);
        }
        let mut has_passed = self.hand_out().await?;
        // A slot that came before its parent may contradict it.
        for at in 0..self.lanes.len() {
            if let Some(gap) = self.lanes[at].assembler.check_gap() {
                self.lack(at, self.lanes[at].assembler.last(), gap);
            }
            has_passed |= self.hand_out().await?;
        }
        if ends_slot && !has_passed {
            // The receiver may know of a new finalized slot, and ingest-apply looks for one after each message.
            self.out.queue().try_send(Message::Beat).ok();
        }
        Ok(())
    }

    /// Keeps the late updates of a lane, except those that the slots passed on have overwritten.
    fn gather_late(&mut self, at: usize) {
        let provider = self.lanes[at].provider();
        for (slot, event) in self.lanes[at].assembler.take_late() {
            match self.passed.lacks(slot, provider, &event.key) {
                Some(true) if self.late.updates() < LATE_MAX => self.late.keep(slot, event),
                Some(false) => {}
                _ => error!(
                    slot,
                    provider = self.state.providers.name(provider),
                    "an update came too late to compare it with the slots after its own: it is not applied, and the store may \
                     hold an older value; check it with `service audit`"
                ),
            }
        }
    }

    /// Places the next whole slots of all lanes. Returns whether one was passed on.
    async fn hand_out(&mut self) -> Result<bool, Closed> {
        let mut has_passed = false;
        while let Some((lane, slot)) = self.next_whole() {
            has_passed |= self.place(lane, slot).await?;
        }
        Ok(has_passed)
    }

    /// Returns the next whole slot of any lane, and the lane.
    fn next_whole(&mut self) -> Option<(usize, WholeSlot)> {
        let (at, slot) = self.lanes.iter_mut().enumerate().find_map(|(at, lane)| Some((at, lane.next()?)))?;
        self.lanes[at].taken(&slot);
        self.lanes[at].phase.committed(slot.slot, slot.created_unix_ms);
        Some((at, slot))
    }

    /// Passes a lane's slot on, or compares it with the one that was. Returns whether it was passed on.
    async fn place(&mut self, at: usize, slot: WholeSlot) -> Result<bool, Closed> {
        let provider = self.lanes[at].provider();
        match self.passed.place(&slot) {
            Place::Next => {
                self.pass(provider, slot).await?;
                self.catch_up();
                return Ok(true);
            }
            // The copy of another provider confirms the slot.
            Place::Known => self.state.progress.chain_goes_on(slot.slot, provider),
            Place::Differs { first, events_first } => self.report(provider, first, &slot, events_first),
            Place::Contradicts(detail) => {
                // The contradiction of an applied slot lasts until the next one is applied.
                let first_slot = self.passed.last().map_or(slot.slot, |last| last.slot + 1);
                let gap = Gap { first_slot, last_slot: first_slot, detail, contradicts: true };
                self.lack(at, self.passed.last(), gap);
            }
        }
        Ok(false)
    }

    async fn pass(&mut self, provider: usize, mut slot: WholeSlot) -> Result<(), Closed> {
        self.follow(provider).await?;
        slot.late += self.late.put_before(&mut slot.events);
        self.passed.push(&slot, provider);
        self.lanes.iter_mut().for_each(|lane| lane.phase.passed(provider));
        self.state.providers.was_first(provider);
        self.out.send(slot).await.map_err(|_| Closed)
    }

    /// Names to ingest-apply the provider of the next messages, if it was another provider's before.
    async fn follow(&mut self, provider: usize) -> Result<(), Closed> {
        if self.sent_of.is_none_or(|(of, _)| of != provider) {
            self.send(Message::From { provider, stream: self.state.providers.stream() }).await?;
            self.sent_of = Some((provider, self.state.resume.announce()));
        }
        Ok(())
    }

    /// Has the lanes that lack the newest slot, or cannot send it, continue after it.
    fn catch_up(&mut self) {
        let Some(last) = self.passed.last() else { return };
        for at in 0..self.lanes.len() {
            let provider = self.lanes[at].provider();
            for slot in self.lanes[at].pass_over(last) {
                match self.passed.place(&slot) {
                    Place::Differs { first, events_first } => self.report(provider, first, &slot, events_first),
                    // The lane's next slot contradicts those that were passed on, too.
                    Place::Contradicts(_) | Place::Next | Place::Known => {}
                }
            }
        }
        self.gap.take_if(|(_, gap)| gap.first_slot <= last.slot);
    }

    /// Counts a block of which two providers send different accounts, and reports it.
    fn report(&mut self, provider: usize, first: usize, slot: &WholeSlot, accounts_first: usize) {
        let providers = &self.state.providers;
        providers.differs(provider);
        let accounts = slot.own_events().len();
        self.differing.note(Difference { slot: slot.slot, provider, accounts, first, accounts_first });
        self.differing.log(providers);
    }

    /// Ends a lane's connection because of a gap, after which the lane begins at `base`. Notes that it lacks slots that were
    /// not passed on, or contradicts those that were. A lane that lacks others continues after them.
    fn lack(&mut self, at: usize, base: Option<Base>, gap: Gap) {
        if !self.lanes[at].start_over(base, gap.clone()) {
            return;
        }
        if gap.contradicts || self.passed.last().is_none_or(|last| gap.first_slot > last.slot) {
            self.gap = Some((self.lanes[at].provider(), gap));
        } else {
            self.catch_up();
        }
    }

    /// Sends ingest-apply a gap once no lane can close it.
    async fn send_gap(&mut self) -> Result<(), Closed> {
        let providers = &self.state.providers;
        let is_lost = |(at, lane): (usize, &Sequence)| {
            lane.phase.is_in_gap() || !lane.state().resume.is_open() && providers.cannot_bring(at)
        };
        if self.gap.is_none() || !self.lanes.iter().enumerate().all(is_lost) {
            return Ok(());
        }
        let Some((provider, gap)) = self.gap.take() else { return Ok(()) };
        self.follow(provider).await?;
        // ingest-apply discards everything that it was sent before. The lanes have already started over.
        self.sent_of = None;
        self.send(Message::Gap(gap)).await
    }

    /// Restarts every lane if ingest-apply could not take a slot.
    fn start_over_if_given_up(&mut self) {
        if !self.sent_of.is_some_and(|(_, connection)| self.state.resume.is_given_up(connection)) {
            return;
        }
        self.sent_of = None;
        let base = self.passed.rewind(applied(&self.state));
        self.late.restarted(base.map(|base| base.slot));
        self.lanes.iter_mut().for_each(|lane| lane.give_up(base));
    }

    async fn send(&self, message: Message) -> Result<(), Closed> {
        self.out.queue().send(message).await.map_err(|_| Closed)
    }
}

/// Returns the newest block that ingest-apply has taken over, with its blockhash if it is committed.
fn applied(state: &State) -> Option<Base> {
    let checkpoint = **state.published.checkpoint();
    let known = |slot| if checkpoint.slot == Some(slot) { checkpoint.blockhash } else { [0; 32] };
    state.resume.slot().map(|slot| Base { slot, blockhash: known(slot) })
}

/// Returns the next message of any lane, asking the lane `turn` first, and the lane. `None` in place of the message if
/// the lane's receiver has ended.
async fn next(received: &mut [mpsc::Receiver<Message>], turn: usize) -> (usize, Option<Message>) {
    let lanes = received.len();
    poll_fn(|context| {
        for at in (turn..turn + lanes).map(|at| at % lanes) {
            if let Poll::Ready(message) = received[at].poll_recv(context) {
                return Poll::Ready((at, message));
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests;
