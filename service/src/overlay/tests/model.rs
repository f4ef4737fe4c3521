//! A model world of forks: banks, their messages in the order of arrival, and the true state of each.
//!
//! The world knows the whole state after every bank. Its steps are drawn from a seed. Banks grow, on the chain and off
//! it. Their messages arrive interleaved, writes twice and in any order, some after the block meta. Statuses come
//! early, late or never. Connections break; banks in flight are then known in part, or come again with only their last
//! writes. The expected tip of a view is computed here from the definition, over plain lists.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use engine_api::{Key, Value};
use workload::Rng;

use crate::base::chain::{Base, Event};
use crate::lookups::LookupState;
use crate::overlay::banks::{BankStatus, Banks, Limits, Seen};
use crate::overlay::patch::Patches;

pub(super) const KEYS: u64 = 24;
pub(super) const BASE_SLOT: u64 = 100;

pub(super) type Map = BTreeMap<Key, Value>;

/// A bank with its true content.
pub(super) struct Truth {
    pub(super) base: Base,
    pub(super) parent: Option<usize>,
    pub(super) id: Option<u64>,
    /// Last write of each account in the bank.
    pub(super) writes: BTreeMap<Key, Option<Value>>,
    /// The whole map after the bank.
    pub(super) state: Map,
    pub(super) on_chain: bool,
    /// Whether the bank gets a block meta.
    pub(super) sealed: bool,
    pub(super) begin: Seen,
    /// Messages not yet delivered, in their order.
    pub(super) queue: VecDeque<Seen>,
    /// Messages about the bank that the current connection has brought.
    pub(super) live: Live,
    /// Position in the order in which banks became whole; 0 while it is not whole.
    pub(super) order: u64,
    /// Whether a confirmation of the whole bank was delivered.
    pub(super) confirmed: bool,
}

#[derive(Default)]
pub(super) struct Live {
    pub(super) begun: bool,
    pub(super) meta: bool,
    pub(super) processed: bool,
    pub(super) confirmed: bool,
    /// Whether the bank became whole on this connection.
    pub(super) whole: bool,
}

pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) ids: bool,
    pub(super) truths: Vec<Truth>,
    /// Blocks of the chain, the oldest first. The first `applied` are in the engine, the first `confirmed` are
    /// confirmed.
    pub(super) chain: Vec<usize>,
    pub(super) confirmed: usize,
    pub(super) applied: usize,
    pub(super) changed: bool,
    pub(super) order: u64,
    pub(super) next_id: u64,
    pub(super) next_slot: u64,
    pub(super) engine_map: Map,
    /// Slots that were reported as final.
    pub(super) final_named: BTreeSet<u64>,
    /// Path from the processed tip, when the view was last published, down to the first block not applied then.
    pub(super) tip: Option<Vec<usize>>,
    pub(super) banks: Banks,
    pub(super) patches: Patches,
    pub(super) seen: Tally,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Whole,
    Dead,
    GivenUp,
}

/// Counts of the interesting cases, to assert that they occurred.
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
            final_named: BTreeSet::new(),
            tip: None,
            banks: Banks::new(Some(base), limits),
            patches: Patches::default(),
            seen: Tally::default(),
        }
    }

    /// Returns the block that ingest-apply began last.
    pub(super) fn root(&self, state: &LookupState) -> usize {
        let root = state.overlay.processed().unwrap().root().unwrap();
        self.chain.iter().copied().find(|&at| self.truths[at].base == root).unwrap()
    }

    pub(super) fn committed(&self) -> usize {
        self.chain[self.applied - 1]
    }

    /// Adds a bank: on the chain, on a fork, as a sibling of the chain's block in one slot, dead, or given up.
    pub(super) fn grow(&mut self) {
        let draw = self.rng.below(10);
        let head = *self.chain.last().unwrap();
        self.next_slot += u64::from(self.rng.below(5) == 0);
        let slot = self.next_slot;
        self.next_slot += 1;
        match draw {
            0..=4 => self.bank(slot, head, true, Fate::Whole),
            // Siblings in one slot occur only where the server sends bank ids.
            5 if self.ids => {
                let fate = if self.rng.below(2) == 0 { Fate::GivenUp } else { Fate::Whole };
                self.bank(slot, head, false, fate);
                self.bank(slot, head, true, Fate::Whole);
                for beside in [self.truths.len() - 2, self.truths.len() - 1] {
                    // The slot's first shred would count for both banks.
                    let truth = &mut self.truths[beside];
                    truth.begin = Seen::Status { slot, bank: truth.id, status: BankStatus::Begun };
                    truth.queue[0] = truth.begin;
                }
            }
            6 => self.bank(slot, head, false, Fate::Dead),
            // The parent is any block not older than the newest confirmed one, on a fork or on the chain.
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
        // Writes arrive in any order: only the write version says which is the last.
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

    /// Delivers some messages of one bank.
    pub(super) fn deliver(&mut self) {
        let open: Vec<usize> = (0..self.truths.len()).filter(|&at| !self.truths[at].queue.is_empty()).collect();
        if open.is_empty() {
            return;
        }
        // Mostly of the oldest bank, so that banks do become whole.
        let pick = if self.rng.below(3) == 0 { self.rng.below(open.len() as u64) as usize } else { 0 };
        for _ in 0..=self.rng.below(6) {
            let Some(seen) = self.truths[open[pick]].queue.pop_front() else { return };
            self.see(open[pick], seen);
        }
    }

    /// Delivers one message, and updates the model accordingly.
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

    /// Makes a new connection. A bank in flight continues without its start, or comes again as a whole with only its
    /// last writes.
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

    /// Sends a whole bank once more on the same connection, as happens where a replay meets the live stream.
    pub(super) fn repeat(&mut self) {
        let told: Vec<usize> = (1..self.truths.len()).filter(|&at| self.truths[at].live.whole).collect();
        if let Some(last) = told.last() {
            self.again(*last).into_iter().for_each(|seen| self.see(*last, seen));
        }
    }

    /// Returns the messages of a bank without its start and with only its last writes.
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

    /// Confirms the next block of the chain. The processed stream may or may not report it.
    pub(super) fn confirm(&mut self) {
        let Some(&at) = self.chain.get(self.confirmed) else { return };
        self.confirmed += 1;
        let (slot, bank) = (self.truths[at].base.slot, self.truths[at].id);
        match self.rng.below(4) {
            0 => {}
            // The confirmation overtakes the bank's remaining messages, processed included.
            1 if self.ids && self.truths[at].live.begun => {
                self.see(at, Seen::Status { slot, bank, status: BankStatus::Confirmed })
            }
            _ => self.truths[at].queue.push_back(Seen::Status { slot, bank, status: BankStatus::Confirmed }),
        }
    }

    /// Publishes the view, and computes its expected tip.
    pub(super) fn publish(&mut self, state: &LookupState) {
        let changed = std::mem::take(&mut self.changed);
        state.overlay.show(&state.published, &mut self.banks, changed);
        let root = self.root(state);
        let mut best: Option<((u64, u64, u64), usize)> = None;
        for at in 1..self.truths.len() {
            if self.truths[at].order == 0 {
                continue;
            }
            // Walk down to the root over whole banks only: to the root itself if it is held, otherwise to one of its
            // children.
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
