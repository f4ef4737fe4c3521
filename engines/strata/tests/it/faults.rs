//! Power loss at every change of the disk; a failing read, flush or allocation at every place.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine_api::{Durability, Engine, ErrorKind};
use solkv_engine_strata::storage::Storage;
use solkv_engine_strata::{StrataEngine, StrataOptions};

use crate::faulty::{Fault, FaultyStorage};
use crate::hooked::{Hooked, Hooks};
use crate::support::{Map, OPTIONS, all, apply, assert_holds, at, batch, key, try_commit};
use crate::trouble::segments;

const CHANGES: u64 = 300;
const BATCHES: u64 = 14;

fn open(storage: &FaultyStorage) -> engine_api::Result<StrataEngine> {
    StrataEngine::open_on(Arc::new(storage.clone()), &OPTIONS)
}

/// Progress of a run: the last commit acknowledged, the last one acknowledged as flushed, and the last one attempted.
#[derive(Debug, Default, Clone, Copy)]
struct Reached {
    acked: u64,
    synced: u64,
    attempted: u64,
}

/// Commits batches, and settles after some of them, until an operation fails.
fn work(storage: &FaultyStorage, seed: u64) -> Reached {
    let mut reached = Reached::default();
    let Ok(engine) = open(storage) else { return reached };
    for seq in 1..=BATCHES {
        let durability = if seq % 3 == 0 { Durability::Synced } else { Durability::Buffered };
        reached.attempted = seq;
        if try_commit(&engine, &batch(seed, seq, CHANGES), seq, durability).is_err() {
            break;
        }
        reached.acked = seq;
        if durability == Durability::Synced {
            reached.synced = seq;
        }
        if seq % 5 == 0 {
            if engine.settle().is_err() {
                break;
            }
            reached.synced = seq;
        }
    }
    reached
}

fn content(seed: u64, seq: u64) -> Map {
    let mut map = Map::new();
    (1..=seq).for_each(|seq| apply(&mut map, &batch(seed, seq, CHANGES)));
    map
}

#[test]
fn power_loss_at_every_change_keeps_a_whole_prefix() {
    let whole = FaultyStorage::default();
    whole.set(Fault::None);
    assert_eq!(work(&whole, 1).acked, BATCHES);
    let (changes, ..) = whole.counts();
    println!("changes of the disk: {changes}");
    assert!(changes > 60, "the run flushes and merges");
    for crash_at in 1..=changes + 1 {
        let storage = FaultyStorage::default();
        storage.set(Fault::CrashAt(crash_at));
        let reached = work(&storage, 1);
        for outcome in 0..6 {
            let place = format!("crash_at={crash_at} outcome={outcome} {reached:?}");
            let left = storage.after_crash(crash_at * 64 + outcome);
            let engine = open(&left).unwrap_or_else(|error| panic!("{place}: {error}"));
            let seq = engine.checkpoint().unwrap().seq;
            assert!(reached.synced <= seq && seq <= reached.attempted, "seq={seq} {place}");
            assert_holds(&engine, &content(1, seq), seq, &place);
            // Continue from there, because a torn record must not come back later.
            let mut map = content(1, seq);
            let more = batch(99, 1, 20);
            try_commit(&engine, &more, seq + 1, Durability::Synced).unwrap();
            apply(&mut map, &more);
            drop(engine);
            let again = left.after_crash(outcome);
            let engine = open(&again).unwrap_or_else(|error| panic!("again {place}: {error}"));
            assert_holds(&engine, &map, seq + 1, &place);
        }
    }
}

#[test]
fn a_synced_commit_after_reopening_stands_on_what_was_buffered_before() {
    for outcome in 0..60 {
        let storage = FaultyStorage::default();
        for seq in 1..=3 {
            // Each batch gets a new opening, so that the buffered ones are in older WAL files than the synced commit.
            let engine = open(&storage).unwrap();
            let durability = if seq == 3 { Durability::Synced } else { Durability::Buffered };
            try_commit(&engine, &batch(7, seq, CHANGES), seq, durability).unwrap();
            if seq == 3 {
                storage.set(Fault::CrashAt(1));
            }
        }
        let engine = open(&storage.after_crash(outcome)).unwrap_or_else(|error| panic!("outcome={outcome}: {error}"));
        assert_holds(&engine, &content(7, 3), 3, &format!("outcome={outcome}"));
    }
}

#[test]
fn a_synced_commit_in_the_next_file_stands_on_the_file_before() {
    // More than half of a memtable: the second batch begins the next WAL file, while nothing can be flushed.
    const MANY: u64 = 12_000;
    for outcome in 0..40 {
        let storage = FaultyStorage::default();
        let engine = open(&storage).unwrap();
        storage.set(Fault::NoSegments);
        let keys = |seq: u64| (0..MANY).map(move |n| (key(10_000 + seq * MANY + n), Some([seq as u8; 32])));
        let mut map = Map::new();
        for (seq, durability) in [(1, Durability::Buffered), (2, Durability::Synced)] {
            let changes: Vec<_> = keys(seq).collect();
            try_commit(&engine, &changes, seq, durability).unwrap();
            apply(&mut map, &changes);
        }
        let left = storage.after_crash(outcome);
        drop(engine);
        assert_holds(&open(&left).unwrap(), &map, 2, &format!("outcome={outcome}"));
    }
}

#[test]
fn a_wal_of_more_memory_than_there_is_now_becomes_runs_whatever_happens_meanwhile() {
    // Three times as many records as the memtables of `OPTIONS` hold. They fit into the memtables of a larger memory.
    const RECORDS: u64 = 150_000;
    const LARGE: StrataOptions = StrataOptions { memory_bytes: 256 << 20, disk_reserve_bytes: 0, prefix_bytes: 32 };
    let storage = FaultyStorage::default();
    let engine = StrataEngine::open_on(Arc::new(storage.clone()), &LARGE).unwrap();
    storage.set(Fault::NoSegments);
    let (mut map, mut seq) = (Map::new(), 0);
    for first in (0..RECORDS).step_by(5000) {
        seq += 1;
        let change = |n: u64| (key(n % 70_000), (!n.is_multiple_of(7)).then_some([seq as u8; 32]));
        let changes: Vec<_> = (first..first + 5000).map(change).collect();
        try_commit(&engine, &changes, seq, Durability::Synced).unwrap();
        apply(&mut map, &changes);
    }
    drop(engine);
    let written = storage.after_crash(0);
    let whole = written.after_crash(0);
    whole.set(Fault::None);
    let engine = open(&whole).unwrap();
    let (changes, ..) = whole.counts();
    assert!(changes > 20, "runs are written: changes={changes}");
    assert_holds(&engine, &map, seq, "opened with less memory");
    drop(engine);
    let runs_bytes = segment_bytes(&whole);
    let mut short_of_disk = 0;
    for crash_at in 1..=changes + 1 {
        let storage = written.after_crash(0);
        storage.set(Fault::CrashAt(crash_at));
        // This opening is cut short, or has just finished when the power fails.
        drop(open(&storage));
        let left = storage.after_crash(crash_at);
        // The next opening has room for its runs only in place of those of the one that was cut.
        let there = segment_bytes(&left);
        if there + there / 2 >= runs_bytes {
            short_of_disk += 1;
            let hooks = Arc::new(Hooks::default());
            hooks.disk_bytes.store(Storage::used_bytes(&left).unwrap() + there / 2, Ordering::Relaxed);
            let short = StrataEngine::open_on(Arc::new(Hooked { inner: Arc::new(left.copy()), hooks }), &OPTIONS);
            let short = short.unwrap_or_else(|error| panic!("short of disk crash_at={crash_at}: {error}"));
            assert_holds(&short, &map, seq, &format!("short of disk crash_at={crash_at}"));
        }
        let engine = open(&left).unwrap_or_else(|error| panic!("crash_at={crash_at}: {error}"));
        assert_holds(&engine, &map, seq, &format!("crash_at={crash_at}"));
        try_commit(&engine, &batch(9, 1, 20), seq + 1, Durability::Synced).unwrap();
        drop(engine);
        let mut more = map.clone();
        apply(&mut more, &batch(9, 1, 20));
        let again = left.after_crash(crash_at + 1);
        assert_holds(&open(&again).unwrap(), &more, seq + 1, &format!("again crash_at={crash_at}"));
    }
    assert!(short_of_disk > 0);
    // Where names are lost together with the power, any subset of them may be, just as the manifest gets its name.
    for crash_at in changes.saturating_sub(8)..=changes + 1 {
        let storage = written.after_crash(0);
        storage.set(Fault::CrashAt(crash_at));
        drop(open(&storage));
        for seed in 0..12 {
            let left = storage.after_crash(seed);
            let engine = open(&left).unwrap_or_else(|error| panic!("names crash_at={crash_at} seed={seed}: {error}"));
            assert_eq!(engine.checkpoint().unwrap(), at(seq), "names crash_at={crash_at} seed={seed}");
        }
    }
}

#[test]
fn a_clean_close_keeps_buffered_commits_through_a_power_loss() {
    for seed in 0..8 {
        let storage = FaultyStorage::default();
        let engine = open(&storage).unwrap();
        let mut map = Map::new();
        for seq in 1..=3 {
            try_commit(&engine, &batch(seed, seq, 50), seq, Durability::Buffered).unwrap();
            apply(&mut map, &batch(seed, seq, 50));
        }
        Box::new(engine).close().unwrap();
        let left = storage.after_crash(seed);
        assert_holds(&open(&left).unwrap(), &map, 3, &format!("seed={seed}"));
    }
}

/// Returns the bytes of all segments on the disk.
fn segment_bytes(disk: &FaultyStorage) -> u64 {
    segments(disk).iter().map(|name| disk.open(name, false).unwrap().len_bytes().unwrap()).sum()
}

#[test]
fn a_failed_flush_refuses_every_further_write() {
    let whole = FaultyStorage::default();
    work(&whole, 2);
    let (_, _, syncs, _) = whole.counts();
    for fail_at in 1..=syncs {
        let storage = FaultyStorage::default();
        let fault = Fault::SyncAt(fail_at);
        storage.set(fault);
        let reached = work(&storage, 2);
        storage.set(Fault::None);
        let engine = open(&storage).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        let seq = engine.checkpoint().unwrap().seq;
        assert!(reached.synced <= seq && seq <= reached.attempted, "seq={seq} {fault:?} {reached:?}");
        assert_holds(&engine, &content(2, seq), seq, &format!("{fault:?}"));
    }
    // Now the engine itself, without a new opening.
    let storage = FaultyStorage::default();
    let engine = open(&storage).unwrap();
    try_commit(&engine, &batch(2, 1, 5), 1, Durability::Synced).unwrap();
    storage.set(Fault::SyncAt(1));
    let failed = try_commit(&engine, &batch(2, 2, 5), 2, Durability::Synced).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Reopen, "{failed}");
    assert_eq!(engine.begin().err().unwrap().kind(), ErrorKind::Reopen);
    assert_eq!(engine.checkpoint().unwrap(), at(1));
    assert_eq!(Box::new(engine).close().unwrap_err().kind(), ErrorKind::Reopen);
}

#[test]
fn what_a_failed_flush_has_lost_is_written_again_by_the_next_opening() {
    for outcome in 0..20 {
        let storage = FaultyStorage::default();
        let engine = open(&storage).unwrap();
        try_commit(&engine, &batch(8, 1, CHANGES), 1, Durability::Synced).unwrap();
        storage.set(Fault::SyncAt(1));
        try_commit(&engine, &batch(8, 2, CHANGES), 2, Durability::Synced).unwrap_err();
        drop(engine);
        // No run can be written, so the next commits depend on the WAL alone.
        storage.set(Fault::NoSegments);
        let engine = open(&storage).unwrap();
        assert_eq!(engine.checkpoint().unwrap(), at(2), "the page cache still has the record");
        try_commit(&engine, &batch(8, 3, CHANGES), 3, Durability::Synced).unwrap();
        let left = storage.after_crash(outcome);
        drop(engine);
        let engine = open(&left).unwrap_or_else(|error| panic!("outcome={outcome}: {error}"));
        assert_holds(&engine, &content(8, 3), 3, &format!("outcome={outcome}"));
    }
}

#[test]
fn a_synced_commit_is_one_flush_and_a_buffered_one_none() {
    let storage = FaultyStorage::default();
    let engine = open(&storage).unwrap();
    try_commit(&engine, &batch(3, 1, 5), 1, Durability::Synced).unwrap();
    for (seq, durability, flushes) in [(2, Durability::Synced, 1), (3, Durability::Buffered, 0)] {
        storage.set(Fault::None);
        try_commit(&engine, &batch(3, seq, 5), seq, durability).unwrap();
        assert_eq!(storage.counts().2, flushes, "{durability:?}");
    }
}

#[test]
fn a_failed_read_is_an_error_and_never_a_wrong_answer() {
    let storage = FaultyStorage::default();
    work(&storage, 4);
    let expected = content(4, BATCHES);
    storage.set(Fault::None);
    drop(open(&storage).unwrap());
    let (_, reads, ..) = storage.counts();
    for fail_at in 1..=reads {
        storage.set(Fault::ReadAt(fail_at));
        // The opening, a background thread or the scan may meet the failure: it is an error, never a different map.
        if let Ok(engine) = open(&storage)
            && let Ok(found) = all(&engine)
        {
            assert!(found == expected, "read={fail_at}");
        }
    }
    storage.set(Fault::None);
    assert_holds(&open(&storage).unwrap(), &expected, BATCHES, "after failed reads");
}

#[test]
fn a_full_device_anywhere_loses_nothing_and_goes_on_with_space() {
    let whole = FaultyStorage::default();
    work(&whole, 5);
    for full_at in (0..3 << 20).step_by(48 << 10) {
        let storage = FaultyStorage::default();
        storage.set(Fault::FullAt(full_at));
        let reached = work(&storage, 5);
        storage.set(Fault::None);
        let engine = open(&storage).unwrap_or_else(|error| panic!("full_at={full_at}: {error}"));
        let seq = engine.checkpoint().unwrap().seq;
        assert_eq!(seq, reached.acked, "full_at={full_at} {reached:?}");
        let mut map = content(5, seq);
        assert_holds(&engine, &map, seq, &format!("full_at={full_at}"));
        try_commit(&engine, &batch(5, seq + 1, CHANGES), seq + 1, Durability::Synced).unwrap();
        apply(&mut map, &batch(5, seq + 1, CHANGES));
        engine.settle().unwrap();
        assert_holds(&engine, &map, seq + 1, &format!("with space again full_at={full_at}"));
    }
}

#[test]
fn a_batch_that_meets_a_full_device_leaves_no_trace() {
    let storage = FaultyStorage::default();
    let engine = open(&storage).unwrap();
    try_commit(&engine, &batch(6, 1, 50), 1, Durability::Synced).unwrap();
    storage.set(Fault::FullAt(0));
    // More changes than the memtable holds.
    let failed = try_commit(&engine, &batch(6, 2, 40_000), 2, Durability::Synced).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::FreeSpace, "{failed}");
    assert_holds(&engine, &content_of_first(), 1, "on the full device");
    storage.set(Fault::None);
    try_commit(&engine, &batch(6, 2, 50), 2, Durability::Synced).unwrap();
    let mut map = content_of_first();
    apply(&mut map, &batch(6, 2, 50));
    assert_holds(&engine, &map, 2, "with space again");
    drop(engine);
    assert_holds(&open(&storage.after_crash(1)).unwrap(), &map, 2, "after a crash");
}

fn content_of_first() -> Map {
    let mut map = Map::new();
    apply(&mut map, &batch(6, 1, 50));
    map
}
