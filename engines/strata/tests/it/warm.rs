//! Warm-up: afterwards memory answers every get, and it can be ended early.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use engine_api::{Engine, Key, Pace, Value, Warmed};
use solkv_engine_strata::{StrataEngine, StrataOptions};

use crate::seq;
use crate::support::{key, stat};

/// Enough memory for all pages of the pairs below.
const OPTIONS: StrataOptions = StrataOptions { memory_bytes: 256 << 20, disk_reserve_bytes: 1 << 20, prefix_bytes: 32 };
const COUNT: u64 = 200_000;

/// Opens a store whose pages are all on the device alone.
fn cold(dir: &Path) -> (StrataEngine, Vec<(Key, Value)>) {
    let mut pairs: Vec<(Key, Value)> = (0..COUNT).map(|n| (key(n), key(!n))).collect();
    pairs.sort_unstable();
    let engine = StrataEngine::open(dir, &OPTIONS).unwrap();
    engine.load_sorted(&pairs, &seq(1)).unwrap();
    Box::new(engine).close().unwrap();
    (StrataEngine::open(dir, &OPTIONS).unwrap(), pairs)
}

fn assert_answers(engine: &StrataEngine, pairs: &[(Key, Value)]) {
    let mut reader = engine.reader().unwrap();
    for (key, value) in pairs {
        assert_eq!(reader.get(key).unwrap(), Some(*value));
    }
}

#[test]
fn after_a_warm_up_no_get_reads_the_device_and_gets_go_on_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, pairs) = cold(dir.path());
    let (mut first, mut last) = (None, Warmed::default());
    let warm = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !warm.load(Ordering::Relaxed) {
                assert_answers(&engine, &pairs[..1000]);
            }
        });
        engine
            .warm_up(&mut |now| {
                first.get_or_insert(now);
                assert!(now.read_bytes >= last.read_bytes);
                last = now;
                Pace::On
            })
            .unwrap();
        warm.store(true, Ordering::Relaxed);
    });
    let first = first.unwrap();
    assert!(first.missing_bytes > COUNT * 60 && first.left_bytes == first.missing_bytes, "{first:?}");
    assert_eq!((first.store_bytes, first.room_bytes), (last.room_bytes, last.store_bytes), "there is room for all");
    assert!(last.left_bytes == 0 && last.read_bytes <= first.missing_bytes, "{first:?} {last:?}");
    let before = stat(&engine, "get_reads");
    assert_answers(&engine, &pairs);
    assert_eq!(stat(&engine, "get_reads"), before);
    let mut calls = Vec::new();
    engine
        .warm_up(&mut |now| {
            calls.push((now.missing_bytes, now.left_bytes, now.read_bytes));
            Pace::On
        })
        .unwrap();
    assert_eq!(calls, [(0, 0, 0)], "nothing was missing");
}

#[test]
fn a_warm_up_ends_once_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, pairs) = cold(dir.path());
    let mut steps = Vec::new();
    engine
        .warm_up(&mut |now| {
            steps.push(now.read_bytes);
            if steps.len() < 3 { Pace::On } else { Pace::Stop }
        })
        .unwrap();
    assert_eq!(steps.len(), 3, "{steps:?}");
    assert_answers(&engine, &pairs);
    assert!(stat(&engine, "get_reads") > 0);
}
