//! What never grows without end: the wait of a commit, the WAL, the reads of a get; whatever is merged meanwhile.

use std::sync::Arc;
use std::time::Duration;

use engine_api::{BulkLoad, Durability, Engine, Key, Value};
use engine_strata::{Sizes, StrataEngine, StrataOptions};

use crate::faulty::{FaultyStorage, Gate};
use crate::groups;
use crate::support::{Map, OPTIONS, Rng, all, apply, at, key, stat, try_commit, value};

/// Opens the gate when a test ends, however it ends: the engine's thread may stand before it.
struct Opens<'a>(&'a Gate);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Whether a thread stands before a segment, or comes there within a moment.
fn comes_soon(gate: &Gate) -> bool {
    for _ in 0..30 {
        if gate.is_waited_at() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    gate.is_waited_at()
}

#[test]
fn memtables_are_flushed_in_the_midst_of_a_merge_so_that_no_commit_waits_for_its_end() {
    const BASE: u64 = 8_000;
    const CHANGES: u64 = 200;
    const LAST: u64 = 60;
    /// Records in deltas that make a merge into the base due.
    const DELTAS_DUE: u64 = 16 * groups::SIZES.mem_records as u64;
    /// Segments that may be begun between a memtable that is frozen and its flush; a merge into this base begins more
    /// than twenty.
    const BEGUN_MAX: u64 = 8;
    let storage = FaultyStorage::default();
    let engine = groups::open(&storage).unwrap();
    let mut map = Map::new();
    let mut pairs: Vec<(Key, Value)> = (0..BASE).map(|n| (key(n), value(n))).collect();
    pairs.sort_unstable();
    engine.load_sorted(&pairs, &at(1)).unwrap();
    map.extend(pairs);
    let gate = storage.gate();
    let _opens = Opens(gate);
    gate.close();
    let flush_due = |seq: u64| seq - 1 > stat(&engine, "flushes") + 1;
    let (mut seq, mut begun, mut since_commit, mut flushed_in_merge, mut idle) = (1, 0, 0, 0, 0);
    loop {
        let waited_at = comes_soon(gate);
        let merging = stat(&engine, "base_records") != BASE && stat(&engine, "delta_records") >= DELTAS_DUE;
        if !flush_due(seq) {
            flushed_in_merge += u64::from(begun > 0 && merging && waited_at);
            begun = 0;
            // While a merge goes on, a memtable for every few of its segments: it has to come to its end.
            if seq < LAST && (!waited_at || since_commit >= 4) {
                let put = |n| (key(BASE / 2 + seq * CHANGES + n), Some(value(seq)));
                let changes: Vec<_> = (0..CHANGES).map(put).collect();
                seq += 1;
                // Each but the first freezes the memtable of the one before it.
                try_commit(&engine, &changes, seq, Durability::Buffered).unwrap();
                apply(&mut map, &changes);
                since_commit = 0;
                continue;
            }
        }
        if waited_at {
            begun += u64::from(flush_due(seq));
            assert!(begun <= BEGUN_MAX, "a memtable waits while segments are begun: {begun}");
            since_commit += 1;
            gate.let_one();
        } else if seq == LAST && stat(&engine, "delta_records") < DELTAS_DUE {
            break;
        } else {
            idle += 1;
            assert!(idle < 4_000, "nothing is merged");
        }
    }
    assert!(flushed_in_merge > 3, "flushed_in_merge={flushed_in_merge}");
    gate.open();
    assert_eq!(stat(&engine, "write_stalls"), 0);
    engine.settle().unwrap();
    assert!(all(&engine).unwrap() == map);
}

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
    // The one that is written, those whose memtables wait, those that wait to be used again; a record more in each.
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
    /// Commits wait at 64 runs; memtables that were frozen by then become runs as well.
    const RUNS_MAX: u64 = 66;
    let storage = FaultyStorage::default();
    let engine = groups::open(&storage).unwrap();
    let (mut map, mut runs_most) = (Map::new(), 0);
    for seq in 1..=BATCHES {
        let change = |n| (key((seq * 250 + n) % 60_000), (n % 10 != 0).then(|| value(seq + n)));
        let mut changes: Vec<_> = (0..250).map(change).collect();
        if seq % 20 == 0 {
            // Above every key there is, as a load in order has them.
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
        assert!(runs_most <= RUNS_MAX, "delta runs: {runs_most}");
        let parts = ["memtable", "directory", "filter", "page", "record_cache"];
        let held: u64 = parts.iter().map(|part| stat(&engine, &format!("memory_{part}_bytes"))).sum();
        assert!(held <= OPTIONS.memory_bytes + OPTIONS.memory_bytes / 10, "seq={seq} memory in use: {held}");
    }
    assert!(runs_most > 8, "the writer is faster than merges: runs={runs_most}");
    assert!(all(&engine).unwrap() == map);
    engine.settle().unwrap();
    assert!(all(&engine).unwrap() == map);
}

/// Keys that differ only behind their first `shared` bytes.
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
        let mut rng = Rng(3);
        let keys: Vec<Key> = (0..1000).map(|_| near(rng.below(PAIRS), shared)).collect();
        let before = stat(&engine, "get_reads");
        for key in &keys {
            assert_eq!(reader.get(key).unwrap(), map.get(key).copied(), "shared={shared}");
        }
        let reads = stat(&engine, "get_reads") - before;
        // A search over the pages of a segment, of which there are about sixteen.
        assert!(reads <= 5 * keys.len() as u64, "shared={shared} reads={reads}");
        let mut found = vec![None; keys.len()];
        reader.get_many(&keys, &mut found).unwrap();
        assert!(keys.iter().zip(&found).all(|(key, found)| map.get(key) == found.as_ref()), "shared={shared}");
    }
}
