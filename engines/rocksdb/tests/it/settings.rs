//! Settings that change where RocksDB keeps a pair or looks for it: prefixes, hash tables, batches in key order, styles
//! of compaction, and no block cache.

use std::fs;
use std::ops::ControlFlow;

use engine_api::{Durability, Engine, ErrorKind, Key, Value};
use solkv_engine_rocksdb::{Profile, RocksdbEngine, RocksdbOptions};

use crate::{PAIRS, commit, count, key, mark, pairs, profiles, tuned_with};

/// Returns pairs in key order whose keys all have different first two bytes. Every third such prefix has a pair.
fn spread() -> Vec<(Key, Value)> {
    (0..PAIRS).map(|number| (key((3 * number) << 48), key(number))).collect()
}

/// Checks gets one by one and together, and a scan that begins at a prefix without a pair.
fn check(engine: &RocksdbEngine, expected: &[(Key, Value)], label: &str) {
    let mut reader = engine.reader().unwrap();
    for (key, value) in expected {
        assert_eq!(reader.get(key).unwrap(), Some(*value), "{label}");
    }
    let keys: Vec<Key> = expected.iter().map(|(key, _)| *key).collect();
    let mut values: Vec<Option<Value>> = vec![None; keys.len()];
    reader.get_many(&keys, &mut values).unwrap();
    assert!(values.iter().zip(expected).all(|(found, (_, value))| *found == Some(*value)), "{label}");
    let absent = key(301 << 48);
    assert_eq!(reader.get(&absent).unwrap(), None, "{label}");
    let mut scanned = Vec::new();
    let mut visit = |key: &Key, value: &Value| {
        scanned.push((*key, *value));
        ControlFlow::Continue(())
    };
    reader.scan_from(&absent, &mut visit).unwrap();
    assert!(scanned == expected[101..], "{label}: scanned={}", scanned.len());
}

#[test]
fn prefixes_hide_no_pair() {
    let spread = spread();
    let (loaded, committed) = spread.split_at(spread.len() / 2);
    let hashes = tuned_with(&[
        ("prefix_extractor", "capped:2"),
        ("memtable", "hash_linkedlist:64"),
        ("allow_concurrent_memtable_write", "false"),
        ("index_type", "kHashSearch"),
    ]);
    let dir = tempfile::tempdir().unwrap();
    let engine = Box::new(RocksdbEngine::open(dir.path(), &hashes).unwrap());
    let log = fs::read_to_string(dir.path().join("LOG")).unwrap();
    assert!(log.contains("HashLinkListRepFactory"), "{log}");
    engine.load_sorted(loaded, &mark(1)).unwrap();
    commit(&engine, committed, 2);
    check(&engine, &spread, "in a file and a memtable");
    engine.settle().unwrap();
    check(&engine, &spread, "in files");
    assert_eq!(engine.checkpoint().unwrap(), mark(2));
    engine.close().unwrap();
    let engine = RocksdbEngine::open(dir.path(), &tuned_with(&[])).unwrap();
    check(&engine, &spread, "opened without prefixes");
    assert_eq!(engine.checkpoint().unwrap(), mark(2));
}

#[test]
fn a_hash_index_has_a_restart_at_every_entry() {
    let dir = tempfile::tempdir().unwrap();
    let hashes = tuned_with(&[
        ("prefix_extractor", "capped:2"),
        ("index_type", "kHashSearch"),
        ("index_block_restart_interval", "16"),
    ]);
    let error = RocksdbEngine::open(dir.path(), &hashes).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FixInput, "{error}");
    assert!(error.to_string().contains("index_block_restart_interval"), "{error}");
}

#[test]
fn a_sorted_batch_holds_the_last_change_of_each_key() {
    let dir = tempfile::tempdir().unwrap();
    let sorted = tuned_with(&[
        ("sort_batches", "true"),
        // One hint for all keys: where the key before was inserted.
        ("memtable_insert_with_hint_prefix_extractor", "capped:0"),
    ]);
    let engine = RocksdbEngine::open(dir.path(), &sorted).unwrap();
    commit(&engine, &pairs(0, 10), 1);
    let mut txn = engine.begin().unwrap();
    for number in (5..PAIRS).rev() {
        txn.put(&key(number), &key(number)).unwrap();
    }
    txn.delete(&key(7)).unwrap();
    txn.delete(&key(8)).unwrap();
    txn.put(&key(8), &key(0)).unwrap();
    assert_eq!(txn.get(&key(7)).unwrap(), None);
    txn.commit(&mark(2), Durability::Buffered).unwrap();
    let mut reader = engine.reader().unwrap();
    for (number, value) in [(4, Some(5)), (5, Some(5)), (7, None), (8, Some(0)), (PAIRS - 1, Some(PAIRS - 1))] {
        assert_eq!(reader.get(&key(number)).unwrap(), value.map(key), "{number}");
    }
    assert_eq!(count(&engine), PAIRS - 1);
    assert_eq!(engine.checkpoint().unwrap(), mark(2));
}

#[test]
fn a_store_goes_from_one_style_of_compaction_to_another() {
    let universal = tuned_with(&[("compaction_style", "kCompactionStyleUniversal")]);
    let dir = tempfile::tempdir().unwrap();
    for (round, options) in (0..).zip([universal.clone(), tuned_with(&[]), universal]) {
        let engine = Box::new(RocksdbEngine::open(dir.path(), &options).unwrap());
        commit(&engine, &pairs(round * PAIRS, (round + 1) * PAIRS), round + 1);
        engine.settle().unwrap();
        assert_eq!(count(&engine), (round + 1) * PAIRS);
        assert_eq!(engine.checkpoint().unwrap(), mark(round + 1));
        engine.close().unwrap();
    }
}

#[test]
fn a_store_needs_no_block_cache() {
    let dir = tempfile::tempdir().unwrap();
    let tuned = tuned_with(&[
        ("cache", "none"),
        ("allow_mmap_reads", "true"),
        ("rate_limiter_bytes_per_sec", "1073741824"),
        ("uncache_aggressiveness", "300"),
    ]);
    let options = RocksdbOptions { profile: Profile::Vanilla, ..tuned };
    let engine = RocksdbEngine::open(dir.path(), &options).unwrap();
    let details = engine.stats().unwrap().details;
    assert!(details.contains(&("block_cache_capacity_bytes", 0)), "{details:?}");
    engine.load_sorted(&pairs(0, PAIRS), &mark(1)).unwrap();
    commit(&engine, &pairs(PAIRS, 2 * PAIRS), 2);
    engine.settle().unwrap();
    assert_eq!(count(&engine), 2 * PAIRS);
    assert_eq!(engine.reader().unwrap().get(&key(1)).unwrap(), Some(key(0)));
}

#[test]
fn a_store_with_prefixes_scans_them_alone_whatever_the_profile_and_the_settings() {
    let others = tuned_with(&[("prefix_extractor", "capped:24")]);
    for (name, options) in profiles().into_iter().chain([("capped", others)]) {
        let dir = tempfile::tempdir().unwrap();
        let engine = RocksdbEngine::open(dir.path(), &RocksdbOptions { prefix_bytes: 16, ..options }).unwrap();
        // Every third group has no key.
        let grouped = |group: u8, n: u8| -> Key { std::array::from_fn(|at| if at < 16 { group } else { n }) };
        let groups = (0..=255).filter(|group| group % 3 != 0);
        let pairs: Vec<_> = groups.flat_map(|group| (0..20).map(move |n| (grouped(group, n), [group; 32]))).collect();
        commit(&engine, &pairs[..3000], 1);
        engine.settle().unwrap();
        commit(&engine, &pairs[3000..], 2);
        let mut reader = engine.reader().unwrap();
        for group in 0..=255 {
            for (first, prefix_bytes) in [(0, 16), (7, 16), (7, 17), (19, 20)] {
                let mut found = Vec::new();
                let visited = reader.scan_prefix(&grouped(group, first), prefix_bytes, &mut |key, _| {
                    found.push(*key);
                    ControlFlow::Continue(())
                });
                visited.unwrap();
                let last = if prefix_bytes == 16 { 20 } else { first + 1 };
                let expected: Vec<Key> = (first..last).filter(|_| group % 3 != 0).map(|n| grouped(group, n)).collect();
                assert_eq!(found, expected, "{name} group={group} first={first} bytes={prefix_bytes}");
            }
        }
    }
}
