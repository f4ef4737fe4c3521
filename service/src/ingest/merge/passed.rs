//! The slots that a merge has passed on, and the comparison of other slots with them.
//!
//! Owns: the newest [`REMEMBERED_SLOTS`] of them, each with its block, a hash of its accounts and those of its keys. Must not:
//! decide which provider is trusted. Runs on the receivers' task.

use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasher as _;

use foldhash::fast::RandomState;

use crate::base::chain::{Base, WholeSlot};
use crate::ingest::assemble::REMEMBERED_SLOTS;

/// Maximum number of keys of all remembered slots but the newest: those of more than a minute of mainnet, in some 10 MB.
const KEYS_MAX: usize = 1 << 19;

/// Placeholder for an unknown blockhash.
const UNKNOWN: [u8; 32] = [0; 32];

/// The place of a lane's slot among those that were passed on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It is the next one.
    Next,
    /// It was passed on with this content, or so long ago that its content is forgotten.
    Known,
    /// The same block was passed on with other accounts, of this provider.
    Differs { first: usize, events_first: usize },
    /// It is not on their chain; holds the reason in words.
    Contradicts(String),
}

/// The chain of the slots that were passed on.
pub(super) struct Passed {
    last: Option<Base>,
    /// Ascending by slot; at most [`REMEMBERED_SLOTS`].
    slots: VecDeque<Slot>,
    /// The newest slot whose keys are forgotten.
    forgotten: Option<u64>,
    /// It has a new seed in each process, so nothing outside can make two contents with one hash.
    hasher: RandomState,
}

struct Slot {
    base: Base,
    provider: usize,
    /// Sum of the hashes of key and value of each account.
    content: u64,
    events: usize,
    /// Hashes of the keys of its accounts; none once they are forgotten.
    keys: HashSet<u64, RandomState>,
}

impl Passed {
    /// Begins after `base`, before any slot was passed on.
    pub(super) fn after(base: Option<Base>) -> Self {
        Self { last: base, slots: VecDeque::new(), forgotten: None, hasher: RandomState::default() }
    }

    /// The newest slot that was passed on; before the first one, the base.
    pub(super) fn last(&self) -> Option<Base> {
        self.last
    }

    /// Returns the place of a slot whose lane has all slots before it.
    pub(super) fn place(&self, slot: &WholeSlot) -> Place {
        let Some(last) = self.last else { return Place::Next };
        if slot.slot > last.slot {
            let is_child = slot.parent.slot == last.slot && is_same(slot.parent.blockhash, last.blockhash);
            return if is_child { Place::Next } else { contradicts(slot, last) };
        }
        match self.slots.binary_search_by_key(&slot.slot, |passed| passed.base.slot) {
            Ok(at) => {
                let passed = &self.slots[at];
                match () {
                    () if passed.base.blockhash != slot.blockhash => contradicts(slot, passed.base),
                    () if (passed.content, passed.events) == (self.content(slot), slot.own_events().len()) => {
                        Place::Known
                    }
                    () => Place::Differs { first: passed.provider, events_first: passed.events },
                }
            }
            // A slot between two that follow one another.
            Err(at) if at > 0 => contradicts(slot, self.slots[at - 1].base),
            Err(_) => Place::Known,
        }
    }

    /// Notes that the next slot is passed on.
    pub(super) fn push(&mut self, slot: &WholeSlot, provider: usize) {
        if self.slots.len() == REMEMBERED_SLOTS {
            let oldest = self.slots.pop_front();
            self.forgotten = self.forgotten.max(oldest.map(|oldest| oldest.base.slot));
        }
        let mut held: usize = self.slots.iter().map(|passed| passed.keys.len()).sum();
        for oldest in &mut self.slots {
            if held <= KEYS_MAX {
                break;
            }
            held -= std::mem::take(&mut oldest.keys).len();
            self.forgotten = self.forgotten.max(Some(oldest.base.slot));
        }
        let keys = slot.own_events().iter().map(|event| self.hasher.hash_one(event.key)).collect();
        let (base, content, events) = (slot.base(), self.content(slot), slot.own_events().len());
        self.last = Some(base);
        self.slots.push_back(Slot { base, provider, content, events, keys });
    }

    /// Whether an update of `key` in `slot` that came late, from this provider, is the newest one: no later slot has the key,
    /// nor has the slot itself if the copy of another provider was passed on. `None` if their keys are forgotten.
    pub(super) fn lacks(&self, slot: u64, provider: usize, key: &[u8; 32]) -> Option<bool> {
        if Some(slot) <= self.forgotten {
            return None;
        }
        let key = self.hasher.hash_one(key);
        let is_newer =
            |passed: &&Slot| passed.base.slot > slot || passed.base.slot == slot && passed.provider != provider;
        Some(!self.slots.iter().rev().take_while(is_newer).any(|passed| passed.keys.contains(&key)))
    }

    /// Goes back to `base`, whose blockhash may be unknown. Returns it with its blockhash, as far as that is known.
    pub(super) fn rewind(&mut self, base: Option<Base>) -> Option<Base> {
        let is_of = |passed: Base, base: Base| {
            passed.slot < base.slot || passed.slot == base.slot && is_same(passed.blockhash, base.blockhash)
        };
        self.slots.retain(|passed| base.is_some_and(|base| is_of(passed.base, base)));
        let known = self.slots.back().map(|passed| passed.base).or(self.last);
        let last =
            base.map(|base| known.filter(|known| known.slot == base.slot && is_of(*known, base)).unwrap_or(base));
        self.last = last;
        last
    }

    fn content(&self, slot: &WholeSlot) -> u64 {
        let hashes = slot.own_events().iter().map(|event| self.hasher.hash_one((event.key, event.value)));
        hashes.fold(0, u64::wrapping_add)
    }
}

fn is_same(one: [u8; 32], other: [u8; 32]) -> bool {
    one == other || one == UNKNOWN || other == UNKNOWN
}

fn contradicts(slot: &WholeSlot, passed: Base) -> Place {
    let base58 = |bytes: &[u8; 32]| bs58::encode(bytes).into_string();
    Place::Contradicts(format!(
        "slot={} with blockhash={} is of another chain than slot={} with blockhash={} of the provider that is followed \
         at the same time",
        slot.slot,
        base58(&slot.blockhash),
        passed.slot,
        base58(&passed.blockhash)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::chain::Event;

    fn slot(number: u64, hash: u8, values: &[u8]) -> WholeSlot {
        let event = |value: &u8| Event { key: [*value; 32], value: Some([*value; 32]), write_version: 0 };
        WholeSlot {
            slot: number,
            blockhash: [hash; 32],
            parent: Base { slot: number - 1, blockhash: [hash - 1; 32] },
            created_unix_ms: 0,
            events: values.iter().map(event).collect(),
            late: 0,
        }
    }

    #[test]
    fn a_slot_is_the_next_one_or_compared_with_the_one_that_was_passed_on() {
        let mut passed = Passed::after(Some(Base { slot: 10, blockhash: [10; 32] }));
        assert_eq!(passed.place(&slot(11, 11, &[1, 2])), Place::Next);
        passed.push(&slot(11, 11, &[1, 2]), 1);
        passed.push(&slot(12, 12, &[]), 0);
        assert_eq!(passed.place(&slot(11, 11, &[2, 1])), Place::Known, "the order of accounts is a server's own");
        assert_eq!(passed.place(&slot(11, 11, &[1])), Place::Differs { first: 1, events_first: 2 });
        assert_eq!(passed.place(&slot(11, 11, &[1, 3])), Place::Differs { first: 1, events_first: 2 });
        let of_other_chain = [slot(11, 99, &[1, 2]), slot(13, 99, &[]), slot(14, 14, &[])];
        for other in of_other_chain {
            assert!(matches!(passed.place(&other), Place::Contradicts(_)), "{other:?}");
        }
        let at = |slot, blockhash| Some(Base { slot, blockhash });
        assert_eq!(passed.rewind(at(11, UNKNOWN)), at(11, [11; 32]));
        assert_eq!(passed.place(&slot(12, 12, &[7])), Place::Next);
        assert_eq!(passed.rewind(at(11, [99; 32])), at(11, [99; 32]), "ingest-apply has another block");
        assert_eq!(passed.place(&slot(12, 12, &[7])), contradicts(&slot(12, 12, &[7]), at(11, [99; 32]).unwrap()));
        assert_eq!(passed.rewind(at(10, UNKNOWN)), at(10, UNKNOWN));
    }

    #[test]
    fn a_key_is_looked_for_in_later_slots_and_in_another_providers_copy_of_its_own() {
        let mut passed = Passed::after(Some(Base { slot: 10, blockhash: [10; 32] }));
        passed.push(&slot(11, 11, &[1]), 0);
        passed.push(&slot(12, 12, &[2]), 1);
        let lacks = |slot, provider, key| passed.lacks(slot, provider, &[key; 32]);
        assert_eq!([lacks(11, 0, 1), lacks(11, 1, 1), lacks(11, 0, 2)], [Some(true), Some(false), Some(false)]);
        assert_eq!([lacks(12, 1, 1), lacks(12, 0, 1), lacks(10, 0, 1)], [Some(true), Some(true), Some(false)]);
        let event = |key: u64| {
            let mut of_key = [9; 32];
            of_key[..8].copy_from_slice(&key.to_le_bytes());
            Event { key: of_key, value: None, write_version: 0 }
        };
        let large = WholeSlot { events: (0..=KEYS_MAX as u64).map(event).collect(), ..slot(13, 13, &[]) };
        passed.push(&large, 0);
        assert_eq!(passed.lacks(11, 0, &[7; 32]), Some(true));
        passed.push(&slot(14, 14, &[]), 0);
        assert_eq!([13, 14].map(|slot| passed.lacks(slot, 0, &[7; 32])), [None, Some(true)], "too many keys to keep");
    }
}
