//! A connection's view of the chain, as far as it can be true: the newest known slot, and whether slots arrive that can
//! be applied.
//!
//! Owns: these two answers, for one connection. Must not: decide which slots are applied, which is the assembler's
//! task, or hold accounts. Runs on the receiver's task, before the queue to ingest-apply.
//!
//! No single message is believed, because a status or a block meta may name any slot. The *chain* is the sequence of
//! blocks that begins at the connection's first slot. Each of its slots is whole (block meta and confirmation) and is
//! the child of the one before by number and hash, as the assembler demands.
//!
//! A slot beyond the chain may count as known while a slot between the two is missing. It does so only if its parent
//! block was announced with its hash as well, and only until the chain continues. A false message therefore has an
//! effect until the next slot of the chain, and no longer than its connection lasts.

use std::collections::BTreeMap;

use super::assemble::Input;
use crate::chain::{Base, SLOT_END};

/// Maximum number of slots beyond the chain that are kept, at 80 bytes each. It is more than the assembler holds before
/// it reports a gap.
const SLOTS_MAX: usize = 1024;

/// Placeholder for an unknown blockhash.
const UNKNOWN: [u8; 32] = [0; 32];

/// The view of the chain of one connection.
#[derive(Debug)]
pub(super) struct Heard {
    /// The newest slot of the chain. `None` before the first whole slot, where the connection does not begin at a given
    /// slot.
    tip: Option<Base>,
    /// Messages about slots beyond the chain, by slot.
    beyond: BTreeMap<u64, Told>,
    /// The newest slot that counts as known.
    newest: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// Blockhash and parent block, from the block meta.
    block: Option<([u8; 32], Base)>,
    confirmed: bool,
}

impl Told {
    fn is_whole(&self) -> bool {
        self.confirmed && self.block.is_some()
    }
}

impl Heard {
    /// Creates the view of a connection that begins after `applied`.
    pub(super) fn new(applied: Option<u64>) -> Self {
        let tip = applied.map(|slot| Base { slot, blockhash: UNKNOWN });
        Self { tip, beyond: BTreeMap::new(), newest: applied }
    }

    /// The newest known slot; `None` before the first one.
    pub(super) fn newest(&self) -> Option<u64> {
        self.newest
    }

    /// Returns the first slot beyond the chain that is not whole, with the name of its missing part. `None` where there
    /// is no such slot.
    pub(super) fn incomplete(&self) -> Option<(u64, &'static str)> {
        self.beyond.iter().find_map(|(slot, told)| match (told.block, told.confirmed) {
            (Some(_), true) => None,
            (Some(_), false) => Some((*slot, "no confirmation")),
            (None, _) => Some((*slot, "no block meta")),
        })
    }

    /// Moves the chain up to `slot`, which ingest-apply has applied.
    pub(super) fn applied(&mut self, slot: u64) {
        if self.tip.is_none_or(|tip| tip.slot < slot) {
            self.move_to(Base { slot, blockhash: UNKNOWN });
            self.follow();
        }
    }

    /// Notes an input. Returns whether it makes a slot beyond the chain whole. Such a slot can be applied, now or once
    /// its parent has come.
    pub(super) fn hear(&mut self, input: &Input) -> bool {
        let slot = match *input {
            Input::BlockMeta { slot, .. } | Input::Status { slot, .. } => slot,
            Input::Account { .. } | Input::Reconnected => return false,
        };
        if slot >= SLOT_END || self.tip.is_some_and(|tip| slot < tip.slot) {
            return false;
        }
        match *input {
            Input::Status { dead: true, .. } => {
                self.beyond.remove(&slot);
                false
            }
            Input::BlockMeta { blockhash, parent_slot, parent_blockhash, .. } => {
                if let Some(tip) = self.tip.as_mut().filter(|tip| tip.slot == slot) {
                    if tip.blockhash == UNKNOWN {
                        tip.blockhash = blockhash;
                    }
                    return false;
                }
                let parent = Base { slot: parent_slot, blockhash: parent_blockhash };
                let whole = self.tell(slot, |told| told.block = Some((blockhash, parent)));
                if self.is_told_of(parent) {
                    self.newest = self.newest.max(Some(slot));
                }
                self.follow();
                whole
            }
            Input::Status { confirmed: true, .. } if self.tip.is_none_or(|tip| slot > tip.slot) => {
                let whole = self.tell(slot, |told| told.confirmed = true);
                self.follow();
                whole
            }
            _ => false,
        }
    }

    /// Notes a part of a slot. Returns whether that makes the slot whole.
    fn tell(&mut self, slot: u64, note: impl FnOnce(&mut Told)) -> bool {
        if self.beyond.len() >= SLOTS_MAX && !self.beyond.contains_key(&slot) {
            // The chain continues from the slots that ingest-apply applies.
            self.beyond.clear();
        }
        let told = self.beyond.entry(slot).or_default();
        let was = told.is_whole();
        note(told);
        told.is_whole() && !was
    }

    /// Whether this block is the chain's newest, or was announced beyond it with this hash.
    fn is_told_of(&self, base: Base) -> bool {
        let beyond = || self.beyond.get(&base.slot).and_then(|told| told.block);
        self.tip.is_some_and(|tip| is(tip, base)) || beyond().is_some_and(|(blockhash, _)| blockhash == base.blockhash)
    }

    /// Extends the chain as far as whole slots beyond it allow.
    fn follow(&mut self) {
        while let Some(next) = self.next() {
            self.move_to(next);
        }
    }

    fn next(&self) -> Option<Base> {
        let continues = |parent: Base| self.tip.is_none_or(|tip| is(tip, parent));
        let whole = self.beyond.iter().filter(|(_, told)| told.is_whole());
        let mut blocks =
            whole.filter_map(|(slot, told)| told.block.map(|(blockhash, parent)| (*slot, blockhash, parent)));
        let (slot, blockhash, _) = blocks.find(|(_, _, parent)| continues(*parent))?;
        Some(Base { slot, blockhash })
    }

    fn move_to(&mut self, tip: Base) {
        self.beyond = self.beyond.split_off(&(tip.slot + 1));
        self.tip = Some(tip);
        self.newest = Some(tip.slot);
    }
}

/// Whether `block` is the same block as `tip`, whose hash may be unknown.
fn is(tip: Base, block: Base) -> bool {
    tip.slot == block.slot && (tip.blockhash == UNKNOWN || tip.blockhash == block.blockhash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(slot: u64, chain: u8) -> [u8; 32] {
        let mut hash = [chain; 32];
        hash[..8].copy_from_slice(&slot.to_be_bytes());
        hash
    }

    fn meta(slot: u64, chain: u8) -> Input {
        Input::BlockMeta {
            slot,
            blockhash: hash(slot, chain),
            parent_slot: slot - 1,
            parent_blockhash: hash(slot - 1, chain),
            created_unix_ms: 0,
        }
    }

    fn confirmed(slot: u64) -> Input {
        Input::Status { slot, confirmed: true, dead: false }
    }

    fn whole(heard: &mut Heard, slot: u64, chain: u8) -> [bool; 2] {
        [heard.hear(&meta(slot, chain)), heard.hear(&confirmed(slot))]
    }

    #[test]
    fn one_status_or_block_meta_of_a_slot_that_follows_from_nothing_is_not_believed() {
        let mut heard = Heard::new(Some(100));
        for lie in [confirmed(1 << 30), meta(1 << 30, 1), confirmed(u64::MAX), meta(u64::MAX, 1)] {
            heard.hear(&meta(100, 1));
            heard.hear(&lie);
            assert_eq!(heard.newest(), Some(100), "{lie:?}");
        }
        // Messages that fit each other are believed until the chain continues.
        heard.hear(&meta((1 << 30) + 1, 1));
        assert_eq!(heard.newest(), Some((1 << 30) + 1));
        assert_eq!(whole(&mut heard, 101, 1), [false, true]);
        assert_eq!(heard.newest(), Some(101));
    }

    #[test]
    fn a_real_lag_is_seen_while_a_slot_is_missing_and_gone_when_it_comes() {
        let mut heard = Heard::new(Some(100));
        assert_eq!(whole(&mut heard, 101, 1), [false, true]);
        for slot in 103..=250 {
            assert_eq!(whole(&mut heard, slot, 1), [false, true], "it waits for its parent");
        }
        assert_eq!(heard.newest(), Some(250));
        assert_eq!(whole(&mut heard, 102, 1), [false, true]);
        assert_eq!((heard.newest(), heard.beyond.len(), heard.tip.unwrap().slot), (Some(250), 0, 250));
    }

    #[test]
    fn what_makes_no_slot_whole_is_no_progress() {
        let mut heard = Heard::new(Some(100));
        for slot in 90..=100 {
            assert_eq!(whole(&mut heard, slot, 1), [false, false], "old ones, again");
        }
        for slot in 101..200 {
            assert!(!heard.hear(&meta(slot, 1)), "block metas alone");
        }
        assert_eq!((heard.newest(), heard.incomplete()), (Some(199), Some((101, "no confirmation"))));
        let mut heard = Heard::new(Some(100));
        for slot in 101..200 {
            assert!(!heard.hear(&confirmed(slot)), "confirmations alone");
        }
        assert_eq!((heard.newest(), heard.incomplete()), (Some(100), Some((101, "no block meta"))));
        assert!(heard.hear(&meta(150, 1)), "and whole is whole once");
        assert!(!heard.hear(&meta(150, 1)) && !heard.hear(&confirmed(150)));
    }

    #[test]
    fn another_chain_stays_beyond_and_memory_is_bounded() {
        let mut heard = Heard::new(None);
        assert_eq!(whole(&mut heard, 7, 1), [false, true]);
        assert_eq!(heard.newest(), Some(7), "the first whole slot is where the chain begins");
        whole(&mut heard, 8, 2);
        assert_eq!(heard.tip.unwrap().slot, 7, "the parent is another block");
        for slot in 1_000..1_000 + 3 * SLOTS_MAX as u64 {
            whole(&mut heard, slot, 2);
        }
        assert!(heard.beyond.len() <= SLOTS_MAX);
        heard.applied(9);
        assert_eq!((heard.newest(), heard.tip.unwrap().slot), (Some(9), 9));
        whole(&mut heard, 10, 1);
        assert_eq!(heard.newest(), Some(10));
    }
}
