//! The slots that a merge has passed on, and the comparison of other slots with them.
//!
//! Owns: the newest [`REMEMBERED_SLOTS`] of them, each with its block and a hash of its accounts. Must not: decide which
//! provider is trusted. Runs on the receivers' task.
//!
//! One difference decides itself. The newest block was passed on with a blockhash, its own provider then names another
//! one for that slot, and the other provider has sent the block of that other blockhash. Then the first block was wrong:
//! see [`Passed::replaced`].

use std::collections::VecDeque;
use std::hash::BuildHasher as _;

use foldhash::fast::RandomState;

use crate::chain::{Base, WholeSlot};
use crate::ingest::assemble::REMEMBERED_SLOTS;

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
    /// Other blockhash of the newest slot that its own provider names.
    named_by_own: Option<[u8; 32]>,
    /// Other block in the place of the newest one, after the same parent, and the other provider, which sent it.
    sent_by_other: Option<(WholeSlot, usize)>,
    /// It has a new seed in each process, so that nobody can make two contents with one hash.
    hasher: RandomState,
}

struct Slot {
    base: Base,
    parent: Base,
    provider: usize,
    /// Sum of the hashes of key and value of each account.
    content: u64,
    events: usize,
}

impl Passed {
    /// Begins after `base`, before any slot was passed on.
    pub(super) fn after(base: Option<Base>) -> Self {
        Self {
            last: base,
            slots: VecDeque::new(),
            named_by_own: None,
            sent_by_other: None,
            hasher: RandomState::default(),
        }
    }

    /// The newest slot that was passed on; before the first one, the base.
    pub(super) fn last(&self) -> Option<Base> {
        self.last
    }

    /// Returns the place of a slot whose lane has all slots before it.
    pub(super) fn place(&self, slot: &WholeSlot) -> Place {
        let Some(last) = self.last else { return Place::Next };
        if slot.slot > last.slot {
            let is_child = slot.parent_slot == last.slot && is_same(slot.parent_blockhash, last.blockhash);
            return if is_child { Place::Next } else { contradicts(slot, last) };
        }
        match self.slots.binary_search_by_key(&slot.slot, |passed| passed.base.slot) {
            Ok(at) => {
                let passed = &self.slots[at];
                match () {
                    () if passed.base.blockhash != slot.blockhash => contradicts(slot, passed.base),
                    () if (passed.content, passed.events) == (self.content(slot), slot.events.len()) => Place::Known,
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
            self.slots.pop_front();
        }
        let passed = self.of(slot, provider);
        self.set_last(Some(passed.base));
        self.slots.push_back(passed);
    }

    /// Notes that a provider names this block for a slot that was passed on, after it has sent another one.
    pub(super) fn names(&mut self, provider: usize, named: Base) {
        let newest = self.slots.back().filter(|newest| newest.provider == provider);
        if newest.is_some_and(|newest| newest.base.slot == named.slot && newest.base.blockhash != named.blockhash) {
            self.named_by_own = Some(named.blockhash);
        }
    }

    /// Notes a slot of a provider that contradicts those that were passed on.
    pub(super) fn contradicted(&mut self, provider: usize, slot: WholeSlot) {
        let takes_place = |newest: &Slot| {
            newest.provider != provider && newest.base.slot == slot.slot && newest.parent == slot.parent()
        };
        if self.slots.back().is_some_and(takes_place) {
            self.sent_by_other = Some((slot, provider));
        }
    }

    /// Puts the block of the other provider in the place of the newest one, once the newest one's own provider names it
    /// too. Returns it, the provider that was wrong, and the other one.
    pub(super) fn replaced(&mut self) -> Option<(WholeSlot, usize, usize)> {
        let named = self.named_by_own?;
        let (slot, right) = self.sent_by_other.take_if(|(slot, _)| slot.blockhash == named)?;
        let wrong = self.slots.pop_back()?.provider;
        self.push(&slot, right);
        Some((slot, wrong, right))
    }

    fn of(&self, slot: &WholeSlot, provider: usize) -> Slot {
        let (content, events) = (self.content(slot), slot.events.len());
        Slot { base: slot.base(), parent: slot.parent(), provider, content, events }
    }

    fn set_last(&mut self, last: Option<Base>) {
        (self.last, self.named_by_own, self.sent_by_other) = (last, None, None);
    }

    /// Goes back to `slot`. Returns it with its blockhash, as far as that is known.
    pub(super) fn rewind(&mut self, slot: Option<u64>) -> Option<Base> {
        self.slots.retain(|passed| slot.is_some_and(|slot| passed.base.slot <= slot));
        let known = self.slots.back().map(|passed| passed.base).or(self.last);
        let last =
            slot.map(|slot| known.filter(|known| known.slot == slot).unwrap_or(Base { slot, blockhash: UNKNOWN }));
        self.set_last(last);
        last
    }

    fn content(&self, slot: &WholeSlot) -> u64 {
        let hashes = slot.events.iter().map(|event| self.hasher.hash_one((event.key, event.value)));
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
    use crate::chain::Event;

    fn slot(number: u64, hash: u8, values: &[u8]) -> WholeSlot {
        let event = |value: &u8| Event { key: [*value; 32], value: Some([*value; 32]), write_version: 0 };
        WholeSlot {
            slot: number,
            blockhash: [hash; 32],
            parent_slot: number - 1,
            parent_blockhash: [hash - 1; 32],
            created_unix_ms: 0,
            events: values.iter().map(event).collect(),
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
        assert_eq!(passed.rewind(Some(11)), Some(Base { slot: 11, blockhash: [11; 32] }));
        assert_eq!(passed.place(&slot(12, 12, &[7])), Place::Next);
        assert_eq!(passed.rewind(Some(10)), Some(Base { slot: 10, blockhash: UNKNOWN }));
    }

    #[test]
    fn a_block_is_replaced_where_its_own_provider_names_the_one_that_the_other_has_sent() {
        let named = |blockhash: u8| Base { slot: 11, blockhash: [blockhash; 32] };
        let wrong_first = || {
            let mut passed = Passed::after(Some(Base { slot: 10, blockhash: [10; 32] }));
            passed.push(&WholeSlot { parent_blockhash: [10; 32], ..slot(11, 99, &[1, 2]) }, 0);
            passed
        };
        for other in [slot(11, 11, &[2, 1]), slot(11, 11, &[1, 3])] {
            let mut passed = wrong_first();
            passed.contradicted(1, other.clone());
            passed.names(0, named(11));
            assert_eq!(passed.replaced(), Some((other.clone(), 0, 1)));
            assert_eq!((passed.last(), passed.replaced()), (Some(named(11)), None), "once");
            assert_eq!(passed.place(&slot(12, 12, &[])), Place::Next);
            assert_eq!(passed.place(&other), Place::Known);
        }

        type Case = (&'static str, fn(&mut Passed));
        let undecided: [Case; 6] = [
            ("the other one alone", |passed| passed.contradicted(1, slot(11, 11, &[1, 2]))),
            ("its own provider alone", |passed| passed.names(0, Base { slot: 11, blockhash: [11; 32] })),
            ("the other one twice", |passed| {
                passed.contradicted(1, slot(11, 11, &[1, 2]));
                passed.names(1, Base { slot: 11, blockhash: [11; 32] });
            }),
            ("two other blockhashes", |passed| {
                passed.contradicted(1, slot(11, 11, &[1, 2]));
                passed.names(0, Base { slot: 11, blockhash: [12; 32] });
            }),
            ("another parent", |passed| {
                passed.contradicted(1, WholeSlot { parent_slot: 9, ..slot(11, 11, &[1, 2]) });
                passed.names(0, Base { slot: 11, blockhash: [11; 32] });
            }),
            ("an older slot", |passed| {
                passed.contradicted(1, slot(11, 11, &[1, 2]));
                passed.push(&slot(12, 100, &[]), 0);
                passed.names(0, Base { slot: 11, blockhash: [11; 32] });
            }),
        ];
        for (name, note) in undecided {
            let mut passed = wrong_first();
            note(&mut passed);
            assert_eq!(passed.replaced(), None, "{name}");
        }
    }
}
