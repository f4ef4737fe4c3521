//! The newest applied slot, which its own provider may refute.
//!
//! Owns: the old values of the keys that the slot changed, and the search for the block that belongs in its place. Must
//! not: touch the engine, or distrust a provider. Runs on the ingest-apply thread.
//!
//! A provider refutes its own block if it names another blockhash for that slot: for the parent of its next block, or for
//! the slot itself when it sends it again. If another provider then sends the block of that other blockhash, after the
//! same parent, both agree. So that block takes the place of the first one. Its accounts are the only ones that anybody
//! has sent under that blockhash. The keys that only the first block changed get their old values back.
//!
//! The word of one provider alone changes nothing. If another provider sends the first block, that one stays.
//!
//! Other providers may have named the right block before the own provider did. They were distrusted, because they
//! contradicted the applied chain. They are trusted again as soon as the own provider names the same block.

use std::collections::HashSet;

use engine_api::{Key, Value};

use super::assemble::{Assembler, Input, Limits};
use super::batch::CHANGES_DUE;
use crate::chain::{Base, Event, Gap, WholeSlot};
use crate::feed::Change;

/// The block that is looked for may take 1/`MEMORY_SHARE` of the memory that the assembler of ingest-apply may take.
const MEMORY_SHARE: u64 = 2;

/// The newest applied slot, and the search for another block in its place.
#[derive(Debug, Default)]
pub(super) struct Newest {
    /// `None` before the first slot, and after a heal.
    applied: Option<Applied>,
    /// The search, once the slot was refuted.
    search: Option<Search>,
    /// Other providers that name another block in the place of the slot, each with its newest word.
    named_by_others: Vec<(usize, [u8; 32])>,
}

#[derive(Debug)]
struct Applied {
    base: Base,
    parent: Base,
    provider: Option<usize>,
    /// Each key that the slot changed, with its value before the slot.
    before: Vec<(Key, Option<Value>)>,
}

#[derive(Debug)]
struct Search {
    refuted: Base,
    /// The block that is looked for.
    named: Base,
    parent: Base,
    /// The provider whose word this is. Only another one's block counts.
    named_by: Option<usize>,
    assembler: Assembler,
}

/// Meaning of a block that a provider names in the place of the newest slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// The slot's own provider refutes it. Holds the other providers that have named the same block.
    Refutes(Vec<usize>),
    /// The block is the one that is looked for.
    Agrees,
    /// The provider contradicts the applied chain.
    Contradicts,
}

/// Result of looking at an input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Searched {
    /// This input goes to the assembler of ingest-apply.
    Passes(Input),
    /// The input is a part of a block that is not whole yet.
    Kept,
    /// The parts of the block contradict each other, or the chain, or do not fit into memory. All of them are dropped,
    /// so the connection cannot bring the block any more.
    Fails(Gap),
    /// The input has made the block whole that was looked for.
    Found(Box<WholeSlot>),
}

impl Newest {
    /// Notes that a slot of this provider was applied with these changes.
    pub(super) fn applied(&mut self, slot: &WholeSlot, provider: Option<usize>, changes: &[Change]) {
        let earlier = self.applied.take().map(|earlier| earlier.before);
        // The memory of a very large slot is freed.
        let mut before = earlier.filter(|before| before.capacity() <= CHANGES_DUE).unwrap_or_default();
        before.clear();
        before.extend(changes.iter().map(|change| (change.key, change.old)));
        self.applied = Some(Applied { base: slot.base(), parent: slot.parent(), provider, before });
        self.end_search();
    }

    /// Notes that the store no longer stands at the slot that was applied last.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Notes that a provider names this block in the place of the newest slot. Begins the search if the provider has
    /// brought that slot.
    pub(super) fn named(&mut self, provider: Option<usize>, named: Base) -> Named {
        let Some(Applied { base, parent, provider: own, .. }) = self.applied else { return Named::Contradicts };
        if named.slot != base.slot || named.blockhash == base.blockhash {
            return Named::Contradicts;
        }
        if provider == own {
            let limits = Limits::within(probe::memory_limit().bytes / MEMORY_SHARE);
            self.search = Some(Search::new(base, named, parent, own, limits));
            let agree = self.named_by_others.iter().filter(|(_, blockhash)| *blockhash == named.blockhash);
            return Named::Refutes(agree.map(|(provider, _)| *provider).collect());
        }
        self.named_by_others.retain(|(other, _)| Some(*other) != provider);
        self.named_by_others.extend(provider.map(|provider| (provider, named.blockhash)));
        match &self.search {
            Some(search) if search.named == named => Named::Agrees,
            _ => Named::Contradicts,
        }
    }

    /// Whether the block is the one that is looked for, and this provider may send it.
    pub(super) fn is_sought(&self, provider: Option<usize>, block: Option<Base>) -> bool {
        let search = self.search.as_ref().filter(|search| search.named_by != provider);
        search.is_some_and(|search| Some(search.named) == block)
    }

    /// Looks at an input of this provider.
    pub(super) fn look_at(&mut self, provider: Option<usize>, input: Input) -> Searched {
        let Some(search) = self.search.as_mut().filter(|search| search.named_by != provider) else {
            return Searched::Passes(input);
        };
        let slot = match input {
            Input::Account { slot, .. } | Input::BlockMeta { slot, .. } | Input::Status { slot, .. } => slot,
            Input::Reconnected => {
                search.restart();
                return Searched::Passes(input);
            }
        };
        if slot != search.named.slot {
            return Searched::Passes(input);
        }
        let searched = search.look_at(input);
        let refuted = search.refuted.blockhash;
        if matches!(searched, Searched::Passes(Input::BlockMeta { blockhash, .. }) if blockhash == refuted) {
            // Another provider has confirmed the block.
            self.end_search();
        }
        searched
    }

    /// Adds to `block` all that leads from the newest slot to it. Returns it, and the provider of the newest slot. `None` if
    /// the block is not in the place of that slot.
    pub(super) fn replaced_by(&self, mut block: WholeSlot) -> Option<(WholeSlot, Option<usize>)> {
        let applied = self.applied.as_ref()?;
        if (applied.base.slot, applied.parent) != (block.slot, block.parent()) {
            return None;
        }
        let changed: HashSet<Key> = block.events.iter().map(|event| event.key).collect();
        let taken_back = applied.before.iter().filter(|(key, _)| !changed.contains(key));
        block.events.extend(taken_back.map(|&(key, value)| Event { key, value, write_version: 0 }));
        Some((block, applied.provider))
    }

    /// Notes that `block` of this provider has taken the place of the newest slot, with these changes.
    pub(super) fn replaced(&mut self, block: &WholeSlot, provider: Option<usize>, changes: &[Change]) {
        let Some(applied) = &mut self.applied else { return };
        let known: HashSet<Key> = applied.before.iter().map(|(key, _)| *key).collect();
        let added = changes.iter().filter(|change| !known.contains(&change.key));
        applied.before.extend(added.map(|change| (change.key, change.old)));
        (applied.base, applied.provider) = (block.base(), provider);
        self.end_search();
    }

    fn end_search(&mut self) {
        self.search = None;
        self.named_by_others.clear();
    }
}

impl Search {
    /// Begins the search for the block `named` in the place of the block `refuted`, which is `named_by`'s.
    fn new(refuted: Base, named: Base, parent: Base, named_by: Option<usize>, limits: Limits) -> Self {
        Self { refuted, named, parent, named_by, assembler: Assembler::new(Some(parent), limits) }
    }

    /// Takes in a part of a block in the place of the newest slot.
    fn look_at(&mut self, input: Input) -> Searched {
        if let Err(gap) = self.assembler.push(input) {
            self.restart();
            return Searched::Fails(gap);
        }
        let Some(block) = self.assembler.next() else { return Searched::Kept };
        self.restart();
        if block.blockhash == self.named.blockhash {
            return Searched::Found(Box::new(block));
        }
        // The assembler of ingest-apply compares it with the newest slot.
        let WholeSlot { slot, blockhash, parent_slot, parent_blockhash, created_unix_ms, .. } = block;
        Searched::Passes(Input::BlockMeta { slot, blockhash, parent_slot, parent_blockhash, created_unix_ms })
    }

    /// Drops the parts of the block, because they are another provider's or do not fit together.
    fn restart(&mut self) {
        self.assembler.restart(Some(self.parent));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: u64 = 11;

    fn base(slot: u64, hash: u8) -> Base {
        Base { slot, blockhash: [hash; 32] }
    }

    /// The block of slot 11 with this blockhash, which sets these keys to the blockhash.
    fn block(hash: u8, keys: &[u8]) -> WholeSlot {
        let event = |key: &u8| Event { key: [*key; 32], value: Some([hash; 32]), write_version: 0 };
        WholeSlot {
            slot: SLOT,
            blockhash: [hash; 32],
            parent_slot: 10,
            parent_blockhash: [10; 32],
            created_unix_ms: 0,
            events: keys.iter().map(event).collect(),
        }
    }

    fn inputs(block: &WholeSlot) -> Vec<Input> {
        let WholeSlot { slot, blockhash, parent_slot, parent_blockhash, created_unix_ms, .. } = *block;
        let accounts = block.events.iter().map(|event| Input::Account { slot, event: *event });
        let meta = Input::BlockMeta { slot, blockhash, parent_slot, parent_blockhash, created_unix_ms };
        accounts.chain([meta, Input::Status { slot, confirmed: true, dead: false }]).collect()
    }

    /// A slot of provider 0 with the blockhash 99, which has changed the keys 1 and 2.
    fn applied() -> Newest {
        let change = |key: u8| Change { slot: SLOT, key: [key; 32], old: Some([key; 32]), new: Some([99; 32]) };
        let mut newest = Newest::default();
        newest.applied(&block(99, &[1, 2]), Some(0), &[change(1), change(2)]);
        newest
    }

    fn refuted() -> Newest {
        let mut newest = applied();
        assert_eq!(newest.named(Some(0), base(SLOT, 11)), Named::Refutes(Vec::new()));
        newest
    }

    /// Returns the result of the last input of a block.
    fn look_at(newest: &mut Newest, provider: usize, block: &WholeSlot) -> Searched {
        inputs(block).into_iter().map(|input| newest.look_at(Some(provider), input)).last().unwrap()
    }

    #[test]
    fn the_block_that_its_own_provider_names_is_taken_from_another_one() {
        let (mut newest, right) = (refuted(), block(11, &[2, 3]));
        let [.., last] = inputs(&right)[..] else { panic!("a block has inputs") };
        assert_eq!(look_at(&mut newest, 0, &right), Searched::Passes(last), "its own provider alone");
        assert_eq!(look_at(&mut newest, 1, &right), Searched::Found(Box::new(right.clone())));
        let (changed, wrong) = newest.replaced_by(right).unwrap();
        let values: Vec<_> = changed.events.iter().map(|event| (event.key[0], event.value.unwrap()[0])).collect();
        assert_eq!((values, wrong), (vec![(2, 11), (3, 11), (1, 1)], Some(0)), "key 1 has its old value again");
    }

    #[test]
    fn one_provider_alone_and_a_slot_before_the_newest_replace_nothing() {
        let right = block(11, &[2]);
        for (provider, named) in [(1, base(SLOT, 11)), (0, base(SLOT, 99)), (0, base(10, 9))] {
            let mut newest = applied();
            assert_eq!(newest.named(Some(provider), named), Named::Contradicts);
            assert!(newest.search.is_none(), "{provider} {named:?}");
        }
        let mut newest = refuted();
        newest.applied(&WholeSlot { slot: 12, parent_slot: SLOT, ..block(12, &[]) }, Some(1), &[]);
        assert!(newest.search.is_none() && newest.replaced_by(right).is_none());
    }

    #[test]
    fn a_block_that_another_provider_confirms_stays_and_a_third_one_is_compared() {
        let meta = |block: &WholeSlot| Searched::Passes(inputs(block)[block.events.len()]);
        let third = block(55, &[2]);
        let mut newest = refuted();
        assert_eq!(look_at(&mut newest, 1, &third), meta(&third));
        assert!(newest.search.is_some());
        let first = block(99, &[1, 2]);
        assert_eq!(look_at(&mut newest, 2, &first), meta(&first));
        assert!(newest.search.is_none());
    }

    #[test]
    fn parts_of_a_block_do_not_count_on_the_next_connection() {
        let (mut newest, right) = (refuted(), block(11, &[2]));
        let all = inputs(&right);
        assert_eq!(newest.look_at(Some(1), all[0]), Searched::Kept);
        assert_eq!(newest.look_at(Some(2), Input::Reconnected), Searched::Passes(Input::Reconnected));
        let rest: Vec<_> = all[1..].iter().map(|input| newest.look_at(Some(2), *input)).collect();
        assert_eq!(rest, [Searched::Kept, Searched::Found(Box::new(block(11, &[])))]);
    }

    #[test]
    fn a_block_that_was_replaced_may_be_replaced_again() {
        let (mut newest, second) = (refuted(), block(11, &[3]));
        let change = Change { slot: SLOT, key: [3; 32], old: None, new: Some([11; 32]) };
        newest.replaced(&second, Some(1), &[change]);
        assert_eq!(newest.named(Some(1), base(SLOT, 12)), Named::Refutes(Vec::new()));
        let third = block(12, &[]);
        assert!(matches!(look_at(&mut newest, 2, &third), Searched::Found(_)));
        let (changed, _) = newest.replaced_by(third).unwrap();
        let values: Vec<_> = changed.events.iter().map(|event| (event.key[0], event.value)).collect();
        assert_eq!(values, [(1, Some([1; 32])), (2, Some([2; 32])), (3, None)]);
    }

    #[test]
    fn those_who_named_the_right_block_before_its_own_provider_agree_with_it() {
        let mut newest = applied();
        for (provider, hash) in [(1, 11), (2, 12), (3, 12), (3, 11)] {
            assert_eq!(newest.named(Some(provider), base(SLOT, hash)), Named::Contradicts);
        }
        assert_eq!(newest.named(Some(0), base(SLOT, 11)), Named::Refutes(vec![1, 3]));
        assert_eq!(newest.named(Some(2), base(SLOT, 11)), Named::Agrees, "it has the slots after the block alone");
        assert_eq!(newest.named(Some(2), base(SLOT, 12)), Named::Contradicts);
        assert_eq!(look_at(&mut newest, 1, &block(11, &[])), Searched::Found(Box::new(block(11, &[]))));
        newest.replaced(&block(11, &[]), Some(1), &[]);
        assert_eq!(
            newest.named(Some(1), base(SLOT, 12)),
            Named::Refutes(Vec::new()),
            "the words were of another block"
        );
    }

    #[test]
    fn a_block_that_does_not_fit_or_contradicts_itself_fails_whole() {
        let right = block(11, &[1, 2, 3]);
        let all = inputs(&right);
        let mut newest = refuted();
        let limits = Limits { bytes_max: 350, ..Limits::default() };
        newest.search = Some(Search::new(base(SLOT, 99), base(SLOT, 11), base(10, 10), Some(0), limits));
        let searched: Vec<_> = all[..2].iter().map(|input| newest.look_at(Some(1), *input)).collect();
        assert!(matches!(&searched[..], [Searched::Kept, Searched::Fails(gap)] if gap.detail.contains("bytes_max")));

        let mut newest = refuted();
        let other = Input::BlockMeta {
            slot: SLOT,
            blockhash: [55; 32],
            parent_slot: 10,
            parent_blockhash: [10; 32],
            created_unix_ms: 0,
        };
        let searched: Vec<_> = [all[0], all[3], other].map(|input| newest.look_at(Some(1), input)).into();
        assert!(matches!(&searched[..], [Searched::Kept, Searched::Kept, Searched::Fails(_)]), "{searched:?}");

        let mut newest = refuted();
        let orphan = WholeSlot { parent_blockhash: [77; 32], ..right };
        assert!(matches!(look_at(&mut newest, 1, &orphan), Searched::Fails(gap) if gap.contradicts));
    }
}
