//! Bounds on the wait of a commit, the size of the WAL and the reads of a get, during any merge.

use std::sync::Arc;

use engine_api::{Durability, Engine, Key};
use solkv_engine_strata::{Sizes, StrataEngine, StrataOptions};

use crate::faulty::FaultyStorage;
use crate::groups;
use crate::pressure::RUNS_MOST;
use crate::support::{Map, OPTIONS, Rng, all, apply, at, key, stat, try_commit, value};

#[test]
fn a_wal_of_batches_that_change_nothing_ends_and_is_used_again() {
    let storage = FaultyStorage::default();
    let engine = groups::open(&storage).unwrap();
    let changes = [(key(1), Some(value(1)))];
    try_commit(&engine, &changes, 1, Durability::Buffered).unwrap();
    let (_, before) = storage.bytes_of(".wal");
    let mut most = 0;
    for seq in 2..20_000 {
        try_commit(&engine, &[], seq, Durability::Buffered).unwrap();
        if seq % 64 == 0 {
            most = most.max(storage.bytes_of(".wal").0);
        }
    }
    assert_eq!(before, 1);
    // The bound counts the file being written, files whose memtables wait, and files that wait to be used again, with
    // one more record in each.
    let bound = 6 * (groups::SIZES.wal_bytes + 4096);
    assert!(most <= bound, "bytes of all WAL files: {most} of {bound}");
    assert!(stat(&engine, "wal_written_bytes") > 4 * bound, "more was written than there may ever be");
    assert_eq!(stat(&engine, "segments"), 1, "nothing becomes no run");
    drop(engine);
    let engine = groups::open(&storage).unwrap();
    assert_eq!(engine.checkpoint().unwrap(), at(19_999));
    assert!(all(&engine).unwrap() == changes.map(|(key, value)| (key, value.unwrap())).into());
}

#[test]
fn a_writer_at_full_speed_and_sorted_loads_beside_merges_keep_to_their_bounds() {
    const BATCHES: u64 = 400;
    let storage = FaultyStorage::default();
    let engine = groups::open(&storage).unwrap();
    let (mut map, mut runs_most) = (Map::new(), 0);
    for seq in 1..=BATCHES {
        let change = |n| (key((seq * 250 + n) % 60_000), (n % 10 != 0).then(|| value(seq + n)));
        let mut changes: Vec<_> = (0..250).map(change).collect();
        if seq % 20 == 0 {
            // These keys are above every key in the store, as in a sorted load.
            let high = |n: u64| {
                let mut high = [0xff; 32];
                high[8..16].copy_from_slice(&(seq * 1_000 + n).to_be_bytes());
                high
            };
            changes = (0..1_000).map(|n| (high(n), Some(value(n)))).collect();
            let pairs: Vec<_> = changes.iter().map(|(key, _)| *key).zip((0..1_000).map(value)).collect();
            engine.load_sorted(&pairs, &at(seq)).unwrap();
        } else {
            try_commit(&engine, &changes, seq, Durability::Buffered).unwrap();
        }
        apply(&mut map, &changes);
        runs_most = runs_most.max(stat(&engine, "delta_runs"));
        assert!(runs_most <= RUNS_MOST, "delta runs: {runs_most}");
        let parts = ["memtable", "directory", "filter", "page", "record_cache"];
        let held: u64 = parts.iter().map(|part| stat(&engine, &format!("memory_{part}_bytes"))).sum();
        assert!(held <= OPTIONS.memory_bytes + OPTIONS.memory_bytes / 10, "seq={seq} memory in use: {held}");
    }
    assert!(runs_most > 8, "the writer is faster than merges: runs={runs_most}");
    assert!(all(&engine).unwrap() == map);
    engine.settle().unwrap();
    assert!(all(&engine).unwrap() == map);
}

/// Returns a key that differs from others only after its first `shared` bytes.
fn near(n: u64, shared: usize) -> Key {
    let mut near = [0x5a; 32];
    near[shared..].copy_from_slice(&key(n)[shared..]);
    near
}

#[test]
fn keys_that_share_their_first_bytes_over_many_segments_are_found_with_few_reads() {
    const PAIRS: u64 = 12_000;
    for shared in [8, 24] {
        let storage = FaultyStorage::default();
        let little = StrataOptions { memory_bytes: 256 << 10, ..OPTIONS };
        let sizes = Sizes { mem_records: 512, segment_records: 1024, wal_bytes: 1 << 20 };
        let open = || StrataEngine::open_sized(Arc::new(storage.clone()), &little, sizes).unwrap();
        let engine = open();
        let mut map = Map::new();
        for seq in 1..=PAIRS / 400 {
            let change = |n| (near(n % 9_000, shared), (n % 11 != 0).then(|| value(n)));
            let changes: Vec<_> = ((seq - 1) * 400..seq * 400).map(change).collect();
            try_commit(&engine, &changes, seq, Durability::Buffered).unwrap();
            apply(&mut map, &changes);
        }
        engine.settle().unwrap();
        let segments = stat(&engine, "segments");
        assert!(segments > 6, "segments={segments}");
        drop(engine);
        let engine = open();
        assert!(all(&engine).unwrap() == map, "shared={shared}");
        let mut reader = engine.reader().unwrap();
        let mut rng = Rng::new(3);
        let keys: Vec<Key> = (0..1000).map(|_| near(rng.below(PAIRS), shared)).collect();
        let before = stat(&engine, "get_reads");
        for key in &keys {
            assert_eq!(reader.get(key).unwrap(), map.get(key).copied(), "shared={shared}");
        }
        let reads = stat(&engine, "get_reads") - before;
        // Bound for a search over the pages of a segment, of which there are about sixteen.
        assert!(reads <= 5 * keys.len() as u64, "shared={shared} reads={reads}");
        let mut found = vec![None; keys.len()];
        reader.get_many(&keys, &mut found).unwrap();
        assert!(keys.iter().zip(&found).all(|(key, found)| map.get(key) == found.as_ref()), "shared={shared}");
    }
}
