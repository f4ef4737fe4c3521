//! The derived store of a feed: it follows, goes on after a restart, waits for the end of a slot, and breaks where the feed
//! does not lead on.

use std::collections::{BTreeMap, BTreeSet};

use engine_api::Durability;
use engines::EngineKind;
use proptest::prelude::*;
use solana::{ChainCheckpoint, MapPhase};

use super::*;
use crate::feed::{Change, FeedWriter, SlotEnd};

/// So few that most commits of the map take several of the derived store.
const CHANGES_MAX: usize = 7;
const WAIT: Duration = Duration::from_secs(60);

/// A map as its feed tells it, with a derived store beside it.
struct World {
    home: tempfile::TempDir,
    map: BTreeMap<Key, Value>,
    at: ChainCheckpoint,
    writer: FeedWriter,
    feed: Arc<Feed>,
    published: Arc<Published>,
    values: Values,
}

fn key(n: u8) -> Key {
    [n; 32]
}

fn numbered(n: u32) -> Key {
    let mut key = [0; 32];
    key[..4].copy_from_slice(&n.to_be_bytes());
    key
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// Makes a map of two keys at slot 10, and its derived store.
fn built() -> (tempfile::TempDir, BTreeMap<Key, Value>, ChainCheckpoint) {
    let home = tempfile::tempdir().unwrap();
    let map = BTreeMap::from([(key(1), key(9)), (key(2), key(9))]);
    let at = ChainCheckpoint { seq: 2, slot: Some(10), ..ChainCheckpoint::default() };
    let place = derived::dir(home.path(), NAME);
    let options = EngineOptions::new(EngineKind::Strata);
    let store = engines::open_on(&place, &options, OpenMode::Create, &derived::terms(NAME)).unwrap();
    let position = Position::new(at.write(), at.slot).unwrap();
    let mut changes = map.iter().map(|(key, value)| (*key, None, Some(*value)));
    values::apply(&*store, &mut changes, at.seq, &position).unwrap();
    store.close().unwrap();
    (home, map, at)
}

impl World {
    /// Opens a map of two keys at slot 10, of which the derived store was built.
    fn new() -> Self {
        let (home, map, at) = built();
        Self::open(home, map, at)
    }

    fn open(home: tempfile::TempDir, map: BTreeMap<Key, Value>, at: ChainCheckpoint) -> Self {
        let (writer, feed) = FeedWriter::open(&home.path().join("feed"), &at, Durability::Synced, 1 << 30).unwrap();
        let published = Arc::new(Published::new(at));
        let values =
            Values::start(home.path(), 64 << 20, CHANGES_MAX, &at.write(), &feed, &published).unwrap().unwrap();
        Self { home, map, at, writer, feed, published, values }
    }

    /// Stops all and starts it again.
    fn restart(self) -> Self {
        let Self { home, map, at, .. } = self.stop();
        Self::open(home, map, at)
    }

    fn stop(self) -> Self {
        self.feed.close();
        self.values.stop(Instant::now() + WAIT).unwrap();
        self
    }

    /// Commits changes, of which the last one ends the next slot if `is_whole`.
    fn commit(&mut self, changes: &[(Key, Option<Value>)], is_whole: bool) {
        let slot = self.at.slot.unwrap() + 1;
        let changes = changes.iter().map(|(key, new)| {
            let old = match new {
                Some(new) => self.map.insert(*key, *new),
                None => self.map.remove(key),
            };
            Change { slot, key: *key, old, new: *new }
        });
        let changes: Vec<Change> = changes.collect();
        let (first, seq) = (self.at.seq + 1, self.at.seq + changes.len() as u64);
        let end = SlotEnd { seq, slot, blockhash: [0; 32], parent_slot: slot - 1, is_healed: false };
        self.writer.append(first, changes, if is_whole { vec![end] } else { Vec::new() }).unwrap();
        let phase = if is_whole { MapPhase::Ready } else { MapPhase::Healing { to_slot: slot, next_key: key(3) } };
        self.at = ChainCheckpoint { seq, slot: if is_whole { Some(slot) } else { self.at.slot }, phase, ..self.at };
        self.published.publish(self.at);
        self.writer.publish(&self.at);
    }

    fn keys_of(&self, value: u8) -> Result<(BTreeSet<Key>, Option<u64>), KeysError> {
        let found = run(self.values.keys_of(key(value), None, KEYS_MAX, WAIT))?;
        Ok((found.keys.into_iter().collect(), found.slot))
    }

    fn assert_whole(&self) {
        for value in 0..10 {
            let expected = self.map.iter().filter(|(_, of)| **of == key(value)).map(|(key, _)| *key).collect();
            assert_eq!(self.keys_of(value).unwrap(), (expected, self.at.slot));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn the_keys_of_each_value_are_those_of_the_map_at_its_slot(
        commits in prop::collection::vec(
            (prop::collection::vec((0u8..20, prop::option::of(0u8..10)), 1..20), any::<bool>()), 1..10),
    ) {
        let mut world = World::new();
        world.assert_whole();
        for (changes, restarts) in commits {
            let changes: Vec<_> = changes.into_iter().map(|(n, new)| (key(n), new.map(key))).collect();
            world.commit(&changes, true);
            if restarts {
                world = world.restart();
            }
            world.assert_whole();
        }
    }
}

#[test]
fn a_part_of_a_slot_is_not_shown_and_a_slot_without_changes_is() {
    let mut world = World::new();
    world.commit(&[(key(3), Some(key(9)))], false);
    let before = (BTreeSet::from([key(1), key(2)]), Some(10));
    assert_eq!(world.keys_of(9).unwrap(), before, "a heal is under way");
    world = world.restart();
    assert_eq!(world.keys_of(9).unwrap(), before);
    world.commit(&[(key(1), None)], true);
    world.assert_whole();
    // The slot is the map's, although the feed does not end it.
    world.at.slot = Some(15);
    world.published.publish(world.at);
    world.assert_whole();
}

#[test]
fn a_cursor_goes_on_and_is_refused_by_another_build() {
    let mut world = World::new();
    let all: Vec<_> = (10..60).map(|n| (key(n), Some(key(9)))).collect();
    world.commit(&all, true);
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = run(world.values.keys_of(key(9), cursor, 7, WAIT)).unwrap();
        assert!(page.keys.len() == 7 || page.cursor.is_none());
        found.extend(page.keys);
        cursor = page.cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!((found.len(), found.into_iter().collect::<BTreeSet<_>>().len()), (52, 52));
    let other = self::cursor(7, &[0; 16]);
    assert!(matches!(run(world.values.keys_of(key(9), Some(other), 7, WAIT)), Err(KeysError::OtherCursor)));
}

#[test]
fn a_store_that_the_feed_does_not_lead_on_from_is_refused_and_says_why() {
    let reason = |world: &World| match world.values.state() {
        State::Broken(reason) => reason,
        state => panic!("{state:?}"),
    };
    // Another state of the map than that of which it was built.
    let (home, map, at) = built();
    let other = ChainCheckpoint { blockhash: [7; 32], ..at };
    let world = World::open(home, map, other).stop();
    assert!(reason(&world).contains("it was built of another state of the map"), "{}", reason(&world));
    assert!(matches!(world.keys_of(9), Err(KeysError::Unavailable(reason)) if reason.contains("bootstrap derive")));
    assert_eq!(world.values.lag(), None);
    // Another feed.
    let mut world = World::new();
    world.commit(&[(key(3), Some(key(9)))], true);
    world.assert_whole();
    let World { home, map, at, .. } = world.stop();
    std::fs::remove_dir_all(home.path().join("feed")).unwrap();
    let world = World::open(home, map, at).stop();
    assert!(reason(&world).contains("it follows another feed"), "{}", reason(&world));
}

#[test]
fn a_store_whose_next_changes_were_dropped_is_refused() {
    let mut world = World::new();
    world.commit(&[(key(3), Some(key(9)))], true);
    world.assert_whole();
    // The feed goes on without the derived store, and keeps little.
    let World { home, map, at, .. } = world.stop();
    let aside = home.path().join("aside");
    std::fs::rename(home.path().join(derived::DERIVED), &aside).unwrap();
    let (writer, feed) = FeedWriter::open(&home.path().join("feed"), &at, Durability::Synced, 0).unwrap();
    let published = Arc::new(Published::new(at));
    assert!(
        Values::start(home.path(), 1 << 20, CHANGES_MAX, &at.write(), &feed, &published).unwrap().is_none(),
        "there is none"
    );
    let values = World::new().values;
    let mut world = World { home, map, at, writer, feed, published, values };
    while world.feed.oldest_seq() <= 4 {
        let changes: Vec<_> = (0..20_000u32).map(|n| (numbered(n), Some(key(1)))).collect();
        world.commit(&changes, true);
        world.writer.expire();
    }
    std::fs::rename(&aside, world.home.path().join(derived::DERIVED)).unwrap();
    let World { home, map, at, feed, .. } = world;
    feed.close();
    let world = World::open(home, map, at).stop();
    assert!(matches!(world.values.state(), State::Broken(reason) if reason.contains("no longer has its next change")));
}
