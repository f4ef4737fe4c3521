//! Entry point of the fuzz target `stream` in `service/fuzz`: runs arbitrary messages of a server through the
//! conversion and the assembler.
//!
//! Owns: nothing. Must not: be called by the service. Any thread.

use std::collections::HashSet;

use yellowstone_grpc_proto::geyser::SubscribeUpdate;

use super::assemble::{Assembler, Input, Limits};
use super::convert::{Converted, convert};
use super::follow::Selection;
use super::subscribe::Commitment;
use crate::chain::{Base, WholeSlot};

/// Limits of the assembler, small so that the fuzzer reaches both.
const LIMITS: Limits = Limits { slots_max: 4, bytes_max: 16 << 10 };

/// Runs updates in the order of their arrival; `None` stands for a new connection. Asserts that the handed-out slots
/// form a chain of whole slots, and that a gap names a range. After a gap a new assembler starts from the last
/// handed-out slot, as after a restart.
pub fn stream(
    selection: Selection,
    commitment: Commitment,
    base: Option<Base>,
    updates: impl IntoIterator<Item = Option<SubscribeUpdate>>,
) {
    let mut assembler = Assembler::new(base, LIMITS);
    for update in updates {
        let input = match update.map(|update| convert(selection, commitment, update)) {
            Some(Ok(Converted::Nothing)) => continue,
            Some(Ok(Converted::Account(input) | Converted::Boundary(input))) => input,
            // A message that cannot be read ends its connection.
            Some(Err(_)) | None => Input::Reconnected,
        };
        let pushed = assembler.push(input);
        let gap = if pushed.is_ok() {
            drain(&mut assembler);
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

fn drain(assembler: &mut Assembler) {
    let mut last = assembler.last();
    while let Some(slot) = assembler.next() {
        let WholeSlot { slot, blockhash, parent_slot, parent_blockhash, events, .. } = slot;
        if let Some(last) = last {
            assert!(slot > last.slot && parent_slot == last.slot);
            assert!(last.blockhash == [0; 32] || parent_blockhash == last.blockhash, "slot={slot} of another chain");
        }
        let keys: HashSet<_> = events.iter().map(|event| event.key).collect();
        assert_eq!(keys.len(), events.len(), "one update a key");
        last = Some(Base { slot, blockhash });
        assert_eq!(assembler.last(), last);
    }
}
