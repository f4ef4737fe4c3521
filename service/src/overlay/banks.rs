//! The banks of processed slots: what each wrote, which are whole, which are gone, and the fork to read.
//!
//! Owns: everything held of banks that are not committed yet, within [`Limits`]. Must not: do I/O, know the stream's
//! messages, the engine or a clock. Runs on the `overlay` thread.
//!
//! A bank is known by its slot and its bank id within one connection, and by its blockhash beyond. It is **whole** once
//! - its begin was seen on this connection (first shred of its slot, or the creation of the bank): a bank that was in
//!   flight when the connection was made has writes that nobody sends again;
//! - its block meta has come, which names its blockhash and its parent; writes may still come after it;
//! - it was reported processed, which the validator does after the last write.
//!
//! The **processed fork** ends at a tip: of the whole banks whose ancestors down to the root are whole, the one that
//! descends from the newest bank reported confirmed; among those the one with the highest slot; in the same slot the
//! one that became whole last. The root is the block that ingest-apply has begun to apply last.
//!
//! A bank goes when its slot is committed in the engine, when it is reported dead, or when it is abandoned: nothing is
//! sent for that, but it shows once the root is past it on another fork.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::view::{Block, View, Writes, is_parent};
use crate::ingest::assemble::Base;
use crate::ingest::event::Event;

/// Banks held: some hundred seconds of a chain that nothing confirms. A healthy one has five to ten.
pub const BANKS_MAX: usize = 256;

/// Memory for their writes, in bytes: a mainnet slot of 7000 updates takes 0.7 to 1.3 MB, so this is over a minute.
pub const BYTES_MAX: usize = 256 << 20;

/// What a bank takes besides its writes, in bytes, rounded up.
const BANK_BYTES: usize = 256;

/// What the stream says, in the terms of this module. `bank` is `None` where the server names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the stream's messages, named alike")]
pub enum Seen {
    /// What follows comes from a new connection.
    Connected,
    /// An account was written.
    Account { slot: u64, bank: Option<u64>, event: Event },
    /// A bank's block is complete.
    BlockMeta { bank: Option<u64>, base: Base, parent: Base },
    /// Something was said about a bank, or about every bank of its slot.
    Status { slot: u64, bank: Option<u64>, status: BankStatus },
}

/// What can be said about a bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BankStatus {
    /// It exists from now on: all that it writes will be sent.
    Begun,
    /// All of it was executed.
    Processed,
    /// It was voted for.
    Confirmed,
    /// It is not valid.
    Dead,
}

/// How much may be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Banks, and slots heard of.
    pub banks_max: usize,
    /// Bytes of everything held.
    pub bytes_max: usize,
}

/// Banks dropped since the start, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Their slot is committed in the engine.
    pub committed: u64,
    /// Reported dead.
    pub dead: u64,
    /// Another fork was confirmed past them.
    pub abandoned: u64,
    /// There were too many, or they were too large.
    pub overflow: u64,
    /// They were not whole when the connection ended.
    pub disconnected: u64,
    /// They are there already, from an earlier connection.
    pub duplicate: u64,
}

/// The state machine: [`Banks::push`] what is seen, [`Banks::advance`] with the engine, read the [`Banks::view`].
#[derive(Debug)]
pub struct Banks {
    limits: Limits,
    slots: BTreeMap<u64, Slot>,
    banks: usize,
    bytes: usize,
    /// Counts banks as they become whole.
    order: u64,
    /// The newest slot that is committed and published.
    committed: Option<u64>,
    root: Option<Base>,
    /// Everything up to this slot was dropped because there was too much.
    overflow_through: Option<u64>,
    dropped: Dropped,
}

#[derive(Debug, Default)]
struct Slot {
    /// Its first shred was seen on this connection, so every bank of it begins after that.
    begun: bool,
    banks: Vec<Bank>,
}

#[derive(Debug, Default)]
struct Bank {
    /// `Some` on the connection that sent it: its id there, if it has one.
    live: Option<Option<u64>>,
    begun: bool,
    meta: Option<Meta>,
    processed: bool,
    confirmed: bool,
    /// What of it comes is let go.
    dead: bool,
    /// When it became whole; 0 before.
    order: u64,
    writes: Arc<Writes>,
}

#[derive(Clone, Copy, Debug)]
struct Meta {
    base: Base,
    parent: Base,
}

impl Dropped {
    /// Each reason with its count.
    pub fn by_reason(&self) -> [(&'static str, u64); 6] {
        [
            ("committed", self.committed),
            ("dead", self.dead),
            ("abandoned", self.abandoned),
            ("overflow", self.overflow),
            ("disconnected", self.disconnected),
            ("duplicate", self.duplicate),
        ]
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { banks_max: BANKS_MAX, bytes_max: BYTES_MAX }
    }
}

impl Banks {
    /// No banks, on top of an engine that stands at `base`.
    pub fn new(base: Option<Base>, limits: Limits) -> Self {
        Self {
            limits,
            slots: BTreeMap::new(),
            banks: 0,
            bytes: 0,
            order: 0,
            committed: base.map(|base| base.slot),
            root: base,
            overflow_through: None,
            dropped: Dropped::default(),
        }
    }

    /// Takes in what was seen. True when the view may be another one now.
    pub fn push(&mut self, seen: Seen) -> bool {
        let changed = match seen {
            Seen::Connected => self.connected(),
            Seen::Account { slot, .. } | Seen::Status { slot, .. } if self.is_committed(slot) => false,
            Seen::BlockMeta { base, .. } if self.is_committed(base.slot) => false,
            Seen::Account { slot, bank, event } => self.account(slot, bank, event),
            Seen::BlockMeta { bank, base, parent } => self.block_meta(bank, Meta { base, parent }),
            Seen::Status { slot, bank, status: BankStatus::Dead } => self.dead(slot, bank),
            Seen::Status { slot, bank: None, status: BankStatus::Begun } => {
                self.begun(slot);
                false
            }
            Seen::Status { slot, bank, status } => self.status(slot, bank, status),
        };
        self.check_limits() || changed
    }

    /// The engine's newest published slot and the root moved. True when the view may be another one now. `committed`
    /// must have been read before `root`, so that the root is never behind it.
    pub fn advance(&mut self, committed: Option<u64>, root: Option<Base>) -> bool {
        if committed == self.committed && root == self.root {
            return false;
        }
        (self.committed, self.root) = (committed, root);
        let gone = self.abandoned();
        let chain = self.chain_of_root();
        for (&slot, held) in &mut self.slots {
            let only = held.banks.len() == 1;
            held.banks.retain(|bank| {
                let known = bank.meta.map(|meta| meta.base);
                let on_chain = known.map_or(only, |base| chain.contains(&base));
                let committed = Some(slot) <= committed;
                if !committed && !known.is_some_and(|base| gone.contains(&base)) {
                    return true;
                }
                self.banks -= 1;
                self.bytes -= bank.bytes();
                match (bank.dead, committed && on_chain) {
                    (true, _) => {}
                    (_, true) => self.dropped.committed += 1,
                    (_, false) => self.dropped.abandoned += 1,
                }
                false
            });
        }
        self.slots.retain(|slot, held| Some(*slot) > committed || !held.banks.is_empty());
        if self.overflow_through <= committed {
            self.overflow_through = None;
        }
        true
    }

    /// The fork to read now.
    pub fn view(&self) -> View {
        if self.overflow_through.is_some() {
            return View { path: Vec::new(), overflowed: true };
        }
        let Some(root) = self.root else { return View::default() };
        let whole: HashMap<Base, (&Bank, Meta)> = self.whole().map(|(bank, meta)| (meta.base, (bank, meta))).collect();
        // Ascending by slot, so that a parent is looked at before its children. For each bank that stands on the root:
        // the newest confirmed slot on its way down to it.
        let mut standing: HashMap<Base, u64> = HashMap::new();
        let mut best: Option<((u64, u64, u64), Base)> = None;
        for (bank, meta) in self.whole() {
            let below = match standing.get(&meta.parent) {
                Some(confirmed) => *confirmed,
                None if meta.base == root || is_parent(meta.parent, root) => 0,
                None => continue,
            };
            let confirmed = if bank.confirmed { meta.base.slot } else { below };
            standing.insert(meta.base, confirmed);
            let rank = (confirmed, meta.base.slot, bank.order);
            if best.is_none_or(|(best, _)| best < rank) {
                best = Some((rank, meta.base));
            }
        }
        let mut path = Vec::new();
        let mut next = best.map(|(_, tip)| tip);
        while let Some((bank, meta)) = next.and_then(|base| whole.get(&base)) {
            path.push(Block { base: meta.base, parent: meta.parent, writes: Arc::clone(&bank.writes) });
            next = Some(meta.parent);
        }
        View { path, overflowed: false }
    }

    /// Banks held.
    pub fn banks(&self) -> usize {
        self.banks
    }

    /// Bytes of what is held, as far as it is counted.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What was dropped since the start.
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    fn is_committed(&self, slot: u64) -> bool {
        Some(slot) <= self.committed
    }

    /// Whole banks, ascending by slot.
    fn whole(&self) -> impl Iterator<Item = (&Bank, Meta)> {
        let banks = self.slots.values().flat_map(|slot| &slot.banks);
        banks.filter(|bank| bank.order > 0).filter_map(|bank| Some((bank, bank.meta?)))
    }

    /// What was whole stays, without its id: another server, or the same one started again, has other ids.
    fn connected(&mut self) -> bool {
        for held in self.slots.values_mut() {
            held.begun = false;
            held.banks.retain_mut(|bank| {
                bank.live = None;
                if bank.order == 0 {
                    self.banks -= 1;
                    self.bytes -= bank.bytes();
                    self.dropped.disconnected += u64::from(!bank.dead);
                }
                bank.order > 0
            });
        }
        self.slots.retain(|_, held| !held.banks.is_empty());
        false
    }

    /// The first shred of a slot, or the creation of a bank by a server without ids.
    fn begun(&mut self, slot: u64) {
        let held = self.slots.entry(slot).or_default();
        held.begun = true;
        held.banks.iter_mut().filter(|bank| bank.live == Some(None)).for_each(|bank| bank.begun = true);
    }

    fn account(&mut self, slot: u64, bank: Option<u64>, event: Event) -> bool {
        let at = self.bank_at(slot, bank);
        let bank = self.bank_mut(slot, at);
        if bank.dead {
            return false;
        }
        let before = bank.bytes();
        // A copy is made only for a write that comes after the bank was read as whole, which servers rarely send.
        let writes = Arc::make_mut(&mut bank.writes);
        let held = writes.entry(event.key).or_insert((event.value, event.write_version));
        if event.write_version >= held.1 {
            *held = (event.value, event.write_version);
        }
        let (after, whole) = (bank.bytes(), bank.order > 0);
        self.bytes = self.bytes - before + after;
        whole
    }

    fn block_meta(&mut self, bank: Option<u64>, meta: Meta) -> bool {
        let slot = meta.base.slot;
        let mut at = self.bank_at(slot, bank);
        let held = self.bank_mut(slot, at);
        if held.dead || meta.parent.slot >= slot {
            return false;
        }
        if held.meta.is_some_and(|known| known.base != meta.base) {
            // The id was given again: what is held is another bank, and of this one the begin is not known.
            held.live = None;
            at = self.bank_at(slot, bank);
            self.bank_mut(slot, at).begun = false;
        }
        self.bank_mut(slot, at).meta = Some(meta);
        self.complete(slot, at)
    }

    fn status(&mut self, slot: u64, bank: Option<u64>, status: BankStatus) -> bool {
        let Some(at) = self.named_at(slot, bank) else { return false };
        let bank = self.bank_mut(slot, at);
        match status {
            BankStatus::Begun => bank.begun = true,
            BankStatus::Processed => bank.processed = true,
            BankStatus::Confirmed => bank.confirmed = true,
            BankStatus::Dead => {}
        }
        self.complete(slot, at) || status == BankStatus::Confirmed
    }

    /// A dead bank is remembered without its writes, so that what still comes of it is let go. Without an id all banks
    /// of the slot are meant, and what comes next may be either: it counts once its begin is seen.
    fn dead(&mut self, slot: u64, bank: Option<u64>) -> bool {
        let Some(held) = self.slots.get_mut(&slot) else { return false };
        if bank.is_none() {
            held.begun = false;
        }
        let mut dropped = 0;
        for held in held.banks.iter_mut().filter(|held| bank.is_none() || held.live == Some(bank)) {
            self.bytes -= held.bytes();
            dropped += u64::from(!held.dead);
            *held = Bank { live: held.live.filter(|_| bank.is_some()), dead: true, ..Bank::default() };
            self.bytes += held.bytes();
        }
        self.dropped.dead += dropped;
        dropped > 0
    }

    /// Makes a bank whole when nothing of it is missing. True when it is whole.
    fn complete(&mut self, slot: u64, at: usize) -> bool {
        let order = self.order + 1;
        let held = &mut self.slots.entry(slot).or_default().banks;
        let bank = &mut held[at];
        let Some(meta) = bank.meta else { return false };
        if bank.order > 0 {
            return true;
        }
        if !(bank.begun && bank.processed) || bank.dead {
            return false;
        }
        let same = |other: &Bank| other.order > 0 && other.meta.is_some_and(|other| other.base == meta.base);
        if let Some(old) = held.iter().position(same) {
            // It has come again on this connection, which is the one that goes on telling of it.
            let old = held.remove(old);
            self.banks -= 1;
            self.bytes -= old.bytes();
            self.dropped.duplicate += 1;
            let bank = held.iter_mut().find(|bank| bank.order == 0 && bank.meta.is_some_and(|it| it.base == meta.base));
            if let Some(bank) = bank {
                (bank.order, bank.confirmed) = (old.order, bank.confirmed || old.confirmed);
            }
            return true;
        }
        held[at].order = order;
        self.order = order;
        true
    }

    /// The bank that a status means: the one of that id, or without an id the only one of the slot.
    fn named_at(&mut self, slot: u64, bank: Option<u64>) -> Option<usize> {
        if bank.is_some() {
            return Some(self.bank_at(slot, bank));
        }
        let live = |held: &Slot| {
            let mut live = (0..held.banks.len()).filter(|at| held.banks[*at].live.is_some());
            live.next().filter(|_| live.next().is_none())
        };
        match self.slots.get(&slot) {
            Some(held) if held.banks.iter().any(|bank| bank.live.is_some()) => live(held),
            _ => Some(self.bank_at(slot, None)),
        }
    }

    /// The place of a bank of this connection; made if there is none.
    fn bank_at(&mut self, slot: u64, bank: Option<u64>) -> usize {
        let held = self.slots.entry(slot).or_default();
        held.banks.iter().position(|held| held.live == Some(bank)).unwrap_or_else(|| {
            let made = Bank { live: Some(bank), begun: held.begun, ..Bank::default() };
            self.banks += 1;
            self.bytes += made.bytes();
            held.banks.push(made);
            held.banks.len() - 1
        })
    }

    fn bank_mut(&mut self, slot: u64, at: usize) -> &mut Bank {
        &mut self.slots.entry(slot).or_default().banks[at]
    }

    /// Blocks that cannot be on the chain of the root any more: beside its ancestry, or descended from such.
    fn abandoned(&self) -> HashSet<Base> {
        let mut gone = HashSet::new();
        let Some(root) = self.root else { return gone };
        let chain = self.chain_of_root();
        // Below the oldest ancestor that is held it is not known what is beside the ancestry.
        let known_from = chain.iter().map(|base| base.slot).min().unwrap_or(root.slot);
        for (&slot, held) in &self.slots {
            for meta in held.banks.iter().filter_map(|bank| bank.meta) {
                let beside = slot <= root.slot && slot >= known_from && !chain.contains(&meta.base);
                let below = slot > root.slot && meta.parent.slot <= root.slot && !is_parent(meta.parent, root);
                if beside || below || gone.contains(&meta.parent) {
                    gone.insert(meta.base);
                }
            }
        }
        gone
    }

    /// The root and its ancestors, as far as their block metas are held.
    fn chain_of_root(&self) -> HashSet<Base> {
        let metas = self.slots.values().flat_map(|slot| &slot.banks).filter_map(|bank| bank.meta);
        let parents: HashMap<Base, Base> = metas.map(|meta| (meta.base, meta.parent)).collect();
        let mut chain = HashSet::new();
        let mut next = self.root;
        while let Some(base) = next {
            chain.insert(base);
            next = parents.get(&base).copied();
        }
        chain
    }

    /// Drops everything when there is too much; true when it did.
    fn check_limits(&mut self) -> bool {
        let held = self.banks.max(self.slots.len());
        if held <= self.limits.banks_max && self.bytes <= self.limits.bytes_max {
            return false;
        }
        self.dropped.overflow += self.banks as u64;
        self.overflow_through = self.slots.last_key_value().map(|(slot, _)| *slot).max(self.overflow_through);
        self.slots.clear();
        (self.banks, self.bytes) = (0, 0);
        true
    }
}

impl Bank {
    /// A table has room for 8/7 of its capacity and a byte beside each entry.
    fn bytes(&self) -> usize {
        BANK_BYTES + self.writes.capacity() * 8 / 7 * (size_of::<([u8; 32], (Option<[u8; 32]>, u64))>() + 1)
    }
}

#[cfg(test)]
#[path = "banks_tests.rs"]
mod tests;
