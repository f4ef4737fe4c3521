//! Memory of a store: filters stay while it grows, and all of it stays within the budget.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use engine_api::{Durability, Engine, Key, Value};
use solkv_engine_strata::{Sizes, StrataEngine, StrataOptions};

use crate::faulty::FaultyStorage;
use crate::support::{at, key, stat, try_commit, value};
use crate::wait_for;

/// Sizes of the small stores.
const SIZES: Sizes = Sizes { mem_records: 2 << 10, segment_records: 32 << 10, wal_bytes: 4 << 20 };

fn open(storage: &FaultyStorage, memory_bytes: u64) -> StrataEngine {
    let options = StrataOptions { memory_bytes, disk_reserve_bytes: 0, prefix_bytes: 32 };
    StrataEngine::open_sized(std::sync::Arc::new(storage.clone()), &options, SIZES).unwrap()
}

fn commit(engine: &StrataEngine, keys: impl Iterator<Item = u64>, seq: u64) {
    let changes: Vec<(Key, Option<Value>)> = keys.map(|n| (key(n), Some(value(n)))).collect();
    try_commit(engine, &changes, seq, Durability::Buffered).unwrap();
}

/// Returns the device reads for 2000 gets of absent keys.
fn absent_reads(engine: &StrataEngine) -> u64 {
    let before = stat(engine, "get_reads");
    let mut reader = engine.reader().unwrap();
    (0..2000).for_each(|n| assert_eq!(reader.get(&key(1 << 40 | n)).unwrap(), None));
    stat(engine, "get_reads") - before
}

/// Grows a store by `more` keys while it is open, and expects the same filters as after a new opening of that store.
#[track_caller]
fn assert_grows_with_its_filters(first: u64, more: u64, memory_bytes: u64) {
    let storage = FaultyStorage::default();
    if first > 0 {
        let pairs: BTreeSet<(Key, Value)> = (0..first).map(|n| (key(n), value(n))).collect();
        let engine = open(&storage, memory_bytes);
        engine.load_sorted(&pairs.into_iter().collect::<Vec<_>>(), &at(1)).unwrap();
        Box::new(engine).close().unwrap();
    }
    let engine = open(&storage, memory_bytes);
    if first > 0 {
        // The record cache has what the filters will need.
        wait_for("the record cache", || stat(&engine, "memory_record_cache_bytes") > 0);
        assert_eq!(stat(&engine, "filter_planes_least"), 3);
    }
    for (seq, n) in (first..first + more).step_by(1000).enumerate() {
        commit(&engine, n..n + 1000, seq as u64 + 2);
    }
    engine.settle().unwrap();
    let (planes, reads) = (stat(&engine, "filter_planes_least"), absent_reads(&engine));
    assert_eq!(stat(&engine, "memory_owed_bytes"), 0);
    Box::new(engine).close().unwrap();
    let again = open(&storage, memory_bytes);
    wait_for("as many filters as before", || planes == stat(&again, "filter_planes_least"));
    assert!(planes >= 2 && reads <= 20, "planes={planes} reads={reads} of 2000");
}

#[test]
fn a_store_that_grows_takes_its_filters_from_the_record_cache() {
    assert_grows_with_its_filters(400_000, 200_000, 3 << 20);
}

#[test]
fn a_store_that_was_opened_empty_takes_its_filters_from_the_pages() {
    assert_grows_with_its_filters(0, 250_000, 1 << 20);
}

#[test]
fn pages_give_way_to_filters_and_come_back_with_memory() {
    let storage = FaultyStorage::default();
    let engine = open(&storage, 8 << 20);
    (0..50).for_each(|n| commit(&engine, n * 1000..(n + 1) * 1000, n + 1));
    engine.settle().unwrap();
    let mut reader = engine.reader().unwrap();
    let mut sum = || {
        reader.refresh().unwrap();
        let mut pairs = 0;
        let mut count = |_: &Key, _: &Value| {
            pairs += 1;
            ControlFlow::Continue(())
        };
        reader.scan(&mut count).unwrap();
        pairs
    };
    assert_eq!(sum(), 50_000);
    assert!(stat(&engine, "memory_page_bytes") > 3 << 20, "all pages are in memory");
    (50..300).for_each(|n| commit(&engine, n * 1000..(n + 1) * 1000, n + 1));
    engine.settle().unwrap();
    // 20 MB of pages: not even half of them fit.
    assert_eq!(sum(), 300_000);
    let waits = || stat(&engine, "memory_page_bytes") > 0 || stat(&engine, "filter_planes_least") < 3;
    for _ in 0..1000 {
        if !waits() {
            break;
        }
        sum();
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!((stat(&engine, "memory_page_bytes"), stat(&engine, "filter_planes_least")), (0, 3));
    assert!(stat(&engine, "memory_record_cache_bytes") > 2 << 20);
}

#[test]
fn an_old_reader_does_not_make_the_store_give_away_memory_that_the_reader_holds() {
    let storage = FaultyStorage::default();
    let engine = open(&storage, 4_500_000);
    let pairs: BTreeSet<(Key, Value)> = (0..50_000).map(|n| (key(n), value(n))).collect();
    engine.load_sorted(&pairs.into_iter().collect::<Vec<_>>(), &at(1)).unwrap();
    wait_for("room for all pages", || stat(&engine, "memory_page_bytes") > 3 << 20);
    let pages = stat(&engine, "memory_page_bytes");
    let mut reader = engine.reader().unwrap();
    reader.scan(&mut |_, _| ControlFlow::Continue(())).unwrap();
    // The deltas need more memory than is left, and the base is not merged yet.
    (0..12).for_each(|n| commit(&engine, 50_000 + n * 1000..50_000 + (n + 1) * 1000, n + 2));
    for _ in 0..200 {
        std::thread::sleep(Duration::from_millis(10));
        assert!(stat(&engine, "memory_page_bytes") >= pages, "pages that the reader holds stay");
    }
    assert_eq!(stat(&engine, "base_merges_begun"), 0);
    assert_eq!(reader.get(&key(1)).unwrap(), Some(value(1)));
    drop(reader);
    wait_for("filters, which need that memory more", || stat(&engine, "filter_planes_least") > 0);
}

#[test]
fn readers_keep_their_buffers_and_flushes_and_merges_keep_their_memory() {
    let storage = FaultyStorage::default();
    let engine = open(&storage, 8 << 20);
    commit(&engine, 0..1000, 1);
    engine.settle().unwrap();
    let before = stat(&engine, "memory_work_bytes");
    let keys: Vec<Key> = (0..100).map(key).collect();
    let mut readers: Vec<_> = (0..8).map(|_| engine.reader().unwrap()).collect();
    for reader in &mut readers {
        reader.get_many(&keys, &mut vec![None; keys.len()]).unwrap();
    }
    wait_for("no more work than before", || stat(&engine, "memory_work_bytes") <= before);
}

const MEMORY: &str = "STRATA_TEST_MEMORY_MIB";
const PAIRS: &str = "STRATA_TEST_PAIRS";

/// Returns the anonymous memory of this process in bytes.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Runs [`child`] and expects it to stay within the promised memory.
#[track_caller]
fn assert_stays_within(memory_mib: u64, pairs: u64) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["memory::child", "--exact", "--ignored", "--nocapture"]);
    let output = child.env(MEMORY, memory_mib.to_string()).env(PAIRS, pairs.to_string()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{said}");
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let most: Vec<u64> =
        said.split("most_bytes=").skip(1).map(|at| at.split(' ').next().unwrap().parse().unwrap()).collect();
    assert_eq!(most.len(), 4, "{said}");
    let budget = memory_mib << 20;
    let promised = budget + (budget / 10).max(16 << 20);
    assert!(most.iter().all(|most| *most <= promised), "promised={promised} {said}");
    assert!(most.iter().any(|most| *most > budget / 2), "the memory is not even used: {said}");
}

#[test]
fn anonymous_memory_stays_within_16_mib_and_16_more() {
    assert_stays_within(16, 400_000);
}

#[test]
fn anonymous_memory_stays_within_64_mib_and_16_more() {
    assert_stays_within(64, 500_000);
}

#[test]
#[ignore = "a minute in a release build: cargo test --release -p solkv-engine-strata --test it memory:: -- --ignored --skip child"]
fn anonymous_memory_stays_within_640_mib_and_a_tenth() {
    assert_stays_within(640, 12_000_000);
}

#[test]
#[ignore = "half an hour in a release build, and 10 GB of disk"]
fn anonymous_memory_stays_within_4_gib_and_a_tenth() {
    assert_stays_within(4096, 60_000_000);
}

/// Sets the flag when it is dropped, also after a panic, because threads that check the flag would otherwise wait
/// forever.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs in a process of its own: loads, merges, scans and gets. Prints the most memory that each phase took, beyond the
/// memory of the process before it opened the store.
#[test]
#[ignore = "run by the tests above"]
fn child() {
    let number = |name: &str| std::env::var(name).map_or(64, |value| value.parse::<u64>().unwrap());
    let (memory_bytes, pairs) = (number(MEMORY) << 20, number(PAIRS));
    let dir = tempfile::tempdir().unwrap();
    let before = anonymous_bytes();
    let (most, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                most.fetch_max(anonymous_bytes(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let _ended = Ended(&ended);
        let engine = open_dir(dir.path(), memory_bytes);
        let told = |phase: &str| {
            let most = most.swap(0, Ordering::Relaxed).saturating_sub(before);
            let names = ["delta_runs", "segments", "memory_work_bytes", "memory_left_bytes", "memory_owed_bytes"];
            let figures = names.map(|name| format!("{name}={}", stat(&engine, name))).join(" ");
            println!("phase={phase} most_bytes={most} {figures}");
        };
        // Writes all keys, and half of them twice, faster than merges can follow, while another thread reads all the
        // time.
        let loaded = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !loaded.load(Ordering::Relaxed) {
                    read(&engine, pairs, 200_000);
                }
            });
            let _loaded = Ended(&loaded);
            let batches = pairs * 3 / 2 / 5000;
            (0..batches).for_each(|n| commit(&engine, (n * 5000..(n + 1) * 5000).map(|n| n % pairs), n + 1));
        });
        told("load");
        engine.settle().unwrap();
        told("settle");
        read(&engine, pairs, u64::MAX);
        told("scan");
        drop(engine);
        let engine = open_dir(dir.path(), memory_bytes);
        read(&engine, pairs, u64::MAX);
        println!("phase=opened_again most_bytes={} ", most.swap(0, Ordering::Relaxed).saturating_sub(before));
    });
}

fn open_dir(dir: &Path, memory_bytes: u64) -> StrataEngine {
    StrataEngine::open(dir, &StrataOptions { memory_bytes, disk_reserve_bytes: 0, prefix_bytes: 32 }).unwrap()
}

/// Scans at most this many pairs, and does batches of gets.
fn read(engine: &StrataEngine, pairs: u64, most: u64) {
    let mut reader = engine.reader().unwrap();
    let mut seen = 0;
    let mut count = |_: &Key, _: &Value| {
        seen += 1;
        if seen < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    reader.scan(&mut count).unwrap();
    for first in (0..pairs).step_by(pairs as usize / 100) {
        let keys: Vec<Key> = (first..first + 64).map(key).collect();
        reader.get_many(&keys, &mut vec![None; keys.len()]).unwrap();
    }
}
