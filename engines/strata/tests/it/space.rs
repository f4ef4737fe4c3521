//! Merges on a disk that is nearly full: no more space than necessary is asked for, and all that can be given up is.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::faulty::FaultyStorage;
use engine_api::Engine;
use solkv_engine_strata::StrataEngine;

use crate::groups::SIZES;
use crate::hooked::{Hooked, Hooks};
use crate::support::{OPTIONS, all};
use crate::trouble::Store;

/// Number of pairs in a batch, whose run has several segments.
const BATCH: u64 = 1000;
/// Number of pairs in the base, which are some thirty groups.
const BASE: u64 = 12_000;
/// Free space that a store of [`SIZES`] keeps, in bytes.
const RESERVE_BYTES: u64 = 3 * SIZES.mem_records as u64 * 64;
/// More than a segment, a WAL file and a manifest take.
const SLACK_BYTES: u64 = 50 << 10;

/// Makes a store with a base, and deltas of the pairs `deltas` that are too few for a merge into it. Merges wait at their first segment,
/// so each batch stays a run of its own.
fn store(deltas: std::ops::Range<u64>) -> Store {
    let mut store = Store::sized(OPTIONS, SIZES);
    store.load(BASE);
    store.hooks.merge_segments_left.store(0, Ordering::Relaxed);
    for first in deltas.clone().step_by(BATCH as usize) {
        store.put(first..(first + BATCH).min(deltas.end));
    }
    let flushed = deltas.end - deltas.start - BATCH;
    store.wait_until("the flushes", |store| store.stat("delta_records") >= flushed);
    store
}

fn used_bytes(store: &Store) -> u64 {
    store.engine.stats().unwrap().disk_bytes
}

/// Settles the store, and does `meanwhile` once the request is there, so that no merge of deltas comes before.
fn settling<T>(store: &Store, meanwhile: impl FnOnce() -> T) -> T {
    std::thread::scope(|scope| {
        let settled = scope.spawn(|| store.engine.settle());
        std::thread::sleep(Duration::from_millis(100));
        let done = meanwhile();
        settled.join().unwrap().unwrap();
        done
    })
}

#[test]
fn a_merge_into_the_base_that_a_restart_has_interrupted_asks_for_the_rest_alone() {
    const NEW: std::ops::Range<u64> = BASE..BASE + 4000;
    let whole = store(NEW);
    whole.hooks.disk_bytes.store(1 << 30, Ordering::Relaxed);
    settling(&whole, || whole.hooks.merge_segments_left.store(u64::MAX, Ordering::Relaxed));
    let peak_bytes = (1 << 30) - whole.hooks.least_free_bytes.load(Ordering::Relaxed);
    let cut = store(NEW);
    let killed = settling(&cut, || {
        let left = &cut.hooks.merge_segments_left;
        cut.wait_until("two thirds of the merge", |store| {
            left.store(1, Ordering::Relaxed);
            store.stat("base_records") > BASE + 2700
        });
        left.store(0, Ordering::Relaxed);
        let killed = cut.disk.copy();
        left.store(u64::MAX, Ordering::Relaxed);
        killed
    });
    let hooks = Arc::new(Hooks::default());
    hooks.disk_bytes.store(peak_bytes + RESERVE_BYTES, Ordering::Relaxed);
    let engine =
        StrataEngine::open_sized(Arc::new(Hooked { inner: Arc::new(killed), hooks }), &OPTIONS, SIZES).unwrap();
    engine.settle().unwrap();
    assert!(all(&engine).unwrap() == cut.map, "content differs");
}

#[test]
fn a_disk_without_room_for_all_deltas_gets_it_from_the_merge_of_the_oldest() {
    let mut store = store(0..4000);
    let records = store.stat("delta_records");
    assert!(store.stat("delta_runs") > 1 && records >= 3000, "records={records}");
    // The reserve, a group, and room for three quarters of the deltas. They change pairs, so their merge leaves room.
    let room_bytes = records * 70 / 4 * 3 + RESERVE_BYTES + SLACK_BYTES;
    store.hooks.disk_bytes.store(used_bytes(&store) + room_bytes, Ordering::Relaxed);
    settling(&store, || store.hooks.merge_segments_left.store(u64::MAX, Ordering::Relaxed));
    assert_eq!((store.stat("delta_runs"), store.stat("merge_short_of_disk_bytes")), (0, 0));
    store.hooks.disk_bytes.store(u64::MAX, Ordering::Relaxed);
    store.put(0..10);
    store.assert_holds();
    store.assert_holds_when_opened_again();
}

#[test]
fn wal_files_that_wait_to_be_overwritten_are_given_up_before_a_commit_is_refused() {
    let mut store = Store::sized(OPTIONS, SIZES);
    (0..4).for_each(|n| store.put(n * 250..(n + 1) * 250));
    let wals = |disk: &FaultyStorage| disk.names().into_iter().filter(|name| name.ends_with(".wal")).count();
    store.wait_until("spare files", |store| store.stat("flushes") == 3 && wals(&store.disk) >= 3);
    let before = wals(&store.disk);
    store.hooks.disk_bytes.store(used_bytes(&store) + RESERVE_BYTES - 1, Ordering::Relaxed);
    store.put(0..10);
    assert!(wals(&store.disk) < before, "files={before}");
    store.hooks.disk_bytes.store(u64::MAX, Ordering::Relaxed);
    store.assert_holds();
    store.assert_holds_when_opened_again();
}
