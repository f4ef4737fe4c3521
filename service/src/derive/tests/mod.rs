//! The derived store of a feed: it follows, goes on after a restart, waits for the end of a slot, and breaks where the feed
//! does not lead on.

mod world;

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
use crate::base::chain::{Base, Commitment};
use crate::base::published::Published;
use crate::derive::values::KEYS_MAX;
use crate::feed::{Change, Feed, FeedWriter, SlotEnd};
use crate::overlay::Overlay;
use crate::reading::LookupError;
use world::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn derived_stores_tell_what_the_map_has_and_had(
        commits in prop::collection::vec(
            (prop::collection::vec((0u8..20, prop::option::of(0u8..10)), 1..20), any::<bool>()), 1..10),
    ) {
        let mut world = World::new();
        world.assert_whole();
        let mut last_final = None;
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
                last_final = None;
                prop_assert!(matches!(
                    world.keys_at(1, Commitment::Finalized),
                    Err(DerivedError::Lookup(LookupError::NotFinal))
                ));
            } else if changes.len() % 3 == 0 {
                last_final = world.at.slot;
                last_final.into_iter().for_each(|slot| world.overlay.name_final(slot));
                world.overlay.settle();
            }
            world.assert_whole();
            last_final.into_iter().for_each(|slot| world.assert_final(slot));
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
fn the_last_commit_of_a_service_that_stops_is_taken() {
    for _ in 0..20 {
        let mut world = World::new();
        // Subscribers are told first that the service stops, and then the map has its last commit.
        world.feed.close();
        std::thread::sleep(Duration::from_millis(1));
        world.commit(&[(key(3), Some(key(9)))], true);
        let world = world.stop();
        let places = history::periods(world.home.path()).unwrap().into_iter().map(|(_, dir)| dir);
        for place in places.chain([derived::dir(world.home.path(), NAME)]) {
            let store = engines::open_read_only(&place, None).unwrap();
            assert_eq!(store.checkpoint().unwrap().seq, world.at.seq, "{}", place.display());
            store.close().unwrap();
        }
    }
}

#[test]
fn a_store_that_is_held_back_refuses_and_never_answers_with_an_older_state() {
    let mut world = World::new();
    let engine = world.values().engine();
    // The store has one writer at a time.
    let held = engine.begin().unwrap();
    world.commit(&[(key(3), Some(key(9)))], true);
    let values = world.values();
    let ask = |wait: u64| {
        run(async {
            let wait = Duration::from_millis(wait);
            let mut walk = values.keys_of(key(9), None, 10, Commitment::Confirmed, wait).await?;
            walk.next().await
        })
    };
    for _ in 0..20 {
        let refused = ask(100).unwrap_err();
        assert!(matches!(&refused, DerivedError::Unavailable(why) if why.contains("seq=2 map_seq=3")), "{refused:?}");
    }
    assert_eq!(world.derived.lags()[0], ("values", Some(1)));
    let answer = std::thread::scope(|scope| {
        let asks = scope.spawn(|| ask(WAIT.as_millis() as u64));
        drop(held);
        asks.join().unwrap()
    });
    let answer = answer.unwrap().unwrap();
    assert_eq!((answer.keys.len(), answer.slot), (3, Some(11)));
    drop((engine, values));
    world.assert_whole();
}

#[test]
fn a_cursor_goes_on_and_is_refused_by_another_build() {
    let mut world = World::new();
    let all: Vec<_> = (10..60).map(|n| (key(n), Some(key(9)))).collect();
    world.commit(&all, true);
    let page = |cursor, limit| {
        run(async {
            let mut walk = world.values().keys_of(key(9), cursor, limit, Commitment::Confirmed, WAIT).await?;
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
    let of_nine = page(None, 7).unwrap().cursor;
    let of_eight = run(async {
        let mut walk = world.values().keys_of(key(8), of_nine, 7, Commitment::Confirmed, WAIT).await?;
        walk.next().await
    });
    assert!(matches!(of_eight, Err(DerivedError::OtherCursor)), "a cursor goes on with its own value alone");
}

#[test]
fn an_answer_of_several_messages_is_of_one_state() {
    let mut world = World::new();
    let many = KEYS_MAX as u32 * 2 + 5;
    let all: Vec<_> = (0..many).map(|n| (numbered(n), Some(key(9)))).collect();
    world.commit(&all, true);
    let mut walk = run(world.values().keys_of(key(9), None, u64::MAX, Commitment::Confirmed, WAIT)).unwrap();
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
    let mut walk = run(world.values().keys_of(key(8), None, KEYS_MAX as u64 + 1, Commitment::Confirmed, WAIT)).unwrap();
    run(walk.next()).unwrap().unwrap();
    let last = run(walk.next()).unwrap().unwrap();
    assert_eq!((last.keys.len(), last.cursor.is_some()), (1, true));
    assert!(run(walk.next()).unwrap().is_none());
    let mut left = run(world.values().keys_of(key(8), None, u64::MAX, Commitment::Confirmed, WAIT)).unwrap();
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
            let gone = run(world.history().at(key(1), oldest - 1, Commitment::Confirmed, WAIT)).unwrap_err();
            assert!(matches!(&gone, DerivedError::OutOfRange(why) if why.contains("oldest_slot=")), "{gone:?}");
        }
    }
    let periods = history::periods(world.home.path()).unwrap();
    assert!(periods[0].0 > 25, "nothing was removed: oldest={}", periods[0].0);
    // A store that is missing in the middle is not read over.
    let World { home, model, at, settings, .. } = world.stop();
    std::fs::remove_dir_all(&periods[1].1).unwrap();
    let world = World::open(home, model, at, settings);
    let refused = run(world.history().at(key(1), periods[0].0, Commitment::Confirmed, WAIT)).unwrap_err();
    let expected = format!("ends at slot={}, and the next begins at slot={}", periods[1].0, periods[2].0);
    assert!(matches!(&refused, DerivedError::Unavailable(why) if why.contains(&expected)), "{refused:?}");
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
    let during = run(world.history().at(key(1), 10, Commitment::Confirmed, WAIT)).unwrap();
    assert_eq!((during.value, during.until_slot, during.slot), (Some(key(9)), Some(11), Some(11)));
    world = world.restart();
    world.commit_to(30, &parts[20..], true, true);
    for (slot, value) in [(10, None), (11, None), (30, Some(key(4)))] {
        let past = run(world.history().at(key(25), slot, Commitment::Confirmed, WAIT)).unwrap();
        assert_eq!(past.value, value, "slot={slot}");
    }
    for slot in 12..30 {
        let refused = run(world.history().at(key(1), slot, Commitment::Confirmed, WAIT)).unwrap_err();
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
    let refused = run(world.history().at(key(1), 10, Commitment::Confirmed, WAIT)).unwrap_err();
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
    let mut walk = run(world.values().keys_of(key(9), None, u64::MAX, Commitment::Confirmed, WAIT)).unwrap();
    for made in [first, second] {
        let state = world.derived.replace(Some(&made)).unwrap().unwrap();
        assert!(matches!(state, State::Follows { .. }), "{state:?}");
        world.commit(&[(key(3), Some(key(6)))], true);
        world.commit(&[(key(3), None)], true);
        world.assert_whole();
    }
    let gone = run(walk.next()).unwrap_err();
    assert!(matches!(&gone, DerivedError::OutOfRange(why) if why.contains("begin without a cursor")), "{gone:?}");
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
