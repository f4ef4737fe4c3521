//! Device reads of gets, counted.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use engine_api::{Durability, Engine, Key, Reader, Resident, Value};
use proptest::prelude::*;
use solkv_engine_strata::{Sizes, StrataEngine, StrataOptions};

use crate::faulty::FaultyStorage;
use crate::support::{Map, Rng, apply, at, key, stat, try_commit};
use crate::trouble::segments;
use crate::{seq, wait_for};
use solkv_engine_strata::storage::{DirStorage, Storage};

/// Enough memory for all filters and directories and for a record cache, but not for pages.
const OPTIONS: StrataOptions = StrataOptions { memory_bytes: 6 << 20, disk_reserve_bytes: 1 << 20, prefix_bytes: 32 };

fn opened(dir: &Path, mut pairs: Vec<(Key, Value)>) -> (StrataEngine, Vec<(Key, Value)>) {
    pairs.sort_unstable();
    let engine = StrataEngine::open(dir, &OPTIONS).unwrap();
    engine.load_sorted(&pairs, &seq(1)).unwrap();
    Box::new(engine).close().unwrap();
    // The memory is divided after a store was opened.
    let engine = StrataEngine::open(dir, &OPTIONS).unwrap();
    wait_for("the division", || stat(&engine, "memory_record_cache_bytes") > 1 << 20);
    assert_eq!((stat(&engine, "memory_page_bytes"), stat(&engine, "filter_planes_least")), (0, 3));
    (engine, pairs)
}

/// Opens a reader that has its buffers for many keys. The store has made room for them and divides its memory no more,
/// so the record cache keeps its pairs.
fn reader(engine: &StrataEngine) -> Box<dyn Reader + '_> {
    let mut reader = engine.reader().unwrap();
    reader.get_many(&[[0; 32]], &mut [None]).unwrap();
    let cache = || (stat(engine, "memory_owed_bytes"), stat(engine, "memory_record_cache_bytes"));
    // The store looks around once a second.
    wait_for("the memory to be divided", || {
        let before = cache();
        std::thread::sleep(Duration::from_millis(1500));
        before.0 == 0 && cache() == before
    });
    reader
}

#[test]
fn a_cold_get_reads_once_also_of_the_first_key_of_a_page_and_a_warm_one_not_at_all() {
    const COUNT: usize = 200_000;
    let dir = tempfile::tempdir().unwrap();
    let (engine, pairs) = opened(dir.path(), (0..COUNT as u64).map(|n| (key(n), key(!n))).collect());
    let reads = || stat(&engine, "get_reads");
    let mut reader = reader(&engine);
    // One in 64 of them begins a page. There are so few that the sets of the cache have room for all, whatever the
    // seed.
    let (one, many) = pairs[1000..3000].split_at(1000);
    for round in 0..2 {
        let before = reads();
        for (key, value) in one {
            let expected = if round == 0 { Resident::WouldRead } else { Resident::Found(*value) };
            assert_eq!(reader.get_resident(key), expected, "round={round}");
            assert_eq!(reader.get(key).unwrap(), Some(*value));
        }
        assert_eq!(reads() - before, if round == 0 { 1000 } else { 0 }, "round={round}");
    }
    let keys: Vec<Key> = many.iter().map(|(key, _)| *key).collect();
    for round in 0..2 {
        let before = reads();
        let mut found = vec![None; keys.len()];
        reader.get_many(&keys, &mut found).unwrap();
        assert!(found.iter().zip(many).all(|(found, (_, value))| *found == Some(*value)));
        assert_eq!(reads() - before, if round == 0 { 1000 } else { 0 }, "round={round}");
    }
}

#[test]
fn keys_with_the_same_first_bytes_are_read_once_like_any_other() {
    const ALIKE: u64 = 6000;
    for shared in [8, 16, 25] {
        let dir = tempfile::tempdir().unwrap();
        let alike = |n: u64| {
            let mut key = key(n);
            key[..shared].fill(7);
            key
        };
        let pairs = (0..ALIKE).map(|n| (alike(n), [3; 32])).chain((0..200_000).map(|n| (key(n), [4; 32])));
        let (engine, _) = opened(dir.path(), pairs.collect());
        let reads = || stat(&engine, "get_reads");
        let mut reader = reader(&engine);
        let keys: Vec<Key> = (0..ALIKE).step_by(3).map(alike).collect();
        let (one, many) = keys.split_at(1000);
        let before = reads();
        one.iter().for_each(|key| assert_eq!(reader.get(key).unwrap(), Some([3; 32])));
        let mut found = vec![None; many.len()];
        reader.get_many(many, &mut found).unwrap();
        assert!(found.iter().all(|found| *found == Some([3; 32])));
        assert_eq!(reads() - before, keys.len() as u64, "shared={shared}");
        // The filters let one in 1700 absent keys through.
        let absent: Vec<Key> = (ALIKE..2 * ALIKE).step_by(7).map(alike).collect();
        let before = reads();
        absent.iter().for_each(|key| assert_eq!(reader.get(key).unwrap(), None));
        assert!(reads() - before <= 20, "shared={shared} reads={}", reads() - before);
    }
}

#[test]
fn a_scan_of_a_prefix_reads_only_where_the_prefix_is() {
    const GROUPS: u64 = 20_000;
    let dir = tempfile::tempdir().unwrap();
    let options = StrataOptions { prefix_bytes: 16, ..OPTIONS };
    let grouped = |group: u64, n: u8| -> Key { std::array::from_fn(|at| if at < 16 { key(group)[at] } else { n }) };
    let sizes = Sizes { mem_records: 1000, segment_records: 50_000, wal_bytes: 1 << 20 };
    let storage = || Arc::new(DirStorage::open(dir.path()).unwrap());
    let engine = StrataEngine::open_sized(storage(), &options, sizes).unwrap();
    let mut pairs: Vec<_> = (0..GROUPS).flat_map(|group| (0..10).map(move |n| (grouped(group, n), [n; 32]))).collect();
    pairs.sort_unstable();
    engine.load_sorted(&pairs, &seq(1)).unwrap();
    // Three delta runs, whose prefixes are new but for one in five. Four would be merged.
    for batch in 0..3 {
        let group = |n: u64| if n.is_multiple_of(5) { n } else { GROUPS + batch * 1000 + n };
        let changes: Vec<_> = (0..900).map(|n| (grouped(group(n), 77), Some([batch as u8; 32]))).collect();
        try_commit(&engine, &changes, 2 + batch, Durability::Buffered).unwrap();
    }
    Box::new(engine).close().unwrap();
    // What was created with a prefix has it, whatever it is opened with.
    let engine = StrataEngine::open_sized(storage(), &OPTIONS, sizes).unwrap();
    wait_for("the last flush", || stat(&engine, "memtable_records") == 0);
    // The opening writes what the last flushes have not into one run.
    wait_for("the filters", || stat(&engine, "filter_planes_least") == 3);
    assert!((1..=3).contains(&stat(&engine, "delta_runs")) && stat(&engine, "memory_page_bytes") < 1 << 20);
    let mut reader = reader(&engine);
    let mut scan = |group: u64| {
        let before = stat(&engine, "run_read_bytes");
        let mut found = Vec::new();
        let visited = reader.scan_prefix(&grouped(group, 0), 16, &mut |key, _| {
            found.push(key[16]);
            ControlFlow::Continue(())
        });
        visited.unwrap();
        (found, (stat(&engine, "run_read_bytes") - before) / 4096)
    };
    let (mut pages, mut absent_pages) = (0, 0);
    for group in (1..900).step_by(5) {
        let (found, read) = scan(group);
        assert_eq!(found, (0..10).collect::<Vec<_>>(), "group={group}");
        pages += read;
        let (found, read) = scan(100 * GROUPS + group);
        assert!(found.is_empty());
        absent_pages += read;
    }
    // The second page of a group that two pages hold comes with the three that follow it.
    assert!((180..=180 * 2).contains(&pages) && absent_pages <= 20, "pages={pages} absent_pages={absent_pages}");
    assert_eq!(scan(5).0, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 77]);
}

/// Sizes of few records, so that few batches make runs of every kind.
const PIECES: Sizes = Sizes { mem_records: 64, segment_records: 400, wal_bytes: 1 << 20 };

/// Returns a key of a small number. Many of these keys share their first eight bytes with others.
fn crowded(n: u64) -> Key {
    let mut key = key(n);
    if n.is_multiple_of(3) {
        key[..8].copy_from_slice(&[9; 8]);
    }
    key
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_batch_of_gets_is_one_get_after_the_other(
        seed in any::<u64>(), batches in 1u64..40, in_memory in any::<bool>(), settled in any::<bool>(),
    ) {
        let memory_bytes = if in_memory { 16 << 20 } else { 200 << 10 };
        let options = StrataOptions { memory_bytes, disk_reserve_bytes: 0, prefix_bytes: 32 };
        let engine =
            StrataEngine::open_sized(Arc::new(FaultyStorage::default()), &options, PIECES).expect("an empty store");
        let (mut map, mut rng) = (Map::new(), Rng::new(seed));
        for seq in 1..=batches {
            let change = |rng: &mut Rng| (crowded(rng.below(3000)), (rng.below(4) != 0).then(|| key(rng.next())));
            let changes: Changes = (0..60).map(|_| change(&mut rng)).collect();
            let changes: Vec<_> = changes.into_iter().collect();
            try_commit(&engine, &changes, seq, Durability::Buffered).expect("a commit");
            apply(&mut map, &changes);
            if settled && seq == batches / 2 {
                engine.settle().expect("a merge");
            }
        }
        let mut reader = engine.reader().expect("a reader");
        for count in [0, 1, 63, 64, 65, 300] {
            // Half of the keys are absent, and many are asked for twice.
            let keys: Vec<Key> = (0..count).map(|_| crowded(rng.below(6000) / 2 * 2)).collect();
            let keys: Vec<Key> = keys.iter().chain(keys.iter().rev().take(40)).copied().collect();
            // Former values of the slots must not count as answers.
            let mut found = vec![Some([0xee; 32]); keys.len()];
            reader.get_many(&keys, &mut found).expect("a batch");
            for (key, found) in keys.iter().zip(found) {
                prop_assert_eq!(found, map.get(key).copied());
                prop_assert_eq!(reader.get(key).expect("a get"), found);
            }
        }
    }
}

type Changes = std::collections::BTreeMap<Key, Option<Value>>;

#[test]
fn a_merge_into_the_base_keeps_the_records_that_it_does_not_change_in_the_cache() {
    const COUNT: u64 = 200_000;
    let storage = FaultyStorage::default();
    let sizes = Sizes { mem_records: 2000, segment_records: 20_000, wal_bytes: 4 << 20 };
    let mut pairs: Vec<(Key, Value)> = (0..COUNT).map(|n| (key(n), key(!n))).collect();
    pairs.sort_unstable();
    let open = || StrataEngine::open_sized(Arc::new(storage.clone()), &OPTIONS, sizes).unwrap();
    let engine = open();
    engine.load_sorted(&pairs, &at(1)).unwrap();
    Box::new(engine).close().unwrap();
    let engine = open();
    wait_for("the division", || stat(&engine, "memory_record_cache_bytes") > 0);
    assert_eq!(stat(&engine, "memory_page_bytes"), 0);
    let (reads, mut reader) = (|| stat(&engine, "get_reads"), engine.reader().unwrap());
    let hot = 0..2000;
    // A reader that stays on an older snapshot.
    let mut old = engine.reader().unwrap();
    for n in hot.clone() {
        assert_eq!(reader.get(&key(n)).unwrap(), Some(key(!n)));
    }
    // Some keys are changed and some removed; the rest of the batch is new.
    let change = |n: u64| match n % 20 {
        0 => Some((key(n), Some([1; 32]))),
        10 => Some((key(n), None)),
        _ => None,
    };
    let changes: Vec<_> =
        hot.clone().filter_map(change).chain((COUNT..COUNT + 1000).map(|n| (key(n), Some([2; 32])))).collect();
    try_commit(&engine, &changes, 2, Durability::Buffered).unwrap();
    engine.settle().unwrap();
    assert_eq!(stat(&engine, "delta_runs"), 0);
    // Pairs that the older snapshot reads from replaced segments must not be cached for others.
    for n in hot.clone().filter(|n| change(*n).is_some()) {
        assert_eq!(old.get(&key(n)).unwrap(), Some(key(!n)), "older: n={n}");
    }
    reader.refresh().unwrap();
    let before = reads();
    for n in hot.clone() {
        let expected = change(n).map_or(Some(key(!n)), |(_, value)| value);
        assert_eq!(reader.get(&key(n)).unwrap(), expected, "n={n}");
    }
    // One of twenty was changed and is read again. A part of the cache may have made room for the merge.
    assert!(reads() - before < 900, "reads={} of {}", reads() - before, hot.end);
    // The older snapshot must not get newer values.
    for _ in 0..2 {
        for n in hot.clone() {
            assert_eq!(old.get(&key(n)).unwrap(), Some(key(!n)), "older: n={n}");
            let expected = change(n).map_or(Some(key(!n)), |(_, value)| value);
            assert_eq!(reader.get(&key(n)).unwrap(), expected, "n={n}");
        }
    }
}

/// A step of a merge into the base that was cut short when the manifest was lost leaves a base that overlaps. The repair
/// puts its segments into delta runs.
#[test]
fn a_reader_that_stays_does_not_bring_pairs_back_that_were_changed_after_a_repair() {
    const COUNT: u64 = 200_000;
    let storage = FaultyStorage::default();
    let sizes = Sizes { mem_records: 2000, segment_records: 20_000, wal_bytes: 4 << 20 };
    let mut pairs: Vec<(Key, Value)> = (0..COUNT).map(|n| (key(n), key(!n))).collect();
    pairs.sort_unstable();
    let engine = StrataEngine::open_sized(Arc::new(storage.clone()), &OPTIONS, sizes).unwrap();
    engine.load_sorted(&pairs, &at(1)).unwrap();
    drop(engine);
    // A group of the base becomes several segments.
    let few = Sizes { segment_records: 5000, ..sizes };
    let engine = StrataEngine::open_sized(Arc::new(storage.clone()), &OPTIONS, few).unwrap();
    let holds_the_old_base = engine.reader().unwrap();
    let changes: Vec<_> = (COUNT..COUNT + 100).map(|n| (key(n), Some([2; 32]))).collect();
    try_commit(&engine, &changes, 2, Durability::Buffered).unwrap();
    engine.settle().unwrap();
    let copy = storage.copy();
    drop(holds_the_old_base);
    copy.remove("MANIFEST").unwrap();
    copy.remove(segments(&copy).last().unwrap()).unwrap();
    let as_storage: Arc<dyn Storage> = Arc::new(copy.clone());
    let repaired = StrataEngine::repair_on(&as_storage).unwrap();
    assert!(repaired.lost.iter().any(|line| line.contains("overlap")), "{:?}", repaired.lost);

    let engine = StrataEngine::open_sized(Arc::new(copy), &OPTIONS, sizes).unwrap();
    wait_for("the division", || stat(&engine, "memory_record_cache_bytes") > 0);
    assert_eq!(stat(&engine, "memory_page_bytes"), 0);
    let mut old = engine.reader().unwrap();
    let changes: Vec<_> = (0..500).map(|n| (key(n), Some([3; 32]))).collect();
    try_commit(&engine, &changes, 3, Durability::Buffered).unwrap();
    engine.settle().unwrap();
    let mut fresh = engine.reader().unwrap();
    for n in 0..500 {
        assert_eq!(old.get(&key(n)).unwrap(), Some(key(!n)), "older: n={n}");
        assert_eq!(fresh.get(&key(n)).unwrap(), Some([3; 32]), "n={n}");
    }
}
