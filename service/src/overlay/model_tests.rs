//! A world of forks played to the real parts, and what a lookup at each commitment has to answer in it.
//!
//! The world knows the whole state behind every bank. Its steps are drawn from a seed: banks grow, on the chain and
//! beside it; their messages arrive cut into each other, writes twice and in any order, some after the block meta;
//! statuses come early, late or never; connections break, and banks in flight are then known in part or come again with
//! only their last writes; blocks are applied in pieces, with lookups in between. The engine is a real one.

use std::collections::{BTreeMap, VecDeque};

use bytesize::ByteSize;
use engine_api::{Durability, Engine, Key, Value};
use engine_latency::{Latency, Measured};
use engines::{EngineKind, EngineOptions, OpenMode};
use workload::Rng;

use super::banks::{BankStatus, Banks, Limits, Seen};
use super::run::publish;
use super::*;
use crate::ingest::event::Event;
use crate::lookups::{Answer, LookupError};
use crate::reading::Reading;
use crate::status::Shared;

const KEYS: u64 = 24;
const BASE_SLOT: u64 = 100;

type Map = BTreeMap<Key, Value>;

/// A bank and the truth about it.
struct Truth {
    base: Base,
    parent: Option<usize>,
    id: Option<u64>,
    /// Its last writes.
    writes: BTreeMap<Key, Option<Value>>,
    /// The map after it.
    state: Map,
    on_chain: bool,
    /// It gets a block meta.
    sealed: bool,
    begin: Seen,
    /// Messages not yet delivered, in their order.
    queue: VecDeque<Seen>,
    /// What this connection told of it.
    live: Live,
    /// When it became whole; 0 before.
    order: u64,
    /// Whether it was confirmed as far as the whole one is told of.
    confirmed: bool,
}

#[derive(Default)]
struct Live {
    begun: bool,
    meta: bool,
    processed: bool,
    confirmed: bool,
    /// It became whole on this connection.
    whole: bool,
}

struct World {
    rng: Rng,
    ids: bool,
    truths: Vec<Truth>,
    /// Blocks of the chain, the oldest first; the first `applied` are in the engine, `confirmed` are confirmed.
    chain: Vec<usize>,
    confirmed: usize,
    applied: usize,
    changed: bool,
    order: u64,
    next_id: u64,
    next_slot: u64,
    engine_map: Map,
    final_heard: Option<u64>,
    /// The processed tip when the view was last published, and its ancestry down to what was applied then.
    tip: Option<Vec<usize>>,
    banks: Banks,
    seen: Tally,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Whole,
    Dead,
    GivenUp,
}

/// That the interesting cases were met.
#[derive(Debug, Default)]
struct Tally {
    ahead: u64,
    forked: u64,
    mid_slot: u64,
    finalized: u64,
    not_final: u64,
    overflowed: u64,
}

fn key(n: u64) -> Key {
    let mut key = [7; 32];
    key[..8].copy_from_slice(&n.to_be_bytes());
    key
}

fn hash(n: u64) -> [u8; 32] {
    let mut hash = [0xcd; 32];
    hash[..8].copy_from_slice(&n.to_le_bytes());
    hash
}

impl World {
    fn new(seed: u64, limits: Limits) -> Self {
        let state: Map = (0..KEYS / 2).map(|n| (key(n), [n as u8; 32])).collect();
        let base = Base { slot: BASE_SLOT, blockhash: hash(0) };
        let root = Truth {
            base,
            parent: None,
            id: None,
            writes: BTreeMap::new(),
            state: state.clone(),
            on_chain: true,
            sealed: true,
            begin: Seen::Connected,
            queue: VecDeque::new(),
            live: Live::default(),
            order: 0,
            confirmed: false,
        };
        Self {
            rng: Rng::new(seed),
            ids: !seed.is_multiple_of(4),
            truths: vec![root],
            chain: vec![0],
            confirmed: 1,
            applied: 1,
            changed: false,
            order: 0,
            next_id: 1,
            next_slot: BASE_SLOT + 1,
            engine_map: state,
            final_heard: None,
            tip: None,
            banks: Banks::new(Some(base), limits),
            seen: Tally::default(),
        }
    }

    /// The block that ingest-apply began last.
    fn root(&self, shared: &Shared) -> usize {
        let root = shared.overlay.processed().unwrap().root().unwrap();
        self.chain.iter().copied().find(|&at| self.truths[at].base == root).unwrap()
    }

    fn committed(&self) -> usize {
        self.chain[self.applied - 1]
    }

    /// A new bank: on the chain, on a fork, beside the chain in its slot, dead, or given up.
    fn grow(&mut self) {
        let draw = self.rng.below(10);
        let head = *self.chain.last().unwrap();
        self.next_slot += u64::from(self.rng.below(5) == 0);
        let slot = self.next_slot;
        self.next_slot += 1;
        match draw {
            0..=4 => self.bank(slot, head, true, Fate::Whole),
            // Beside it in the same slot, where banks can be told apart.
            5 if self.ids => {
                let fate = if self.rng.below(2) == 0 { Fate::GivenUp } else { Fate::Whole };
                self.bank(slot, head, false, fate);
                self.bank(slot, head, true, Fate::Whole);
                for beside in [self.truths.len() - 2, self.truths.len() - 1] {
                    // The slot's first shred would stand for both.
                    let truth = &mut self.truths[beside];
                    truth.begin = Seen::Status { slot, bank: truth.id, status: BankStatus::Begun };
                    truth.queue[0] = truth.begin;
                }
            }
            6 => self.bank(slot, head, false, Fate::Dead),
            // On any block that is not behind what is confirmed, be it on a fork or on the chain.
            _ => {
                let oldest = self.truths[self.chain[self.confirmed - 1]].base.slot;
                let parents: Vec<usize> = (0..self.truths.len())
                    .filter(|&at| self.truths[at].base.slot >= oldest && self.truths[at].sealed)
                    .collect();
                let parent = parents[self.rng.below(parents.len() as u64) as usize];
                self.bank(slot, parent, false, Fate::Whole);
            }
        }
    }

    fn bank(&mut self, slot: u64, parent: usize, on_chain: bool, fate: Fate) {
        let at = self.truths.len();
        let base = Base { slot, blockhash: hash(at as u64) };
        let id = self.ids.then_some(self.next_id);
        self.next_id += 1;
        let (mut writes, mut state) = (BTreeMap::new(), self.truths[parent].state.clone());
        let mut accounts = Vec::new();
        for n in 0..self.rng.below(8) {
            let key = key(self.rng.below(KEYS));
            let value = (self.rng.below(5) != 0).then(|| [self.rng.below(256) as u8; 32]);
            let mut version = n * 10;
            for _ in 0..self.rng.below(3) {
                let earlier = Some([self.rng.below(256) as u8; 32]);
                accounts.push(Event { key, value: earlier, write_version: version });
                version += 1;
            }
            accounts.push(Event { key, value, write_version: version });
            writes.insert(key, value);
            match value {
                Some(value) => _ = state.insert(key, value),
                None => _ = state.remove(&key),
            }
        }
        // Any order: the write version alone says which is the last.
        for i in (1..accounts.len()).rev() {
            accounts.swap(i, self.rng.below(i as u64 + 1) as usize);
        }
        let early =
            if self.rng.below(2) == 0 { accounts.len() } else { self.rng.below(accounts.len() as u64 + 1) as usize };
        let status = |status| Seen::Status { slot, bank: id, status };
        let account = |event: &Event| Seen::Account { slot, bank: id, event: *event };
        let parent_base = self.truths[parent].base;
        let mut queue = VecDeque::new();
        let begin = if self.rng.below(3) == 0 {
            Seen::Status { slot, bank: None, status: BankStatus::Begun }
        } else {
            status(BankStatus::Begun)
        };
        queue.push_back(begin);
        queue.extend(accounts[..early].iter().map(account));
        match fate {
            Fate::Whole => {
                queue.push_back(Seen::BlockMeta { bank: id, base, parent: parent_base });
                queue.extend(accounts[early..].iter().map(account));
                queue.push_back(status(BankStatus::Processed));
            }
            Fate::Dead => queue.push_back(status(BankStatus::Dead)),
            Fate::GivenUp => {}
        }
        self.truths.push(Truth {
            base,
            parent: Some(parent),
            id,
            writes,
            state,
            on_chain,
            sealed: fate == Fate::Whole,
            begin,
            queue,
            live: Live::default(),
            order: 0,
            confirmed: false,
        });
        if on_chain {
            self.chain.push(at);
        }
    }

    /// Some messages of one bank arrive.
    fn deliver(&mut self) {
        let open: Vec<usize> = (0..self.truths.len()).filter(|&at| !self.truths[at].queue.is_empty()).collect();
        if open.is_empty() {
            return;
        }
        // Mostly the oldest, so that banks do become whole.
        let pick = if self.rng.below(3) == 0 { self.rng.below(open.len() as u64) as usize } else { 0 };
        for _ in 0..=self.rng.below(6) {
            let Some(seen) = self.truths[open[pick]].queue.pop_front() else { return };
            self.see(open[pick], seen);
        }
    }

    /// One message arrives, and the model learns what it means.
    fn see(&mut self, at: usize, seen: Seen) {
        self.changed |= self.banks.push(seen);
        let truth = &mut self.truths[at];
        match seen {
            Seen::Status { status: BankStatus::Begun, .. } => truth.live.begun = true,
            Seen::Status { status: BankStatus::Processed, .. } => truth.live.processed = true,
            Seen::Status { status: BankStatus::Confirmed, .. } => truth.live.confirmed = true,
            Seen::BlockMeta { .. } => truth.live.meta = true,
            _ => {}
        }
        if truth.live.begun && truth.live.meta && truth.live.processed {
            truth.live.whole = true;
            truth.confirmed |= truth.live.confirmed;
            if truth.order == 0 {
                self.order += 1;
                truth.order = self.order;
            }
        }
    }

    /// A new connection. Of a bank in flight the rest comes, and its begin was missed; or it comes again as a whole
    /// with only its last writes.
    fn reconnect(&mut self) {
        self.changed |= self.banks.push(Seen::Connected);
        for at in 1..self.truths.len() {
            let truth = &mut self.truths[at];
            truth.live = Live::default();
            if truth.sealed && truth.queue.front() != Some(&truth.begin) && self.rng.below(3) == 0 {
                let again = self.again(at);
                self.truths[at].queue = [self.truths[at].begin].into_iter().chain(again).collect();
            }
        }
    }

    /// A bank that is told of already is sent once more on the same connection, as where a replay meets the present.
    fn repeat(&mut self) {
        let told: Vec<usize> = (1..self.truths.len()).filter(|&at| self.truths[at].live.whole).collect();
        if let Some(last) = told.last() {
            self.again(*last).into_iter().for_each(|seen| self.see(*last, seen));
        }
    }

    /// A bank's content with only its last writes.
    fn again(&self, at: usize) -> Vec<Seen> {
        let truth = &self.truths[at];
        let (base, bank) = (truth.base, truth.id);
        let parent = self.truths[truth.parent.unwrap()].base;
        let account = |(key, value): (&Key, &Option<Value>)| Seen::Account {
            slot: base.slot,
            bank,
            event: Event { key: *key, value: *value, write_version: 1000 },
        };
        let mut again: Vec<Seen> = truth.writes.iter().map(account).collect();
        again.push(Seen::BlockMeta { bank, base, parent });
        again.push(Seen::Status { slot: base.slot, bank, status: BankStatus::Processed });
        again
    }

    /// The next block of the chain is voted for; the processed stream may or may not tell.
    fn confirm(&mut self) {
        let Some(&at) = self.chain.get(self.confirmed) else { return };
        self.confirmed += 1;
        let (slot, bank) = (self.truths[at].base.slot, self.truths[at].id);
        match self.rng.below(4) {
            0 => {}
            // Before what is left of it, processed included.
            1 if self.ids && self.truths[at].live.begun => {
                self.see(at, Seen::Status { slot, bank, status: BankStatus::Confirmed })
            }
            _ => self.truths[at].queue.push_back(Seen::Status { slot, bank, status: BankStatus::Confirmed }),
        }
    }

    /// Publishes the view, and works out which tip it has to have.
    fn publish(&mut self, shared: &Shared) {
        let processed = shared.overlay.processed().unwrap();
        let changed = std::mem::take(&mut self.changed);
        publish(shared, processed, &mut self.banks, changed);
        let root = self.root(shared);
        let mut best: Option<((u64, u64, u64), usize)> = None;
        for at in 1..self.truths.len() {
            if self.truths[at].order == 0 {
                continue;
            }
            // Down to the root over whole banks only; the root itself if it is held, else on its children.
            let (mut next, mut confirmed, mut stands) = (at, 0, false);
            loop {
                if self.truths[next].confirmed {
                    confirmed = confirmed.max(self.truths[next].base.slot);
                }
                if next == root {
                    stands = true;
                    break;
                }
                match self.truths[next].parent {
                    Some(parent) if parent == root && self.truths[parent].order == 0 => {
                        stands = true;
                        break;
                    }
                    Some(parent) if self.truths[parent].order > 0 => next = parent,
                    _ => break,
                }
            }
            let applied = self.truths[at].base.slot <= self.truths[self.committed()].base.slot;
            let rank = (confirmed, self.truths[at].base.slot, self.truths[at].order);
            if stands && !applied && best.is_none_or(|(best, _)| best < rank) {
                best = Some((rank, at));
            }
        }
        self.tip = best.map(|(_, tip)| {
            let mut path = vec![tip];
            while let Some(parent) = self.truths[path[path.len() - 1]].parent {
                if self.truths[parent].order == 0
                    || self.truths[parent].base.slot <= self.truths[self.committed()].base.slot
                {
                    break;
                }
                path.push(parent);
            }
            path
        });
    }

    /// Applies the next confirmed block as ingest-apply does, in pieces, with a look after each.
    fn apply(&mut self, shared: &Shared, engine: &Measured, reading: &mut Reading<'_>, strict: bool) {
        if self.applied == self.confirmed {
            return;
        }
        let at = self.chain[self.applied];
        let before = self.truths[self.committed()].base;
        let block = self.truths[at].base;
        shared.overlay.begin(block);
        let writes: Vec<(Key, Option<Value>)> =
            self.truths[at].writes.iter().map(|(key, value)| (*key, *value)).collect();
        let pieces = if self.rng.below(2) == 0 { 1 } else { 1 + self.rng.below(3) as usize };
        let size = writes.len().div_ceil(pieces).max(1);
        let mut parts: Vec<&[(Key, Option<Value>)]> = writes.chunks(size).collect();
        if parts.is_empty() {
            parts.push(&[]);
        }
        let count = parts.len();
        for (n, part) in parts.into_iter().enumerate() {
            let base = if n + 1 == count { block } else { before };
            let checkpoint = Checkpoint { slot: Some(base.slot), blockhash: base.blockhash, ..Checkpoint::default() };
            let mut txn = engine.begin().unwrap();
            let mut changes = Vec::new();
            for (key, value) in part {
                let old = txn.get(key).unwrap();
                if old == *value {
                    continue;
                }
                changes.push((block.slot, *key, old));
                match value {
                    Some(value) => {
                        txn.put(key, value).unwrap();
                        self.engine_map.insert(*key, *value);
                    }
                    None => {
                        txn.delete(key).unwrap();
                        self.engine_map.remove(key);
                    }
                }
            }
            shared.overlay.committing(changes.into_iter());
            txn.commit(&checkpoint, Durability::Buffered).unwrap();
            if n + 1 == count {
                self.applied += 1;
            } else {
                self.seen.mid_slot += 1;
            }
            shared.checkpoint.store(Arc::new(checkpoint));
            shared.overlay.published(checkpoint.slot);
            self.check(shared, reading, strict);
            if self.rng.below(2) == 0 {
                self.publish(shared);
                self.check(shared, reading, strict);
            }
        }
    }

    /// Looks every key up at every commitment.
    fn check(&mut self, shared: &Shared, reading: &mut Reading<'_>, strict: bool) {
        let keys: Vec<Key> = (0..KEYS).map(key).collect();
        let values = |map: &Map| keys.iter().map(|key| map.get(key).copied()).collect::<Vec<_>>();
        let committed = self.truths[self.committed()].base.slot;
        let confirmed = reading.get_many(&keys, Commitment::Confirmed).unwrap();
        assert_eq!(confirmed, Answer { value: values(&self.engine_map), slot: Some(committed) });

        let first_applied = self.chain.get(1).map(|&at| self.truths[at].base.slot);
        let slot = self.final_heard.map(|heard| heard.min(committed));
        match reading.get_many(&keys, Commitment::Finalized) {
            Ok(found) => {
                assert!(first_applied.is_some_and(|first| slot >= Some(first)));
                let at = self.chain.iter().rev().find(|&&at| Some(self.truths[at].base.slot) <= slot).unwrap();
                assert_eq!(found, Answer { value: values(&self.truths[*at].state), slot });
                self.seen.finalized += 1;
            }
            Err(LookupError::NotFinal) => {
                assert!(slot.is_none() || first_applied.is_none_or(|first| slot < Some(first)));
                self.seen.not_final += 1;
            }
            Err(error) => panic!("{error:?}"),
        }

        let found = match reading.get_many(&keys, Commitment::Processed) {
            Err(LookupError::Overflowed) if !strict => {
                self.seen.overflowed += 1;
                return;
            }
            found => found.unwrap(),
        };
        let n = self.rng.below(KEYS);
        let one = reading.get(&key(n), Commitment::Processed).unwrap();
        assert_eq!((one.value, one.slot), (found.value[n as usize], found.slot));
        let expected = self.expected(shared);
        self.seen.ahead += u64::from(found.slot > Some(committed));
        if strict {
            let state = expected.map_or(&self.engine_map, |at| &self.truths[at].state);
            let slot = expected.map_or(committed, |at| self.truths[at].base.slot);
            assert_eq!(found, Answer { value: values(state), slot: Some(slot) });
            self.seen.forked += u64::from(expected.is_some_and(|at| !self.truths[at].on_chain));
        } else {
            // Whatever the fork, it is the state of a bank of that slot, whole.
            let slot = found.slot.unwrap();
            let of_bank = |truth: &&Truth| truth.base.slot == slot && values(&truth.state) == found.value;
            let of_engine = slot == committed && values(&self.engine_map) == found.value;
            assert!(of_engine || self.truths.iter().any(|truth| of_bank(&truth)), "{found:?}");
        }
    }

    /// The bank whose state a processed lookup has to give; `None` for the engine's.
    fn expected(&self, shared: &Shared) -> Option<usize> {
        let committed = self.committed();
        let root = self.root(shared);
        let path = self.tip.as_ref()?;
        let above: Vec<usize> =
            path.iter().copied().filter(|&at| self.truths[at].base.slot > self.truths[committed].base.slot).collect();
        let stands = self.truths[*above.last()?].parent == Some(committed);
        (stands && (root == committed || above.contains(&root))).then_some(above[0])
    }
}

/// Plays a world; gives what was met.
fn play(seed: u64, steps: u64, limits: Limits, strict: bool) -> Tally {
    let dir = tempfile::tempdir().unwrap();
    // The one whose commits do not wait for the device.
    let options = EngineOptions { memory: Some(ByteSize::mib(64)), ..EngineOptions::new(EngineKind::Strata) };
    let engine = engines::open(&dir.path().join("store"), &options, OpenMode::Create).unwrap();
    let engine = Measured::new(engine, Latency::new("strata"), "ingest");
    let mut world = World::new(seed, limits);
    let base = world.truths[0].base;
    let checkpoint = Checkpoint { slot: Some(base.slot), blockhash: base.blockhash, ..Checkpoint::default() };
    let mut txn = engine.begin().unwrap();
    world.engine_map.iter().for_each(|(key, value)| txn.put(key, value).unwrap());
    txn.commit(&checkpoint, Durability::Buffered).unwrap();
    let shared = Shared::with_overlay(checkpoint, Overlay::new(&checkpoint, true, false));
    let mut reading = Reading::new(&engine, &shared, "model");
    for _ in 0..steps {
        match world.rng.below(40) {
            0..=4 => world.grow(),
            5..=26 => world.deliver(),
            27..=30 => world.confirm(),
            31..=34 => world.apply(&shared, &engine, &mut reading, strict),
            35 => match world.rng.below(8) {
                0 => world.reconnect(),
                _ => world.repeat(),
            },
            36 => {
                let at = world.chain[world.rng.below(world.confirmed as u64) as usize];
                let slot = world.truths[at].base.slot;
                shared.overlay.heard_final(slot);
                world.final_heard = world.final_heard.max(Some(slot));
                shared.overlay.settle();
            }
            _ => world.publish(&shared),
        }
        world.check(&shared, &mut reading, strict);
    }
    assert!(world.applied as u64 > steps / 40, "the world grew: applied={}", world.applied);
    world.seen
}

#[test]
fn lookups_at_each_commitment_are_the_worlds() {
    let mut all = Tally::default();
    for seed in 1..=20 {
        let met = play(seed, 3000, Limits::default(), true);
        all.ahead += met.ahead;
        all.forked += met.forked;
        all.mid_slot += met.mid_slot;
        all.finalized += met.finalized;
        all.not_final += met.not_final;
    }
    let Tally { ahead, forked, mid_slot, finalized, not_final, .. } = all;
    assert!(ahead > 500 && forked > 50 && mid_slot > 50 && finalized > 500 && not_final > 10, "{all:?}");
}

#[test]
fn too_many_banks_are_refused_and_never_answered_wrong() {
    let met = play(11, 4000, Limits { banks_max: 7, bytes_max: usize::MAX }, false);
    assert!(met.overflowed > 100 && met.ahead > 50 && met.finalized > 100, "{met:?}");
    let met = play(13, 4000, Limits { banks_max: 100, bytes_max: 4000 }, false);
    assert!(met.overflowed > 100 && met.ahead > 50, "{met:?}");
}
