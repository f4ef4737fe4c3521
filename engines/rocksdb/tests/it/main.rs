//! Behaviour particular to RocksDB: settings that reach the files, sorted files, leftovers of an interrupted load.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

mod manifest;
mod replay;
mod settings;

use std::fs;
use std::path::{Path, PathBuf};

use engine_api::{Checkpoint, Durability, Engine, ErrorKind, Key, Value};
use solkv_engine_rocksdb::{Profile, RocksdbEngine, RocksdbOptions};

const PAIRS: u64 = 5000;

fn key(number: u64) -> Key {
    let mut key = [7; 32];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}

fn pairs(from: u64, to: u64) -> Vec<(Key, Value)> {
    (from..to).map(|number| (key(number), key(number ^ 1))).collect()
}

fn mark(seq: u64) -> Checkpoint {
    Checkpoint::new(seq, &[])
}

fn small() -> RocksdbOptions {
    RocksdbOptions { cache_bytes: 8 << 20, ..Default::default() }
}

fn profiles() -> [(&'static str, RocksdbOptions); 4] {
    let bloom = RocksdbOptions { bloom_bits: Some(10), ..small() };
    let memory = RocksdbOptions { profile: Profile::Memory, ..bloom.clone() };
    let tuned = RocksdbOptions { profile: Profile::Tuned, ..bloom.clone() };
    [("rocksdb", small()), ("rocksdb_bloom", bloom), ("rocksdb_memory", memory), ("rocksdb_tuned", tuned)]
}

/// Returns the tuned profile with these settings in place of its own.
fn tuned_with(set: &[(&str, &str)]) -> RocksdbOptions {
    let set = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    RocksdbOptions { profile: Profile::Tuned, bloom_bits: Some(10), set, ..small() }
}

fn commit(engine: &RocksdbEngine, pairs: &[(Key, Value)], seq: u64) {
    let mut txn = engine.begin().unwrap();
    for (key, value) in pairs {
        txn.put(key, value).unwrap();
    }
    txn.commit(&mark(seq), Durability::Buffered).unwrap();
}

fn count(engine: &RocksdbEngine) -> u64 {
    let mut count = 0;
    engine
        .reader()
        .unwrap()
        .scan(&mut |_, _| {
            count += 1;
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    count
}

/// Returns RocksDB's newest record of the options in force.
fn options_file(dir: &Path) -> String {
    let newest = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("OPTIONS-"))
        .max()
        .unwrap();
    fs::read_to_string(newest).unwrap()
}

#[test]
fn a_store_with_an_older_checkpoint_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    commit(&RocksdbEngine::open(dir.path(), &small()).unwrap(), &pairs(0, 10), 1);
    let mut version_1 = [0; 64];
    version_1[0] = 1;
    rocksdb::DB::open_default(dir.path()).unwrap().put([0], version_1).unwrap();
    let error = RocksdbEngine::open(dir.path(), &small()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::FixInput);
    assert!(error.to_string().contains("an older solkv: version=1 known=2: load the store again"), "{error}");
}

#[test]
fn profiles_open_each_others_files() {
    let dir = tempfile::tempdir().unwrap();
    // Vanilla's label depends on the files that it finds, all of which the previous opening has rewritten.
    let first = ["rocksdb", "rocksdb", "rocksdb_memory", "rocksdb_tuned"];
    let labels = first.into_iter().chain(["rocksdb_bloom", "rocksdb", "rocksdb_memory", "rocksdb_tuned"]);
    let opened = profiles().into_iter().chain(profiles()).zip(labels);
    for (seq, ((_, options), label)) in (0..).zip(opened) {
        let engine = Box::new(RocksdbEngine::open(dir.path(), &options).unwrap());
        assert_eq!(engine.label(), label, "{seq}");
        assert_eq!(engine.checkpoint().unwrap(), mark(seq));
        assert_eq!(count(&engine), seq * PAIRS);
        commit(&engine, &pairs(seq * PAIRS, (seq + 1) * PAIRS), seq + 1);
        engine.settle().unwrap();
        assert_eq!(engine.reader().unwrap().get(&key(0)).unwrap(), Some(key(1)));
        assert_eq!(engine.reader().unwrap().get(&[0xff; 32]).unwrap(), None);
        engine.close().unwrap();
    }
}

#[test]
fn settings_reach_rocksdb() {
    for (label, options) in profiles() {
        let dir = tempfile::tempdir().unwrap();
        let engine = RocksdbEngine::open(dir.path(), &options).unwrap();
        let details = engine.stats().unwrap().details;
        assert!(details.contains(&("block_cache_capacity_bytes", 8 << 20)), "{label}: {details:?}");
        let text = options_file(dir.path());
        let has = |setting: &str| text.lines().any(|line| line.trim() == setting);
        assert!(has("compression=kNoCompression"), "{label}");
        assert!(has("wal_recovery_mode=kPointInTimeRecovery"), "{label}");
        assert_eq!(has("filter_policy=nullptr"), options.bloom_bits.is_none(), "{label}: {text}");
        let not_vanilla = options.profile != Profile::Vanilla;
        for setting in [
            "data_block_index_type=kDataBlockBinaryAndHash",
            "index_block_search_type=kAuto",
            "uniform_cv_threshold=0.200000",
        ] {
            assert_eq!(has(setting), not_vanilla, "{label}: {setting}: {text}");
        }
        let tuned = options.profile == Profile::Tuned;
        for setting in
            ["filter_policy=ribbonfilter", "cache_index_and_filter_blocks=true", "target_file_size_base=268435456"]
        {
            assert_eq!(has(setting), tuned, "{label}: {setting}: {text}");
        }
    }
}

#[test]
fn a_store_beyond_the_memory_limit_is_read_directly() {
    let dir = tempfile::tempdir().unwrap();
    let tuned = RocksdbOptions { profile: Profile::Tuned, bloom_bits: Some(10), memory_limit_bytes: 4096, ..small() };
    for direct in [false, true] {
        let engine = RocksdbEngine::open(dir.path(), &tuned).unwrap();
        assert!(options_file(dir.path()).contains(&format!("use_direct_reads={direct}")));
        commit(&engine, &pairs(0, PAIRS), 1);
        engine.settle().unwrap();
        assert_eq!(count(&engine), PAIRS);
    }
}

#[test]
fn what_is_set_comes_before_the_profile() {
    let dir = tempfile::tempdir().unwrap();
    let other =
        tuned_with(&[("max_open_files", "99"), ("block_size", "8192"), ("cache", "lru"), ("block_size", "2048")]);
    drop(RocksdbEngine::open(dir.path(), &other).unwrap());
    let text = options_file(dir.path());
    for setting in [
        "max_open_files=99",
        "block_size=2048",
        "target_file_size_base=268435456",
        "cache_index_and_filter_blocks=true",
    ] {
        assert!(text.contains(setting), "{setting}: {text}");
    }
    // A value that RocksDB refuses, an unknown kind of cache, and a name that would change the durability of a commit.
    for wrong in [
        ("max_open_files", "many"),
        ("cache", "fifo"),
        ("row_cache", "much"),
        ("manual_wal_flush", "true"),
        ("recycle_log_file_num", "4"),
        ("compaction_style", "kCompactionStyleFIFO"),
        ("checksum", "kNoChecksum"),
        ("cache", "none"),
        ("prefix_extractor", "fixed:8"),
        ("rate_limiter_bytes_per_sec", "0"),
        ("sort_batches", "maybe"),
        ("block_size", "1;manual_wal_flush=true"),
        ("block_size", "1};manual_wal_flush=true;{"),
    ] {
        let error = RocksdbEngine::open(dir.path(), &tuned_with(&[wrong])).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FixInput, "{wrong:?}: {error}");
        assert!(error.to_string().contains(wrong.0), "{wrong:?}: {error}");
    }
}

#[test]
fn a_row_cache_never_shows_a_replaced_value() {
    let dir = tempfile::tempdir().unwrap();
    let engine = RocksdbEngine::open(dir.path(), &tuned_with(&[("row_cache", "1048576")])).unwrap();
    let log = fs::read_to_string(dir.path().join("LOG")).unwrap();
    assert!(log.contains("Options.row_cache: 1048576"), "{log}");
    let of_round = |round: u64| (0..PAIRS).map(|number| (key(number), key(number ^ round))).collect::<Vec<_>>();
    for round in 1..4 {
        let before = engine.reader().unwrap();
        commit(&engine, &of_round(round), round);
        engine.settle().unwrap();
        // Twice, so that the second get finds its pair in the cache.
        for mut reader in [engine.reader().unwrap(), engine.reader().unwrap()] {
            for (key, value) in of_round(round) {
                assert_eq!(reader.get(&key).unwrap(), Some(value));
            }
        }
        let old = (round > 1).then(|| key(round - 1));
        assert_eq!({ before }.get(&key(0)).unwrap(), old, "a reader sees the commit at its opening");
    }
}

#[test]
fn filters_and_index_stay_in_a_cache_that_has_room_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let of = |cache_bytes: u64| RocksdbOptions {
        profile: Profile::Tuned,
        bloom_bits: Some(10),
        cache_bytes,
        ..Default::default()
    };
    let is_pinned = || options_file(dir.path()).contains("unpartitioned_pinning=kAll");
    let engine = Box::new(RocksdbEngine::open(dir.path(), &of(8 << 20)).unwrap());
    assert!(!is_pinned(), "a new store may become any size");
    engine.load_sorted(&pairs(0, 20 * PAIRS), &mark(1)).unwrap();
    engine.close().unwrap();
    // 100,000 pairs of 76 bytes, and 10 bits of each for filter and index: 125 KB. The log and the manifest count as
    // well.
    for (cache_bytes, pinned) in [(8 << 20, true), (1 << 20, true), (120 << 10, false)] {
        let engine = Box::new(RocksdbEngine::open(dir.path(), &of(cache_bytes)).unwrap());
        assert_eq!(is_pinned(), pinned, "cache_bytes={cache_bytes}");
        assert_eq!(count(&engine), 20 * PAIRS);
        engine.close().unwrap();
    }
}

#[test]
fn filters_are_partitioned_with_the_index_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let partitions = ("partition_filters", "true");
    let error = RocksdbEngine::open(dir.path(), &tuned_with(&[partitions])).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FixInput, "{error}");
    let both = tuned_with(&[partitions, ("index_type", "kTwoLevelIndexSearch")]);
    let engine = RocksdbEngine::open(dir.path(), &both).unwrap();
    assert!(options_file(dir.path()).contains("partition_filters=true"));
    engine.load_sorted(&pairs(0, 20 * PAIRS), &mark(1)).unwrap();
    assert_eq!(count(&engine), 20 * PAIRS);
    drop(engine);
    // The profile's own files are added to those with partitions.
    let engine = RocksdbEngine::open(dir.path(), &tuned_with(&[])).unwrap();
    assert!(options_file(dir.path()).contains("partition_filters=false"));
    assert_eq!(count(&engine), 20 * PAIRS);
}

#[test]
fn interrupted_loads_go_on_where_they_stopped() {
    for (label, options) in profiles() {
        let dir = tempfile::tempdir().unwrap();
        let engine = RocksdbEngine::open(dir.path(), &options).unwrap();
        engine.load_sorted(&pairs(0, PAIRS), &mark(1)).unwrap();
        drop(engine);
        fs::create_dir_all(dir.path().join("ingest")).unwrap();
        fs::write(dir.path().join("ingest/0.sst"), b"cut short").unwrap();
        let engine = RocksdbEngine::open(dir.path(), &options).unwrap();
        assert!(!dir.path().join("ingest").exists(), "{label}");
        // The pairs were ingested, but the checkpoint was not recorded: the same chunk, and a longer one with the same
        // start.
        engine.load_sorted(&pairs(0, PAIRS), &mark(2)).unwrap();
        engine.load_sorted(&pairs(PAIRS / 2, 2 * PAIRS), &mark(3)).unwrap();
        assert_eq!(count(&engine), 2 * PAIRS, "{label}");
        // Another value, or keys beyond the chunk, show that it is not the chunk that was loaded.
        let mut other = pairs(0, 2 * PAIRS);
        other[7].1 = [9; 32];
        for chunk in [other, pairs(0, PAIRS)] {
            assert_eq!(engine.load_sorted(&chunk, &mark(4)).unwrap_err().kind(), ErrorKind::FixInput, "{label}");
        }
        assert_eq!(engine.checkpoint().unwrap(), mark(3));
    }
}

#[test]
fn a_reader_does_not_see_files_taken_in_later() {
    let dir = tempfile::tempdir().unwrap();
    let engine = RocksdbEngine::open(dir.path(), &small()).unwrap();
    let mut reader = engine.reader().unwrap();
    engine.load_sorted(&pairs(0, PAIRS), &mark(1)).unwrap();
    assert_eq!(reader.get(&key(0)).unwrap(), None);
    assert_eq!(reader.checkpoint().unwrap(), Checkpoint::default());
    reader.refresh().unwrap();
    assert_eq!(reader.get(&key(0)).unwrap(), Some(key(1)));
    assert_eq!(reader.checkpoint().unwrap(), mark(1));
}

#[test]
fn a_second_opening_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _engine = RocksdbEngine::open(dir.path(), &small()).unwrap();
    let error = RocksdbEngine::open(dir.path(), &small()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::FixInput, "{error}");
}

#[test]
fn damage_is_told_from_input() {
    let dir = tempfile::tempdir().unwrap();
    drop(RocksdbEngine::open(dir.path(), &small()).unwrap());
    fs::write(dir.path().join("CURRENT"), b"garbage").unwrap();
    let error = RocksdbEngine::open(dir.path(), &small()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::DataDamaged, "{error}");
}

/// Returns the store's only file of sorted pairs.
fn sorted_file(dir: &Path) -> PathBuf {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|ending| ending == "sst")).collect();
    files.sort();
    files.remove(0)
}

/// Returns the offsets at which 64 bytes are inverted: all over the data, and densely at the end, where filters and
/// indexes are.
fn places(bytes: usize) -> impl Iterator<Item = usize> {
    let dense = bytes - 200_000.min(bytes);
    (0..dense).step_by(50_021).chain((dense..bytes - 64).step_by(977))
}

#[test]
fn a_scrub_finds_inverted_bytes_wherever_they_are() {
    for (label, options) in profiles() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Box::new(RocksdbEngine::open(dir.path(), &options).unwrap());
        engine.load_sorted(&pairs(0, 40_000), &mark(1)).unwrap();
        engine.close().unwrap();
        let file = sorted_file(dir.path());
        let sound = fs::read(&file).unwrap();
        let mut found = 0;
        for place in places(sound.len()) {
            let mut damaged = sound.clone();
            damaged[place..place + 64].iter_mut().for_each(|byte| *byte = !*byte);
            fs::write(&file, &damaged).unwrap();
            let scrubbed = RocksdbEngine::open_read_only(dir.path(), &options).and_then(|mut engine| engine.scrub());
            let error = scrubbed.err().unwrap_or_else(|| panic!("{label}: unnoticed at {place} of {}", sound.len()));
            assert_eq!(error.kind(), ErrorKind::DataDamaged, "{label}: {place}: {error}");
            found += 1;
        }
        assert!(found > 100, "{label}");
        fs::write(&file, &sound).unwrap();
        let mut engine = RocksdbEngine::open(dir.path(), &options).unwrap();
        assert_eq!(engine.scrub().unwrap(), 40_000, "{label}");
    }
}

#[test]
fn the_label_says_what_the_files_have() {
    let [(_, plain), (_, bloom), ..] = profiles();
    for (made_with, label) in [(plain.clone(), "rocksdb"), (bloom.clone(), "rocksdb_bloom")] {
        let dir = tempfile::tempdir().unwrap();
        let engine = Box::new(RocksdbEngine::open(dir.path(), &made_with).unwrap());
        assert_eq!(engine.label(), label);
        engine.load_sorted(&pairs(0, PAIRS), &mark(1)).unwrap();
        engine.close().unwrap();
        for opened_with in [&plain, &bloom] {
            assert_eq!(RocksdbEngine::open(dir.path(), opened_with).unwrap().label(), label);
            assert_eq!(RocksdbEngine::open_read_only(dir.path(), opened_with).unwrap().label(), label);
        }
    }
}
