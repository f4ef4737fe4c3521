//! A week of updates at small scale: a batch every five minutes, many times the content in total, and bounds on the
//! cost.

use std::sync::Arc;

use engine_api::{Durability, Engine, Key, Value};
use solkv_engine_strata::{Sizes, StrataEngine, StrataOptions};

use crate::faulty::FaultyStorage;
use crate::support::{Map, Rng, all, apply, at, key, stat, try_commit, value};
use crate::wait_for;

const OPTIONS: StrataOptions = StrataOptions { memory_bytes: 8 << 20, disk_reserve_bytes: 0, prefix_bytes: 32 };
const SIZES: Sizes = Sizes { mem_records: 1024, segment_records: 4096, wal_bytes: 1 << 20 };
const KEYS: u64 = 40_000;
const BATCHES: u64 = 7 * 24 * 12;
const CHANGES: u64 = 128;
const BATCHES_A_MEMTABLE: u64 = SIZES.mem_records as u64 / CHANGES;
/// Largest number of delta runs: the number up to which none are merged, and three that are not alike.
const RUNS_MAX: u64 = 23;
/// Largest debt once no merge into the base is due: records of a quarter of the base and a memtable, and the deletions.
const DEBT_BYTES_MAX: u64 = (KEYS / 4 + SIZES.mem_records as u64 + 512) * 64;

fn open(storage: &FaultyStorage) -> StrataEngine {
    StrataEngine::open_sized(Arc::new(storage.clone()), &OPTIONS, SIZES).unwrap()
}

/// Returns a batch of mostly updates. As many keys are deleted as added, so the set of keys moves on.
fn batch(seq: u64) -> Vec<(Key, Option<Value>)> {
    let mut rng = Rng::new(seq);
    let oldest = seq * 8;
    let change = |n: u64| match n {
        0..8 => (key(oldest + n), None),
        8..16 => (key(KEYS + oldest + n), Some(value(rng.next()))),
        _ => (key(oldest + 8 + rng.below(KEYS - 8)), Some(value(rng.next()))),
    };
    (0..CHANGES).map(change).collect()
}

#[test]
fn a_week_of_updates_stays_within_its_bounds() {
    let storage = FaultyStorage::default();
    let engine = open(&storage);
    let mut map: Map = (0..KEYS).map(|n| (key(n), value(n))).collect();
    let pairs: Vec<_> = map.iter().map(|(key, value)| (*key, *value)).collect();
    engine.load_sorted(&pairs, &at(1)).unwrap();
    let (mut space_most, mut runs_most) = (0, 0);
    for seq in 2..2 + BATCHES {
        let changes = batch(seq);
        try_commit(&engine, &changes, seq, Durability::Buffered).unwrap();
        apply(&mut map, &changes);
        if seq % BATCHES_A_MEMTABLE == 0 {
            // Updates come far slower than merges run, so the thread has time for every merge that is due.
            wait_for("the flush of a memtable", || stat(&engine, "memtable_records") <= SIZES.mem_records as u64);
            wait_for("a merge into the base that is due", || stat(&engine, "merge_debt_bytes") < DEBT_BYTES_MAX);
            wait_for("few delta runs", || stat(&engine, "delta_runs") <= RUNS_MAX);
            runs_most = runs_most.max(stat(&engine, "delta_runs"));
            space_most = space_most.max(engine.stats().unwrap().disk_bytes * 100 / (map.len() as u64 * 64));
        }
        if seq % (BATCHES / 7) == 0 {
            assert!(all(&engine).unwrap() == map, "seq={seq}");
            let parts = ["memtable", "directory", "filter", "page", "record_cache", "left"];
            let sum: u64 = parts.iter().map(|part| stat(&engine, &format!("memory_{part}_bytes"))).sum();
            assert!(sum <= OPTIONS.memory_bytes + OPTIONS.memory_bytes / 10, "memory in use and left: {sum}");
        }
    }
    let written = stat(&engine, "write_amplification_percent");
    let merges = stat(&engine, "merges");
    println!("write_amplification={written}% space_amplification={space_most}% runs={runs_most} merges={merges}");
    assert!(runs_most > 2, "bounds are of interest where there are runs");
    // WAL, flush, and the base with the deltas once for every half of it; small files round up.
    assert!(written <= 480, "write_amplification={written}%");
    // The base, deltas of half of it, of which a quarter is merged, a group, and WAL files; small files round up.
    assert!(space_most <= 230, "space_amplification={space_most}%");
    engine.settle().unwrap();
    assert_eq!(stat(&engine, "filter_planes_least"), 3, "merges give back the memory of what they replace");
    assert!(stat(&engine, "memory_page_bytes") > 0, "there is memory for the pages as well");
    assert!(all(&engine).unwrap() == map);
}
