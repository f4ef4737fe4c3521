//! What a get costs: reads of the device, counted.

use std::path::Path;

use engine_api::{BulkLoad, Engine, Key, Value};
use engine_strata::{StrataEngine, StrataOptions};

use crate::seq;
use crate::support::{key, stat};

/// Memory for all filters and directories and for a record cache, and not for pages.
const OPTIONS: StrataOptions = StrataOptions { memory_bytes: 6 << 20, disk_reserve_bytes: 1 << 20 };

fn opened(dir: &Path, mut pairs: Vec<(Key, Value)>) -> (StrataEngine, Vec<(Key, Value)>) {
    pairs.sort_unstable();
    let engine = StrataEngine::open(dir, &OPTIONS).unwrap();
    engine.load_sorted(&pairs, &seq(1)).unwrap();
    Box::new(engine).close().unwrap();
    // The memory is divided when a store is opened.
    let engine = StrataEngine::open(dir, &OPTIONS).unwrap();
    assert!(stat(&engine, "memory_record_cache_bytes") > 1 << 20 && stat(&engine, "memory_page_bytes") == 0);
    (engine, pairs)
}

#[test]
fn a_cold_get_reads_once_also_of_the_first_key_of_a_page_and_a_warm_one_not_at_all() {
    const COUNT: usize = 200_000;
    let dir = tempfile::tempdir().unwrap();
    let (engine, pairs) = opened(dir.path(), (0..COUNT as u64).map(|n| (key(n), key(!n))).collect());
    let reads = || stat(&engine, "get_reads");
    let mut reader = engine.reader().unwrap();
    // Some of them begin a page: one in 64.
    let (one, many) = pairs[1000..9000].split_at(4000);
    for round in 0..2 {
        let before = reads();
        for (key, value) in one {
            assert_eq!(reader.get(key).unwrap(), Some(*value));
        }
        assert_eq!(reads() - before, if round == 0 { 4000 } else { 0 }, "round={round}");
    }
    let keys: Vec<Key> = many.iter().map(|(key, _)| *key).collect();
    for round in 0..2 {
        let before = reads();
        let mut found = vec![None; keys.len()];
        reader.get_many(&keys, &mut found).unwrap();
        assert!(found.iter().zip(many).all(|(found, (_, value))| *found == Some(*value)));
        assert_eq!(reads() - before, if round == 0 { 4000 } else { 0 }, "round={round}");
    }
}

#[test]
fn keys_with_the_same_first_eight_bytes_take_a_search_once_and_no_read_afterwards() {
    const ALIKE: u64 = 6000;
    let dir = tempfile::tempdir().unwrap();
    let alike = |n: u64| {
        let mut key = key(n);
        key[..8].copy_from_slice(&[7; 8]);
        key
    };
    let pairs = (0..ALIKE).map(|n| (alike(n), [3; 32])).chain((0..200_000).map(|n| (key(n), [4; 32])));
    let (engine, _) = opened(dir.path(), pairs.collect());
    let reads = || stat(&engine, "get_reads");
    let mut reader = engine.reader().unwrap();
    let keys: Vec<Key> = (0..ALIKE).step_by(3).map(alike).collect();
    let (one, many) = keys.split_at(1000);
    let before = reads();
    one.iter().for_each(|key| assert_eq!(reader.get(key).unwrap(), Some([3; 32])));
    let mut found = vec![None; many.len()];
    reader.get_many(many, &mut found).unwrap();
    assert!(found.iter().all(|found| *found == Some([3; 32])));
    // About 95 pages: seven reads at most.
    assert!(reads() - before <= 7 * keys.len() as u64, "reads={}", reads() - before);
    let before = reads();
    one.iter().for_each(|key| assert_eq!(reader.get(key).unwrap(), Some([3; 32])));
    reader.get_many(many, &mut found).unwrap();
    assert_eq!(reads(), before, "the records are in the cache");
    // Absent ones beside them, with everything read that might hold them.
    for n in (ALIKE..2 * ALIKE).step_by(7) {
        assert_eq!(reader.get(&alike(n)).unwrap(), None);
    }
}
