//! Assembles whole slots from a stream of updates, in the order of the chain, each slot once.
//!
//! Owns: the updates and slots that have arrived and cannot be applied yet, within [`HeldLimits`]. Must not: do I/O, know
//! the stream's messages or the engine. Runs where the slots of one stream are needed: on ingest-apply, on `spool`, or
//! where several receivers are merged.
//!
//! A slot is whole once its block meta and its confirmation have arrived. Updates that arrive between the two still
//! belong to the slot. The confirmation of a whole child confirms the block that it names as its parent, because some
//! servers leave a confirmation out. A whole slot is handed out after its parent. A slot at or below the last one handed
//! out is a duplicate, because a replay sends such slots again; `late_updates` looks for updates in it that had not come before.

mod gaps;
mod limits;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use self::gaps::{contradiction, same_block};
pub use self::limits::{DEFAULT_BYTES_MAX, DEFAULT_SLOTS_MAX, HeldLimits};
use super::late_updates::LateUpdates;
use crate::base::chain::{Base, BlockMeta, Event, Gap, KeyMap, SLOT_END, WholeSlot};

/// Number of handed-out slots whose blockhash is remembered, to tell a duplicate from another block in the same slot.
/// It is more than the 150 slots that a stock server replays.
pub const REMEMBERED_SLOTS: usize = 512;

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
    BlockMeta(BlockMeta),
    /// A slot was confirmed or finalized, or was found dead.
    Status { slot: u64, confirmed: bool, dead: bool },
    /// The inputs after this one come from a new connection, which starts over from the slot that it asked for.
    Reconnected,
}

/// Counts of dropped slots and updates since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Slots that came again after they were whole or handed out.
    pub duplicate_slots: u64,
    /// Account updates for slots that were already handed out.
    pub duplicate_updates: u64,
    /// Account updates that came after their slot was handed out, and go out with the next one.
    pub late_updates: u64,
    /// Slots that were found dead while updates or other parts of them were held.
    pub dead_slots: u64,
}

/// The state machine that assembles slots. Call [`Assembler::next`] until it returns `None` after each
/// [`Assembler::push`].
#[derive(Debug)]
pub struct Assembler {
    last: Option<Base>,
    limits: HeldLimits,
    partial: BTreeMap<u64, Partial>,
    whole: BTreeMap<u64, WholeSlot>,
    held_bytes: usize,
    /// Newest handed-out slots, ascending; at most [`REMEMBERED_SLOTS`].
    remembered: VecDeque<Base>,
    /// Position of each key's update in one slot. Kept between slots only to reuse its allocation.
    positions: KeyMap<usize>,
    late: LateUpdates,
    /// The newest slot that the connection has shown to exist.
    newest: Option<u64>,
    /// Number of slots of this connection that were handed out.
    handed_out: u64,
    dropped: Dropped,
}

#[derive(Debug, Default)]
struct Partial {
    meta: Option<BlockMeta>,
    confirmed: bool,
    events: Vec<Event>,
}

impl Assembler {
    /// Creates an assembler whose first handed-out slot is the child of `base`. Without a base, the first whole slot is
    /// handed out regardless of its parent.
    pub fn new(base: Option<Base>, limits: HeldLimits) -> Self {
        Self {
            last: base,
            limits,
            partial: BTreeMap::new(),
            whole: BTreeMap::new(),
            held_bytes: 0,
            remembered: base.into_iter().collect(),
            positions: KeyMap::default(),
            late: LateUpdates::default(),
            newest: base.map(|base| base.slot),
            handed_out: 0,
            dropped: Dropped::default(),
        }
    }

    /// Takes in one input. Returns an error when slots are missing, contradict each other or exceed the limits. Nothing
    /// can be handed out after that until a [restart](Self::restart).
    pub fn push(&mut self, input: Input) -> Result<(), Gap> {
        match input {
            Input::Account { slot, event } => self.account(slot, event),
            Input::BlockMeta(meta) => self.block_meta(meta),
            Input::Status { slot, dead: true, .. } => {
                self.dead(slot);
                Ok(())
            }
            Input::Status { slot, confirmed: true, .. } => self.confirmed(slot),
            Input::Status { .. } => Ok(()),
            Input::Reconnected => {
                self.drop_held();
                self.handed_out = 0;
                Ok(())
            }
        }
    }

    /// Drops everything held and starts over after `base`: the last slot that the caller applied, or the base of
    /// [`Self::new`]. Call it after a gap, before the inputs of a connection that begins at that slot.
    pub fn restart(&mut self, base: Option<Base>) {
        if base != self.last {
            self.late.clear();
        }
        self.late.restarted(base.map(|base| base.slot));
        self.last = base;
        self.drop_held();
        // A slot that was handed out and could not be applied is handed out again. A blockhash that the base learned
        // only from the stream may belong to a fork, so it is learned again.
        self.remembered.retain(|known| base.is_some_and(|base| known.slot < base.slot));
        self.remembered.extend(base);
        while self.remembered.len() > REMEMBERED_SLOTS {
            self.remembered.pop_front();
        }
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
        let has_begun = self.partial.contains_key(&base.slot) || self.whole.contains_key(&base.slot);
        self.drop_partial_through(base.slot);
        let later = self.whole.split_off(&(base.slot + 1));
        let mut passed: Vec<WholeSlot> = std::mem::replace(&mut self.whole, later).into_values().collect();
        for slot in &mut passed {
            self.held_bytes -= held(slot.events.len());
            self.keep_last_writes(&mut slot.events);
        }
        // Not remembered: this stream may still announce a block of that slot that is going to be dead.
        self.last = Some(base);
        self.newest = self.newest.max(Some(base.slot));
        self.late.clear();
        if has_begun {
            self.late.pass(base.slot);
        }
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
        self.late.complete(slot.slot, &slot.events);
        slot.late = self.late.put_before(&mut slot.events);
        let base = slot.base();
        (self.last, self.newest) = (Some(base), Some(base.slot));
        self.handed_out += 1;
        if self.remembered.len() == REMEMBERED_SLOTS {
            self.remembered.pop_front();
        }
        self.remembered.push_back(base);
        // The chain skipped every slot up to here that is still partial.
        self.drop_partial_through(slot.slot);
        Some(slot)
    }

    /// Removes and returns the updates that came after their slot was handed out, each with that slot. They would go out with
    /// the next one.
    pub fn take_late(&mut self) -> Vec<(u64, Event)> {
        self.late.drain()
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
        if let Some(contradiction) = contradiction(last, first) {
            return Some(contradiction);
        }
        let parent = first.parent.slot;
        if self.whole.len() > self.limits.slots_max {
            return self.missing_parent(&format!("over slots_max={}", self.limits.slots_max));
        }
        (self.held_bytes > self.limits.bytes_max).then(|| self.over_bytes(parent))
    }

    /// Returns the first whole slot whose parent has not come, and that parent's slot. Call it once [`Assembler::next`]
    /// returns `None`.
    pub fn awaits_parent(&self) -> Option<(u64, u64)> {
        self.last?;
        self.whole.values().next().map(|first| (first.slot, first.parent.slot))
    }

    /// Returns the gap before the first whole slot, for a caller that stops waiting for that slot's parent. `why` is
    /// the reason for stopping. Returns `None` when no whole slot waits for a parent.
    pub fn missing_parent(&self, why: &str) -> Option<Gap> {
        let (last, first) = (self.last?, self.whole.values().next()?);
        let detail = format!(
            "slot={} waits for its parent_slot={} with {} whole slots: {why}",
            first.slot,
            first.parent.slot,
            self.whole.len()
        );
        let first_slot = last.slot + 1;
        Some(Gap { first_slot, last_slot: first.parent.slot.max(first_slot), detail, contradicts: false })
    }

    /// Returns the gap before a slot that was assembled elsewhere, if it does not follow the last one.
    pub fn gap_before(&self, slot: &WholeSlot) -> Option<Gap> {
        let last = self.last.filter(|_| !is_child(self.last, slot))?;
        contradiction(last, slot).or_else(|| {
            let detail = format!("slot={} came without its parent_slot={}", slot.slot, slot.parent.slot);
            Some(Gap { first_slot: last.slot + 1, last_slot: slot.parent.slot, detail, contradicts: false })
        })
    }

    /// Number of slots of the newest connection that were handed out. One that waits for its parent is none, because the
    /// parent may never come.
    pub fn handed_out(&self) -> u64 {
        self.handed_out
    }

    /// The newest slot that the newest connection has shown to exist. No single message shows that, because a status or a
    /// block meta may name any slot: the slot is handed out, or its parent block was announced with its blockhash as
    /// well. Before the first slot it is the base.
    pub fn newest(&self) -> Option<u64> {
        self.newest
    }

    /// Returns the first slot after the last one that is not whole, with the name of its missing part. `None` where there
    /// is no such slot, or where a whole slot waits for its parent, for which there is a time of its own.
    pub fn incomplete(&self) -> Option<(u64, &'static str)> {
        if self.awaits_parent().is_some() {
            return None;
        }
        let after = self.last.map_or(0, |last| last.slot + 1);
        let (slot, partial) = self.partial.range(after..).next()?;
        Some((*slot, if partial.meta.is_some() { "no confirmation" } else { "no block meta" }))
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
        if self.is_past(slot) {
            match self.late.take(slot, event) {
                true => self.dropped.late_updates += 1,
                false => self.dropped.duplicate_updates += 1,
            }
            return self.check_bytes();
        }
        match self.whole.get_mut(&slot) {
            Some(whole) => whole.events.push(event),
            None => self.partial_mut(slot).events.push(event),
        }
        self.held_bytes += EVENT_BYTES;
        self.check_bytes()
    }

    fn block_meta(&mut self, meta: BlockMeta) -> Result<(), Gap> {
        let Base { slot, blockhash } = meta.base;
        if meta.parent.slot >= slot {
            let detail = format!("slot={slot} says parent_slot={}, which is not before it", meta.parent.slot);
            return Err(Gap { first_slot: slot, last_slot: slot, detail, contradicts: false });
        }
        if self.last.is_some_and(|last| slot <= last.slot) {
            self.dropped.duplicate_slots += 1;
            self.check_remembered(slot, blockhash)?;
            if self.is_past(slot) {
                return Ok(());
            }
        }
        if let Some(held) = self.whole.get(&slot) {
            self.dropped.duplicate_slots += 1;
            return same_block(slot, held.blockhash, blockhash);
        }
        let partial = self.partial_mut(slot);
        if let Some(held) = partial.meta {
            return same_block(slot, held.base.blockhash, blockhash);
        }
        partial.meta = Some(meta);
        if slot < SLOT_END && self.is_announced(meta.parent) {
            self.newest = self.newest.max(Some(slot));
        }
        self.complete(slot)
    }

    /// Whether this block was the last one handed out, or was announced after it.
    fn is_announced(&self, base: Base) -> bool {
        let whole = || self.whole.get(&base.slot).map(|whole| whole.blockhash);
        let partial = || self.partial.get(&base.slot).and_then(|partial| partial.meta).map(|meta| meta.base.blockhash);
        match self.last.filter(|last| last.slot == base.slot) {
            Some(last) => last.blockhash == UNKNOWN || last.blockhash == base.blockhash,
            None => whole().or_else(partial) == Some(base.blockhash),
        }
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
        if let Some(last) = self.last.filter(|last| last.slot == slot) {
            let known = Some(last.blockhash).filter(|known| *known != UNKNOWN);
            let same = known.map_or(Ok(()), |known| same_block(slot, known, meta.base.blockhash));
            same.map_err(|gap| Gap { contradicts: true, ..gap })?;
            self.came_again(slot);
            return self.check_bytes();
        }
        self.make_whole(meta);
        self.confirm_parents();
        self.check_gap().map_or(Ok(()), Err)
    }

    fn make_whole(&mut self, meta: BlockMeta) {
        let BlockMeta { base: Base { slot, blockhash }, parent, created_unix_ms } = meta;
        let events = self.partial.remove(&slot).map(|partial| partial.events).unwrap_or_default();
        self.whole.insert(slot, WholeSlot { slot, blockhash, parent, created_unix_ms, events, late: 0 });
    }

    /// Makes the first whole slot's parent whole, and its parent in turn, as far as their block metas have come: a
    /// confirmed block confirms those that it descends from.
    fn confirm_parents(&mut self) {
        while let Some(parent) = self.whole.values().next().map(|whole| whole.parent) {
            let meta = self.partial.get(&parent.slot).and_then(|partial| partial.meta);
            let Some(meta) = meta.filter(|meta| meta.base == parent) else { return };
            if self.last.is_some_and(|last| parent.slot <= last.slot) {
                return;
            }
            self.make_whole(meta);
        }
    }

    /// Takes the last slot's content, which a new connection has sent again.
    fn came_again(&mut self, slot: u64) {
        let mut events = self.partial.remove(&slot).map(|partial| partial.events).unwrap_or_default();
        self.held_bytes -= held(events.len());
        self.keep_last_writes(&mut events);
        self.late.came_again(slot, events);
    }

    fn partial_mut(&mut self, slot: u64) -> &mut Partial {
        self.partial.entry(slot).or_insert_with(|| {
            self.held_bytes += SLOT_BYTES;
            Partial::default()
        })
    }

    /// Whether nothing of the slot is awaited: it is before the last one, or is that one and this connection has sent all
    /// of it.
    fn is_past(&self, slot: u64) -> bool {
        self.last.is_some_and(|last| slot < last.slot || slot == last.slot && self.late.has_newest(slot))
    }

    fn check_bytes(&self) -> Result<(), Gap> {
        if self.held_bytes + self.late.updates() * EVENT_BYTES <= self.limits.bytes_max
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

    /// Drops everything of the connection's slots. LateUpdates updates of slots before stay.
    fn drop_held(&mut self) {
        self.partial.clear();
        self.whole.clear();
        self.held_bytes = 0;
        self.late.reconnected();
        self.newest = self.last.map(|last| last.slot);
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
        slot.parent.slot == last.slot && (last.blockhash == UNKNOWN || slot.parent.blockhash == last.blockhash)
    })
}

fn held(events: usize) -> usize {
    SLOT_BYTES + events * EVENT_BYTES
}

#[cfg(test)]
#[path = "assemble_tests.rs"]
mod tests;
