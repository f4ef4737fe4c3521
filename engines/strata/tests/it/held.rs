//! Commits that are held because merges lag, and files that nobody needs any more, while the disk is in trouble.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine_api::{Durability, Engine, ErrorKind, Key, Value};
use solkv_engine_strata::{Sizes, StrataEngine, StrataOptions};

use crate::groups::SIZES;
use crate::hooked::Hooked;
use crate::support::{OPTIONS, all, at, key, try_commit, value};
use crate::trouble::{Store, segments};

/// Number of delta runs at which commits are held.
const RUNS_MAX: usize = 36;
/// Number of runs of a memtable whose debt holds commits while the base is empty.
const RUNS_HELD: usize = 12;
/// Longer than a commit waits for a trouble to pass.
const LONGER_THAN_PATIENCE: Duration = Duration::from_millis(5_500);

#[test]
fn a_commit_that_was_held_for_long_outlasts_a_merge_that_meets_an_unreadable_segment() {
    // Too little memory for pages to stay in memory, and runs that a merge reads in several pieces.
    let sizes = Sizes { mem_records: 4000, segment_records: 8000, wal_bytes: 1 << 20 };
    let mut store = Store::sized(StrataOptions { memory_bytes: 64 << 10, ..OPTIONS }, sizes);
    store.hooks.merge_segments_left.store(0, Ordering::Relaxed);
    let (disk, hooks) = (store.disk.clone(), Arc::clone(&store.hooks));
    std::thread::scope(|scope| {
        let held = scope.spawn(|| (0..RUNS_MAX as u64 + 6).for_each(|n| store.put(n * 4000..(n + 1) * 4000)));
        while segments(&disk).len() < RUNS_HELD && !held.is_finished() {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(LONGER_THAN_PATIENCE);
        assert!(!held.is_finished(), "nothing holds commits");
        // The merge that stands still has begun to read the oldest runs.
        *hooks.unreadable.lock() = Some(segments(&disk)[0].clone());
        hooks.merge_segments_left.store(u64::MAX, Ordering::Relaxed);
        held.join().unwrap();
    });
    assert!(store.stat("merge_failures") > 0 && store.stat("unreadable_segments") == 1);
    *store.hooks.unreadable.lock() = None;
    store.assert_holds();
}

#[test]
fn a_commit_that_is_held_goes_on_as_soon_as_there_is_space_again() {
    let mut store = Store::sized(OPTIONS, SIZES);
    store.hooks.no_room_for_merges.store(true, Ordering::Relaxed);
    let refused = loop {
        let first = store.seq * 250;
        match store.try_put(first..first + 250) {
            Ok(()) => assert!(store.seq < 2 * RUNS_MAX as u64, "nothing holds commits"),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::FreeSpace, "{refused}");
    // After each failure the next merge waits twice as long: these make it 32 s.
    for _ in 0..5 {
        assert_eq!(store.engine.settle().unwrap_err().kind(), ErrorKind::FreeSpace);
    }
    store.hooks.no_room_for_merges.store(false, Ordering::Relaxed);
    // The first of these fills the memtable that the requests to settle have left, and the second one needs another.
    store.put(0..250);
    store.put(250..500);
    store.assert_holds();
    store.assert_holds_when_opened_again();
}

#[test]
fn a_manifest_whose_name_may_not_be_durable_ends_writing_also_if_the_disk_is_full() {
    let store = Store::sized(OPTIONS, SIZES);
    let mut pairs: Vec<(Key, Value)> = (0..1000).map(|n| (key(n), value(n))).collect();
    pairs.sort_unstable();
    // The first flush is before the last segment, the second one before the manifest, the third one after its renaming.
    store.hooks.dir_full.store(3, Ordering::Relaxed);
    let refused = store.engine.load_sorted(&pairs, &at(1)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Reopen, "{refused}");
    let refused = try_commit(&store.engine, &[(key(5000), Some([1; 32]))], 2, Durability::Synced).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Reopen, "memory and disk may differ: {refused}");
    let Store { engine, disk, .. } = store;
    drop(engine);
    let engine = StrataEngine::open_sized(Arc::new(disk), &OPTIONS, SIZES).unwrap();
    assert!(all(&engine).unwrap().into_iter().eq(pairs) && engine.checkpoint().unwrap() == at(1));
}

#[test]
fn pairs_of_a_merge_under_way_count_once_and_overwritten_ones_not_as_space_for_pairs() {
    let mut store = Store::sized(OPTIONS, SIZES);
    store.load(4000);
    for n in 0..8 {
        store.put(n * 250..(n + 1) * 250);
    }
    store.wait_until("the flushes", |store| store.stat("delta_records") >= 1750);
    let disk_bytes = store.engine.stats().unwrap().disk_bytes;
    let percent = store.stat("space_amplification_percent");
    assert!(percent >= disk_bytes * 100 / (4001 * 64), "percent={percent} disk_bytes={disk_bytes}");
    // New pairs, a part of which a merge into the base has put there while their runs are kept.
    let mut store = Store::sized(OPTIONS, SIZES);
    for n in 0..8 {
        store.put(n * 250..(n + 1) * 250);
    }
    store.hooks.merge_segments_left.store(3, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let settled = scope.spawn(|| store.engine.settle());
        store.wait_until("a part of the base", |store| store.stat("base_records") > 300);
        let pairs = store.engine.stats().unwrap().pairs_estimate;
        assert!(pairs.abs_diff(2000) < 100, "pairs={pairs} of 2000");
        store.hooks.merge_segments_left.store(u64::MAX, Ordering::Relaxed);
        settled.join().unwrap().unwrap();
    });
    assert_eq!(store.engine.stats().unwrap().pairs_estimate, 2000);
}

#[test]
fn a_wal_that_could_not_be_listed_after_its_flush_is_overwritten_or_removed_later() {
    let mut store = Store::sized(OPTIONS, SIZES);
    for n in 0..20 {
        // A file is lost to the listing now and then.
        store.hooks.unlisted.store(n % 4 == 0, Ordering::Relaxed);
        store.put(n * 250..(n + 1) * 250);
    }
    store.hooks.unlisted.store(false, Ordering::Relaxed);
    store.engine.settle().unwrap();
    let wals = store.disk.names().into_iter().filter(|name| name.ends_with(".wal")).count();
    // The present one, the next one, and two to be overwritten.
    assert!(wals <= 4, "wals={wals}");
    store.assert_holds();
}

#[test]
fn a_spare_wal_that_somebody_has_removed_is_not_asked_for_again() {
    let mut store = Store::sized(OPTIONS, SIZES);
    for n in 0..6 {
        store.put(n * 250..(n + 1) * 250);
    }
    store.wait_until("the flushes", |store| store.stat("flushes") >= 5);
    let storage = Hooked { inner: Arc::new(store.disk.clone()), hooks: Arc::clone(&store.hooks) };
    let mut wals: Vec<String> = store.disk.names().into_iter().filter(|name| name.ends_with(".wal")).collect();
    wals.sort();
    // All but the newest two are spare by now: the present file and the one prepared.
    for spare in &wals[..wals.len() - 2] {
        solkv_engine_strata::storage::Storage::remove(&storage, spare).unwrap();
    }
    assert!(wals.len() > 2, "{wals:?}");
    for n in 6..14 {
        store.put(n * 250..(n + 1) * 250);
    }
    store.assert_holds();
    store.assert_holds_when_opened_again();
}
