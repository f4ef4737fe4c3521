//! Assembles whole slots from a stream of updates, in the order of the chain, each slot once.
//!
//! Owns: the updates and slots that have arrived and cannot be applied yet, within [`Limits`]. Must not: do I/O, know
//! the stream's messages or the engine. Runs on the ingest-apply thread.
//!
//! A slot is whole once its block meta and its confirmation have arrived. Updates that arrive between the two still
//! belong to the slot. A whole slot is handed out after its parent. A slot at or below the last one handed out is a
//! duplicate, because a replay sends such slots again.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use crate::chain::{Base, Event, Gap, KeyMap, WholeSlot};

/// Number of handed-out slots whose blockhash is remembered, to tell a duplicate from another block in the same slot.
/// It is more than the 150 slots that a stock server replays.
pub const REMEMBERED_SLOTS: usize = 512;

/// Maximum number of whole slots that wait for a parent: one minute at five slots a second. The real server drops a
/// slot's confirmation now and then. It then sends the slot only once a descendant is rooted, 32 slots later at best
/// and later under load. A parent that does not come within this many slots is more likely to come on another
/// connection.
pub const DEFAULT_SLOTS_MAX: usize = 300;

/// Maximum memory for slots that are not handed out yet, in bytes. It holds some three million updates, far more than a
/// replay window of ordinary slots.
pub const DEFAULT_BYTES_MAX: usize = 256 << 20;

/// Bytes that a held slot takes in addition to its updates. Rounded up, so that slots without updates are bounded too.
const SLOT_BYTES: usize = 256;

const EVENT_BYTES: usize = size_of::<Event>();

/// Placeholder for an unknown blockhash.
const UNKNOWN: [u8; 32] = [0; 32];

/// One input of the assembler, made from one message of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// An account was written in a slot.
    Account { slot: u64, event: Event },
    /// The block of a slot is complete.
    BlockMeta {
        slot: u64,
        blockhash: [u8; 32],
        parent_slot: u64,
        parent_blockhash: [u8; 32],
        /// When the server made this message, in ms since the Unix epoch; 0 when the server does not say.
        created_unix_ms: u64,
    },
    /// A slot was confirmed or finalized, or was found dead.
    Status { slot: u64, confirmed: bool, dead: bool },
    /// The inputs after this one come from a new connection, which starts over from the slot that it asked for.
    Reconnected,
}

/// Bounds on the slots and bytes that the assembler may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of whole slots that wait for a parent.
    pub slots_max: usize,
    /// Maximum bytes of all held slots and updates.
    pub bytes_max: usize,
}

/// Counts of dropped slots and updates since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Slots that came again after they were whole or handed out.
    pub duplicate_slots: u64,
    /// Account updates for slots that were already whole or handed out.
    pub duplicate_updates: u64,
    /// Slots that were found dead while updates or other parts of them were held.
    pub dead_slots: u64,
}

/// The state machine that assembles slots. Call [`Assembler::next`] until it returns `None` after each
/// [`Assembler::push`].
#[derive(Debug)]
pub struct Assembler {
    last: Option<Base>,
    limits: Limits,
    partial: BTreeMap<u64, Partial>,
    whole: BTreeMap<u64, WholeSlot>,
    held_bytes: usize,
    /// Newest handed-out slots, ascending; at most [`REMEMBERED_SLOTS`].
    remembered: VecDeque<Base>,
    /// Position of each key's update in one slot. Kept between slots only to reuse its allocation.
    positions: KeyMap<usize>,
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
    /// Returns the default limits, with the bytes reduced to a quarter of `limit_bytes` where that is less.
    /// `limit_bytes` is the memory that the process may use.
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
    /// Creates an assembler whose first handed-out slot is the child of `base`. Without a base, the first whole slot is
    /// handed out regardless of its parent.
    pub fn new(base: Option<Base>, limits: Limits) -> Self {
        Self {
            last: base,
            limits,
            partial: BTreeMap::new(),
            whole: BTreeMap::new(),
            held_bytes: 0,
            remembered: base.into_iter().collect(),
            positions: KeyMap::default(),
            dropped: Dropped::default(),
        }
    }

    /// Takes in one input. Returns an error when slots are missing, contradict each other or exceed the limits. Nothing
    /// can be handed out after that until a [restart](Self::restart).
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

    /// Drops everything held and starts over after `base`: the last slot that the caller applied, or the base of
    /// [`Self::new`]. Call it after a gap, before the inputs of a connection that begins at that slot.
    pub fn restart(&mut self, base: Option<Base>) {
        self.drop_partial_through(u64::MAX);
        self.whole.clear();
        self.held_bytes = 0;
        self.last = base;
        // A slot that was handed out and could not be applied is handed out again. A blockhash that the base learned
        // only from the stream may belong to a fork, so it is learned again.
        self.remembered.retain(|known| base.is_some_and(|base| known.slot < base.slot));
        self.remembered.extend(base);
    }

    /// Drops everything and starts over after `base`, which is not of the chain that was handed out: its slots are not
    /// remembered.
    pub fn begin_anew(&mut self, base: Base) {
        self.restart(Some(base));
        self.remembered = VecDeque::from([base]);
    }

    /// Continues after `base`, a later slot than the last one, which was applied without this assembler. Drops all
    /// parts of the slots up to there, and returns those of them that are whole.
    pub fn advance(&mut self, base: Base) -> Vec<WholeSlot> {
        self.drop_partial_through(base.slot);
        let later = self.whole.split_off(&(base.slot + 1));
        let mut passed: Vec<WholeSlot> = std::mem::replace(&mut self.whole, later).into_values().collect();
        for slot in &mut passed {
            self.held_bytes -= held(slot.events.len());
            self.keep_last_writes(&mut slot.events);
        }
        // Not remembered: this stream may still announce a block of that slot that is going to be dead.
        self.last = Some(base);
        passed
    }

    /// Removes and returns the next slot of the chain, if it is whole.
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
        // The chain skipped every slot up to here that is still partial.
        self.drop_partial_through(slot.slot);
        Some(slot)
    }

    /// Returns a gap when the held slots show that slots are missing, or when they exceed the limits.
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
            return Some(Gap { first_slot: parent + 1, last_slot: last.slot, detail, contradicts: true });
        }
        if parent == last.slot {
            let detail = format!(
                "slot={slot} has parent_slot={parent} with parent_blockhash={}, but blockhash={} was applied: the stream \
                 is of another chain than the store, or on another fork",
                base58(&first.parent_blockhash),
                base58(&last.blockhash)
            );
            return Some(Gap { first_slot: parent, last_slot: parent, detail, contradicts: true });
        }
        if self.whole.len() > self.limits.slots_max {
            return self.missing_parent(&format!("over slots_max={}", self.limits.slots_max));
        }
        (self.held_bytes > self.limits.bytes_max).then(|| self.over_bytes(parent))
    }

    /// Returns the first whole slot whose parent has not come, and that parent's slot. Call it once [`Assembler::next`]
    /// returns `None`.
    pub fn awaits_parent(&self) -> Option<(u64, u64)> {
        self.last?;
        self.whole.values().next().map(|first| (first.slot, first.parent_slot))
    }

    /// Returns the gap before the first whole slot, for a caller that stops waiting for that slot's parent. `why` is
    /// the reason for stopping. Returns `None` when no whole slot waits for a parent.
    pub fn missing_parent(&self, why: &str) -> Option<Gap> {
        let (last, first) = (self.last?, self.whole.values().next()?);
        let detail = format!(
            "slot={} waits for its parent_slot={} with {} whole slots: {why}",
            first.slot,
            first.parent_slot,
            self.whole.len()
        );
        let first_slot = last.slot + 1;
        Some(Gap { first_slot, last_slot: first.parent_slot.max(first_slot), detail, contradicts: false })
    }

    /// Number of slots of which any part is held.
    pub fn held_slots(&self) -> usize {
        self.partial.len() + self.whole.len()
    }

    /// Bytes of all held slots and updates, the overhead of each slot included.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// The last slot handed out; before the first one, the base.
    pub fn last(&self) -> Option<Base> {
        self.last
    }

    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    fn account(&mut self, slot: u64, event: Event) -> Result<(), Gap> {
        // An update for a whole slot comes from a replay: the slot is already complete.
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
            return Err(Gap { first_slot: slot, last_slot: slot, detail, contradicts: false });
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

    /// Drops every held part of a dead slot. Should another block be confirmed in its place, the server sends all of
    /// that block after this message, its updates before its block meta. Later inputs for the slot are therefore taken
    /// in afresh.
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
        Gap { first_slot, last_slot: through.max(first_slot), detail, contradicts: false }
    }

    fn check_remembered(&mut self, slot: u64, blockhash: [u8; 32]) -> Result<(), Gap> {
        let Ok(at) = self.remembered.binary_search_by_key(&slot, |base| base.slot) else {
            return Ok(());
        };
        if self.remembered[at].blockhash != UNKNOWN {
            let same = same_block(slot, self.remembered[at].blockhash, blockhash);
            return same.map_err(|gap| Gap { contradicts: true, ..gap });
        }
        // A base without a blockhash learns it from the replay, so that the base's child can be checked against it.
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

    /// Keeps one update a key: the one with the highest write version, and the later one among equals.
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
        "slot={slot} came again as another block: blockhash={} before, blockhash={} now: the stream is of another chain \
         than the store, or on another fork",
        base58(&known),
        base58(&heard)
    );
    Err(Gap { first_slot: slot, last_slot: slot, detail, contradicts: false })
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
