//! The gaps that a contradiction leads to, with their words.
//!
//! Owns: when a slot contradicts the chain. Must not: hold a slot. Runs where an assembler runs.

use crate::base::chain::{Base, Gap, WholeSlot};

/// Returns the gap of a slot that contradicts the chain up to `last`, which it is no child of. `None` if its parent may
/// still come.
pub(super) fn contradiction(last: Base, of: &WholeSlot) -> Option<Gap> {
    let (slot, parent) = (of.slot, of.parent.slot);
    if parent < last.slot {
        let detail = format!(
            "slot={slot} has parent_slot={parent}, which is before the last applied slot={}: the chain forked below it",
            last.slot
        );
        return Some(Gap { first_slot: parent + 1, last_slot: last.slot, detail, contradicts: true });
    }
    if parent > last.slot {
        return None;
    }
    let detail = format!(
        "slot={slot} has parent_slot={parent} with parent_blockhash={}, but blockhash={} was applied: the stream is of \
         another chain than the store, or on another fork",
        base58(&of.parent.blockhash),
        base58(&last.blockhash)
    );
    Some(Gap { first_slot: parent, last_slot: parent, detail, contradicts: true })
}

pub(super) fn same_block(slot: u64, known: [u8; 32], came: [u8; 32]) -> Result<(), Gap> {
    if known == came {
        return Ok(());
    }
    let detail = format!(
        "slot={slot} came again as another block: blockhash={} before, blockhash={} now: the stream is of another chain \
         than the store, or on another fork",
        base58(&known),
        base58(&came)
    );
    Err(Gap { first_slot: slot, last_slot: slot, detail, contradicts: false })
}

fn base58(bytes: &[u8; 32]) -> String {
    bs58::encode(bytes).into_string()
}
