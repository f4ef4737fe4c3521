//! Tests of guarantees that strata alone gives: no fault of a device loses flushed data, damage is found wherever it
//! is, merges keep the map, and copies are independent.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "helpers say what they skip or have measured")]

mod bounds;
mod contradiction;
mod faults;
mod faulty;
mod groups;
mod held;
mod hooked;
mod hostile;
mod loads;
mod memory;
mod names;
mod opening;
mod parts;
mod pressure;
mod reads;
mod repair;
mod ring;
mod rounds;
mod space;
mod support;
mod trouble;
mod unread;
mod warm;
mod week;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use engine_api::{Checkpoint, Durability, Engine, ErrorKind, Key, Value};
use solkv_engine_strata::{StrataEngine, StrataOptions};

use support::{Map, Rng, stat};

const SMALL: StrataOptions = StrataOptions { memory_bytes: 8 << 20, disk_reserve_bytes: 1 << 20, prefix_bytes: 32 };

fn random_key(random: &mut Rng) -> Key {
    let mut key = [0; 32];
    key.chunks_exact_mut(8).for_each(|lane| lane.copy_from_slice(&random.next().to_be_bytes()));
    key
}

fn seq(seq: u64) -> Checkpoint {
    Checkpoint { seq, ..Checkpoint::default() }
}

/// Waits until another thread has done something.
#[track_caller]
fn wait_for(what: &str, done: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(120);
    while !done() {
        assert!(Instant::now() < until, "waited for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn commit(engine: &StrataEngine, changes: &[(Key, Option<Value>)], at: u64, map: &mut Map) {
    let mut txn = engine.begin().unwrap();
    for (key, value) in changes {
        match value {
            Some(value) => {
                txn.put(key, value).unwrap();
                map.insert(*key, *value);
            }
            None => {
                txn.delete(key).unwrap();
                map.remove(key);
            }
        }
    }
    txn.commit(&seq(at), Durability::Buffered).unwrap();
}

#[track_caller]
fn assert_holds(engine: &StrataEngine, map: &Map) {
    let mut reader = engine.reader().unwrap();
    let mut expected = map.iter();
    reader
        .scan(&mut |key, value| {
            assert_eq!(expected.next(), Some((key, value)));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(expected.next().is_none(), "a scan ended early");
    for (number, first) in map.keys().step_by((map.len() / 16).max(1)).enumerate() {
        let mut first = *first;
        // Every second scan begins between two keys.
        first[31] ^= (number % 2) as u8;
        let mut found = Vec::new();
        let short = |key: &Key, value: &Value| {
            found.push((*key, *value));
            if found.len() == 60 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        reader.scan_from(&first, &mut { short }).unwrap();
        assert!(found.into_iter().eq(map.range(first..).take(60).map(|(key, value)| (*key, *value))), "{first:x?}");
    }
    for (key, value) in map.iter().step_by(7) {
        assert_eq!(reader.get(key).unwrap(), Some(*value));
    }
}

/// Makes a store that has gone through some tens of flushes and merges.
fn grown(dir: &Path, random: &mut Rng) -> (StrataEngine, Map) {
    let engine = StrataEngine::open(dir, &SMALL).unwrap();
    let mut map = Map::new();
    let mut known: Vec<Key> = Vec::new();
    for batch in 1..=150 {
        let mut changes = Vec::new();
        for _ in 0..5000 {
            let old = random.next().is_multiple_of(3) && !known.is_empty();
            let key = if old { known[random.next() as usize % known.len()] } else { random_key(random) };
            known.push(key);
            changes.push((key, (!random.next().is_multiple_of(5)).then_some([random.next() as u8; 32])));
        }
        commit(&engine, &changes, batch, &mut map);
    }
    (engine, map)
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn merges_settling_and_opening_again_keep_the_map() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, map) = grown(dir.path(), &mut Rng::new(1));
    assert_holds(&engine, &map);
    engine.settle().unwrap();
    assert_holds(&engine, &map);
    assert_eq!(engine.stats().unwrap().pairs_estimate, map.len() as u64, "exact once settled");
    let [longest_us, all_us] = ["merge_step_longest_us", "merge_us"].map(|name| stat(&engine, name));
    assert!(0 < longest_us && longest_us <= all_us, "longest_us={longest_us} all_us={all_us}");
    engine.scrub().unwrap();
    Box::new(engine).close().unwrap();
    let engine = StrataEngine::open(dir.path(), &SMALL).unwrap();
    assert_eq!(engine.checkpoint().unwrap(), seq(150));
    assert_holds(&engine, &map);
    drop(engine);
    let large = StrataOptions { memory_bytes: 1 << 30, ..SMALL };
    let engine = StrataEngine::open(dir.path(), &large).unwrap();
    assert_holds(&engine, &map);
    let mut reader = engine.reader().unwrap();
    let reads = |engine: &StrataEngine| {
        let stats = engine.stats().unwrap();
        stats.details.iter().find(|(name, _)| *name == "get_reads").unwrap().1
    };
    map.keys().for_each(|key| assert!(reader.get(key).unwrap().is_some()));
    let before = reads(&engine);
    map.keys().for_each(|key| assert!(reader.get(key).unwrap().is_some()));
    assert_eq!(reads(&engine), before, "with memory for all pages each is read once");
}

#[test]
fn a_snapshot_stands_while_everything_is_merged_away_beneath_it() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, map) = grown(dir.path(), &mut Rng::new(2));
    let mut reader = engine.reader().unwrap();
    let mut other = Map::new();
    let all: Vec<_> = map.keys().map(|key| (*key, None)).collect();
    for (n, changes) in all.chunks(20_000).enumerate() {
        commit(&engine, changes, 200 + n as u64, &mut other);
    }
    engine.settle().unwrap();
    assert_eq!(engine.stats().unwrap().pairs_estimate, 0);
    for (key, value) in &map {
        assert_eq!(reader.get(key).unwrap(), Some(*value), "as it was");
    }
    reader.refresh().unwrap();
    assert!(map.keys().all(|key| reader.get(key).unwrap().is_none()));
}

#[test]
fn a_copy_opens_by_itself() {
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (engine, map) = grown(dir.path(), &mut Rng::new(3));
    let copied = copy.path().join("copy");
    engine.snapshot(&copied).unwrap();
    commit(&engine, &[([9; 32], Some([9; 32]))], 999, &mut map.clone());
    engine.settle().unwrap();
    drop(engine);
    drop(dir);
    let engine = StrataEngine::open(&copied, &SMALL).unwrap();
    assert_eq!(engine.checkpoint().unwrap(), seq(150));
    assert_holds(&engine, &map);
}

#[test]
fn flipped_bits_are_found_wherever_they_are_and_never_returned() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Rng::new(4);
    let (engine, map) = grown(dir.path(), &mut random);
    engine.settle().unwrap();
    Box::new(engine).close().unwrap();
    let mut found = 0;
    let named = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "seg") || path.ends_with("MANIFEST");
    let damageable: Vec<PathBuf> = files(dir.path()).into_iter().filter(named).collect();
    for round in 0..60 {
        let path = &damageable[random.next() as usize % damageable.len()];
        let mut bytes = fs::read(path).unwrap();
        let bit = random.next() as usize % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(path, &bytes).unwrap();
        let damaged = match StrataEngine::open(dir.path(), &SMALL) {
            Err(error) => Some(error),
            Ok(engine) => {
                let mut reader = engine.reader().unwrap();
                let read = map.iter().step_by(211).find_map(|(key, value)| match reader.get(key) {
                    Ok(found) => {
                        assert_eq!(found, Some(*value), "round={round} a wrong value");
                        None
                    }
                    Err(error) => Some(error),
                });
                read.or_else(|| engine.scrub().err())
            }
        };
        if let Some(error) = damaged {
            assert_eq!(error.kind(), ErrorKind::DataDamaged, "{error}");
            assert!(error.to_string().contains("file="), "{error}");
            found += 1;
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(path, &bytes).unwrap();
    }
    // Flips that are not found lie in the zeros between sections, which hold nothing.
    assert!(found >= 50, "found={found} of 60");
    assert_holds(&StrataEngine::open(dir.path(), &SMALL).unwrap(), &map);
}

#[test]
fn keys_with_the_same_first_bytes_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let engine = StrataEngine::open(dir.path(), &SMALL).unwrap();
    let mut map = Map::new();
    let key = |n: u32| {
        let mut key = [7; 32];
        key[28..].copy_from_slice(&n.to_be_bytes());
        key
    };
    let changes: Vec<_> = (0..20_000).map(|n| (key(2 * n), Some([n as u8; 32]))).collect();
    changes.chunks(1000).enumerate().for_each(|(at, changes)| commit(&engine, changes, at as u64 + 1, &mut map));
    engine.settle().unwrap();
    let mut reader = engine.reader().unwrap();
    for n in 0..40_000 {
        assert_eq!(reader.get(&key(n)).unwrap(), map.get(&key(n)).copied(), "n={n}");
    }
}
