//! The derived store of a feed: it follows, goes on after a restart, waits for the end of a slot, and breaks where the feed
//! does not lead on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use derived::values::{self, NAME};
use derived::{Position, history};
use engine_api::{Durability, Engine as _, Key, Value};
use engine_latency::{Latency, Measured};
use engines::{EngineKind, EngineOptions, OpenMode};
use proptest::prelude::*;
use solana::{ChainCheckpoint, MapPhase};

use super::*;
use crate::base::published::Published;
use crate::feed::{Change, Feed, FeedWriter, SlotEnd};

/// So few that most commits of the map take several of the derived store.
const CHANGES_MAX: usize = 7;
const WAIT: Duration = Duration::from_secs(60);

/// A map with its feed, and with derived stores beside it.
struct World {
    home: tempfile::TempDir,
    model: BTreeMap<Key, Value>,
    /// The map at the end of each slot, as far as the past is asked for.
    past: BTreeMap<u64, BTreeMap<Key, Value>>,
    settings: DerivedSettings,
    at: ChainCheckpoint,
    map: Arc<Measured>,
    writer: FeedWriter,
    feed: Arc<Feed>,
    published: Arc<Published>,
    derived: Derived,
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

fn options() -> EngineOptions {
    EngineOptions { memory: Some(ByteSize::mib(64)), ..EngineOptions::new(EngineKind::Strata) }
}

fn settings(history_slots: u64) -> DerivedSettings {
    DerivedSettings { history_slots, history_bytes: ByteSize::b(0) }
}

/// Makes the home of a map of two keys at slot 10, and of its derived store.
fn built() -> (tempfile::TempDir, BTreeMap<Key, Value>, ChainCheckpoint) {
    let home = tempfile::tempdir().unwrap();
    let model = BTreeMap::from([(key(1), key(9)), (key(2), key(9))]);
    let at = ChainCheckpoint { seq: 2, slot: Some(10), ..ChainCheckpoint::default() };
    let map = engines::open(home.path(), &options(), OpenMode::Create).unwrap();
    let mut txn = map.begin().unwrap();
    model.iter().for_each(|(key, value)| txn.put(key, value).unwrap());
    txn.commit(&at.write(), Durability::Synced).unwrap();
    map.close().unwrap();
    build_values(home.path(), &model, &at);
    (home, model, at)
}

fn build_values(home: &Path, model: &BTreeMap<Key, Value>, at: &ChainCheckpoint) {
    let place = derived::dir(home, NAME);
    let store = engines::open_on(&place, &options(), OpenMode::Create, &derived::terms(NAME)).unwrap();
    let position = Position::new(at.write(), at.slot).unwrap();
    let mut changes = model.iter().map(|(key, value)| (*key, None, Some(*value)));
    values::apply(&*store, &mut changes, at.seq, &position).unwrap();
    store.close().unwrap();
}

impl World {
    /// Opens a map of two keys at slot 10, of which the derived store was built, and begins its past.
    fn new() -> Self {
        let (home, model, at) = built();
        Self::open(home, model, at, settings(100))
    }

    fn open(
        home: tempfile::TempDir,
        model: BTreeMap<Key, Value>,
        at: ChainCheckpoint,
        settings: DerivedSettings,
    ) -> Self {
        let engine = engines::open(home.path(), &options(), OpenMode::Existing).unwrap();
        let map = Arc::new(Measured::new(engine, Latency::new("test"), "ingest"));
        let (writer, feed) = FeedWriter::open(&home.path().join("feed"), &at, Durability::Synced, 1 << 30).unwrap();
        let published = Arc::new(Published::new(at));
        let context = Context {
            dir: home.path().to_owned(),
            map: Arc::downgrade(&map),
            changes_max: CHANGES_MAX,
            feed: Arc::clone(&feed),
            published: Arc::clone(&published),
        };
        let derived = Derived::start(context, &settings, options()).unwrap();
        let past = BTreeMap::from([(at.slot.unwrap(), model.clone())]);
        Self { home, model, past, settings, at, map, writer, feed, published, derived }
    }

    /// Stops all and starts it again.
    fn restart(self) -> Self {
        let Self { home, model, at, past, settings, .. } = self.stop();
        Self { past, ..Self::open(home, model, at, settings) }
    }

    /// Stops all, and puts nothing in the map's place.
    fn stop(mut self) -> Self {
        self.feed.close();
        self.derived.stop(Instant::now() + WAIT).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let other = engines::open(elsewhere.path(), &options(), OpenMode::Create).unwrap();
        let other = Arc::new(Measured::new(other, Latency::new("test"), "ingest"));
        let map = Arc::into_inner(std::mem::replace(&mut self.map, other)).unwrap();
        Box::new(map).close().unwrap();
        self
    }

    fn values(&self) -> Values {
        self.derived.values().unwrap()
    }

    fn history(&self) -> &History {
        self.derived.history().unwrap()
    }

    /// Commits changes, of which the last one ends the next slot if `is_whole`.
    fn commit(&mut self, changes: &[(Key, Option<Value>)], is_whole: bool) {
        self.commit_to(self.at.slot.unwrap() + 1, changes, is_whole, false);
    }

    /// Commits changes that lead to `slot`.
    fn commit_to(&mut self, slot: u64, changes: &[(Key, Option<Value>)], is_whole: bool, is_healed: bool) {
        let changes = changes.iter().map(|(key, new)| {
            let old = match new {
                Some(new) => self.model.insert(*key, *new),
                None => self.model.remove(key),
            };
            Change { slot, key: *key, old, new: *new }
        });
        let changes: Vec<Change> = changes.collect();
        let (first, seq) = (self.at.seq + 1, self.at.seq + changes.len() as u64);
        let mut txn = self.map.begin().unwrap();
        for change in &changes {
            match &change.new {
                Some(new) => txn.put(&change.key, new).unwrap(),
                None => txn.delete(&change.key).unwrap(),
            }
        }
        let parent_slot = self.at.slot.unwrap();
        let end = SlotEnd { seq, slot, blockhash: [0; 32], parent_slot, is_healed };
        self.writer.append(first, changes, if is_whole { vec![end] } else { Vec::new() }).unwrap();
        let phase = if is_whole { MapPhase::Ready } else { MapPhase::Healing { to_slot: slot, next_key: key(3) } };
        self.at = ChainCheckpoint { seq, slot: if is_whole { Some(slot) } else { self.at.slot }, phase, ..self.at };
        txn.commit(&self.at.write(), Durability::Synced).unwrap();
        self.published.publish(self.at);
        self.writer.publish(&self.at);
        if is_whole {
            self.past.insert(slot, self.model.clone());
        }
    }

    fn keys_of(&self, value: u8) -> Result<(BTreeSet<Key>, Option<u64>), DerivedError> {
        run(async {
            let mut walk = self.values().keys_of(key(value), None, u64::MAX, WAIT).await?;
            let (mut keys, mut slot) = (BTreeSet::new(), None);
            while let Some(page) = walk.next().await? {
                keys.extend(page.keys);
                slot = page.slot;
            }
            Ok((keys, slot))
        })
    }

    fn assert_whole(&self) {
        for value in 0..10 {
            let expected = self.model.iter().filter(|(_, of)| **of == key(value)).map(|(key, _)| *key).collect();
            assert_eq!(self.keys_of(value).unwrap(), (expected, self.at.slot));
        }
    }

    /// Compares the past of some keys, at every slot from `oldest_slot` on, with the model's.
    fn assert_past(&self, oldest_slot: u64) {
        let newest = self.at.slot.unwrap();
        for n in 0..20 {
            for slot in oldest_slot..=newest {
                let (_, map) = self.past.range(..=slot).next_back().unwrap();
                let past = run(self.history().at(key(n), slot, WAIT)).unwrap();
                let differs = |of: &&BTreeMap<Key, Value>| of.get(&key(n)) != map.get(&key(n));
                let until_slot = self.past.range(slot + 1..).find(|(_, later)| differs(later)).map(|(slot, _)| *slot);
                let expected = Past { value: map.get(&key(n)).copied(), until_slot, slot: Some(newest) };
                assert_eq!(past, expected, "key={n} slot={slot}");
            }
            let (mut expected, mut before) = (Vec::new(), self.past[&oldest_slot].get(&key(n)).copied());
            for (slot, map) in self.past.range(oldest_slot + 1..) {
                let after = map.get(&key(n)).copied();
                if after != before {
                    expected.insert(0, (*slot, before, after));
                }
                before = after;
            }
            let (mut found, mut cursor) = (Vec::new(), None);
            loop {
                let page = run(self.history().changes(key(n), cursor, 3, WAIT)).unwrap();
                assert!(page.oldest_slot <= oldest_slot && page.slot == Some(newest) && page.changes.len() <= 3);
                found.extend(page.changes.iter().map(|change| (change.slot, change.before, change.after)));
                cursor = page.cursor;
                if cursor.is_none() {
                    break;
                }
            }
            found.retain(|(slot, ..)| *slot > oldest_slot);
            assert_eq!(found, expected, "key={n}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn derived_stores_tell_what_the_map_has_and_had(
        commits in prop::collection::vec(
            (prop::collection::vec((0u8..20, prop::option::of(0u8..10)), 1..20), any::<bool>()), 1..10),
    ) {
        let mut world = World::new();
        world.assert_whole();
        for (changes, restarts) in commits {
            let changes: BTreeMap<_, _> = changes.into_iter().map(|(n, new)| (key(n), new.map(key))).collect();
            let real = changes.into_iter().filter(|(key, new)| world.model.get(key) != new.as_ref());
            let changes: Vec<_> = real.collect();
            if changes.is_empty() {
                continue;
            }
            world.commit(&changes, true);
            if restarts {
                world = world.restart();
            }
            world.assert_whole();
        }
        world.assert_past(10);
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
    let page = |cursor, limit| {
        run(async {
            let mut walk = world.values().keys_of(key(9), cursor, limit, WAIT).await?;
            let page = walk.next().await?.unwrap();
            assert!(walk.next().await?.is_none(), "one page has all that was asked for");
            Ok::<_, DerivedError>(page)
        })
    };
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = page(cursor, 7).unwrap();
        assert!(page.keys.len() == 7 || page.cursor.is_none());
        found.extend(page.keys);
        cursor = page.cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!((found.len(), found.into_iter().collect::<BTreeSet<_>>().len()), (52, 52));
    assert!(matches!(page(Some([7; 24]), 7), Err(DerivedError::OtherCursor)));
}

#[test]
fn an_answer_of_several_messages_is_of_one_state() {
    let mut world = World::new();
    let many = KEYS_MAX as u32 * 2 + 5;
    let all: Vec<_> = (0..many).map(|n| (numbered(n), Some(key(9)))).collect();
    world.commit(&all, true);
    let mut walk = run(world.values().keys_of(key(9), None, u64::MAX, WAIT)).unwrap();
    let mut keys: BTreeSet<Key> = run(walk.next()).unwrap().unwrap().keys.into_iter().collect();
    assert_eq!(keys.len(), KEYS_MAX);
    // All keys have another value before the answer goes on.
    let moved: Vec<_> = (0..many).map(|n| (numbered(n), Some(key(8)))).collect();
    world.commit(&moved, true);
    assert_eq!(world.keys_of(8).unwrap().0.len(), many as usize);
    let mut pages = 1;
    while let Some(page) = run(walk.next()).unwrap() {
        pages += 1;
        assert_eq!(page.slot, Some(11));
        keys.extend(page.keys);
    }
    assert_eq!((pages, keys.len()), (3, many as usize + 2));
    // A limit that is no multiple of a page, and a client that leaves in between.
    let mut walk = run(world.values().keys_of(key(8), None, KEYS_MAX as u64 + 1, WAIT)).unwrap();
    run(walk.next()).unwrap().unwrap();
    let last = run(walk.next()).unwrap().unwrap();
    assert_eq!((last.keys.len(), last.cursor.is_some()), (1, true));
    assert!(run(walk.next()).unwrap().is_none());
    let mut left = run(world.values().keys_of(key(8), None, u64::MAX, WAIT)).unwrap();
    run(left.next()).unwrap().unwrap();
    drop((left, walk));
    world.stop();
}

#[test]
fn the_past_is_kept_in_periods_and_the_oldest_go() {
    let (home, model, at) = built();
    let mut world = World::open(home, model, at, settings(14));
    for slot in 0..40u64 {
        let n = (slot % 5) as u8;
        world.commit(&[(key(n), Some(key(slot as u8 + 100)))], true);
        // The limits are looked at once a second; a start looks at them at its first commit.
        world = world.restart();
        let first_slots = || history::periods(world.home.path()).unwrap().into_iter().map(|(slot, _)| slot);
        let oldest = first_slots().next().unwrap();
        let newest = world.at.slot.unwrap();
        assert!(oldest <= 10.max(newest.saturating_sub(14)), "oldest={oldest} newest={newest}");
        assert!(first_slots().count() <= 8 && newest - oldest <= 14 + 4 + 2, "oldest={oldest} newest={newest}");
        world.assert_past(oldest);
        if oldest > 10 {
            let gone = run(world.history().at(key(1), oldest - 1, WAIT)).unwrap_err();
            assert!(matches!(&gone, DerivedError::OutOfRange(why) if why.contains("oldest_slot=")), "{gone:?}");
        }
    }
    let oldest = history::periods(world.home.path()).unwrap()[0].0;
    assert!(oldest > 25, "nothing was removed: oldest={oldest}");
}

#[test]
fn the_past_is_bounded_by_bytes() {
    let (home, model, at) = built();
    // So few that every period is over the limit: the newest one alone is left.
    let tiny = DerivedSettings { history_slots: 0, history_bytes: ByteSize::b(1) };
    let mut world = World::open(home, model, at, tiny);
    for slot in 0..5 {
        world.commit(&[(key(1), Some(key(slot + 100)))], true);
        world = world.restart();
        let periods = history::periods(world.home.path()).unwrap();
        assert_eq!((periods.len(), periods[0].0), (1, world.at.slot.unwrap()));
        world.assert_past(periods[0].0);
    }
    // As much as a stream of changes takes, it is kept.
    let World { home, model, at, .. } = world.stop();
    let large = DerivedSettings { history_slots: 0, history_bytes: ByteSize::gib(1) };
    let mut world = World::open(home, model, at, large);
    for slot in 0..5 {
        world.commit(&[(key(1), Some(key(slot + 150)))], true);
        world = world.restart();
        assert_eq!(history::periods(world.home.path()).unwrap().len(), 1);
    }
    world.assert_past(at.slot.unwrap());
}

#[test]
fn slots_of_a_heal_are_not_resolved_and_those_before_it_are() {
    let mut world = World::new();
    world.commit(&[(key(1), Some(key(3)))], true);
    let parts: Vec<_> = (20..60).map(|n| (key(n), Some(key(4)))).collect();
    world.commit_to(30, &parts[..20], false, false);
    let during = run(world.history().at(key(1), 10, WAIT)).unwrap();
    assert_eq!((during.value, during.until_slot, during.slot), (Some(key(9)), Some(11), Some(11)));
    world = world.restart();
    world.commit_to(30, &parts[20..], true, true);
    for (slot, value) in [(10, None), (11, None), (30, Some(key(4)))] {
        let past = run(world.history().at(key(25), slot, WAIT)).unwrap();
        assert_eq!(past.value, value, "slot={slot}");
    }
    for slot in 12..30 {
        let refused = run(world.history().at(key(1), slot, WAIT)).unwrap_err();
        assert!(
            matches!(&refused, DerivedError::OutOfRange(why) if why.contains("from slot=11 to slot=30")),
            "{refused:?}"
        );
    }
}

#[test]
fn a_store_that_the_feed_does_not_lead_on_from_is_refused_and_says_why() {
    let reason = |world: &World| match world.values().state() {
        State::Broken(reason) => reason,
        state => panic!("{state:?}"),
    };
    // Another state of the map than that of which it was built.
    let (home, model, at) = built();
    let other = ChainCheckpoint { blockhash: [7; 32], ..at };
    let map = engines::open(home.path(), &options(), OpenMode::Existing).unwrap();
    map.begin().unwrap().commit(&other.write(), Durability::Synced).unwrap();
    map.close().unwrap();
    let world = World::open(home, model, other, settings(0));
    assert!(world.derived.history().is_none());
    assert!(reason(&world).contains("it was built of another state of the map"), "{}", reason(&world));
    assert!(matches!(world.keys_of(9), Err(DerivedError::Unavailable(reason)) if reason.contains("bootstrap derive")));
    assert_eq!(world.derived.lags(), [("values", None)]);
    // Another feed.
    let mut world = World::new();
    world.commit(&[(key(3), Some(key(9)))], true);
    world.assert_whole();
    let World { home, model, at, settings, .. } = world.stop();
    std::fs::remove_dir_all(home.path().join("feed")).unwrap();
    let world = World::open(home, model, at, settings);
    assert!(reason(&world).contains("it follows another feed"), "{}", reason(&world));
    let refused = run(world.history().at(key(1), 10, WAIT)).unwrap_err();
    assert!(matches!(&refused, DerivedError::Unavailable(why) if why.contains("--history --drop")), "{refused:?}");
    assert_eq!(world.derived.lags(), [("values", None), ("history", None)]);
}

#[test]
fn a_store_whose_next_changes_were_dropped_is_refused() {
    let mut world = World::new();
    world.commit(&[(key(3), Some(key(9)))], true);
    world.assert_whole();
    // The feed goes on without the derived stores, and keeps little.
    let World { home, model, at, .. } = world.stop();
    let aside = home.path().join("aside");
    std::fs::rename(home.path().join(derived::DERIVED), &aside).unwrap();
    let mut world = World::open(home, model, at, settings(0));
    assert!(world.derived.lags().is_empty());
    world.writer.keep(0);
    while world.feed.oldest_seq() <= 4 {
        let changes: Vec<_> = (0..20_000u32).map(|n| (numbered(n), Some(key(1)))).collect();
        world.commit(&changes, true);
        world.writer.expire();
    }
    std::fs::rename(&aside, world.home.path().join(derived::DERIVED)).unwrap();
    let World { home, model, at, .. } = world.stop();
    let world = World::open(home, model, at, settings(100));
    for state in [world.values().state(), world.history().state()] {
        assert!(matches!(state, State::Broken(reason) if reason.contains("no longer has its next change")));
    }
}

#[test]
fn a_derived_store_is_added_replaced_and_removed_while_the_map_goes_on() {
    let mut world = World::new();
    world.commit(&[(key(3), Some(key(9)))], true);
    world.assert_whole();
    // It is built of a copy of the map, which goes on meanwhile.
    let (model, at) = (world.model.clone(), world.at);
    let made = |name: &str, origin: derived::Origin| {
        let place = world.home.path().join(name);
        let store = engines::open_on(&place, &options(), OpenMode::Create, &derived::terms(NAME)).unwrap();
        let position = Position { origin, ..Position::new(at.write(), at.slot).unwrap() };
        let mut changes = model.iter().map(|(key, value)| (*key, None, Some(*value)));
        values::apply(&*store, &mut changes, at.seq, &position).unwrap();
        store.close().unwrap();
        place
    };
    let feed = derived::Origin::Feed(world.derived.build().unwrap());
    let (first, second, wrong) =
        (made("first", feed.clone()), made("second", feed), made("wrong", derived::Origin::Feed(7)));
    world.commit(&[(key(3), None), (key(4), Some(key(5)))], true);
    let mut walk = run(world.values().keys_of(key(9), None, u64::MAX, WAIT)).unwrap();
    for made in [first, second] {
        let state = world.derived.replace(Some(&made)).unwrap().unwrap();
        assert!(matches!(state, State::Follows { .. }), "{state:?}");
        world.commit(&[(key(3), Some(key(6)))], true);
        world.commit(&[(key(3), None)], true);
        world.assert_whole();
    }
    assert!(matches!(run(walk.next()), Err(DerivedError::Stopped)), "its store is gone");
    let nothing = world.derived.replace(Some(Path::new("/nowhere"))).unwrap_err();
    assert!(nothing.to_string().contains("/nowhere"), "{nothing}");
    world.assert_whole();
    let refused = world.derived.replace(Some(&wrong)).unwrap_err();
    assert!(refused.to_string().contains("another feed"), "{refused}");
    world.assert_whole();
    assert_eq!(world.derived.replace(None).unwrap(), None);
    assert!(world.derived.values().is_none() && !Values::is_there(world.home.path()));
    world.commit(&[(key(3), Some(key(9)))], true);
    world.stop();
}
