//! Loads, flushes and replays of several segments that were cut, and whose manifest is lost: a part never passes for the
//! whole.

use std::sync::Arc;

use crate::faulty::{Fault, FaultyStorage};
use engine_api::{Durability, Engine, ErrorKind};
use solkv_engine_strata::storage::Storage;
use solkv_engine_strata::{Sizes, StrataEngine};

use crate::support::{Map, all, key, try_commit};
use crate::{SMALL, seq};

/// Segments so small that a load or a large batch takes several.
const SIZES: Sizes = Sizes { mem_records: 1000, segment_records: 2000, wal_bytes: 1 << 20 };
/// Number of changes of the disk by an opening that removes the files of a crash.
const OPENING_CHANGES: u64 = 12;
/// Number of ways in which the power may be lost at a change of the disk: any of the unflushed is there or not.
const POWER_LOSSES: u64 = 8;

/// Ends the process, or with it the power, at every change of the disk by `write`, and removes the manifest. After a repair
/// all of `map` is there if the checkpoint says so and the repair says nothing else.
fn assert_no_part_passes_for_the_whole(before: &FaultyStorage, write: impl Fn(&StrataEngine), whole: (&Map, u64)) {
    let uncut = before.after_crash(0);
    uncut.set(Fault::None);
    write(&open(&uncut).unwrap());
    for crash_at in 1..=uncut.counts().0 {
        let cut = before.after_crash(0);
        cut.set(Fault::CrashAt(crash_at));
        if let Ok(engine) = open(&cut) {
            write(&engine);
        }
        assert_repairs(cut.copy(), whole, &format!("crash_at={crash_at}"));
        // The next opening removes the segments of a flush that was cut, and is cut too.
        for reopened_at in 1..=OPENING_CHANGES {
            let again = cut.copy();
            again.set(Fault::CrashAt(reopened_at));
            drop(open(&again));
            let repairs = |seed| {
                let when = format!("crash_at={crash_at} reopened_at={reopened_at} seed={seed}");
                assert_repairs(again.after_crash(seed), whole, &when);
            };
            (0..POWER_LOSSES / 4).for_each(repairs);
        }
        (0..POWER_LOSSES)
            .for_each(|seed| assert_repairs(cut.after_crash(seed), whole, &format!("crash_at={crash_at} seed={seed}")));
    }
}

fn open(storage: &FaultyStorage) -> engine_api::Result<StrataEngine> {
    StrataEngine::open_sized(Arc::new(storage.clone()), &SMALL, SIZES)
}

fn assert_repairs(storage: FaultyStorage, (map, seq): (&Map, u64), when: &str) {
    if storage.remove("MANIFEST").is_err() {
        return;
    }
    let as_storage: Arc<dyn Storage> = Arc::new(storage.clone());
    let repaired = match StrataEngine::repair_on(&as_storage) {
        // The store was cut before its first file.
        Err(error) if error.kind() == ErrorKind::FixInput => return,
        repaired => repaired.unwrap(),
    };
    // A segment whose footer reached the device before its pages.
    let is_said = repaired.lost.iter().any(|lost| lost.contains("keys are missing"));
    let engine = open(&storage).unwrap_or_else(|error| panic!("{when}: {error}"));
    let found = all(&engine).unwrap();
    if engine.checkpoint().unwrap().seq == seq {
        assert!(is_said || found == *map, "{when}: {} of {}", found.len(), map.len());
    }
}

#[test]
fn a_part_of_a_chunk_of_a_load_does_not_pass_for_the_chunk() {
    let map: Map = (0..9000).map(|n| (key(n), [1; 32])).collect();
    let sorted: Vec<_> = map.iter().map(|(key, value)| (*key, *value)).collect();
    let load = |engine: &StrataEngine| drop(engine.load_sorted(&sorted, &seq(1)));
    assert_no_part_passes_for_the_whole(&FaultyStorage::default(), load, (&map, 1));
}

#[test]
fn a_part_of_a_flush_of_several_segments_does_not_pass_for_its_batches() {
    let map: Map = (0..5000).map(|n| (key(n), [1; 32])).collect();
    let large: Vec<_> = map.iter().map(|(key, value)| (*key, Some(*value))).collect();
    let write = |engine: &StrataEngine| {
        if try_commit(engine, &large, 1, Durability::Synced).is_ok() {
            // A load without pairs writes the memtable as a run.
            engine.load_sorted(&[], &seq(1)).ok();
        }
    };
    assert_no_part_passes_for_the_whole(&FaultyStorage::default(), write, (&map, 1));
}

#[test]
fn a_part_of_the_runs_of_a_replay_does_not_pass_for_its_batches() {
    let map: Map = (0..9000).map(|n| (key(n), [1; 32])).collect();
    let large: Vec<_> = map.iter().map(|(key, value)| (*key, Some(*value))).collect();
    let storage = FaultyStorage::default();
    let sizes = Sizes { mem_records: 1 << 14, ..SIZES };
    let engine = StrataEngine::open_sized(Arc::new(storage.clone()), &SMALL, sizes).unwrap();
    try_commit(&engine, &large, 1, Durability::Synced).unwrap();
    // Memtables are smaller when it is opened again.
    assert_no_part_passes_for_the_whole(&storage, |_| (), (&map, 1));
}
