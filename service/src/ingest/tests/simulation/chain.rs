//! The history of the simulated chain: blocks, skipped slots, dead and abandoned banks, and the writes of each.
//!
//! Owns: the truth that the model checks against, all of it derived from the seed. Must not: know how it is sent.

use std::collections::BTreeMap;

use workload::Rng;

use crate::base::chain::Base;

/// One write of an account, reduced to the key and value that the extraction yields.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub(super) key: [u8; 32],
    pub(super) value: Option<[u8; 32]>,
    pub(super) version: u64,
}

/// A bank that was complete at some time, whether it was confirmed or not.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) slot: u64,
    pub(super) hash: [u8; 32],
    pub(super) parent: Base,
    /// Writes in the order of their versions; a key may be written several times.
    pub(super) writes: Vec<Write>,
}

impl Block {
    pub(super) fn base(&self) -> Base {
        Base { slot: self.slot, blockhash: self.hash }
    }

    /// Returns the last write of each key, in the order of each key's first write.
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

/// One slot number with the banks that were made in it.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) number: u64,
    /// A bank that was never confirmed, and whether it was reported dead. Otherwise it was abandoned without a report.
    pub(super) failed: Option<(Block, bool)>,
    /// The block of the chain; `None` where the slot was skipped.
    pub(super) block: Option<Block>,
}

/// The chain. Its first slot is the store's slot at the beginning.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    pub(super) base: Base,
    /// Content of the store at the base.
    pub(super) initial: BTreeMap<[u8; 32], [u8; 32]>,
    /// Slots in ascending order; the first one is the base.
    pub(super) slots: Vec<Slot>,
    /// A block that a server has in the place of the chain's, if one does.
    pub(super) wrong: Option<Block>,
}

/// Size of a chain: its slots, distinct keys, and most writes a block.
struct Size {
    slots: u64,
    keys: u64,
    writes: u64,
}

impl Chain {
    pub(super) fn new(rng: &mut Rng) -> Self {
        // Once in a while a chain has enough changes for the feed's log to take several segments.
        let size = if rng.chance(0.01) {
            Size { slots: 12, keys: 20_000, writes: 6000 }
        } else {
            Size { slots: 8 + rng.below(56), keys: 2 + rng.below(40), writes: 1 + rng.below(20) }
        };
        Self::of(rng, &size)
    }

    /// Returns a chain that continues for at least 40 seconds.
    pub(super) fn long(rng: &mut Rng) -> Self {
        let size = Size { slots: 100 + rng.below(100), keys: 2 + rng.below(60), writes: 1 + rng.below(20) };
        Self::of(rng, &size)
    }

    fn of(rng: &mut Rng, size: &Size) -> Self {
        let mut initial: BTreeMap<_, _> = (0..size.keys / 2).map(|_| (key(rng, size), value(rng))).collect();
        let base = Base { slot: 1000 + rng.below(1000), blockhash: hash(rng) };
        let below = Base { slot: base.slot - 1, blockhash: hash(rng) };
        let first = Block { hash: base.blockhash, ..block(rng, size, base.slot, below) };
        // The store was loaded at this block.
        first.last_writes().iter().for_each(|write| apply(&mut initial, write));
        let mut slots = vec![Slot { number: base.slot, failed: None, block: Some(first) }];
        let mut parent = base;
        for number in base.slot + 1..=base.slot + size.slots {
            let last = number == base.slot + size.slots;
            let skipped = !last && rng.chance(0.15);
            let failed = rng.chance(0.15).then(|| (block(rng, size, number, parent), rng.chance(0.6)));
            // A block replaces only a dead bank: where two banks of one slot both live, neither can be confirmed.
            let skipped = skipped || (!last && matches!(failed, Some((_, false))));
            let failed = failed.filter(|(_, dead)| skipped || *dead);
            let block = (!skipped).then(|| block(rng, size, number, parent));
            parent = block.as_ref().map_or(parent, Block::base);
            slots.push(Slot { number, failed, block });
        }
        Self { base, initial, slots, wrong: None }
    }

    /// Returns another chain that equals this one before `from`, as a server on another fork would send it.
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

    /// Returns the same chain, in which the parents of all blocks after `applied` have other blockhashes.
    pub(super) fn with_other_parents(&self, applied: u64, rng: &mut Rng) -> Self {
        let mut other = self.clone();
        for block in other.slots.iter_mut().filter_map(|slot| slot.block.as_mut()).filter(|block| block.slot > applied)
        {
            block.parent.blockhash = hash(rng);
        }
        other
    }

    /// Adds a wrong block in the place of one after the base and before the tip.
    pub(super) fn with_wrong_block(mut self, rng: &mut Rng) -> Self {
        let blocks = self.blocks().count() as u64;
        let right = self.blocks().nth(1 + rng.below(blocks.saturating_sub(2).max(1)) as usize).filter(|_| blocks > 2);
        let Some(mut wrong) = right.cloned() else { return self };
        wrong.hash = hash(rng);
        wrong.writes.retain(|_| rng.chance(0.7));
        for write in wrong.writes.iter_mut().filter(|_| rng.chance(0.5)) {
            write.value = Some([0xee; 32]);
        }
        let keys: Vec<_> = self.initial.keys().copied().filter(|_| rng.chance(0.1)).collect();
        wrong.writes.extend(keys.into_iter().map(|key| Write { key, value: None, version: 1 << 40 }));
        self.wrong = Some(wrong);
        self
    }

    /// Returns the chain as the server has it that has the wrong block.
    pub(super) fn with_error(&self) -> Self {
        let mut other = self.clone();
        for block in other.slots.iter_mut().filter_map(|slot| slot.block.as_mut()) {
            if let Some(wrong) = self.wrong.as_ref().filter(|wrong| wrong.slot == block.slot) {
                *block = wrong.clone();
            }
        }
        other
    }

    /// The blocks of the chain, the base first.
    pub(super) fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.slots.iter().filter_map(|slot| slot.block.as_ref())
    }

    /// Returns the map after the block of `slot`, as an archive of that slot holds it.
    pub(super) fn map_at(&self, slot: u64) -> BTreeMap<[u8; 32], [u8; 32]> {
        let mut map = self.initial.clone();
        // The initial map is that after the first block.
        for write in self.blocks().skip(1).take_while(|block| block.slot <= slot).flat_map(|block| &block.writes) {
            apply(&mut map, write);
        }
        map
    }

    pub(super) fn tip(&self) -> Base {
        self.blocks().last().map_or(self.base, Block::base)
    }
}

fn apply(map: &mut BTreeMap<[u8; 32], [u8; 32]>, write: &Write) {
    match write.value {
        Some(value) => map.insert(write.key, value),
        None => map.remove(&write.key),
    };
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

/// Draws from few values, zeros among them, so that many writes change nothing.
fn value(rng: &mut Rng) -> [u8; 32] {
    [rng.below(5) as u8; 32]
}

fn hash(rng: &mut Rng) -> [u8; 32] {
    let mut hash = [0xab; 32];
    hash[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
    hash
}
