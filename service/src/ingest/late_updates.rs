//! Updates that come after their slot was taken for complete.
//!
//! Owns: the write versions of the newest complete slots of one connection, and the updates that go out with the next
//! slot. Must not: do I/O, or keep more than [`SLOTS_MAX`] slots. Runs where an assembler runs.
//!
//! A slot counts as complete with its block meta and its confirmation. Some servers send the confirmation before the
//! updates, and then some updates after the block meta. Such an update is compared with the updates that were taken: it
//! counts if its slot has no later write of the key, and no slot after it has any. It goes out with the next slot, whose
//! own updates win. All other updates of a complete slot are duplicates.
//!
//! A new connection sends the newest slot again. An earlier connection may have ended before a late update, so that all
//! of that slot goes out once more, with the next slot, and replaces its earlier updates. Values that the map has
//! already change nothing.
//!
//! Of two streams at once, the late updates of both go out with the next slot that is passed on, whichever stream it is of.
//! The merging drops those that the slots passed on have overwritten.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::BuildHasher as _;

use foldhash::fast::RandomState;
use tokio::time::{Duration, Instant};
use tracing::warn;

use super::providers::Providers;
use crate::base::chain::Event;

/// Maximum number of complete slots whose versions are kept. At this age a slot is rooted.
const SLOTS_MAX: usize = 32;

/// Maximum number of versions of all these slots but the newest, at 16 bytes each.
const VERSIONS_MAX: usize = 1 << 18;

/// Maximum number of updates of older slots that are kept when slots are assembled anew. More of them come from a server
/// that errs, and would leave no memory for the slots of the next one.
const KEPT_MAX: usize = 1 << 16;

/// Time between two lines about late updates.
const LINE_EVERY: Duration = Duration::from_secs(60);

/// The late updates of one stream.
#[derive(Debug, Default)]
pub(super) struct LateUpdates {
    /// Slots that were complete on this connection, ascending.
    slots: VecDeque<Versions>,
    /// Updates that go out with the next slot, each with its own slot.
    updates: Vec<(u64, Event)>,
    /// The slot of which another stream has sent all, while this connection was sending it.
    passed: Option<u64>,
    hasher: RandomState,
}

/// The write versions of one slot.
#[derive(Debug)]
struct Versions {
    slot: u64,
    /// Hash of each key with the version of its last write.
    of: Vec<(u64, u64)>,
    is_sorted: bool,
    /// The same of the writes that came late. They count before the others.
    late: HashMap<u64, u64>,
}

impl Versions {
    fn get(&mut self, key: u64) -> Option<u64> {
        if let Some(version) = self.late.get(&key) {
            return Some(*version);
        }
        if !self.is_sorted {
            self.of.sort_unstable();
            self.is_sorted = true;
        }
        self.of.binary_search_by_key(&key, |(key, _)| *key).ok().map(|at| self.of[at].1)
    }
}

impl LateUpdates {
    /// Whether this slot was complete on this connection, and is the newest such slot, or another stream has sent it
    /// meanwhile.
    pub(super) fn has_newest(&self, slot: u64) -> bool {
        self.passed == Some(slot) || self.slots.back().is_some_and(|newest| newest.slot == slot)
    }

    /// Notes that another stream has sent all of a slot, of which this connection has sent a part: the rest is not
    /// taken.
    pub(super) fn pass(&mut self, slot: u64) {
        self.passed = Some(slot);
    }

    /// Removes and returns the updates, each with its own slot.
    pub(super) fn drain(&mut self) -> Vec<(u64, Event)> {
        std::mem::take(&mut self.updates)
    }

    /// Has an update of a slot that was handed out go out with the next one.
    pub(super) fn keep(&mut self, slot: u64, event: Event) {
        self.updates.push((slot, event));
    }

    /// Number of updates that go out with the next slot.
    pub(super) fn updates(&self) -> usize {
        self.updates.len()
    }

    /// Notes that the next slot is complete with these events, one a key.
    pub(super) fn complete(&mut self, slot: u64, events: &[Event]) {
        let of = events.iter().map(|event| (self.hasher.hash_one(event.key), event.write_version)).collect();
        self.slots.push_back(Versions { slot, of, is_sorted: false, late: HashMap::new() });
        let number = |slot: &Versions| slot.of.len() + slot.late.len();
        let mut versions: usize = self.slots.iter().map(number).sum();
        while self.slots.len() > SLOTS_MAX || versions > VERSIONS_MAX && self.slots.len() > 1 {
            versions -= self.slots.pop_front().map_or(0, |oldest| number(&oldest));
        }
    }

    /// Notes that the newest slot has come again, on a new connection, with these events, one a key.
    pub(super) fn came_again(&mut self, slot: u64, events: Vec<Event>) {
        self.complete(slot, &events);
        // What an earlier connection has sent of it has versions of another server.
        self.updates.retain(|(of, _)| *of != slot);
        self.updates.extend(events.into_iter().map(|event| (slot, event)));
    }

    /// Takes in an update of a slot that was handed out. Returns false for a duplicate.
    pub(super) fn take(&mut self, slot: u64, event: Event) -> bool {
        let Some(at) = self.slots.iter().position(|complete| complete.slot == slot) else { return false };
        let key = self.hasher.hash_one(event.key);
        let known = self.slots[at].get(key);
        let is_newest = known.is_none_or(|version| version < event.write_version)
            && self.slots.range_mut(at + 1..).all(|later| later.get(key).is_none());
        if is_newest {
            self.slots[at].late.insert(key, event.write_version);
            self.updates.push((slot, event));
        }
        is_newest
    }

    /// Puts the updates before the next slot's own `events`, one a key. Returns their number.
    pub(super) fn put_before(&mut self, events: &mut Vec<Event>) -> usize {
        if self.updates.is_empty() {
            return 0;
        }
        let mut updates = std::mem::take(&mut self.updates);
        updates.sort_by_key(|(slot, event)| (*slot, event.write_version));
        let mut written: HashSet<_> = events.iter().map(|event| event.key).collect();
        let last_writes = updates.into_iter().rev().filter(|(_, event)| written.insert(event.key));
        let mut before: Vec<_> = last_writes.map(|(_, event)| event).collect();
        before.reverse();
        let count = before.len();
        events.splice(..0, before);
        count
    }

    /// Notes that the inputs after this come from another connection, whose versions are not comparable.
    pub(super) fn reconnected(&mut self) {
        self.slots.clear();
        self.passed = None;
    }

    /// Notes that slots are assembled anew after `newest`. Updates of slots up to there stay, unless they are very many:
    /// those of `newest` too, because the next connection may begin right after it. If it sends `newest` again, that copy
    /// replaces them.
    pub(super) fn restarted(&mut self, newest: Option<u64>) {
        self.updates.retain(|(slot, _)| Some(*slot) <= newest);
        if self.updates.len() > KEPT_MAX {
            self.updates = Vec::new();
        }
    }

    /// Forgets all versions, and drops all updates.
    pub(super) fn clear(&mut self) {
        self.reconnected();
        self.updates.clear();
    }
}

/// The lines about the late updates of one stream.
#[derive(Debug, Default)]
pub(super) struct LateLines {
    logged: u64,
    /// Time of the newest line.
    at: Option<Instant>,
}

impl LateLines {
    /// Names the provider, if its stream has sent more late updates, once in [`LINE_EVERY`]. `updates` is the number
    /// of all of them.
    pub(super) fn log(&mut self, updates: u64, provider: Option<usize>, providers: &Providers) {
        if updates == self.logged || self.at.is_some_and(|at| at.elapsed() < LINE_EVERY) {
            return;
        }
        let more = updates - std::mem::replace(&mut self.logged, updates);
        self.at = Some(Instant::now());
        let index = provider.unwrap_or(0);
        providers.remark(index, "it sends slots in part: updates come after block meta and confirmation");
        warn!(
            provider = providers.name(index),
            updates = more,
            "the provider sends slots in part: updates came after block meta and confirmation of their slot, and are \
             applied with the next one; ask its operator, or list it after the others"
        );
    }
}
