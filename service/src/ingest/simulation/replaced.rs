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
use tokio::sync::watch;

use super::apply_defaults;
use crate::chain::Event;
use crate::feed::{Feed, FeedWriter, Retention};
use crate::ingest::State;
use crate::ingest::apply::Apply;
use crate::ingest::assemble::Input;
use crate::ingest::receive::Message;
use crate::pulse::Pulse;

/// A store at slot 10 with the keys 1 and 2, each with its own number as its value, and its ingest-apply.
struct Story {
    apply: Apply,
    state: State,
    engine: Arc<Measured>,
    feed: Arc<Feed>,
    _stop: watch::Sender<bool>,
    _temp: TempDir,
}

impl Story {
    /// Begins with slot 11 of provider 0, which has the wrong blockhash 99 and changes the keys 1 and 3.
    fn begin() -> Self {
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
        let config = apply_defaults(Durability::Buffered);
        let apply =
            Apply::new(Arc::clone(&engine), state.clone(), Some(writer), config, Pulse::default(), stopped).unwrap();
        let mut story = Self { apply, state, engine, feed, _stop: stop, _temp: temp };
        story.apply.begin();
        story.connect(0);
        story.block(11, [99, 10], &[(1, Some(5)), (3, Some(5))]);
        assert_eq!(story.store(), (11, 99, [Some(5), Some(2), Some(5)]));
        story
    }

    fn take(&mut self, message: Message) {
        self.apply.take(message, true).unwrap();
    }

    fn connect(&mut self, provider: usize) {
        self.take(Message::Reconnected { provider });
    }

    /// Sends the block of a slot with its own blockhash and that of its parent, and its writes.
    fn block(&mut self, slot: u64, [own, parent]: [u8; 2], writes: &[(u8, Option<u8>)]) {
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
        self.take(Message::Batch(accounts.chain(end).collect()));
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
