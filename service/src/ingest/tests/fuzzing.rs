//! Entry point of the fuzz target `stream` in `service/fuzz`: runs arbitrary messages of a server through the check of messages and
//! the assembler.
//!
//! Owns: nothing. Must not: be called by the service. Any thread.

use std::collections::HashSet;
use std::time::Duration;

use solana::ChainCheckpoint;
use yellowstone_grpc_proto::geyser::SubscribeUpdate;

use super::State;
use super::assemble::{Assembler, HeldLimits, Input};
use super::convert::Converted;
use super::follow::Selection;
use super::message_check::MessageCheck;
use super::settings::ReadinessSettings;
use super::subscribe::Commitment;
use crate::base::chain::{Base, SLOT_END, WholeSlot};
use crate::base::figure::unix_ms;
use crate::base::plausible::reach;
use crate::overlay::Overlay;

/// HeldLimits of the assembler, small so that the fuzzer reaches both.
const LIMITS: HeldLimits = HeldLimits { slots_max: 4, bytes_max: 16 << 10 };

/// Runs updates in the order of their arrival; `None` stands for a new connection. Asserts that the handed-out slots
/// form a chain of whole slots without an absurd one, that no later slot is final, and that a gap names a range. After a
/// gap a new assembler starts from the last handed-out slot, as after a restart.
pub fn stream(
    selection: Selection,
    commitment: Commitment,
    base: Option<Base>,
    updates: impl IntoIterator<Item = Option<SubscribeUpdate>>,
) {
    let checkpoint = ChainCheckpoint { slot: base.map(|base| base.slot), ..ChainCheckpoint::default() };
    let overlay = Overlay::new(&checkpoint, false, commitment == Commitment::Finalized);
    let state = State::new(checkpoint, overlay, ReadinessSettings::default());
    let mut check = MessageCheck::new(selection, commitment, 0, &state);
    let mut assembler = Assembler::new(base, LIMITS);
    for update in updates {
        let input = match update.map(|update| check.take(update)) {
            Some(Ok(Converted::Nothing)) => continue,
            Some(Ok(Converted::Account(input) | Converted::Boundary(input))) => input,
            // A message that cannot be read ends its connection.
            failed => {
                if let Some(Err(gap)) = failed {
                    assert!(gap.first_slot <= gap.last_slot && gap.last_slot < SLOT_END, "{gap:?}");
                }
                check = MessageCheck::new(selection, commitment, 0, &state);
                Input::Reconnected
            }
        };
        let pushed = assembler.push(input);
        let gap = if pushed.is_ok() {
            drain(&mut assembler, &state);
            assembler.check_gap()
        } else {
            pushed.err()
        };
        if let Some(gap) = gap {
            assert!(gap.first_slot <= gap.last_slot, "{gap:?}");
            assembler = Assembler::new(assembler.last(), LIMITS);
        }
        assert!(assembler.held_slots() > 0 || assembler.held_bytes() == 0, "bytes of nothing");
        assert!(assembler.held_bytes() <= LIMITS.bytes_max, "held_bytes={}", assembler.held_bytes());
    }
}

/// Takes the whole slots as ingest-apply does, without a store.
fn drain(assembler: &mut Assembler, state: &State) {
    let mut last = assembler.last();
    while let Some(slot) = assembler.next() {
        let WholeSlot { slot, blockhash, parent, created_unix_ms, events, .. } = slot;
        assert!(slot < SLOT_END, "slot={slot}");
        // Also of the first one, where there is no base.
        assert!(slot - parent.slot <= reach(Some(Duration::MAX)), "slot={slot} parent_slot={}", parent.slot);
        if let Some(last) = last {
            assert!(slot > last.slot && parent.slot == last.slot);
            assert!(last.blockhash == [0; 32] || parent.blockhash == last.blockhash, "slot={slot} of another chain");
        }
        let keys: HashSet<_> = events.iter().map(|event| event.key).collect();
        assert_eq!(keys.len(), events.len(), "one update a key");
        last = Some(Base { slot, blockhash });
        assert_eq!(assembler.last(), last);
        state.overlay.begin(Base { slot, blockhash });
        state.resume.set_slot(slot);
        state.published.publish(ChainCheckpoint { slot: Some(slot), blockhash, ..ChainCheckpoint::default() });
        state.overlay.published(Some(slot));
        state.progress.slot_applied(state.age(created_unix_ms, unix_ms()));
        assert!(state.overlay.slot(crate::base::chain::Commitment::Finalized) <= Some(slot), "unrooted");
    }
}
