//! Checks the store, its checkpoint and the feed after each step.
//!
//! Owns: the model. It knows the chain and nothing of how the chain was sent. Must not: inspect anything that a reader
//! or a subscriber of the service cannot see.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use engine_api::{Durability, Engine, Key, Value};
use solana::{ChainCheckpoint, MapPhase};

use super::chain::{Block, Chain};
use super::store::Opened;
use crate::base::chain::Base;
use crate::feed::{Change, Cursor, Feed, FeedError, Frame, SlotEnd};
use crate::ingest::State;

/// The model of one store over all of its lives.
pub(super) struct Oracle {
    chain: Arc<Chain>,
    base_known: bool,
    durability: Durability,
    /// Content of the map after every change of `history`.
    map: BTreeMap<Key, Value>,
    /// Every change that was published.
    history: Vec<Change>,
    /// Ends of the slots that changed something, as published.
    ends: Vec<SlotEnd>,
    /// Sequence number before the first change of `history`.
    before: u64,
    /// Number of blocks that the history has begun, the base included.
    begun: usize,
    /// Whether the store has the wrong block of a server in the place of the chain's, which only a heal takes back.
    is_wrong: bool,
    /// Changes that the newest of these blocks, or the heal, still has to make.
    rest: BTreeMap<Key, Option<Value>>,
    /// The block that the store is brought to by differences.
    heals_to: Option<Base>,
    /// Whether the feed leaves the differences out.
    is_left_out: bool,
    /// Number of heals that were completed.
    heals: u64,
    checkpoint: Option<ChainCheckpoint>,
    feed_id: Option<u64>,
    /// First sequence number of the feed that is open.
    oldest_seq: u64,
    cursor: Cursor,
    checks: u64,
}

impl Oracle {
    pub(super) fn new(chain: Arc<Chain>, base_known: bool, durability: Durability) -> Self {
        let before = chain.initial.len() as u64;
        Self {
            map: chain.initial.clone(),
            chain,
            base_known,
            durability,
            history: Vec::new(),
            ends: Vec::new(),
            before,
            begun: 1,
            is_wrong: false,
            rest: BTreeMap::new(),
            heals_to: None,
            is_left_out: false,
            heals: 0,
            checkpoint: None,
            feed_id: None,
            oldest_seq: before + 1,
            cursor: Cursor::new(before + 1),
            checks: 0,
        }
    }

    /// Whether the store knows the base's blockhash from the start.
    pub(super) fn base_known(&self) -> bool {
        self.base_known
    }

    /// Number of heals that were completed.
    pub(super) fn heals(&self) -> u64 {
        self.heals
    }

    /// Expects the differences that bring the store to `to`, also where an earlier heal to another block has begun.
    /// The feed has them only if it can keep them.
    pub(super) fn heal(&mut self, to: Base, fits_feed: bool) {
        assert!(self.rest.is_empty() || self.heals_to.is_some(), "a heal begins within slot={}", self.block().slot);
        self.expect_map_at(to.slot);
        self.heals_to = Some(to);
        self.is_left_out = !fits_feed;
    }

    /// Content of the map after every change that was published.
    pub(super) fn map(&self) -> &BTreeMap<Key, Value> {
        &self.map
    }

    /// The block at which the store stands; its blockhash is unknown at first.
    pub(super) fn newest(&self) -> Base {
        Base { slot: self.slot(), blockhash: self.checkpoint.map_or([0; 32], |checkpoint| checkpoint.blockhash) }
    }

    pub(super) fn slot(&self) -> u64 {
        self.checkpoint.and_then(|checkpoint| checkpoint.slot).unwrap_or(self.chain.base.slot)
    }

    /// Starts the checks of a new life. `cut` says that the last one was killed between the feed's append and the end
    /// of a commit.
    pub(super) fn opened(&mut self, opened: &Opened, cut: bool) {
        let id = opened.feed.id();
        let has_hole = self.take_in_unlogged(&*opened.engine);
        let next_seq = self.before + self.history.len() as u64 + 1;
        self.cursor = Cursor::new(next_seq);
        if let Some(known) = self.feed_id.replace(id).filter(|known| *known != id) {
            // A subscriber may have seen changes that a buffered engine then lost, and a log that leaves out changes does
            // not lead to the store until all of them are there. Only then may a new feed begin.
            let is_lost = self.durability == Durability::Buffered && cut;
            assert!(is_lost || has_hole, "the feed began anew: {known} before, {id} now");
            self.oldest_seq = next_seq;
        } else {
            assert!(!has_hole, "a feed goes on after changes that it has left out in part");
        }
        self.check(&*opened.engine, &opened.feed, None);
        if self.checkpoint.is_some_and(|checkpoint| checkpoint.phase == MapPhase::Ready) && self.heals_to.is_some() {
            // The last life ended before the first difference was committed.
            (self.heals_to, self.is_left_out) = (None, false);
            self.rest.clear();
        }
        self.check_log(&opened.feed);
    }

    /// Checks everything after a step. Cheap while nothing was committed.
    pub(super) fn check(&mut self, engine: &dyn Engine, feed: &Feed, state: Option<&State>) {
        let checkpoint = ChainCheckpoint::read(&engine.checkpoint().expect("a checkpoint")).expect("a chain's");
        if let Some(state) = state {
            assert_eq!(**state.published.checkpoint(), checkpoint, "what is published is what is committed");
            let is_between_slots = checkpoint.phase != MapPhase::Ready;
            assert_eq!(state.published.is_healing(), is_between_slots, "readers see whole slots: {checkpoint:?}");
        }
        let head = *feed.head().borrow();
        assert_eq!((head.seq, head.slot), (checkpoint.seq, checkpoint.slot), "the feed stands where the store does");
        let earlier = self.checkpoint.replace(checkpoint);
        if earlier == Some(checkpoint) {
            return;
        }
        if let Some(earlier) = earlier {
            assert!(earlier.seq <= checkpoint.seq && earlier.slot <= checkpoint.slot, "{earlier:?} {checkpoint:?}");
        }
        if self.take_in_unlogged(engine) {
            self.check_gone(feed);
        }
        self.follow(feed);
        assert_eq!(self.before + self.history.len() as u64, checkpoint.seq, "every change has its seq");
        self.complete_through(&checkpoint);
        self.check_map(engine);
    }

    /// Takes in the changes published since the last call, as a subscriber does that sees the service die.
    pub(super) fn follow(&mut self, feed: &Feed) {
        self.checks += 1;
        for frame in self.read(feed) {
            let next_seq = self.before + self.history.len() as u64 + 1;
            assert_eq!(frame.first_seq, next_seq, "frames follow one another");
            frame.ends.iter().for_each(|end| self.told(Base { slot: end.slot, blockhash: end.blockhash }));
            let told = self.ends.len();
            frame.changes.iter().for_each(|change| self.change(*change));
            assert!(frame.ends == self.ends[told..], "{:?} are not the ends {:?}", frame.ends, &self.ends[told..]);
            // Each frame is one commit, so readers see the state at its end. They see none of those of a heal but the last.
            let is_whole = self.rest.is_empty() || self.heals_to.is_some();
            assert!(is_whole, "a commit ends within slot={}: {:?}", self.block().slot, self.rest);
        }
    }

    /// Takes in the differences that were committed and left out of the feed: the first ones, in the order of their keys.
    /// Returns whether there are any.
    fn take_in_unlogged(&mut self, engine: &dyn Engine) -> bool {
        let seq = engine.checkpoint().expect("a checkpoint").seq;
        let known_seq = self.before + self.history.len() as u64;
        if !self.is_left_out || seq == known_seq {
            return false;
        }
        for _ in known_seq..seq {
            let (key, value) = self.rest.pop_first().expect("a seq is that of a difference");
            match value {
                Some(value) => self.map.insert(key, value),
                None => self.map.remove(&key),
            };
        }
        self.before = seq;
        self.history.clear();
        self.ends.clear();
        true
    }

    /// Checks that a subscriber that wants a change from before the newest is told to start over.
    fn check_gone(&mut self, feed: &Feed) {
        let gone = feed.read(&mut self.cursor).expect_err("changes that were left out cannot be read");
        self.oldest_seq = self.before + 1;
        assert!(matches!(gone, FeedError::Gone { oldest_seq } if oldest_seq == self.oldest_seq), "{gone:?}");
        self.cursor = Cursor::new(self.oldest_seq);
        assert!(feed.recent(self.before).is_none(), "memory holds nothing from before either");
    }

    /// Checks that the whole log, read from its oldest change on, equals the published changes.
    pub(super) fn check_log(&self, feed: &Feed) {
        assert_eq!(feed.oldest_seq(), self.oldest_seq);
        let mut cursor = Cursor::new(self.oldest_seq);
        let (mut read, mut ends) = (Vec::new(), Vec::new());
        loop {
            let frames = feed.read(&mut cursor).expect("the log can be read");
            if frames.is_empty() {
                break;
            }
            for mut frame in frames {
                read.append(&mut frame.changes);
                ends.append(&mut frame.ends);
            }
        }
        let from = (self.oldest_seq - 1 - self.before) as usize;
        assert!(read == self.history[from..], "the log is not what was published");
        let from = self.ends.partition_point(|end| end.seq < self.oldest_seq);
        assert!(ends == self.ends[from..], "the log has other ends of slots than were published");
    }

    /// Returns the new frames of the feed. Reads from memory and from disk by turns.
    fn read(&mut self, feed: &Feed) -> Vec<Frame> {
        let next_seq = self.before + self.history.len() as u64 + 1;
        let mut frames = Vec::new();
        if self.checks.is_multiple_of(2)
            && let Some(recent) = feed.recent(next_seq)
        {
            frames.extend(recent.iter().map(|frame| (**frame).clone()));
            self.cursor = Cursor::new(frames.last().map_or(next_seq, |frame: &Frame| frame.last_seq() + 1));
        }
        loop {
            let more = feed.read(&mut self.cursor).expect("the feed can be read");
            if more.is_empty() {
                return frames;
            }
            frames.extend(more);
        }
    }

    /// Learns which of two blocks the store has, where a server has a wrong one.
    fn told(&mut self, block: Base) {
        let Some(wrong) = self.chain.wrong.as_ref().map(Block::base).filter(|wrong| wrong.slot == block.slot) else {
            return;
        };
        if block == wrong {
            assert!(self.is_wrong || self.block().slot < wrong.slot, "a wrong block after the right one: {block:?}");
            self.is_wrong = true;
        } else {
            assert!(!self.is_wrong || self.heals_to.is_some(), "a wrong block has given way without a heal: {block:?}");
        }
    }

    /// Expects the changes that lead to the chain's map after `slot`.
    fn expect_map_at(&mut self, slot: u64) {
        let wanted = self.chain.map_at(slot);
        let vanished = self.map.keys().filter(|key| !wanted.contains_key(*key)).map(|key| (*key, None));
        let others = wanted.iter().filter(|(key, value)| self.map.get(*key) != Some(*value));
        self.rest = vanished.chain(others.map(|(key, value)| (*key, Some(*value)))).collect();
    }

    fn change(&mut self, change: Change) {
        match self.heals_to {
            Some(to) => assert_eq!(to.slot, change.slot, "a change of another slot than that of the archive"),
            None => {
                while self.block().slot < change.slot {
                    self.next_block();
                }
                assert_eq!(self.block().slot, change.slot, "a change of a slot that is not of the chain, or is over");
            }
        }
        // With derived stores a heal without differences ends with a change that changes nothing.
        let is_nothing = self.heals_to.is_some() && change.old == change.new && self.rest.is_empty();
        let rest = if is_nothing { Some(change.new) } else { self.rest.remove(&change.key) };
        assert_eq!(rest, Some(change.new), "not what the slot has yet to change: {change:?}");
        assert_eq!(self.map.get(&change.key), change.old.as_ref(), "the old value: {change:?}");
        match change.new {
            Some(value) => self.map.insert(change.key, value),
            None => self.map.remove(&change.key),
        };
        self.history.push(change);
        if self.rest.is_empty() {
            let &Block { slot, hash, parent, .. } = self.block();
            let (ended, parent_slot) = match self.heals_to {
                Some(to) => (to, slot.min(to.slot - 1)),
                None => (Base { slot, blockhash: hash }, parent.slot),
            };
            let seq = self.before + self.history.len() as u64;
            let is_healed = self.heals_to.is_some();
            let end = SlotEnd { seq, slot: ended.slot, blockhash: ended.blockhash, parent_slot, is_healed };
            self.ends.push(end);
        }
    }

    fn complete_through(&mut self, checkpoint: &ChainCheckpoint) {
        let slot = checkpoint.slot.expect("the store began at a slot");
        if let MapPhase::Healing { to_slot, next_key } = checkpoint.phase {
            assert_eq!(self.heals_to.map(|to| to.slot), Some(to_slot), "{checkpoint:?}");
            assert!(self.rest.keys().all(|key| *key >= next_key), "{checkpoint:?} leaves out {:?}", self.rest);
        } else if self.heals_to.is_some_and(|to| to.slot == slot) {
            assert!(self.rest.is_empty(), "the heal to slot={slot} leaves out {:?}", self.rest);
            let healed = self.chain.blocks().position(|block| block.slot == slot);
            self.begun = healed.expect("an archive is of a block") + 1;
            (self.heals_to, self.is_left_out, self.is_wrong) = (None, false, false);
            self.heals += 1;
        }
        self.told(Base { slot, blockhash: checkpoint.blockhash });
        while self.block().slot < slot {
            self.next_block();
        }
        let (named, base) = (self.block().base(), self.chain.base);
        let is_healing = self.heals_to.is_some();
        assert!(is_healing || self.rest.is_empty(), "slot={slot} is not whole: {:?}", self.rest);
        let unnamed = !self.base_known && slot == base.slot && checkpoint.blockhash == [0; 32];
        assert!(unnamed || (named.slot, named.blockhash) == (slot, checkpoint.blockhash), "{named:?} {checkpoint:?}");
        assert_eq!((checkpoint.source, checkpoint.phase == MapPhase::Ready), (7, !is_healing), "{checkpoint:?}");
    }

    fn check_map(&self, engine: &dyn Engine) {
        let mut expected = self.map.iter();
        let mut reader = engine.reader().expect("a reader");
        reader
            .scan(&mut |key, value| {
                assert_eq!(Some((key, value)), expected.next(), "the map");
                ControlFlow::Continue(())
            })
            .expect("a scan");
        assert_eq!(expected.next(), None, "the map");
    }

    /// The block that the newest change of the history belongs to.
    fn block(&self) -> &Block {
        let right = self.chain.blocks().nth(self.begun - 1).expect("what was begun is there");
        let wrong = self.chain.wrong.as_ref().filter(|wrong| self.is_wrong && wrong.slot == right.slot);
        wrong.unwrap_or(right)
    }

    fn next_block(&mut self) {
        let wrong = self.chain.wrong.as_ref().map(Block::base);
        assert!(wrong.is_none_or(|wrong| self.block().base() != wrong), "the store has gone on after a wrong block");
        assert!(self.rest.is_empty(), "slot={} was left with changes to make: {:?}", self.block().slot, self.rest);
        assert!(self.begun < self.chain.blocks().count(), "a block after the last one was applied");
        self.begun += 1;
        for write in self.block().last_writes() {
            if self.map.get(&write.key) != write.value.as_ref() {
                self.rest.insert(write.key, write.value);
            }
        }
    }
}
