//! Writers that are faster than merges: bounds on unmerged data, turns between merges, and preparation for later
//! commits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine_api::{BulkLoad, Durability, Engine, Key, Value};
use engine_strata::{Sizes, StrataEngine, StrataOptions};

use crate::faulty::{FaultyStorage, Gate};
use crate::groups;
use crate::hooked::{Hooked, Hooks};
use crate::support::{Map, OPTIONS, all, apply, at, batch, key, stat, try_commit, value};
use crate::wait_for;

/// Largest number of delta runs. Commits are held at 36; one memtable is frozen by then, and the next commit freezes
/// another.
pub(crate) const RUNS_MOST: u64 = 37;
/// Largest debt in percent. Commits are held at 300% of the records that make a merge into the base due, which are 16
/// memtables or more. Three memtables may be full by then.
const DEBT_MOST_PERCENT: u64 = 300 + 3 * 100 / 16 + 1;

/// Opens the gate when a test ends for any reason, because the engine's thread may wait at it.
struct Opens<'a>(&'a Gate);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Returns a batch that fills a memtable of [`groups::SIZES`], so that the next batch needs another.
fn changes(seq: u64) -> Vec<(Key, Option<Value>)> {
    batch(77, seq, 250)
}

/// Returns a batch of the same size, with keys that no other batch has.
fn fresh(seq: u64) -> Vec<(Key, Option<Value>)> {
    (seq * 250..(seq + 1) * 250).map(|n| (key(100_000 + n), Some(value(n)))).collect()
}

fn content(seq: u64) -> Map {
    let mut map = Map::new();
    (1..=seq).for_each(|seq| apply(&mut map, &changes(seq)));
    map
}

/// Commits batches on a thread of its own, so that a failing test does not wait for it. Returns its progress.
fn commits(
    engine: &Arc<StrataEngine>,
    of: impl Iterator<Item = u64> + Send + 'static,
) -> (Arc<AtomicU64>, JoinHandle<()>) {
    let (engine, committed) = (Arc::clone(engine), Arc::new(AtomicU64::new(0)));
    let said = Arc::clone(&committed);
    let writer = std::thread::spawn(move || {
        for seq in of {
            try_commit(&*engine, &changes(seq), seq, Durability::Buffered).unwrap();
            said.store(seq, Ordering::Relaxed);
        }
    });
    (committed, writer)
}

#[test]
fn commits_are_slowed_and_then_held_while_merges_stand_still() {
    const LAST: u64 = 90;
    let storage = FaultyStorage::default();
    let engine = Arc::new(groups::open(&storage).unwrap());
    let gate = storage.gate();
    let _opens = Opens(gate);
    gate.close();
    let (committed, writer) = commits(&engine, 1..=LAST);
    // Either the writer is held, and so makes no progress for a while, or nothing holds it.
    let (mut before, mut since) = (0, Instant::now());
    let limit = Instant::now() + Duration::from_secs(120);
    while before < LAST
        && (stat(&*engine, "delta_runs") < RUNS_MOST - 1 || since.elapsed() < Duration::from_millis(500))
    {
        assert!(Instant::now() < limit, "neither held nor done: committed={before}");
        let now = committed.load(Ordering::Relaxed);
        if now != before {
            (before, since) = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let runs = stat(&*engine, "delta_runs");
    assert!(before < LAST && runs <= RUNS_MOST, "nothing holds commits: committed={before} delta_runs={runs}");
    let slowed = stat(&*engine, "write_slowed_us");
    // Sixteen commits of 250 changes, delayed by 0 to 20 us for each change.
    assert!((10_000..40_000).contains(&slowed), "slowed more and more before: write_slowed_us={slowed}");
    gate.open();
    writer.join().unwrap();
    assert!(stat(&*engine, "write_stalls") > 0, "time at the bound is counted");
    assert!(stat(&*engine, "delta_runs_most") <= RUNS_MOST);
    assert!(all(&*engine).unwrap() == content(LAST));
}

#[test]
fn memtables_are_flushed_while_a_merge_stands_still() {
    const LAST: u64 = 18;
    let storage = FaultyStorage::default();
    let engine = Arc::new(groups::open(&storage).unwrap());
    let gate = storage.gate();
    let _opens = Opens(gate);
    gate.close();
    let (_, writer) = commits(&engine, 1..=LAST);
    wait_for("every memtable but the last to be flushed", || stat(&*engine, "flushes") == LAST - 1);
    writer.join().unwrap();
    wait_for("the merge that is due", || gate.is_waited_at());
    assert_eq!((stat(&*engine, "merges"), stat(&*engine, "delta_runs")), (0, LAST - 1));
    gate.open();
    engine.settle().unwrap();
    assert!(all(&*engine).unwrap() == content(LAST));
}

#[test]
fn newer_runs_are_merged_while_a_merge_into_the_base_is_under_way() {
    const BASE: u64 = 8_000;
    /// Number of segments that a merge of five memtables and the other merge's turns write; a merge into this base
    /// writes more than forty.
    const SEGMENTS: u64 = 16;
    let storage = FaultyStorage::default();
    let engine = groups::open(&storage).unwrap();
    let mut pairs: Vec<(Key, Value)> = (10_000..10_000 + BASE).map(|n| (key(n), value(n))).collect();
    pairs.sort_unstable();
    engine.load_sorted(&pairs, &at(1)).unwrap();
    let gate = storage.gate();
    let _opens = Opens(gate);
    gate.close();
    let mut seq = 1;
    let mut commit = || {
        seq += 1;
        try_commit(&engine, &fresh(seq), seq, Durability::Buffered).unwrap();
        wait_for("its memtable to be flushed", || stat(&engine, "memtable_records") <= 250);
        seq
    };
    while stat(&engine, "base_merges_begun") == 0 {
        let last = commit();
        assert!(last < 200, "no merge into the base");
        // Due merges of deltas come first; let them pass segment by segment.
        for _ in 0..10 {
            if gate.is_waited_at() && stat(&engine, "base_merges_begun") == 0 {
                gate.let_one();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let merges = stat(&engine, "merges");
    let mut last = 0;
    for _ in 0..5 {
        last = commit();
    }
    for _ in 0..SEGMENTS {
        wait_for("the next segment", || gate.is_waited_at() || stat(&engine, "merges") > merges);
        gate.let_one();
    }
    wait_for("a merge of newer runs", || stat(&engine, "merges") > merges || gate.is_waited_at());
    assert!(stat(&engine, "merges") > merges, "newer runs wait for the merge into the base");
    assert!(stat(&engine, "base_merges_begun") == 1 && stat(&engine, "delta_records") > 4_000, "which has not ended");
    gate.open();
    engine.settle().unwrap();
    let mut map: Map = pairs.into_iter().collect();
    (2..=last).for_each(|seq| apply(&mut map, &fresh(seq)));
    assert!(all(&engine).unwrap() == map);
}

#[test]
fn a_load_in_shuffled_order_at_full_speed_keeps_to_its_bounds() {
    const SIZES: Sizes = Sizes { mem_records: 1024, segment_records: 8192, wal_bytes: 1 << 20 };
    const LITTLE: StrataOptions = StrataOptions { memory_bytes: 4 << 20, disk_reserve_bytes: 0 };
    const BATCHES: u64 = 300;
    const CHANGES: u64 = 1000;
    let storage = FaultyStorage::default();
    let engine = Arc::new(StrataEngine::open_sized(Arc::new(storage), &LITTLE, SIZES).unwrap());
    let writing = Arc::clone(&engine);
    let writer = std::thread::spawn(move || {
        for seq in 1..=BATCHES {
            let puts: Vec<_> = (seq * CHANGES..(seq + 1) * CHANGES).map(|n| (key(n), Some(value(n)))).collect();
            try_commit(&*writing, &puts, seq, Durability::Buffered).unwrap();
        }
    });
    let limit = Instant::now() + Duration::from_secs(600);
    let mut held_most = 0;
    while !writer.is_finished() {
        assert!(Instant::now() < limit, "commits are held for ever: {:?}", engine.stats().unwrap());
        let parts = ["memtable", "directory", "filter", "page", "record_cache", "work"];
        held_most = held_most.max(parts.iter().map(|part| stat(&*engine, &format!("memory_{part}_bytes"))).sum());
        std::thread::sleep(Duration::from_millis(5));
    }
    writer.join().unwrap();
    let figure = |name| stat(&*engine, name);
    assert!(figure("delta_runs_most") <= RUNS_MOST, "runs: {}", figure("delta_runs_most"));
    assert!(figure("merge_debt_most_percent") <= DEBT_MOST_PERCENT, "debt: {}", figure("merge_debt_most_percent"));
    assert!(figure("base_records") > BATCHES * CHANGES / 5, "merges into the base end: {}", figure("base_records"));
    // Directories and buffers are always granted, some of them before other holders have given memory back.
    assert!(held_most <= LITTLE.memory_bytes + (1 << 20), "memory in use: {held_most}");
    engine.settle().unwrap();
    let map: Map = (CHANGES..(BATCHES + 1) * CHANGES).map(|n| (key(n), value(n))).collect();
    assert!(all(&*engine).unwrap() == map);
}

#[test]
fn commits_go_on_while_a_store_settles_which_merges_what_was_there_when_it_began() {
    const BEFORE: u64 = 8;
    const LAST: u64 = 12;
    let storage = FaultyStorage::default();
    let engine = Arc::new(groups::open(&storage).unwrap());
    let gate = storage.gate();
    let _opens = Opens(gate);
    gate.close();
    (1..=BEFORE).for_each(|seq| try_commit(&*engine, &changes(seq), seq, Durability::Buffered).unwrap());
    let settling = Arc::clone(&engine);
    let settled = std::thread::spawn(move || settling.settle());
    wait_for("all to be flushed, and a merge", || stat(&*engine, "flushes") == BEFORE && gate.is_waited_at());
    let (committed, writer) = commits(&engine, BEFORE + 1..=LAST);
    wait_for("commits beside it", || committed.load(Ordering::Relaxed) == LAST);
    writer.join().unwrap();
    assert!(!settled.is_finished(), "nothing is merged yet");
    gate.open();
    settled.join().unwrap().unwrap();
    let merged = content(BEFORE).len() as u64;
    assert!(stat(&*engine, "base_records") >= merged, "{} of {merged}", stat(&*engine, "base_records"));
    assert!(all(&*engine).unwrap() == content(LAST));
}

#[test]
fn a_commit_finds_the_next_file_and_memtable_made() {
    let (disk, hooks) = (FaultyStorage::default(), Arc::new(Hooks::default()));
    let storage = Hooked { inner: Arc::new(disk.clone()), hooks: Arc::clone(&hooks) };
    let engine = StrataEngine::open_sized(Arc::new(storage), &OPTIONS, groups::SIZES).unwrap();
    let own = || hooks.wals.lock().iter().filter(|(_, thread)| thread == "strata-flush").count() as u64;
    let all_made = || hooks.wals.lock().len() as u64;
    for seq in 1..=12 {
        // More than half of a memtable, so that each batch begins the next file.
        try_commit(&engine, &fresh(seq), seq, Durability::Buffered).unwrap();
        wait_for("the next file", || own() == seq);
    }
    assert_eq!(stat(&engine, "wal_rotations"), 11);
    assert_eq!(all_made(), 1 + 12, "the first was made by the opening, and none by a commit: {:?}", hooks.wals.lock());
    let mut map = Map::new();
    (1..=12).for_each(|seq| apply(&mut map, &fresh(seq)));
    drop(engine);
    // A prepared file without a record must do no harm.
    let engine = StrataEngine::open_sized(Arc::new(disk), &OPTIONS, groups::SIZES).unwrap();
    assert!(all(&engine).unwrap() == map);
}
