//! Sorted loads: power loss, failed writes and flushes, and a full device at every step of a load; reads during one.

use std::collections::BTreeSet;

use engine_api::{Durability, Engine, Key, Value};
use solkv_engine_strata::{Sizes, StrataEngine};

use crate::faulty::{Fault, FaultyStorage};
use crate::support::{Map, apply, assert_holds, at, key, open_on, stat, try_commit, value};

/// A chunk is two segments, and each segment is two blocks of pages, so that two threads fill it.
const SIZES: Sizes = Sizes { mem_records: 256, segment_records: 1300, wal_bytes: 64 << 10 };
const CHUNK: u64 = 2600;
const CHUNKS: u64 = 3;

fn open(storage: &FaultyStorage) -> engine_api::Result<StrataEngine> {
    open_on(storage, SIZES)
}

/// Returns the pairs of chunk `seq`, from 1 on. Their keys are greater than those of all chunks before it.
fn chunk(seq: u64) -> Vec<(Key, Value)> {
    let keys = (seq * CHUNK..(seq + 1) * CHUNK).map(|n| {
        let mut above = key(n);
        above[0] = 0x80 | seq as u8;
        (above, value(n))
    });
    keys.collect::<BTreeSet<_>>().into_iter().collect()
}

fn content(chunks: u64) -> Map {
    (1..=chunks).flat_map(chunk).collect()
}

/// Loads chunks until one fails. Returns the last that was acknowledged and the last that was tried.
fn load(storage: &FaultyStorage) -> (u64, u64) {
    let Ok(engine) = open(storage) else { return (0, 1) };
    for seq in 1..=CHUNKS {
        if engine.load_sorted(&chunk(seq), &at(seq)).is_err() {
            return (seq - 1, seq);
        }
    }
    (CHUNKS, CHUNKS)
}

/// Checks that the store holds whole chunks, loads the missing ones, and checks that it then holds all of them.
#[track_caller]
fn assert_goes_on(engine: &StrataEngine, place: &str) {
    let seq = engine.checkpoint().unwrap().seq;
    assert_holds(engine, &content(seq), seq, place);
    for seq in seq + 1..=CHUNKS {
        engine.load_sorted(&chunk(seq), &at(seq)).unwrap_or_else(|error| panic!("{place}: {error}"));
    }
    let mut map = content(CHUNKS);
    assert_holds(engine, &map, CHUNKS, place);
    engine.scrub().unwrap_or_else(|error| panic!("{place}: {error}"));
    // The store takes commits like any other.
    let changes = [(chunk(2)[7].0, None), (key(1), Some(value(2)))];
    try_commit(engine, &changes, CHUNKS + 1, Durability::Synced).unwrap();
    apply(&mut map, &changes);
    assert_holds(engine, &map, CHUNKS + 1, place);
}

#[test]
fn power_loss_at_every_change_of_a_load_keeps_whole_chunks() {
    let whole = FaultyStorage::default();
    assert_eq!(load(&whole), (CHUNKS, CHUNKS));
    let (changes, ..) = whole.counts();
    assert!(changes > 40, "changes={changes}");
    for crash_at in 1..=changes + 1 {
        let storage = FaultyStorage::default();
        storage.set(Fault::CrashAt(crash_at));
        let (acked, tried) = load(&storage);
        for outcome in 0..4 {
            let place = format!("crash_at={crash_at} outcome={outcome} acked={acked} tried={tried}");
            let left = storage.after_crash(crash_at * 64 + outcome);
            let engine = open(&left).unwrap_or_else(|error| panic!("{place}: {error}"));
            let seq = engine.checkpoint().unwrap().seq;
            assert!(acked <= seq && seq <= tried, "seq={seq} {place}");
            assert_goes_on(&engine, &place);
            // No file of a chunk that was cut stays.
            let segments = stat(&engine, "segments");
            assert_eq!(left.bytes_of(".seg").1 as u64, segments, "{place}");
        }
    }
}

#[test]
fn a_write_or_a_flush_that_fails_on_either_thread_fails_the_load_and_leaves_nothing_of_it() {
    let whole = FaultyStorage::default();
    drop(open(&whole).unwrap());
    whole.set(Fault::None);
    assert_eq!(load(&whole), (CHUNKS, CHUNKS));
    let (writes, (_, _, syncs, _)) = (whole.writes(), whole.counts());
    assert!(writes > 20 && syncs > 10, "writes={writes} syncs={syncs}");
    let faults = (1..=writes).map(Fault::WriteAt).chain((1..=syncs).map(Fault::SyncAt));
    for fault in faults {
        let storage = FaultyStorage::default();
        drop(open(&storage).unwrap());
        storage.set(fault);
        let (acked, tried) = load(&storage);
        assert!(acked < tried, "{fault:?} is not reported");
        storage.set(Fault::None);
        let engine = open(&storage).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        let seq = engine.checkpoint().unwrap().seq;
        assert!(acked <= seq && seq <= tried, "seq={seq} {fault:?}");
        assert_goes_on(&engine, &format!("{fault:?}"));
    }
}

#[test]
fn a_full_device_anywhere_in_a_load_refuses_the_chunk_and_takes_it_once_there_is_space() {
    let whole = FaultyStorage::default();
    load(&whole);
    let (.., allocated) = whole.counts();
    for full_at in (0..allocated).step_by(20 << 10) {
        let storage = FaultyStorage::default();
        let engine = open(&storage).unwrap();
        storage.set(Fault::FullAt(full_at));
        let mut acked = 0;
        while acked < CHUNKS && engine.load_sorted(&chunk(acked + 1), &at(acked + 1)).is_ok() {
            acked += 1;
        }
        storage.set(Fault::None);
        let place = format!("full_at={full_at} acked={acked}");
        assert_holds(&engine, &content(acked), acked, &place);
        drop(engine);
        assert_goes_on(&open(&storage).unwrap(), &place);
    }
}

#[test]
fn a_load_reads_nothing_and_has_its_filters_in_memory() {
    let storage = FaultyStorage::default();
    let engine = open(&storage).unwrap();
    storage.set(Fault::None);
    for seq in 1..=CHUNKS {
        engine.load_sorted(&chunk(seq), &at(seq)).unwrap();
    }
    let (_, reads, ..) = storage.counts();
    assert_eq!((reads, stat(&engine, "filter_planes_least")), (0, 3));
    // The three filters of a segment let 6 in 10,000 absent keys of its range through; two of them would let 40.
    let mut reader = engine.reader().unwrap();
    for n in 0..20_000 {
        let mut absent = key(1 << 40 | n);
        absent[0] = 0x80 | (n % CHUNKS + 1) as u8;
        assert_eq!(reader.get(&absent).unwrap(), None);
    }
    let reads = stat(&engine, "get_reads");
    assert!(reads < 40, "reads={reads} for 20,000 absent keys");
}
