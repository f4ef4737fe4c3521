//! Loads and flushes of several segments that were cut, and whose manifest is lost: a part never passes for the whole.

use std::sync::Arc;

use crate::faulty::{Fault, FaultyStorage};
use engine_api::{Durability, Engine, ErrorKind};
use solkv_engine_strata::storage::Storage;
use solkv_engine_strata::{Sizes, StrataEngine};

use crate::support::{Map, all, key, try_commit};
use crate::{SMALL, seq};

/// Segments so small that a load or a large batch takes several.
const SIZES: Sizes = Sizes { mem_records: 1000, segment_records: 2000, wal_bytes: 1 << 20 };

/// Cuts `write` at every change of the disk and removes the manifest. After a repair all of `map` is there if the
/// checkpoint says so, as it is if `write` commits through the WAL.
fn assert_no_part_passes_for_the_whole(before: &FaultyStorage, write: impl Fn(&StrataEngine), whole: (&Map, u64)) {
    let open = |storage: &FaultyStorage| StrataEngine::open_sized(Arc::new(storage.clone()), &SMALL, SIZES);
    let uncut = before.after_crash(0);
    uncut.set(Fault::None);
    write(&open(&uncut).unwrap());
    for crash_at in 1..=uncut.counts().0 {
        let storage = before.after_crash(0);
        storage.set(Fault::CrashAt(crash_at));
        if let Ok(engine) = open(&storage) {
            write(&engine);
        }
        storage.set(Fault::None);
        if storage.remove("MANIFEST").is_err() {
            continue;
        }
        let as_storage: Arc<dyn Storage> = Arc::new(storage.clone());
        match StrataEngine::repair_on(&as_storage) {
            // The store was cut before its first file.
            Err(error) if error.kind() == ErrorKind::FixInput => continue,
            repaired => drop(repaired.unwrap()),
        }
        let engine = open(&storage).unwrap_or_else(|error| panic!("crash_at={crash_at}: {error}"));
        let found = all(&engine).unwrap();
        if engine.checkpoint().unwrap().seq == whole.1 {
            assert!(found == *whole.0, "crash_at={crash_at}: {} of {}", found.len(), whole.0.len());
        }
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
