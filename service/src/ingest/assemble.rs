//! Makes whole slots of a stream of updates, in the order of the chain, each once.
//!
//! Owns: what has arrived and cannot be applied yet, within [`Limits`]. Must not: do I/O, know the stream's messages
//! or the engine. Runs on the ingest-apply thread.
//!
//! A slot is whole once its block meta and its confirmation arrived; updates in between are taken in. It is handed
//! out once its parent was. A slot at or below the last one handed out is a duplicate, as a replay sends them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};

use super::event::{Event, WholeSlot};
use crate::chain::Gap;

/// Slots handed out whose blockhash is remembered, to tell a duplicate from another block in the same slot: more than
/// the 150 slots that a stock server replays.
pub const REMEMBERED_SLOTS: usize = 512;

/// Whole slots that may wait for a parent: a minute of them at five a second. The real server drops a slot's
/// confirmation now and then and sends the slot only once a descendant is rooted, 32 slots later at best and more under
/// load; a parent that did not come within this many is more likely to come on another connection.
pub const DEFAULT_SLOTS_MAX: usize = 300;

/// Memory for slots that are not handed out yet, in bytes: some three million updates, far over a replay window of
/// ordinary slots.
pub const DEFAULT_BYTES_MAX: usize = 256 << 20;

/// What a held slot takes besides its updates, in bytes. Rounded up, so that slots without updates are bounded too.
const SLOT_BYTES: usize = 256;

const EVENT_BYTES: usize = size_of::<Event>();

/// A blockhash that is not known.
const UNKNOWN: [u8; 32] = [0; 32];

/// What the stream says, in the terms of the assembler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the stream's messages, named alike")]
pub enum Input {
    /// An account was written in a slot.
    Account { slot: u64, event: Event },
    /// A slot's block is complete.
    BlockMeta {
        slot: u64,
        blockhash: [u8; 32],
        parent_slot: u64,
        parent_blockhash: [u8; 32],
        /// When the server made this message, ms since the Unix epoch; 0 when it does not say.
        created_unix_ms: u64,
    },
    /// A slot was confirmed (or finalized), or found dead.
    Status { slot: u64, confirmed: bool, dead: bool },
    /// What follows comes from a new connection, which starts over from the slot asked for.
    Reconnected,
}

/// How much may be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Whole slots waiting for a parent.
    pub slots_max: usize,
    /// Bytes of everything held.
    pub bytes_max: usize,
}

/// The slot that the data stands at: the next one handed out is its child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Base {
    /// The slot.
    pub slot: u64,
    /// Its blockhash; all zeros when not known.
    pub blockhash: [u8; 32],
}

/// What was dropped since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Slots that came again.
    pub duplicate_slots: u64,
    /// Account updates of slots that were whole already.
    pub duplicate_updates: u64,
    /// Slots that were found dead while something of them was held.
    pub dead_slots: u64,
}

/// The state machine. Call [`Assembler::next`] until `None` after each [`Assembler::push`].
#[derive(Debug)]
pub struct Assembler {
    last: Option<Base>,
    limits: Limits,
    partial: BTreeMap<u64, Partial>,
    whole: BTreeMap<u64, WholeSlot>,
    held_bytes: usize,
    /// Slots handed out, ascending.
    remembered: VecDeque<Base>,
    /// Kept between slots for its allocation.
    positions: HashMap<[u8; 32], usize>,
    dropped: Dropped,
}

#[derive(Debug, Default)]
struct Partial {
    meta: Option<Meta>,
    confirmed: bool,
    events: Vec<Event>,
}

#[derive(Clone, Copy, Debug)]
struct Meta {
    blockhash: [u8; 32],
    parent_slot: u64,
    parent_blockhash: [u8; 32],
    created_unix_ms: u64,
}

impl Limits {
    /// The default, or less: no more than a quarter of what the process may use.
    pub fn within(limit_bytes: u64) -> Self {
        let quarter = usize::try_from(limit_bytes / 4).unwrap_or(usize::MAX);
        Self { bytes_max: DEFAULT_BYTES_MAX.min(quarter), ..Self::default() }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { slots_max: DEFAULT_SLOTS_MAX, bytes_max: DEFAULT_BYTES_MAX }
    }
}

impl Assembler {
    /// Starts behind `base`. Without one, the first whole slot is handed out whatever its parent.
    pub fn new(base: Option<Base>, limits: Limits) -> Self {
        Self {
            last: base,
            limits,
            partial: BTreeMap::new(),
            whole: BTreeMap::new(),
            held_bytes: 0,
            remembered: base.into_iter().collect(),
            positions: HashMap::new(),
            dropped: Dropped::default(),
        }
    }

    /// Takes one input in. After a gap nothing that follows can be handed out: [restart](Self::restart).
    pub fn push(&mut self, input: Input) -> Result<(), Gap> {
        match input {
            Input::Account { slot, event } => self.account(slot, event),
            Input::BlockMeta { slot, blockhash, parent_slot, parent_blockhash, created_unix_ms } => {
                self.block_meta(slot, Meta { blockhash, parent_slot, parent_blockhash, created_unix_ms })
            }
            Input::Status { slot, dead: true, .. } => {
                self.dead(slot);
                Ok(())
            }
            Input::Status { slot, confirmed: true, .. } => self.confirmed(slot),
            Input::Status { .. } => Ok(()),
            Input::Reconnected => {
                self.drop_partial_through(u64::MAX);
                Ok(())
            }
        }
    }

    /// Drops everything held and starts over after `base`: the last slot that was taken, or the base of [`Self::new`].
    /// Call it after a gap, before the inputs of a connection that begins at that slot.
    pub fn restart(&mut self, base: Option<Base>) {
        self.drop_partial_through(u64::MAX);
        self.whole.clear();
        self.held_bytes = 0;
        self.last = base;
        // A slot that was handed out and could not be taken is handed out again. A blockhash that the base has only
        // learned from the stream may be of a fork: it is learned anew.
        self.remembered.retain(|known| base.is_some_and(|base| known.slot < base.slot));
        self.remembered.extend(base);
    }

    /// The next slot of the chain, when it is whole.
    #[allow(clippy::should_implement_trait, reason = "not an iterator: more may come after a None")]
    pub fn next(&mut self) -> Option<WholeSlot> {
        let first = self.whole.first_entry()?;
        if !is_child(self.last, first.get()) {
            return None;
        }
        let mut slot = first.remove();
        self.held_bytes -= held(slot.events.len());
        self.keep_last_writes(&mut slot.events);
        let base = Base { slot: slot.slot, blockhash: slot.blockhash };
        self.last = Some(base);
        if self.remembered.len() == REMEMBERED_SLOTS {
            self.remembered.pop_front();
        }
        self.remembered.push_back(base);
        // What is still partial down here was skipped by the chain.
        self.drop_partial_through(slot.slot);
        Some(slot)
    }

    /// Whether what is held shows that slots are missing.
    pub fn check_gap(&self) -> Option<Gap> {
        let last = self.last?;
        let Some(first) = self.whole.values().next() else {
            return (self.held_bytes > self.limits.bytes_max).then(|| self.over_bytes(last.slot));
        };
        if is_child(self.last, first) {
            return None;
        }
        let (slot, parent) = (first.slot, first.parent_slot);
        if parent < last.slot {
            let detail = format!(
                "slot={slot} has parent_slot={parent}, which is before the last applied slot={}: the chain forked \
                 below it",
                last.slot
            );
            return Some(Gap { first_slot: parent + 1, last_slot: last.slot, detail });
        }
        if parent == last.slot {
            let detail = format!(
                "slot={slot} has parent_slot={parent} with parent_blockhash={}, but blockhash={} was applied",
                base58(&first.parent_blockhash),
                base58(&last.blockhash)
            );
            return Some(Gap { first_slot: parent, last_slot: parent, detail });
        }
        if self.whole.len() > self.limits.slots_max {
            return self.missing_parent(&format!("over slots_max={}", self.limits.slots_max));
        }
        (self.held_bytes > self.limits.bytes_max).then(|| self.over_bytes(parent))
    }

    /// The first whole slot whose parent has not come, and that parent. Ask once [`Assembler::next`] gives none.
    pub fn awaits_parent(&self) -> Option<(u64, u64)> {
        self.last?;
        self.whole.values().next().map(|first| (first.slot, first.parent_slot))
    }

    /// The gap before the first whole slot, should its parent not be awaited any longer; `why` not. `None` when no
    /// whole slot waits for a parent.
    pub fn missing_parent(&self, why: &str) -> Option<Gap> {
        let (last, first) = (self.last?, self.whole.values().next()?);
        let detail = format!(
            "slot={} waits for its parent_slot={} with {} whole slots: {why}",
            first.slot,
            first.parent_slot,
            self.whole.len()
        );
        let first_slot = last.slot + 1;
        Some(Gap { first_slot, last_slot: first.parent_slot.max(first_slot), detail })
    }

    /// Slots of which anything is held.
    pub fn held_slots(&self) -> usize {
        self.partial.len() + self.whole.len()
    }

    /// Bytes of what is held.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// The last slot handed out, or the base.
    pub fn last(&self) -> Option<Base> {
        self.last
    }

    /// What was dropped since the start.
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    fn account(&mut self, slot: u64, event: Event) -> Result<(), Gap> {
        // An update for a whole slot is a replay's: the slot is complete as it is.
        if self.is_past(slot) || self.whole.contains_key(&slot) {
            self.dropped.duplicate_updates += 1;
            return Ok(());
        }
        self.partial_mut(slot).events.push(event);
        self.held_bytes += EVENT_BYTES;
        self.check_bytes()
    }

    fn block_meta(&mut self, slot: u64, meta: Meta) -> Result<(), Gap> {
        if meta.parent_slot >= slot {
            let detail = format!("slot={slot} says parent_slot={}, which is not before it", meta.parent_slot);
            return Err(Gap { first_slot: slot, last_slot: slot, detail });
        }
        if self.is_past(slot) {
            self.dropped.duplicate_slots += 1;
            return self.check_remembered(slot, meta.blockhash);
        }
        if let Some(held) = self.whole.get(&slot) {
            self.dropped.duplicate_slots += 1;
            return same_block(slot, held.blockhash, meta.blockhash);
        }
        let partial = self.partial_mut(slot);
        if let Some(held) = partial.meta {
            return same_block(slot, held.blockhash, meta.blockhash);
        }
        partial.meta = Some(meta);
        self.complete(slot)
    }

    fn confirmed(&mut self, slot: u64) -> Result<(), Gap> {
        if self.is_past(slot) || self.whole.contains_key(&slot) {
            return Ok(());
        }
        self.partial_mut(slot).confirmed = true;
        self.complete(slot)
    }

    /// Drops what is held of a dead slot. Should another block be confirmed in its place, all of that one is sent
    /// after this, its updates before its block meta, so what comes next is taken in afresh.
    fn dead(&mut self, slot: u64) {
        let partial = self.partial.remove(&slot).map(|partial| partial.events.len());
        let whole = self.whole.remove(&slot).map(|whole| whole.events.len());
        if let Some(events) = partial.or(whole) {
            self.held_bytes -= held(events);
            self.dropped.dead_slots += 1;
        }
    }

    fn complete(&mut self, slot: u64) -> Result<(), Gap> {
        let Some((meta, true)) = self.partial.get(&slot).and_then(|partial| Some((partial.meta?, partial.confirmed)))
        else {
            return self.check_bytes();
        };
        let events = self.partial.remove(&slot).map(|partial| partial.events).unwrap_or_default();
        let Meta { blockhash, parent_slot, parent_blockhash, created_unix_ms } = meta;
        let whole = WholeSlot { slot, blockhash, parent_slot, parent_blockhash, created_unix_ms, events };
        self.whole.insert(slot, whole);
        self.check_gap().map_or(Ok(()), Err)
    }

    fn partial_mut(&mut self, slot: u64) -> &mut Partial {
        self.partial.entry(slot).or_insert_with(|| {
            self.held_bytes += SLOT_BYTES;
            Partial::default()
        })
    }

    fn is_past(&self, slot: u64) -> bool {
        self.last.is_some_and(|last| slot <= last.slot)
    }

    fn check_bytes(&self) -> Result<(), Gap> {
        if self.held_bytes <= self.limits.bytes_max
            || self.whole.values().next().is_some_and(|w| is_child(self.last, w))
        {
            return Ok(());
        }
        Err(self.over_bytes(self.last.map_or(0, |last| last.slot)))
    }

    fn over_bytes(&self, through: u64) -> Gap {
        let first_slot = self.last.map_or(0, |last| last.slot + 1);
        let detail = format!(
            "held slots={} take held_bytes={}, over bytes_max={}, and none of them can be applied",
            self.held_slots(),
            self.held_bytes,
            self.limits.bytes_max
        );
        Gap { first_slot, last_slot: through.max(first_slot), detail }
    }

    fn check_remembered(&mut self, slot: u64, blockhash: [u8; 32]) -> Result<(), Gap> {
        let Ok(at) = self.remembered.binary_search_by_key(&slot, |base| base.slot) else {
            return Ok(());
        };
        if self.remembered[at].blockhash != UNKNOWN {
            return same_block(slot, self.remembered[at].blockhash, blockhash);
        }
        // A base without a blockhash learns it from the replay, so that its child is checked against it.
        self.remembered[at].blockhash = blockhash;
        if let Some(last) = self.last.as_mut().filter(|last| last.slot == slot) {
            last.blockhash = blockhash;
        }
        self.check_gap().map_or(Ok(()), Err)
    }

    fn drop_partial_through(&mut self, through: u64) {
        while let Some(first) = self.partial.first_entry() {
            if *first.key() > through {
                break;
            }
            self.held_bytes -= held(first.remove().events.len());
        }
    }

    /// Leaves one update a key: that of the highest write version, the later one among equals.
    fn keep_last_writes(&mut self, events: &mut Vec<Event>) {
        self.positions.clear();
        let mut kept = 0;
        for at in 0..events.len() {
            let event = events[at];
            match self.positions.entry(event.key) {
                Entry::Vacant(vacant) => {
                    vacant.insert(kept);
                    events[kept] = event;
                    kept += 1;
                }
                Entry::Occupied(occupied) => {
                    let earlier = &mut events[*occupied.get()];
                    if event.write_version >= earlier.write_version {
                        *earlier = event;
                    }
                }
            }
        }
        events.truncate(kept);
    }
}

fn is_child(last: Option<Base>, slot: &WholeSlot) -> bool {
    last.is_none_or(|last| {
        slot.parent_slot == last.slot && (last.blockhash == UNKNOWN || slot.parent_blockhash == last.blockhash)
    })
}

fn same_block(slot: u64, known: [u8; 32], heard: [u8; 32]) -> Result<(), Gap> {
    if known == heard {
        return Ok(());
    }
    let detail = format!(
        "slot={slot} came again as another block: blockhash={} before, blockhash={} now",
        base58(&known),
        base58(&heard)
    );
    Err(Gap { first_slot: slot, last_slot: slot, detail })
}

fn held(events: usize) -> usize {
    SLOT_BYTES + events * EVENT_BYTES
}

fn base58(bytes: &[u8; 32]) -> String {
    bs58::encode(bytes).into_string()
}

#[cfg(test)]
#[path = "assemble_tests.rs"]
mod tests;
