//! What happens on the simulated chain: blocks, skipped slots, dead and abandoned ones, and what each writes.
//!
//! Owns: the truth that the model checks against, all of it from the seed. Must not: know how it is sent.

use std::collections::BTreeMap;

use workload::Rng;

use crate::ingest::assemble::Base;

/// One write of an account, as the extraction sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub(super) key: [u8; 32],
    pub(super) value: Option<[u8; 32]>,
    pub(super) version: u64,
}

/// A bank that was complete at some time.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) slot: u64,
    pub(super) hash: [u8; 32],
    pub(super) parent: Base,
    /// In the order of their versions; a key may be written several times.
    pub(super) writes: Vec<Write>,
}

impl Block {
    pub(super) fn base(&self) -> Base {
        Base { slot: self.slot, blockhash: self.hash }
    }

    /// What the block comes down to, in the order of each key's first write.
    pub(super) fn last_writes(&self) -> Vec<Write> {
        let mut at = BTreeMap::new();
        let mut last: Vec<Write> = Vec::new();
        for write in &self.writes {
            match at.get(&write.key) {
                Some(&index) => last[index] = *write,
                None => {
                    at.insert(write.key, last.len());
                    last.push(*write);
                }
            }
        }
        last
    }
}

/// One slot number.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) number: u64,
    /// A bank that did not make it, and whether it was found dead; else it was abandoned without a word.
    pub(super) failed: Option<(Block, bool)>,
    /// The block of the chain; `None` where the slot was skipped.
    pub(super) block: Option<Block>,
}

/// The chain from the slot that the store begins at.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    pub(super) base: Base,
    /// What the store holds at the base.
    pub(super) initial: BTreeMap<[u8; 32], [u8; 32]>,
    /// The base itself first.
    pub(super) slots: Vec<Slot>,
}

/// How large a chain is.
struct Size {
    slots: u64,
    keys: u64,
    writes: u64,
}

impl Chain {
    pub(super) fn new(rng: &mut Rng) -> Self {
        // Once in a while enough changes that the feed's log takes several segments.
        let size = if rng.chance(0.01) {
            Size { slots: 12, keys: 20_000, writes: 6000 }
        } else {
            Size { slots: 8 + rng.below(56), keys: 2 + rng.below(40), writes: 1 + rng.below(20) }
        };
        let initial = (0..size.keys / 2).map(|_| (key(rng, &size), value(rng))).collect();
        let base = Base { slot: 1000 + rng.below(1000), blockhash: hash(rng) };
        let below = Base { slot: base.slot - 1, blockhash: hash(rng) };
        let first = Block { hash: base.blockhash, ..block(rng, &size, base.slot, below) };
        let mut slots = vec![Slot { number: base.slot, failed: None, block: Some(first) }];
        let mut parent = base;
        for number in base.slot + 1..=base.slot + size.slots {
            let last = number == base.slot + size.slots;
            let skipped = !last && rng.chance(0.15);
            let failed = rng.chance(0.15).then(|| (block(rng, &size, number, parent), rng.chance(0.6)));
            // A block comes in the place of a dead one only: two banks that live are nobody's confirmed slot.
            let skipped = skipped || (!last && matches!(failed, Some((_, false))));
            let failed = failed.filter(|(_, dead)| skipped || *dead);
            let block = (!skipped).then(|| block(rng, &size, number, parent));
            parent = block.as_ref().map_or(parent, Block::base);
            slots.push(Slot { number, failed, block });
        }
        Self { base, initial, slots }
    }

    /// Another chain that is the same below `from`: what a server of another fork takes for the truth.
    pub(super) fn fork(&self, from: u64, rng: &mut Rng) -> Self {
        let mut other = self.clone();
        let mut parent = None;
        for slot in other.slots.iter_mut().filter(|slot| slot.number >= from) {
            slot.failed = None;
            if let Some(block) = &mut slot.block {
                block.hash = hash(rng);
                block.parent = parent.unwrap_or(block.parent);
                for write in &mut block.writes {
                    write.value = Some([0xee; 32]);
                }
                parent = Some(block.base());
            }
        }
        other
    }

    /// The blocks of the chain, the base first.
    pub(super) fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.slots.iter().filter_map(|slot| slot.block.as_ref())
    }

    /// The last block.
    pub(super) fn tip(&self) -> Base {
        self.blocks().last().map_or(self.base, Block::base)
    }
}

fn block(rng: &mut Rng, size: &Size, slot: u64, parent: Base) -> Block {
    let first = rng.below(1 << 40);
    let writes = (0..rng.below(size.writes + 1))
        .map(|n| Write { key: key(rng, size), value: (!rng.chance(0.25)).then(|| value(rng)), version: first + n })
        .collect();
    Block { slot, hash: hash(rng), parent, writes }
}

fn key(rng: &mut Rng, size: &Size) -> [u8; 32] {
    let mut key = [0x11; 32];
    key[..8].copy_from_slice(&rng.below(size.keys).to_be_bytes());
    key
}

/// Few, so that many writes change nothing; zeros among them.
fn value(rng: &mut Rng) -> [u8; 32] {
    [rng.below(5) as u8; 32]
}

fn hash(rng: &mut Rng) -> [u8; 32] {
    let mut hash = [0xab; 32];
    hash[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
    hash
}
