//! A slot that its own provider refutes gives way to the block that another one sends: ingest-apply alone, on a real engine
//! and a real feed log.
//!
//! Owns: the messages of these stories. Must not: reach into ingest-apply.

use std::sync::Arc;
use std::time::Duration;

use engine_api::{Durability, Engine as _, Reader as _};
use engine_latency::{Latency, Measured};
use engines::{EngineOptions, OpenMode};
use solana::{ChainCheckpoint, MapPhase};
use tempfile::TempDir;
use tokio::sync::{oneshot, watch};

use super::apply_defaults;
use crate::chain::{Base, Event, WholeSlot};
use crate::feed::{Feed, FeedWriter, Retention};
use crate::ingest::State;
use crate::ingest::apply::{Apply, ApplyConfig};
use crate::ingest::assemble::Input;
use crate::ingest::batch;
use crate::ingest::healing::{DifferenceWriter, Heal};
use crate::ingest::receive::Message;
use crate::pulse::Pulse;

/// A store at slot 10 with the keys 1 and 2, each with its own number as its value, and its ingest-apply.
struct Story {
    apply: Apply,
    state: State,
    engine: Arc<Measured>,
    feed: Arc<Feed>,
    _stop: watch::Sender<bool>,
    temp: TempDir,
}

impl Story {
    /// Begins with slot 11 of provider 0, which has the wrong blockhash 99 and changes the keys 1 and 3.
    fn begin() -> Self {
        let mut story = Self::at_slot_10(apply_defaults(Durability::Buffered));
        story.block(11, [99, 10], &[(1, Some(5)), (3, Some(5))]);
        assert_eq!(story.store(), (11, 99, [Some(5), Some(2), Some(5)]));
        story
    }

    /// Begins at slot 10, with a connection to provider 0.
    fn at_slot_10(config: ApplyConfig) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let options = EngineOptions::new(engines::default_engine());
        let engine = engines::open(&temp.path().join("store"), &options, OpenMode::Create).unwrap();
        let (slot, phase) = (Some(10), MapPhase::Ready);
        let checkpoint = ChainCheckpoint { slot, blockhash: [10; 32], phase, ..ChainCheckpoint::default() };
        let mut txn = engine.begin().unwrap();
        [1, 2].into_iter().for_each(|key| txn.put(&[key; 32], &[key; 32]).unwrap());
        txn.commit(&checkpoint.write(), Durability::Buffered).unwrap();
        let engine = Arc::new(Measured::new(engine, Latency::new("test"), "ingest"));
        let retention = Retention { bytes: 1 << 20, time: Duration::from_secs(3600) };
        let feed_dir = temp.path().join("feed");
        let (writer, feed) = FeedWriter::open(&feed_dir, &checkpoint, Durability::Buffered, retention).unwrap();
        let state = State::at(checkpoint).with_providers(["a", "b", "c"].map(str::to_owned));
        let (stop, stopped) = watch::channel(false);
        let apply =
            Apply::new(Arc::clone(&engine), state.clone(), Some(writer), config, Pulse::default(), stopped).unwrap();
        let mut story = Self { apply, state, engine, feed, _stop: stop, temp };
        story.apply.begin();
        story.connect(0);
        story
    }

    fn take(&mut self, message: Message) {
        self.apply.take(message, true).unwrap();
    }

    fn connect(&mut self, provider: usize) {
        self.take(Message::Reconnected { provider });
    }

    fn block(&mut self, slot: u64, names: [u8; 2], writes: &[(u8, Option<u8>)]) {
        self.take(Message::Batch(Self::inputs(slot, names, writes)));
    }

    /// Returns the inputs of a slot with its own blockhash and that of its parent, and its writes.
    fn inputs(slot: u64, [own, parent]: [u8; 2], writes: &[(u8, Option<u8>)]) -> Vec<Input> {
        let event = |(key, value): (u8, Option<u8>)| Event {
            key: [key; 32],
            value: value.map(|value| [value; 32]),
            write_version: 0,
        };
        let accounts = writes.iter().map(|write| Input::Account { slot, event: event(*write) });
        let meta = Input::BlockMeta {
            slot,
            blockhash: [own; 32],
            parent_slot: slot - 1,
            parent_blockhash: [parent; 32],
            created_unix_ms: 0,
        };
        let end = [meta, Input::Status { slot, confirmed: true, dead: false }];
        accounts.chain(end).collect()
    }

    /// Returns the slot and the blockhash at which the store stands, and the values of the keys 1, 2 and 3.
    fn store(&self) -> (u64, u8, [Option<u8>; 3]) {
        let checkpoint = ChainCheckpoint::read(&self.engine.checkpoint().unwrap()).unwrap();
        let mut reader = self.engine.own_reader().unwrap();
        let values = [1, 2, 3].map(|key| reader.get(&[key; 32]).unwrap().map(|value| value[0]));
        (checkpoint.slot.unwrap(), checkpoint.blockhash[0], values)
    }

    /// Returns slot and blockhash of each slot's end in the feed, and the number of changes.
    fn told(&self) -> (Vec<(u64, u8)>, usize) {
        let frames = self.feed.recent(1).unwrap();
        let ends = frames.iter().flat_map(|frame| &frame.ends).map(|end| (end.slot, end.blockhash[0])).collect();
        (ends, frames.iter().map(|frame| frame.changes.len()).sum())
    }

    fn is_distrusted(&self) -> [bool; 3] {
        [0, 1, 2].map(|index| self.state.providers.is_distrusted(index))
    }
}

#[test]
fn the_block_that_two_providers_name_takes_the_place_of_the_first_one() {
    for [by_parent, in_pieces] in [[true, false], [true, true], [false, false]] {
        let mut story = Story::begin();
        match by_parent {
            true => story.block(12, [12, 11], &[]),
            false => story.block(11, [11, 10], &[]),
        }
        assert_eq!(story.is_distrusted(), [true, false, false]);
        if in_pieces {
            // A connection that ends within the block.
            story.connect(2);
            let event = Event { key: [2; 32], value: Some([66; 32]), write_version: 0 };
            story.take(Message::Batch(vec![Input::Account { slot: 11, event }]));
        }
        story.connect(1);
        story.block(11, [11, 10], &[(2, Some(7)), (3, Some(8))]);
        assert_eq!(story.store(), (11, 11, [Some(1), Some(7), Some(8)]), "key 1 was changed by the first block alone");
        story.block(12, [12, 11], &[(1, None)]);
        assert_eq!(story.store(), (12, 12, [None, Some(7), Some(8)]));
        assert_eq!(story.told(), (vec![(11, 99), (11, 11), (12, 12)], 2 + 3 + 1));
        assert!(story.state.readiness.verdict().is_ready());
        assert_eq!(story.is_distrusted(), [true, false, false]);
    }
}

#[test]
fn a_block_with_the_same_accounts_changes_the_blockhash_alone() {
    let mut story = Story::begin();
    story.block(12, [12, 11], &[]);
    story.connect(1);
    story.block(11, [11, 10], &[(1, Some(5)), (3, Some(5))]);
    assert_eq!(story.store(), (11, 11, [Some(5), Some(2), Some(5)]));
    assert_eq!(story.told(), (vec![(11, 99)], 2));
    story.block(12, [12, 11], &[]);
    assert_eq!(story.store().0, 12);
}

#[test]
fn a_block_that_another_provider_confirms_stays() {
    let mut story = Story::begin();
    story.block(12, [12, 11], &[]);
    story.connect(1);
    story.block(11, [99, 10], &[(1, Some(5)), (3, Some(5))]);
    story.block(12, [12, 99], &[(1, None)]);
    assert_eq!(story.store(), (12, 12, [None, Some(2), Some(5)]));
    assert_eq!(story.is_distrusted(), [true, false, false]);
}

#[test]
fn a_block_that_its_own_provider_does_not_refute_stays_whatever_others_say() {
    let mut story = Story::begin();
    for provider in [1, 2] {
        story.connect(provider);
        story.block(11, [11, 10], &[(2, Some(7))]);
        story.block(12, [12, 11], &[]);
    }
    assert_eq!(story.store(), (11, 99, [Some(5), Some(2), Some(5)]));
    assert_eq!(story.is_distrusted(), [false, true, true]);
    story.connect(0);
    story.block(12, [12, 99], &[]);
    assert_eq!(story.store().0, 12);
    let is_contradicted = || story.state.readiness.contradiction().is_some();
    assert!(story.state.readiness.verdict().is_ready() && is_contradicted(), "nobody else has confirmed that chain");
}

#[test]
fn a_block_after_another_parent_does_not_take_the_place() {
    let mut story = Story::begin();
    story.block(12, [12, 11], &[]);
    story.connect(1);
    story.block(11, [11, 77], &[(2, Some(7))]);
    story.block(12, [12, 11], &[]);
    assert_eq!(story.store(), (11, 99, [Some(5), Some(2), Some(5)]));
    assert_eq!(story.is_distrusted(), [true, true, false], "the third one is asked");
}

#[test]
fn a_block_that_fails_within_its_parts_is_taken_from_the_next_connection_whole() {
    let mut story = Story::begin();
    story.block(12, [12, 11], &[]);
    story.connect(1);
    let right = Story::inputs(11, [11, 10], &[(1, Some(7)), (2, Some(7))]);
    let [first, second, meta, status] = right[..] else { panic!("two accounts and two ends") };
    let Input::BlockMeta { slot, parent_slot, parent_blockhash, created_unix_ms, .. } = meta else { panic!("a meta") };
    let other = Input::BlockMeta { slot, blockhash: [55; 32], parent_slot, parent_blockhash, created_unix_ms };
    // The parts after the failure are a block of the right blockhash, without its first account.
    story.take(Message::Batch(vec![first, meta, other, second, meta, status]));
    assert_eq!(story.store(), (11, 99, [Some(5), Some(2), Some(5)]));
    assert!(story.state.resume.is_given_up(2));
    story.connect(1);
    story.take(Message::Batch(right));
    assert_eq!(story.store(), (11, 11, [Some(7), Some(7), None]));
}

#[test]
fn a_provider_that_names_the_right_block_and_lacks_it_stays_trusted() {
    let at_once = ApplyConfig { gap_timeout: Duration::ZERO, ..apply_defaults(Durability::Buffered) };
    let mut story = Story::at_slot_10(at_once);
    story.block(11, [99, 10], &[(1, Some(5)), (3, Some(5))]);
    story.block(12, [12, 11], &[]);
    story.connect(1);
    story.block(12, [12, 11], &[]);
    assert_eq!(story.is_distrusted(), [true, false, false]);
    assert!(story.state.readiness.verdict().gap.is_some_and(|gap| !gap.contradicts), "nobody has sent it yet");
    story.connect(2);
    story.block(11, [11, 10], &[(2, Some(7))]);
    story.block(12, [12, 11], &[]);
    assert_eq!(story.store(), (12, 12, [Some(1), Some(7), None]));
    assert!(story.state.readiness.verdict().is_ready());
}

#[test]
fn the_block_may_come_after_its_child() {
    let mut story = Story::begin();
    story.block(12, [12, 11], &[]);
    story.connect(1);
    let [child, block] = [Story::inputs(12, [12, 11], &[(1, Some(9))]), Story::inputs(11, [11, 10], &[(2, Some(7))])];
    story.take(Message::Batch(child));
    assert_eq!(story.store(), (11, 99, [Some(5), Some(2), Some(5)]));
    story.take(Message::Batch(block));
    assert_eq!(story.store(), (12, 12, [Some(9), Some(7), None]));
    assert_eq!(story.is_distrusted(), [true, false, false]);
}

#[test]
fn those_who_named_the_right_block_first_are_asked_for_it() {
    let mut story = Story::begin();
    for provider in [1, 2] {
        story.connect(provider);
        story.block(11, [11, 10], &[(2, Some(7))]);
    }
    assert_eq!(story.is_distrusted(), [false, true, true]);
    story.connect(0);
    story.block(12, [12, 11], &[]);
    assert_eq!(story.is_distrusted(), [true, false, false], "the last one that was trusted refutes its own block");
    story.connect(2);
    story.block(11, [11, 10], &[(2, Some(7))]);
    assert_eq!(story.store(), (11, 11, [Some(1), Some(7), None]));
}

#[test]
fn values_of_the_slots_before_stay_though_they_share_a_commit() {
    let mut story = Story::at_slot_10(apply_defaults(Durability::Buffered));
    let mut both = Story::inputs(11, [11, 10], &[(1, Some(4)), (2, Some(4)), (3, Some(4))]);
    both.extend(Story::inputs(12, [99, 11], &[(1, Some(5)), (3, None)]));
    story.take(Message::Batch(both));
    assert_eq!(story.store(), (12, 99, [Some(5), Some(4), None]));
    story.block(13, [13, 12], &[]);
    story.connect(1);
    story.block(12, [12, 11], &[(3, Some(6))]);
    assert_eq!(story.store(), (12, 12, [Some(4), Some(4), Some(6)]));
    assert_eq!(story.told(), (vec![(11, 11), (12, 99), (12, 12)], 3 + 2 + 2));
}

#[test]
fn a_block_that_two_lanes_agree_on_replaces_a_slot_that_is_not_committed_yet() {
    let mut story = Story::at_slot_10(apply_defaults(Durability::Buffered));
    let mut both = Story::inputs(11, [11, 10], &[(2, Some(4))]);
    both.extend(Story::inputs(12, [99, 11], &[(1, Some(5))]));
    story.apply.take(Message::Batch(both), false).unwrap();
    let other = |hash: u8| {
        let event = Event { key: [3; 32], value: Some([hash; 32]), write_version: 0 };
        Box::new(WholeSlot {
            slot: 12,
            blockhash: [hash; 32],
            parent_slot: 11,
            parent_blockhash: [11; 32],
            created_unix_ms: 0,
            events: vec![event],
        })
    };
    story.take(Message::Replaced { slot: other(12), provider: 1 });
    assert_eq!(story.store(), (12, 12, [Some(1), Some(4), Some(12)]));
    story.take(Message::Replaced { slot: other(13), provider: 2 });
    assert_eq!(story.store(), (12, 13, [Some(1), Some(4), Some(13)]), "slot 11 keeps its change");
    assert_eq!(story.told().0, [(11, 11), (12, 99), (12, 12), (12, 13)]);
    // Of another place than the store's: the sender has to begin anew.
    story.take(Message::Replaced {
        slot: Box::new(WholeSlot { parent_blockhash: [77; 32], ..*other(14) }),
        provider: 2,
    });
    assert_eq!(story.store().1, 13);
    assert!(story.state.resume.is_given_up(1));
}

#[test]
fn a_heal_ends_the_search() {
    let mut story = Story::begin();
    story.block(12, [12, 11], &[]);
    let from = ChainCheckpoint::read(&story.engine.checkpoint().unwrap()).unwrap();
    let mut differences = DifferenceWriter::create(&story.temp.path().join("differences")).unwrap();
    assert!(differences.push(&[1; 32], Some(&[5; 32]), Some(&[8; 32])));
    let (done, is_done) = oneshot::channel();
    let to = Base { slot: 14, blockhash: [14; 32] };
    let heal = Heal { differences: differences.finish().unwrap(), from, to, fits_feed: true, done };
    story.take(Message::Heal(Box::new(heal)));
    is_done.blocking_recv().unwrap();
    assert_eq!(story.is_distrusted(), [false; 3], "they have contradicted a chain that the store has left");
    story.connect(1);
    story.block(11, [11, 10], &[(2, Some(7))]);
    assert_eq!(story.store(), (14, 14, [Some(8), Some(2), Some(5)]), "a block of before the archive changes nothing");
    story.block(15, [15, 14], &[(2, Some(9))]);
    assert_eq!(story.store(), (15, 15, [Some(8), Some(9), Some(5)]));
}

#[test]
fn differences_that_no_commit_can_hold_are_a_gap() {
    let defaults = apply_defaults(Durability::Buffered);
    let mut story = Story::at_slot_10(ApplyConfig { batch: batch::Limits { due: 2, most: 2 }, ..defaults });
    story.block(11, [99, 10], &[(1, Some(5)), (3, Some(5))]);
    story.block(12, [12, 11], &[]);
    story.connect(1);
    story.block(11, [11, 10], &[(2, Some(7))]);
    assert_eq!(story.store(), (11, 99, [Some(5), Some(2), Some(5)]), "not a part of them");
    let gap = story.state.readiness.verdict().gap.expect("it is shown");
    assert!(gap.detail.contains("most=2") && !gap.contradicts, "{gap:?}");
    assert_eq!(story.is_distrusted(), [true, false, false]);
    assert_eq!(story.told().0, [(11, 99)]);
}

#[test]
fn of_a_refutation_the_doubt_alone_outlives_the_process() {
    let mut story = Story::begin();
    story.apply = story.apply.with_memory(story.temp.path());
    assert_eq!(story.state.readiness.contradiction(), None);
    story.block(12, [12, 11], &[]);
    let Story { apply, engine, feed, _stop: stop, temp, .. } = story;
    apply.end().unwrap();
    let checkpoint = ChainCheckpoint::read(&engine.checkpoint().unwrap()).unwrap();
    let state = State::at(checkpoint).with_providers(["a", "b", "c"].map(str::to_owned));
    let config = apply_defaults(Durability::Buffered);
    let apply = Apply::new(Arc::clone(&engine), state.clone(), None, config, Pulse::default(), stop.subscribe());
    let apply = apply.unwrap().with_memory(temp.path());
    let mut story = Story { apply, state, engine, feed, _stop: stop, temp };
    let doubted = story.state.readiness.contradiction().expect("the file says so");
    assert!(doubted.gap.detail.contains("parent_blockhash"), "{doubted:?}");
    story.apply.begin();
    story.connect(1);
    story.block(11, [11, 10], &[(2, Some(7))]);
    assert_eq!(story.store(), (11, 99, [Some(5), Some(2), Some(5)]), "the old values are not known any more");
    story.connect(2);
    story.block(12, [12, 99], &[]);
    assert_eq!(
        (story.store().0, story.state.readiness.contradiction()),
        (12, None),
        "another one has confirmed the block"
    );
}
