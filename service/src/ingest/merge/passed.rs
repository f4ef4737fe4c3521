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
    /// Other providers that name another block in the place of the newest one, each with its newest word.
    named_by_others: Vec<(usize, [u8; 32])>,
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
            named_by_others: Vec::new(),
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

    /// Notes that a provider names this block for a slot that was passed on, after it has sent another one. Returns
    /// whether that refutes the newest slot, because the provider is the slot's own.
    pub(super) fn names(&mut self, provider: usize, named: Base) -> bool {
        let newest = self.slots.back().filter(|newest| newest.base.slot == named.slot);
        let Some(newest) = newest.filter(|newest| newest.base.blockhash != named.blockhash) else { return false };
        if newest.provider == provider {
            self.named_by_own = Some(named.blockhash);
            return true;
        }
        self.named_by_others.retain(|(other, _)| *other != provider);
        self.named_by_others.push((provider, named.blockhash));
        false
    }

    /// Returns the other providers that name the same block in the place of the newest slot as its own provider.
    pub(super) fn agree(&self) -> Vec<usize> {
        let agree = self.named_by_others.iter().filter(|(_, named)| Some(*named) == self.named_by_own);
        agree.map(|(provider, _)| *provider).collect()
    }

    /// The block after which a lane has to begin that stands at the newest slot or has nothing: the parent of that slot
    /// while its own provider refutes it, so that the lane assembles the block in its place.
    pub(super) fn begin(&self) -> Option<Base> {
        let refuted = self.slots.back().filter(|_| self.named_by_own.is_some());
        refuted.map(|newest| newest.parent).or(self.last)
    }

    /// Notes a slot of a provider that contradicts those that were passed on. Returns whether that refutes the newest one.
    pub(super) fn contradicted(&mut self, provider: usize, slot: WholeSlot) -> bool {
        let refutes = self.names(provider, slot.base());
        let takes_place = |newest: &Slot| {
            newest.provider != provider && newest.base.slot == slot.slot && newest.parent == slot.parent()
        };
        if self.slots.back().is_some_and(takes_place) {
            self.sent_by_other = Some((slot, provider));
        }
        refutes
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
        self.named_by_others.clear();
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
        let at = |slot, blockhash| Some(Base { slot, blockhash });
        assert_eq!(passed.rewind(at(11, UNKNOWN)), at(11, [11; 32]));
        assert_eq!(passed.place(&slot(12, 12, &[7])), Place::Next);
        assert_eq!(passed.rewind(at(11, [99; 32])), at(11, [99; 32]), "ingest-apply has another block");
        assert_eq!(passed.place(&slot(12, 12, &[7])), contradicts(&slot(12, 12, &[7]), at(11, [99; 32]).unwrap()));
        assert_eq!(passed.rewind(at(10, UNKNOWN)), at(10, UNKNOWN));
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
            assert!(!passed.names(2, named(11)) && !passed.names(3, named(12)));
            assert_eq!(passed.begin(), Some(named(99)));
            assert!(passed.names(0, named(11)));
            assert_eq!(passed.begin(), Some(Base { slot: 10, blockhash: [10; 32] }));
            assert_eq!(passed.agree(), [1, 2]);
            assert_eq!(passed.replaced(), Some((other.clone(), 0, 1)));
            assert_eq!((passed.last(), passed.replaced()), (Some(named(11)), None), "once");
            assert_eq!(passed.place(&slot(12, 12, &[])), Place::Next);
            assert_eq!(passed.place(&other), Place::Known);
        }

        type Case = (&'static str, fn(&mut Passed));
        let undecided: [Case; 6] = [
            ("the other one alone", |passed| {
                passed.contradicted(1, slot(11, 11, &[1, 2]));
            }),
            ("its own provider alone", |passed| {
                passed.names(0, Base { slot: 11, blockhash: [11; 32] });
            }),
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
