//! The banks of processed slots: their writes, which of them are whole or gone, and the fork to read.
//!
//! Owns: everything held of banks that are not committed yet, within [`Limits`]. Must not: do I/O, or know the stream's
//! messages, the engine or a clock. Runs on the `overlay` thread.
//!
//! A bank is identified by its slot and its bank id within one connection, and by its blockhash across connections. It
//! is **whole** once
//! - its start was seen on this connection (first shred of its slot, or the creation of the bank): a bank that was in
//!   flight when the connection was made has writes that no server sends again;
//! - its block meta has come, which names its blockhash and its parent; writes may still come after it;
//! - it was reported processed, which the validator does after the last write.
//!
//! The **processed fork** ends at a tip: a whole bank whose ancestors down to the root are whole. Of several such
//! banks, one wins that descends from the newest bank reported confirmed, then the one with the highest slot. In the
//! same slot the bank that became whole last wins. The root is the block that ingest-apply has begun to apply last.
//!
//! A bank is dropped when its slot is committed in the engine, when it is reported dead, or when it is abandoned. No
//! message reports an abandoned bank; it shows once the root is past the bank on another fork.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::view::{Block, View, Writes, is_parent};
use crate::base::chain::{Base, Event};
use crate::base::label::labels;

/// Maximum number of banks held: some hundred seconds of a chain that nothing confirms. A healthy chain has five to
/// ten.
pub(crate) const BANKS_MAX: usize = 256;

/// Maximum memory for the writes of banks, in bytes. A mainnet slot of 7000 updates takes 0.7 to 1.3 MB, so this is
/// over a minute.
pub(crate) const BYTES_MAX: usize = 256 << 20;

/// Memory of a bank in addition to its writes, in bytes, rounded up.
const BANK_BYTES: usize = 256;

/// One input of this module, made from one message of the stream. `bank` is `None` where the server does not send bank
/// ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The inputs after this one come from a new connection.
    Connected,
    /// An account was written in a bank.
    Account { slot: u64, bank: Option<u64>, event: Event },
    /// The block of a bank is complete.
    BlockMeta { bank: Option<u64>, base: Base, parent: Base },
    /// A status of one bank, or of every bank of its slot.
    Status { slot: u64, bank: Option<u64>, status: BankStatus },
}

/// Status that the stream reports of a bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BankStatus {
    /// The bank exists from now on: the server will send all its writes.
    Begun,
    /// All transactions of the bank were executed.
    Processed,
    /// Two thirds of the stake voted for the bank.
    Confirmed,
    /// The bank is not valid.
    Dead,
}

/// Bounds on the banks and bytes that may be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Maximum number of banks, and of slots that any message has named.
    pub banks_max: usize,
    /// Maximum bytes of all banks and their writes.
    pub bytes_max: usize,
}

labels! {
    /// Reason why a bank is dropped; the label `reason` of the metrics.
    pub(crate) enum Reason {
        /// Its slot is committed in the engine.
        Committed = "committed",
        /// It was reported dead by the server.
        Dead = "dead",
        /// Another fork, once confirmed, has passed it.
        Abandoned = "abandoned",
        /// The banks were too many or too large.
        Overflow = "overflow",
        /// It was not whole when its connection ended.
        Disconnected = "disconnected",
        /// It was already there from an earlier connection.
        Duplicate = "duplicate",
    }
}

/// Counts of banks dropped since the start, by [`Reason`].
pub(crate) type Dropped = [u64; Reason::ALL.len()];

/// The state machine of banks: [`Banks::push`] each input, [`Banks::advance`] with the engine, read the
/// [`Banks::view`].
#[derive(Debug)]
pub(crate) struct Banks {
    limits: Limits,
    slots: BTreeMap<u64, Slot>,
    banks: usize,
    bytes: usize,
    /// Number of banks that have become whole so far.
    order: u64,
    /// The newest slot that is committed and published.
    committed: Option<u64>,
    root: Option<Base>,
    /// Everything up to this slot was dropped because the limits were exceeded.
    overflow_through: Option<u64>,
    dropped: Dropped,
}

#[derive(Debug, Default)]
struct Slot {
    /// Whether the slot's first shred was seen on this connection, so that every bank of it begins after that.
    begun: bool,
    banks: Vec<Bank>,
}

/// The connection that a bank came on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Origin {
    /// A connection that has ended, or an id that the server uses for another bank now. No more messages are about this
    /// bank.
    #[default]
    Earlier,
    /// The present connection, and the bank's id there, if the server sends ids.
    Present(Option<u64>),
}

#[derive(Debug, Default)]
struct Bank {
    origin: Origin,
    begun: bool,
    meta: Option<Meta>,
    processed: bool,
    confirmed: bool,
    /// Whether the bank was reported dead. Later messages about it are ignored.
    dead: bool,
    /// Position of this bank in the order in which banks became whole; 0 while it is not whole.
    order: u64,
    writes: Arc<Writes>,
}

#[derive(Clone, Copy, Debug)]
struct Meta {
    base: Base,
    parent: Base,
}

impl Default for Limits {
    fn default() -> Self {
        Self { banks_max: BANKS_MAX, bytes_max: BYTES_MAX }
    }
}

impl Banks {
    /// Creates the state without banks, on top of an engine at `base`.
    pub(crate) fn new(base: Option<Base>, limits: Limits) -> Self {
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

    /// Takes in one input. Returns whether the view may have changed.
    pub(crate) fn push(&mut self, seen: Seen) -> bool {
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

    /// Follows the engine's newest published slot and the root. Returns whether the view may have changed. `committed`
    /// must have been read before `root`, so that the root is never older than it.
    pub(crate) fn advance(&mut self, committed: Option<u64>, root: Option<Base>) -> bool {
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
                    (_, true) => self.dropped[Reason::Committed as usize] += 1,
                    (_, false) => self.dropped[Reason::Abandoned as usize] += 1,
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

    /// Returns the processed fork as it is now.
    pub(crate) fn view(&self) -> View {
        if self.overflow_through.is_some() {
            return View { path: Vec::new(), overflowed: true };
        }
        let Some(root) = self.root else { return View::default() };
        let whole: HashMap<Base, (&Bank, Meta)> = self.whole().map(|(bank, meta)| (meta.base, (bank, meta))).collect();
        // Ascending by slot, so that a parent is visited before its children. Maps each bank that stands on the root to
        // the newest confirmed slot on its way down to the root.
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

    /// Number of banks held, dead ones included.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn banks(&self) -> usize {
        self.banks
    }

    /// Estimated bytes of all banks and their writes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn dropped(&self) -> Dropped {
        self.dropped
    }

    fn is_committed(&self, slot: u64) -> bool {
        Some(slot) <= self.committed
    }

    /// Returns the whole banks, ascending by slot.
    fn whole(&self) -> impl Iterator<Item = (&Bank, Meta)> {
        let banks = self.slots.values().flat_map(|slot| &slot.banks);
        banks.filter(|bank| bank.order > 0).filter_map(|bank| Some((bank, bank.meta?)))
    }

    /// Starts a new connection. Whole banks stay, without their ids: another server, or the same one restarted, uses
    /// other ids. Banks that were dropped for their number do not matter any more: only one whose start is seen counts.
    /// Returns whether the view may have changed.
    fn connected(&mut self) -> bool {
        for held in self.slots.values_mut() {
            held.begun = false;
            held.banks.retain_mut(|bank| {
                bank.origin = Origin::Earlier;
                if bank.order == 0 {
                    self.banks -= 1;
                    self.bytes -= bank.bytes();
                    self.dropped[Reason::Disconnected as usize] += u64::from(!bank.dead);
                }
                bank.order > 0
            });
        }
        self.slots.retain(|_, held| !held.banks.is_empty());
        self.overflow_through.take().is_some()
    }

    /// Notes the first shred of a slot, or the creation of a bank by a server without bank ids.
    fn begun(&mut self, slot: u64) {
        let held = self.slots.entry(slot).or_default();
        held.begun = true;
        held.banks.iter_mut().filter(|bank| bank.origin == Origin::Present(None)).for_each(|bank| bank.begun = true);
    }

    fn account(&mut self, slot: u64, bank: Option<u64>, event: Event) -> bool {
        let at = self.bank_at(slot, bank);
        let bank = self.bank_mut(slot, at);
        if bank.dead {
            return false;
        }
        let before = bank.bytes();
        // This copies the writes only if the bank was already read as whole. Servers rarely send writes after that.
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
            // The id is in use for another bank now. The held bank keeps its data, and the start of the new one is
            // unknown.
            held.origin = Origin::Earlier;
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

    /// Handles the report of a dead bank. The bank is remembered without its writes, so that later messages about it
    /// are ignored. Without an id all banks of the slot are meant. A later message may then belong to a dead or to a
    /// new bank, so a new bank counts only once its start is seen.
    fn dead(&mut self, slot: u64, bank: Option<u64>) -> bool {
        let Some(held) = self.slots.get_mut(&slot) else { return false };
        if bank.is_none() {
            held.begun = false;
        }
        let mut dropped = 0;
        for held in held.banks.iter_mut().filter(|held| bank.is_none() || held.origin == Origin::Present(bank)) {
            self.bytes -= held.bytes();
            dropped += u64::from(!held.dead);
            let origin = if bank.is_some() { held.origin } else { Origin::Earlier };
            *held = Bank { origin, dead: true, ..Bank::default() };
            self.bytes += held.bytes();
        }
        self.dropped[Reason::Dead as usize] += dropped;
        dropped > 0
    }

    /// Makes a bank whole when no part of it is missing. Returns whether it is whole.
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
            // The bank has come again on this connection, which is the one that sends further messages about it.
            let old = held.remove(old);
            self.banks -= 1;
            self.bytes -= old.bytes();
            self.dropped[Reason::Duplicate as usize] += 1;
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

    /// Returns the place of the bank that a status means: the one of that id, or without an id the slot's only bank.
    fn named_at(&mut self, slot: u64, bank: Option<u64>) -> Option<usize> {
        if bank.is_some() {
            return Some(self.bank_at(slot, bank));
        }
        let live = |held: &Slot| {
            let mut live = (0..held.banks.len()).filter(|at| held.banks[*at].origin != Origin::Earlier);
            live.next().filter(|_| live.next().is_none())
        };
        match self.slots.get(&slot) {
            Some(held) if held.banks.iter().any(|bank| bank.origin != Origin::Earlier) => live(held),
            _ => Some(self.bank_at(slot, None)),
        }
    }

    /// Returns the place of a bank of this connection, which is created if there is none.
    fn bank_at(&mut self, slot: u64, bank: Option<u64>) -> usize {
        let held = self.slots.entry(slot).or_default();
        held.banks.iter().position(|held| held.origin == Origin::Present(bank)).unwrap_or_else(|| {
            let made = Bank { origin: Origin::Present(bank), begun: held.begun, ..Bank::default() };
            self.banks += 1;
            self.bytes += made.bytes();
            held.banks.push(made);
            held.banks.len() - 1
        })
    }

    fn bank_mut(&mut self, slot: u64, at: usize) -> &mut Bank {
        &mut self.slots.entry(slot).or_default().banks[at]
    }

    /// Returns the blocks that cannot be on the root's chain any more: siblings of its ancestry, and their descendants.
    fn abandoned(&self) -> HashSet<Base> {
        let mut gone = HashSet::new();
        let Some(root) = self.root else { return gone };
        let chain = self.chain_of_root();
        // Below the oldest held ancestor, the ancestry is unknown, so no block there is known to be off it.
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

    /// Returns the root and its ancestors, as far as their block metas are held.
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

    /// Drops everything when the limits are exceeded. Returns whether it did.
    fn check_limits(&mut self) -> bool {
        let held = self.banks.max(self.slots.len());
        if held <= self.limits.banks_max && self.bytes <= self.limits.bytes_max {
            return false;
        }
        self.dropped[Reason::Overflow as usize] += self.banks as u64;
        self.overflow_through = self.slots.last_key_value().map(|(slot, _)| *slot).max(self.overflow_through);
        self.slots.clear();
        (self.banks, self.bytes) = (0, 0);
        true
    }
}

impl Bank {
    /// Returns the estimated memory of the bank, in bytes. A table allocates 8/7 of its capacity, and one more byte for
    /// each entry.
    fn bytes(&self) -> usize {
        BANK_BYTES + self.writes.capacity() * 8 / 7 * (size_of::<([u8; 32], (Option<[u8; 32]>, u64))>() + 1)
    }
}

#[cfg(test)]
#[path = "banks_tests.rs"]
mod tests;
