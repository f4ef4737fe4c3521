//! The chain: slots with their updates, parents, hashes and faults, computed from the options and the seed alone.
//!
//! Owns: the state of every key (4 bytes each) and the order in which slots are delivered. Must not: know subscribers,
//! clocks or the wire. Runs on the `chain` thread, and on the main thread of `loadgen archive`.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use anyhow::{Result, ensure};
use engines::Digest;
use workload::{Pairs, Picker, Rng};

use crate::stream::account::LEAVINGS;
use crate::stream::keys::{CREATED, Keys};
use crate::stream::options::Workload;

/// Number of later slots that come before an out-of-order slot.
const OUT_OF_ORDER_SLOTS: usize = 3;
/// Draws for each wanted event before a slot is left smaller. With few keys a slot may not reach its size.
const DRAWS_PER_EVENT: u32 = 4;
/// Bit in a key's state that says that the key is not in the map. The other bits are the version of its value.
const ABSENT: u32 = 1 << 31;

/// Position of a follower on a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stand {
    /// Newest slot that the follower has applied.
    pub slot: u64,
    /// Blockhash of the slot. All-zero if the slot came from outside a stream, as that of a load does.
    pub blockhash: [u8; 32],
    /// Digest of the follower's map. `None` if the map is not compared with the chain's before the stream begins.
    pub digest: Option<String>,
}

impl Stand {
    /// Whether only the digest tells the map's slot: the store was loaded, and at a slot that the stream has.
    pub(crate) fn needs_digest(&self, first_slot: u64) -> bool {
        self.blockhash == [0; 32] && self.slot >= first_slot
    }
}

/// One account update: the key, and the account's new state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Update {
    /// Id of the key, for [`Keys::key`].
    pub id: u64,
    /// Version of the value, for [`Keys::value`].
    pub version: u32,
    /// State of the account after the update.
    pub write: Write,
}

/// State of an account after a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// It holds the update's value.
    Open,
    /// It is closed: no lamports and no data.
    Closed,
    /// It is no token account any more, but one of [`Account::left`](crate::stream::account::Account::left).
    Left(u8),
}

/// Fate of a block after its execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It is on the chain.
    Sealed,
    /// It dies, which is reported. Its updates must not be applied.
    Dead,
    /// It is complete, but the chain continues from an older parent. Nothing reports that.
    Abandoned,
    /// It is given up half way for another bank in the same slot. Nothing reports that.
    GivenUp,
}

/// A slot's block with all its contents.
#[derive(Debug)]
pub(crate) struct Block {
    pub slot: u64,
    /// Slot number of the parent.
    pub parent_slot: u64,
    pub hash: [u8; 32],
    pub parent_hash: [u8; 32],
    /// Number of ancestors on its chain.
    pub height: u64,
    /// Index of the first update among all of the run, which is also the base of its write versions.
    pub first_event: u64,
    /// The last write of each account in the slot.
    pub updates: Vec<Update>,
    /// Id of the bank that executed the block.
    pub bank: u64,
    pub kind: Kind,
}

impl Block {
    /// Returns the block's hash as the wire carries it.
    pub(crate) fn hash_base58(&self) -> String {
        bs58::encode(self.hash).into_string()
    }
}

/// End of a run: the state that a follower must have reached.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Final {
    pub slot: u64,
    /// Number of updates in sealed slots.
    pub events: u64,
    /// Number of sealed slots in this run.
    pub slots: u64,
    /// Digest of the map with every sealed update applied, as `PAIRS:HEX`.
    pub digest: String,
    /// The missing slot, if one was asked for.
    pub gap: Option<Gap>,
}

/// A slot that is never delivered.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Gap {
    pub slot: u64,
    /// Last slot before it that is delivered.
    pub parent_slot: u64,
    /// Digest of the map at `parent_slot`: that of a follower that stops at the gap.
    pub digest: String,
}

/// Generates the slots of a run, in the order of their delivery.
pub(crate) struct Chain {
    options: Workload,
    keys: Arc<Keys>,
    picker: Picker,
    rng: Rng,
    known: Vec<u32>,
    created: Vec<u32>,
    next_slot: u64,
    parent: (u64, [u8; 32], u64),
    events: u64,
    slots: u64,
    /// Events and slots of earlier runs, which are not delivered.
    skipped: (u64, u64),
    /// Number of events at which this run ends. The slot that reaches it is made whole, so that the content of a slot
    /// does not depend on where runs end.
    end: u64,
    bogus: u64,
    /// Parent of the next slot's abandoned block, if a fork is to grow.
    fork: Option<(u64, [u8; 32], u64)>,
    held: VecDeque<(usize, Arc<Block>)>,
    ready: VecDeque<Arc<Block>>,
    /// Newest sealed block, until it is taken.
    newest: Option<Arc<Block>>,
    gap: Option<Gap>,
    touched: HashMap<u64, u32, BuildHasherDefault<IdHasher>>,
}

impl Chain {
    /// Starts a run at its first slot. `options` must have passed [`Workload::check`].
    pub(crate) fn new(options: Workload, keys: Arc<Keys>) -> Self {
        let state = if options.base_empty { ABSENT } else { 0 };
        let known = vec![state; keys.known() as usize];
        let parent_slot = options.start_slot - 1;
        Self {
            picker: Picker::new(keys.known(), options.skew.0),
            rng: Rng::new(options.seed ^ 0x7374_7265_616d),
            keys,
            known,
            created: Vec::new(),
            next_slot: options.start_slot,
            parent: (parent_slot, block_hash(options.seed, parent_slot), 0),
            events: 0,
            slots: 0,
            skipped: (0, 0),
            end: options.events,
            bogus: 0,
            fork: None,
            held: VecDeque::new(),
            ready: VecDeque::new(),
            newest: None,
            gap: None,
            touched: HashMap::default(),
            options,
        }
    }

    /// Starts a run at the follower's position, if it has one, otherwise at the first slot.
    pub(crate) fn at(options: Workload, keys: Arc<Keys>, stand: Option<&Stand>) -> Result<Self> {
        let mut chain = Self::new(options, keys);
        stand.map_or(Ok(()), |stand| chain.resume(stand))?;
        Ok(chain)
    }

    /// Moves a run that has not begun to another first slot.
    pub(super) fn begin_at(&mut self, slot: u64) {
        self.options.start_slot = slot;
        self.next_slot = slot;
        self.parent = (slot - 1, block_hash(self.options.seed, slot - 1), 0);
    }

    /// Makes every slot up to `slot` without delivering any. The run's own events come after them.
    pub(super) fn skip_to(&mut self, slot: u64) -> Result<()> {
        while self.parent.0 < slot {
            self.produce();
            self.ready.clear();
        }
        ensure!(
            self.parent.0 == slot,
            "the store stands at a slot that this stream does not have: slot={slot}: give the options of the runs \
             before, or load a new store"
        );
        self.held.clear();
        self.end = self.events.saturating_add(self.options.events);
        self.skipped = (self.events, self.slots);
        Ok(())
    }

    /// Returns the first slot of the first run.
    pub(super) fn first_slot(&self) -> u64 {
        self.options.start_slot
    }

    /// Returns the number of events made so far, earlier runs included.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// Returns the number of events in a full slot.
    pub(crate) fn events_per_slot(&self) -> u32 {
        self.options.events_per_slot
    }

    /// Returns the blockhash of a slot on this chain.
    pub(super) fn hash_of(&self, slot: u64) -> [u8; 32] {
        block_hash(self.options.seed, slot)
    }

    /// Returns the parent of the run's first block. It has no updates, and stands for the chain before the run.
    pub(crate) fn base(&self) -> Block {
        let (slot, hash, height) = self.parent;
        let parent_slot = slot.saturating_sub(1);
        Block {
            slot,
            parent_slot,
            hash,
            parent_hash: self.hash_of(parent_slot),
            height,
            first_event: self.events,
            updates: Vec::new(),
            bank: bank(slot),
            kind: Kind::Sealed,
        }
    }

    /// Returns the next block to deliver; `None` once the run's events are spent.
    pub(crate) fn next_block(&mut self) -> Option<Arc<Block>> {
        loop {
            if let Some(block) = self.ready.pop_front() {
                return Some(block);
            }
            if self.events >= self.end {
                return self.held.pop_front().map(|(_, block)| block);
            }
            self.produce();
        }
    }

    /// Makes the next sealed block. Blocks come in the order of the chain: a block that is delivered late comes in its
    /// place, and a missing one comes too. Returns `None` once the run's events are spent.
    pub(crate) fn next_sealed(&mut self) -> Option<Arc<Block>> {
        while self.events < self.end {
            self.newest = None;
            self.produce();
            self.ready.clear();
            self.held.clear();
            if let Some(block) = self.newest.take() {
                return Some(block);
            }
        }
        None
    }

    /// Returns the state that a follower must have at the end. Walks every key, at about 50 ns each.
    pub(crate) fn finish(&self) -> Final {
        Final {
            slot: self.parent.0,
            events: self.events - self.skipped.0,
            slots: self.slots - self.skipped.1,
            digest: self.digest().to_string(),
            gap: self.gap.clone(),
        }
    }

    /// Computes the digest of the map at the newest sealed block.
    pub(crate) fn digest(&self) -> Digest {
        let mut digest = Digest::default();
        let created = self.created.iter().enumerate().map(|(index, state)| (index as u64 | CREATED, state));
        for (id, &state) in self.known.iter().enumerate().map(|(index, state)| (index as u64, state)).chain(created) {
            if state & ABSENT == 0 {
                digest.add(&self.keys.key(id), &self.keys.value(id, state));
            }
        }
        digest
    }

    /// Makes the next slot: skipped, dead, missing, held back or ready.
    fn produce(&mut self) {
        let slot = self.next_slot;
        self.next_slot += 1;
        let nth = slot - self.options.start_slot + 1;
        let every = |k: u64| k != 0 && nth.is_multiple_of(k);
        let missing = self.options.gap_at == Some(slot);
        if every(self.options.skip_every) && !missing {
            return;
        }
        if every(self.options.dead_every) && !missing {
            let block = self.vanishing_block(slot, Kind::Dead);
            self.ready.push_back(Arc::new(block));
            return;
        }
        let grows = self.fork.is_some();
        if (every(self.options.fork_every) || grows) && !missing {
            let block = self.vanishing_block(slot, Kind::Abandoned);
            // Every other fork is two blocks long.
            let first = !grows && nth.is_multiple_of(2 * self.options.fork_every);
            self.fork = first.then_some((block.slot, block.hash, block.height));
            self.ready.push_back(Arc::new(block));
            return;
        }
        if every(self.options.banks_every) && !missing {
            let block = self.vanishing_block(slot, Kind::GivenUp);
            self.ready.push_back(Arc::new(block));
        }
        if missing {
            self.gap = Some(Gap { slot, parent_slot: self.parent.0, digest: self.digest().to_string() });
        }
        let block = Arc::new(self.sealed_block(slot));
        self.newest = Some(Arc::clone(&block));
        if missing {
            return;
        }
        if every(self.options.out_of_order_every) {
            self.held.push_back((OUT_OF_ORDER_SLOTS, block));
            return;
        }
        self.ready.push_back(block);
        for (left, _) in &mut self.held {
            *left -= 1;
        }
        while let Some((0, block)) = self.held.front() {
            self.ready.push_back(Arc::clone(block));
            self.held.pop_front();
        }
    }

    fn sealed_block(&mut self, slot: u64) -> Block {
        let wanted = self.options.events_per_slot;
        let mut updates = Vec::with_capacity(wanted as usize);
        self.touched.clear();
        for _ in 0..wanted.saturating_mul(DRAWS_PER_EVENT) {
            if updates.len() == wanted as usize {
                break;
            }
            let update = self.draw();
            match self.touched.get(&update.id) {
                Some(&index) => updates[index as usize] = update,
                None => {
                    self.touched.insert(update.id, updates.len() as u32);
                    updates.push(update);
                }
            }
        }
        let hash = block_hash(self.options.seed, slot);
        let (parent_slot, parent_hash, parent_height) = self.parent;
        let height = parent_height + 1;
        self.parent = (slot, hash, height);
        let first_event = self.events;
        self.events += updates.len() as u64;
        self.slots += 1;
        Block {
            slot,
            parent_slot,
            hash,
            parent_hash,
            height,
            first_event,
            updates,
            bank: bank(slot),
            kind: Kind::Sealed,
        }
    }

    /// Makes a block whose updates look like any others and must leave no trace: changes, closes, leavings and new
    /// keys.
    fn vanishing_block(&mut self, slot: u64, kind: Kind) -> Block {
        let count = (self.options.events_per_slot / 2).max(1);
        let mut updates = Vec::with_capacity(count as usize);
        for n in 0..count {
            self.bogus += 1;
            let (id, write) = match n % 3 {
                0 => (CREATED | (1 << 62) | self.bogus, Write::Open),
                1 if self.options.leave_share > 0.0 && self.bogus.is_multiple_of(2) => {
                    (self.picker.pick(&mut self.rng), Write::Left((self.bogus / 2) as u8))
                }
                1 => (self.picker.pick(&mut self.rng), Write::Closed),
                _ => (self.picker.pick(&mut self.rng), Write::Open),
            };
            updates.push(Update { id, version: ABSENT | self.bogus as u32, write });
        }
        let (parent_slot, parent_hash, height) = self.fork.unwrap_or(self.parent);
        let hash = block_hash(self.options.seed, slot);
        // The slot's other bank comes after this one.
        let bank = if kind == Kind::GivenUp { bank(slot) - 1 } else { bank(slot) };
        Block { slot, parent_slot, hash, parent_hash, height, first_event: self.events, updates, bank, kind }
    }

    /// Draws one event and applies it to the state.
    fn draw(&mut self) -> Update {
        if self.rng.chance(self.options.unknown_share) {
            self.created.push(0);
            return Update { id: (self.created.len() as u64 - 1) | CREATED, version: 0, write: Write::Open };
        }
        let total = self.keys.known() + self.created.len() as u64;
        let index = self.rng.below(total);
        // Keys made by this run get their share of later events. The known keys keep the skew that was asked for.
        let (id, state) = if index >= self.keys.known() {
            let index = index - self.keys.known();
            (index | CREATED, &mut self.created[index as usize])
        } else {
            let index = self.picker.pick(&mut self.rng);
            (index, &mut self.known[index as usize])
        };
        let draw = self.rng.unit();
        let version = *state & !ABSENT;
        let (close, change, leave) = (self.options.close_share, self.options.change_share, self.options.leave_share);
        let mut write = Write::Open;
        if *state & ABSENT != 0 || (close..close + change).contains(&draw) {
            *state = (version + 1) & !ABSENT;
        } else if draw < close {
            (*state, write) = (version | ABSENT, Write::Closed);
        } else if draw < close + change + leave {
            (*state, write) = (version | ABSENT, Write::Left(self.rng.below(u64::from(LEAVINGS)) as u8));
        }
        Update { id, version: *state & !ABSENT, write }
    }
}

/// Returns the id of the bank that seals a slot. The number before it is for a bank that is given up.
fn bank(slot: u64) -> u64 {
    slot.wrapping_mul(2).wrapping_add(1)
}

/// Returns the hash of `slot` on the chain of `seed`.
pub(crate) fn block_hash(seed: u64, slot: u64) -> [u8; 32] {
    Pairs::new(seed ^ 0x626c_6f63_6b68).key(slot)
}

/// Hashes ids, which are dense integers, so one multiplication spreads them.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0.rotate_left(8) ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        let product = u128::from(id ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}
