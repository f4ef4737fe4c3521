//! A world of forks: banks, their messages in the order in which they arrive, and the truth about each.
//!
//! The world knows the whole state behind every bank. Its steps are drawn from a seed: banks grow, on the chain and
//! beside it; their messages arrive cut into each other, writes twice and in any order, some after the block meta;
//! statuses come early, late or never; connections break, and banks in flight are then known in part or come again with
//! only their last writes. Which tip a view has to have is worked out here from the definition, over plain lists.

use std::collections::{BTreeMap, VecDeque};

use engine_api::{Key, Value};
use workload::Rng;

use super::banks::{BankStatus, Banks, Limits, Seen};
use super::run::publish;
use crate::ingest::assemble::Base;
use crate::ingest::event::Event;
use crate::status::Shared;

pub(super) const KEYS: u64 = 24;
pub(super) const BASE_SLOT: u64 = 100;

pub(super) type Map = BTreeMap<Key, Value>;

/// A bank and the truth about it.
pub(super) struct Truth {
    pub(super) base: Base,
    pub(super) parent: Option<usize>,
    pub(super) id: Option<u64>,
    /// Its last writes.
    pub(super) writes: BTreeMap<Key, Option<Value>>,
    /// The map after it.
    pub(super) state: Map,
    pub(super) on_chain: bool,
    /// It gets a block meta.
    pub(super) sealed: bool,
    pub(super) begin: Seen,
    /// Messages not yet delivered, in their order.
    pub(super) queue: VecDeque<Seen>,
    /// What this connection told of it.
    pub(super) live: Live,
    /// When it became whole; 0 before.
    pub(super) order: u64,
    /// Whether it was confirmed as far as the whole one is told of.
    pub(super) confirmed: bool,
}

#[derive(Default)]
pub(super) struct Live {
    pub(super) begun: bool,
    pub(super) meta: bool,
    pub(super) processed: bool,
    pub(super) confirmed: bool,
    /// It became whole on this connection.
    pub(super) whole: bool,
}

pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) ids: bool,
    pub(super) truths: Vec<Truth>,
    /// Blocks of the chain, the oldest first; the first `applied` are in the engine, `confirmed` are confirmed.
    pub(super) chain: Vec<usize>,
    pub(super) confirmed: usize,
    pub(super) applied: usize,
    pub(super) changed: bool,
    pub(super) order: u64,
    pub(super) next_id: u64,
    pub(super) next_slot: u64,
    pub(super) engine_map: Map,
    pub(super) final_heard: Option<u64>,
    /// The processed tip when the view was last published, and its ancestry down to what was applied then.
    pub(super) tip: Option<Vec<usize>>,
    pub(super) banks: Banks,
    pub(super) seen: Tally,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Whole,
    Dead,
    GivenUp,
}

/// That the interesting cases were met.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) ahead: u64,
    pub(super) forked: u64,
    pub(super) mid_slot: u64,
    pub(super) finalized: u64,
    pub(super) not_final: u64,
    pub(super) overflowed: u64,
}

pub(super) fn key(n: u64) -> Key {
    let mut key = [7; 32];
    key[..8].copy_from_slice(&n.to_be_bytes());
    key
}

pub(super) fn hash(n: u64) -> [u8; 32] {
    let mut hash = [0xcd; 32];
    hash[..8].copy_from_slice(&n.to_le_bytes());
    hash
}

impl World {
    pub(super) fn new(seed: u64, limits: Limits) -> Self {
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
    pub(super) fn root(&self, shared: &Shared) -> usize {
        let root = shared.overlay.processed().unwrap().root().unwrap();
        self.chain.iter().copied().find(|&at| self.truths[at].base == root).unwrap()
    }

    pub(super) fn committed(&self) -> usize {
        self.chain[self.applied - 1]
    }

    /// A new bank: on the chain, on a fork, beside the chain in its slot, dead, or given up.
    pub(super) fn grow(&mut self) {
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

    pub(super) fn bank(&mut self, slot: u64, parent: usize, on_chain: bool, fate: Fate) {
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
    pub(super) fn deliver(&mut self) {
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
    pub(super) fn see(&mut self, at: usize, seen: Seen) {
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
    pub(super) fn reconnect(&mut self) {
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
    pub(super) fn repeat(&mut self) {
        let told: Vec<usize> = (1..self.truths.len()).filter(|&at| self.truths[at].live.whole).collect();
        if let Some(last) = told.last() {
            self.again(*last).into_iter().for_each(|seen| self.see(*last, seen));
        }
    }

    /// A bank's content with only its last writes.
    pub(super) fn again(&self, at: usize) -> Vec<Seen> {
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
    pub(super) fn confirm(&mut self) {
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
    pub(super) fn publish(&mut self, shared: &Shared) {
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
}
