//! Merges into a base of many segments, which replace one group of segments after the other: killed or without power at
//! every change of the disk. Also the files that they leave.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine_api::{Durability, Engine, Key, Value};
use solkv_engine_strata::{Sizes, StrataEngine};

use crate::faulty::{Fault, FaultyStorage};
use crate::hooked::{Hooked, Hooks};
use crate::support::{Map, OPTIONS, all, apply, assert_holds, batch, key, stat, try_commit, value};
use crate::wait_for;

/// Memtables of a few batches. The base of [`batch`]'s keys then has six segments or more, each a group of its own.
pub(crate) const SIZES: Sizes = Sizes { mem_records: 256, segment_records: 384, wal_bytes: 64 << 10 };
const CHANGES: u64 = 250;
/// Number of batches before the merge that is interrupted.
const BASE: u64 = 24;
/// Number of batches that this merge brings into the base.
const DELTAS: u64 = 4;

pub(crate) fn open(storage: &FaultyStorage) -> engine_api::Result<StrataEngine> {
    StrataEngine::open_sized(Arc::new(storage.clone()), &OPTIONS, SIZES)
}

fn content(seq: u64) -> Map {
    let mut map = Map::new();
    (1..=seq).for_each(|seq| apply(&mut map, &batch(21, seq, CHANGES)));
    map
}

fn commit(engine: &StrataEngine, seq: u64) {
    try_commit(engine, &batch(21, seq, CHANGES), seq, Durability::Synced).unwrap();
}

/// Makes a settled store of several segments, with deltas in addition that wait for a merge.
fn before() -> FaultyStorage {
    let storage = FaultyStorage::default();
    let engine = open(&storage).unwrap();
    (1..=BASE).for_each(|seq| commit(&engine, seq));
    engine.settle().unwrap();
    let segments = stat(&engine, "segments");
    assert!(segments >= 6, "a base of many groups: segments={segments}");
    (BASE + 1..=BASE + DELTAS).for_each(|seq| commit(&engine, seq));
    Box::new(engine).close().unwrap();
    storage.after_crash(0)
}

/// Opens and settles the store. It does not matter where this stops.
fn settle(storage: &FaultyStorage) {
    if let Ok(engine) = open(storage) {
        engine.settle().ok();
    }
}

/// Checks that everything committed is there, and can be merged, read and written again.
fn assert_whole(storage: &FaultyStorage, map: &Map, place: &str) {
    let engine = open(storage).unwrap_or_else(|error| panic!("{place}: {error}"));
    assert_holds(&engine, map, BASE + DELTAS, place);
    engine.settle().unwrap_or_else(|error| panic!("settling again: {place}: {error}"));
    assert_holds(&engine, map, BASE + DELTAS, place);
    engine.scrub().unwrap_or_else(|error| panic!("{place}: {error}"));
}

#[test]
fn a_base_merge_of_many_groups_is_cut_anywhere_and_loses_nothing() {
    let (before, map) = (before(), content(BASE + DELTAS));
    let whole = before.after_crash(0);
    whole.set(Fault::None);
    settle(&whole);
    let (changes, ..) = whole.counts();
    println!("changes of the disk: {changes}");
    assert!(changes > 60, "some groups: changes={changes}");
    for cut_at in 1..=changes + 1 {
        let storage = before.after_crash(0);
        storage.set(Fault::CrashAt(cut_at));
        settle(&storage);
        // The power is gone: unflushed changes may be there or not, in any order.
        for outcome in 0..4 {
            assert_whole(
                &storage.after_crash(cut_at * 8 + outcome),
                &map,
                &format!("cut_at={cut_at} outcome={outcome}"),
            );
        }
        // The process is gone: everything it wrote is there.
        storage.set(Fault::None);
        assert_whole(&storage, &map, &format!("killed cut_at={cut_at}"));
    }
}

#[test]
fn a_base_merge_that_was_cut_goes_on_at_its_last_installed_group() {
    let (before, map) = (before(), content(BASE + DELTAS));
    let whole = before.after_crash(0);
    whole.set(Fault::None);
    let engine = open(&whole).unwrap();
    engine.settle().unwrap();
    let (written, changes) = (stat(&engine, "segment_written_bytes"), whole.counts().0);
    drop(engine);
    let (mut went_on, mut least) = (0, u64::MAX);
    for cut_at in 1..=changes {
        let storage = before.after_crash(0);
        storage.set(Fault::CrashAt(cut_at));
        settle(&storage);
        let storage = storage.after_crash(cut_at);
        let engine = open(&storage).unwrap();
        engine.settle().unwrap();
        assert_holds(&engine, &map, BASE + DELTAS, &format!("cut_at={cut_at}"));
        let rest = stat(&engine, "segment_written_bytes");
        if (1..written).contains(&rest) {
            went_on += 1;
            least = least.min(rest);
        }
    }
    assert!(went_on > changes / 2, "went_on={went_on} of {changes}");
    assert!(least < written / 3, "what was merged is not merged again: least={least} of {written}");
}

/// Returns a batch of new keys with this first byte.
fn among(first: u8, numbers: Range<u64>) -> Vec<(Key, Option<Value>)> {
    let placed = |n| {
        let mut key = key(n);
        key[0] = first;
        (key, Some(value(n)))
    };
    numbers.map(placed).collect()
}

/// The records between two groups fill segments of their own, so the step of the first group ends among them.
#[test]
fn a_base_merge_of_many_records_between_two_groups_is_cut_anywhere_and_loses_nothing() {
    let a_segment = SIZES.segment_records;
    let storage = FaultyStorage::default();
    let engine = open(&storage).unwrap();
    let mut map = Map::new();
    let mut seq = 0;
    let mut commit = |changes: Vec<(Key, Option<Value>)>| {
        for changes in changes.chunks(SIZES.mem_records) {
            seq += 1;
            try_commit(&engine, changes, seq, Durability::Synced).unwrap();
            apply(&mut map, changes);
        }
    };
    commit(among(0x10, 0..a_segment));
    commit(among(0xf0, a_segment..2 * a_segment));
    engine.settle().unwrap();
    assert_eq!(stat(&engine, "segments"), 2, "each group is one segment");
    commit(among(0x80, 2 * a_segment..5 * a_segment));
    Box::new(engine).close().unwrap();
    let before = storage.after_crash(0);
    let whole = before.after_crash(0);
    whole.set(Fault::None);
    settle(&whole);
    let (changes, ..) = whole.counts();
    for cut_at in 1..=changes {
        let storage = before.after_crash(0);
        storage.set(Fault::CrashAt(cut_at));
        settle(&storage);
        storage.set(Fault::None);
        let engine = open(&storage).unwrap();
        engine.settle().unwrap();
        assert!(all(&engine).unwrap() == map, "killed cut_at={cut_at}");
    }
}

/// The deltas have many records between two keys of one group, so its merge takes several steps.
#[test]
fn a_base_merge_of_many_records_within_a_group_takes_several_steps_and_loses_nothing() {
    let a_segment = SIZES.segment_records;
    let storage = FaultyStorage::default();
    let engine = open(&storage).unwrap();
    let mut map = Map::new();
    let batches = [among(0x10, 0..100), among(0xf0, 100..200), among(0x80, 200..200 + 5 * a_segment)];
    for (at, batch) in batches.iter().enumerate() {
        for changes in batch.chunks(SIZES.mem_records) {
            let seq = engine.checkpoint().unwrap().seq + 1;
            try_commit(&engine, changes, seq, Durability::Synced).unwrap();
            apply(&mut map, changes);
        }
        if at == 1 {
            engine.settle().unwrap();
            assert_eq!(stat(&engine, "segments"), 1);
        }
    }
    Box::new(engine).close().unwrap();
    let before = storage.after_crash(0);
    let whole = before.after_crash(0);
    whole.set(Fault::None);
    let hooks = Arc::new(Hooks::default());
    let hooked = Hooked { inner: Arc::new(whole.clone()), hooks: Arc::clone(&hooks) };
    let engine = StrataEngine::open_sized(Arc::new(hooked), &OPTIONS, SIZES).unwrap();
    assert_eq!(stat(&engine, "base_records"), 200, "no merge is due yet");
    // A step is four segments here, and one for the rest of the group.
    hooks.merge_segments_left.store(5, Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| engine.settle().unwrap());
        wait_for("the merge", || hooks.merge_waits.load(Ordering::Relaxed));
        let (base, all) = (stat(&engine, "base_records"), map.len() as u64);
        hooks.merge_segments_left.store(u64::MAX, Ordering::Relaxed);
        assert!((3 * a_segment..all).contains(&base), "the base has a step of it: base={base} of {all}");
    });
    drop(engine);
    for cut_at in 1..=whole.counts().0 {
        let storage = before.after_crash(0);
        storage.set(Fault::CrashAt(cut_at));
        settle(&storage);
        for storage in [storage.after_crash(cut_at), storage] {
            storage.set(Fault::None);
            let engine = open(&storage).unwrap();
            engine.settle().unwrap();
            assert!(all(&engine).unwrap() == map, "cut_at={cut_at}");
        }
    }
}

#[test]
fn a_base_merge_writes_only_groups_with_records_of_deltas() {
    let engine = open(&FaultyStorage::default()).unwrap();
    let base: Vec<(Key, Value)> = (0..16 * SIZES.segment_records).map(|n| (key(n), value(n))).collect();
    let base: Map = base.into_iter().collect();
    let pairs: Vec<_> = base.iter().map(|(key, value)| (*key, *value)).collect();
    engine.load_sorted(&pairs, &Default::default()).unwrap();
    let segments = stat(&engine, "segments");
    let written = stat(&engine, "segment_written_bytes");
    let changes: Vec<_> = among(0x80, 0..10);
    try_commit(&engine, &changes, 1, Durability::Synced).unwrap();
    engine.settle().unwrap();
    let now = stat(&engine, "segment_written_bytes") - written;
    assert!(segments > 12 && now < 3 * written / segments, "written={now} of {written} segments={segments}");
    let mut map = base;
    apply(&mut map, &changes);
    assert!(all(&engine).unwrap() == map);
}

/// The records of an unreadable range are only in the deltas, so a merge interrupted after it must not continue beyond
/// it.
#[test]
fn a_base_merge_that_left_a_segment_out_is_cut_anywhere_and_loses_nothing() {
    let (before, map) = (before(), content(BASE + DELTAS));
    let mut segments: Vec<String> = before.names().into_iter().filter(|name| name.ends_with(".seg")).collect();
    segments.sort();
    let (mut left_out, mut cut_at) = (0, 0);
    loop {
        cut_at += 1;
        let storage = before.after_crash(0);
        storage.set(Fault::CrashAt(cut_at));
        let hooks = Arc::new(Hooks::default());
        let hooked = Hooked { inner: Arc::new(storage.clone()), hooks: Arc::clone(&hooks) };
        if let Ok(engine) = StrataEngine::open_sized(Arc::new(hooked), &OPTIONS, SIZES) {
            // This segment is of the base, because the deltas were flushed later.
            *hooks.unreadable.lock() = Some(segments[1].clone());
            engine.settle().ok();
            left_out += stat(&engine, "unreadable_segments");
        }
        for outcome in 0..2 {
            let place = format!("cut_at={cut_at} outcome={outcome}");
            assert_whole(&storage.after_crash(cut_at * 8 + outcome), &map, &place);
        }
        if storage.counts().0 < cut_at {
            break;
        }
    }
    assert!(left_out > cut_at / 2, "left_out={left_out} of {cut_at}");
}

#[test]
fn the_opening_after_a_kill_loses_its_power_anywhere_and_loses_nothing() {
    let (before, map) = (before(), content(BASE + DELTAS));
    let whole = before.after_crash(0);
    whole.set(Fault::None);
    settle(&whole);
    let (changes, ..) = whole.counts();
    for killed_at in 1..=changes + 1 {
        let killed = before.after_crash(0);
        killed.set(Fault::CrashAt(killed_at));
        settle(&killed);
        let storage = killed.copy();
        storage.set(Fault::None);
        drop(open(&storage).unwrap());
        let (opening, ..) = storage.counts();
        for cut_at in 1..=opening + 1 {
            // Names that the process gave and did not flush are visible to the opening, but not yet durable.
            let storage = killed.copy();
            storage.set(Fault::CrashAt(cut_at));
            drop(open(&storage));
            for outcome in 0..2 {
                let place = format!("killed_at={killed_at} cut_at={cut_at} outcome={outcome}");
                let left = storage.after_crash((killed_at * 64 + cut_at) * 8 + outcome);
                let engine = open(&left).unwrap_or_else(|error| panic!("{place}: {error}"));
                assert!(all(&engine).unwrap() == map, "{place}");
            }
        }
    }
}

#[test]
fn files_that_a_merge_has_replaced_are_removed_while_the_store_is_open() {
    let storage = FaultyStorage::default();
    let engine = open(&storage).unwrap();
    for seq in 1..=3 * BASE {
        commit(&engine, seq);
        if seq % BASE == 0 {
            engine.settle().unwrap();
        }
    }
    let named = stat(&engine, "segments");
    let files = || storage.names().iter().filter(|name| name.ends_with(".seg")).count() as u64;
    // During the work, not only at the end: about a hundred were replaced by now.
    assert!(files() < named + 50, "files={} of which {named} are the store's", files());
    wait_for("files that no run has any more to be removed", || files() == named);
    assert_holds(&engine, &content(3 * BASE), 3 * BASE, "settled");
}
