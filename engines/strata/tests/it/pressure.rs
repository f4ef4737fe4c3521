//! Writers that are faster than merges: bounds on unmerged data, turns between merges, and preparation for later
//! commits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::faulty::FaultyStorage;
use engine_api::{Durability, Engine, Key, Value};
use solkv_engine_strata::{Sizes, StrataEngine, StrataOptions};

use crate::groups;
use crate::hooked::{Hooked, Hooks};
use crate::support::{Map, OPTIONS, all, apply, at, batch, key, stat, try_commit, value};
use crate::trouble::segments;
use crate::wait_for;

/// Largest number of delta runs. Commits are held at 36; one memtable is frozen by then, and the next commit freezes
/// another.
pub(crate) const RUNS_MOST: u64 = 37;
/// Debt in percent at which commits are held, of the records that make a merge into the base due.
const DEBT_HELD_PERCENT: u64 = 150;
/// Largest debt in percent. A merge is due at 8 memtables or more, and three memtables may be full when commits are
/// held. A merge of all deltas, as there is one if there are too many, then counts those of their records as unmerged too
/// that the base has. These are as many again: a run stays for a round of the merge, and of the runs in between half is
/// merged.
const DEBT_MOST_PERCENT: u64 = 2 * (DEBT_HELD_PERCENT + 3 * 100 / 8 + 1);

/// A gate that a merge passes before each new segment. A test can hold the merge there to look at everything else.
struct Gate(Arc<Hooks>);

impl Gate {
    /// Lets segments begin only one by one from now on, each by a call of [`Gate::let_one`].
    fn close(&self) {
        self.0.merge_segments_left.store(0, Ordering::Relaxed);
    }

    fn open(&self) {
        self.0.merge_segments_left.store(u64::MAX, Ordering::Relaxed);
    }

    /// Whether a merge waits before a segment.
    fn is_waited_at(&self) -> bool {
        self.0.merge_waits.load(Ordering::Relaxed)
    }

    fn let_one(&self) {
        self.0.merge_waits.store(false, Ordering::Relaxed);
        self.0.merge_segments_left.fetch_add(1, Ordering::Relaxed);
    }
}

/// Opens the gate when a test ends for any reason, because the engine's thread may wait at it.
impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

/// Opens a store with a gate before its merges. The gate is dropped first.
fn open_gated(disk: &FaultyStorage, options: &StrataOptions, sizes: Sizes) -> (Arc<StrataEngine>, Gate) {
    let hooks = Arc::new(Hooks::default());
    let storage = Arc::new(Hooked { inner: Arc::new(disk.clone()), hooks: Arc::clone(&hooks) });
    (Arc::new(StrataEngine::open_sized(storage, options, sizes).unwrap()), Gate(hooks))
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
    let (engine, gate) = open_gated(&FaultyStorage::default(), &OPTIONS, groups::SIZES);
    // A base so large that the number of runs is reached before the debt.
    let mut pairs: Vec<(Key, Value)> = (100_000..130_000).map(|n| (key(n), value(n))).collect();
    pairs.sort_unstable();
    engine.load_sorted(&pairs, &at(0)).unwrap();
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
    let mut map = content(LAST);
    map.extend(pairs);
    assert!(all(&*engine).unwrap() == map);
}

#[test]
fn memtables_are_flushed_while_a_merge_stands_still() {
    const LAST: u64 = 10;
    let (engine, gate) = open_gated(&FaultyStorage::default(), &OPTIONS, groups::SIZES);
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
    const BASE: u64 = 20_000;
    /// Number of segments that a merge of five memtables and the other merge's turns write; a merge into this base
    /// writes more than fifty.
    const SEGMENTS: u64 = 16;
    let (engine, gate) = open_gated(&FaultyStorage::default(), &OPTIONS, groups::SIZES);
    let mut pairs: Vec<(Key, Value)> = (10_000..10_000 + BASE).map(|n| (key(n), value(n))).collect();
    pairs.sort_unstable();
    engine.load_sorted(&pairs, &at(1)).unwrap();
    gate.close();
    let mut seq = 1;
    let mut commit = || {
        seq += 1;
        try_commit(&*engine, &fresh(seq), seq, Durability::Buffered).unwrap();
        wait_for("its memtable to be flushed", || stat(&*engine, "memtable_records") <= 250);
        seq
    };
    while stat(&*engine, "base_merges_begun") == 0 {
        let last = commit();
        assert!(last < 200, "no merge into the base");
        // Due merges of deltas come first; let them pass segment by segment.
        for _ in 0..10 {
            if gate.is_waited_at() && stat(&*engine, "base_merges_begun") == 0 {
                gate.let_one();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let merges = stat(&*engine, "merges");
    let mut last = 0;
    for _ in 0..5 {
        last = commit();
    }
    for _ in 0..SEGMENTS {
        wait_for("the next segment", || gate.is_waited_at() || stat(&*engine, "merges") > merges);
        gate.let_one();
    }
    wait_for("a merge of newer runs", || stat(&*engine, "merges") > merges || gate.is_waited_at());
    assert!(stat(&*engine, "merges") > merges, "newer runs wait for the merge into the base");
    assert!(stat(&*engine, "base_merges_begun") == 1 && stat(&*engine, "delta_records") > 4_000, "which has not ended");
    gate.open();
    engine.settle().unwrap();
    let mut map: Map = pairs.into_iter().collect();
    (2..=last).for_each(|seq| apply(&mut map, &fresh(seq)));
    assert!(all(&*engine).unwrap() == map);
}

/// Speed of the merges while a store is loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Merges {
    Unhindered,
    /// A segment is written only while commits are held.
    OnlyWhileHeld,
}

/// Returns the capacities that follow from the memory, without the least values that [`Sizes::of`] adds, so that a
/// store with little memory has many small memtables and segments.
fn sizes_of(memory_bytes: u64) -> Sizes {
    let (mem_records, segment_records) = (memory_bytes as usize >> 12, memory_bytes >> 8);
    Sizes { mem_records, segment_records, wal_bytes: memory_bytes }
}

/// Memory in use beyond the budget, at any size of the budget: the least buffers of a merge of all runs, 32 KiB a run,
/// and those of a flush and a directory. Each is granted before other holders give memory back.
const MEMORY_OVER_BYTES: u64 = RUNS_MOST * (32 << 10) + (512 << 10);

/// Returns the largest size of all files of a store with so many records in so many segments. A merge keeps its runs
/// until it ends, so each record is there twice at most.
fn disk_most_bytes(records: u64, segments: u64, sizes: Sizes) -> u64 {
    /// Size of a record with its part of the filters and the directory.
    const RECORD_BYTES: u64 = 68;
    /// Size of a segment's footer, and of the padding of its parts to whole pages.
    const SEGMENT_BYTES: u64 = 24 << 10;
    /// Number of WAL files: one in use, two of frozen memtables, one made ahead, two to be used again.
    const WALS: u64 = 6;
    let wal_bytes = sizes.mem_records as u64 * 70 + (64 << 10);
    // All runs may have been replaced a moment ago.
    2 * (records * RECORD_BYTES + segments * SEGMENT_BYTES) + RUNS_MOST * SEGMENT_BYTES + WALS * wal_bytes
}

/// Loads new keys in shuffled order at full speed, each batch as large as a memtable, and checks all bounds on the way.
#[track_caller]
fn assert_load_keeps_to_its_bounds(memory_mib: u64, memtables: u64, merges: Merges) {
    let options = StrataOptions { memory_bytes: memory_mib << 20, disk_reserve_bytes: 0, prefix_bytes: 32 };
    let sizes = sizes_of(options.memory_bytes);
    let changes = sizes.mem_records as u64;
    let pair = |n: u64| (key(n), value(n));
    let (engine, gate) = open_gated(&FaultyStorage::default(), &options, sizes);
    if merges == Merges::OnlyWhileHeld {
        gate.close();
    }
    let (writing, begun) = (Arc::clone(&engine), Arc::new(AtomicU64::new(0)));
    let says = Arc::clone(&begun);
    let writer = std::thread::spawn(move || {
        for seq in 1..=memtables {
            says.store(seq, Ordering::Relaxed);
            let puts: Vec<_> = ((seq - 1) * changes..seq * changes).map(|n| (key(n), Some(value(n)))).collect();
            try_commit(&*writing, &puts, seq, Durability::Buffered).unwrap();
        }
    });
    let (mut before, mut since) = (0, Instant::now());
    let (mut memory_most, mut disk_most_percent) = (0, 0);
    while !writer.is_finished() {
        let stats = engine.stats().unwrap();
        let figure = |name: &str| stats.details.iter().find(|(found, _)| *found == name).unwrap().1;
        let parts = ["memtable", "directory", "filter", "page", "record_cache", "work"];
        memory_most = memory_most.max(parts.iter().map(|part| figure(&format!("memory_{part}_bytes"))).sum());
        let now = begun.load(Ordering::Relaxed);
        let disk_most = disk_most_bytes(now * changes, figure("segments"), sizes);
        disk_most_percent = disk_most_percent.max(stats.disk_bytes * 100 / disk_most);
        if now > before {
            (before, since) = (now, Instant::now());
        }
        assert!(since.elapsed() < Duration::from_secs(120), "commits are held for ever: {stats:?}");
        let held = figure("delta_runs") >= RUNS_MOST - 1 || figure("merge_debt_percent") >= DEBT_HELD_PERCENT;
        if held && gate.is_waited_at() {
            gate.let_one();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    writer.join().unwrap();
    gate.open();
    let figure = |name| stat(&*engine, name);
    let (runs_most, debt_most_percent) = (figure("delta_runs_most"), figure("merge_debt_most_percent"));
    println!(
        "memory={memory_mib} MiB: {memory_most} bytes, disk {disk_most_percent}%, runs {runs_most}, debt {debt_most_percent}%"
    );
    assert!(runs_most <= RUNS_MOST && debt_most_percent <= DEBT_MOST_PERCENT);
    if merges == Merges::OnlyWhileHeld {
        assert!(runs_most >= RUNS_MOST - 1 || debt_most_percent >= DEBT_HELD_PERCENT, "the bounds were reached");
    }
    assert!(memory_most <= options.memory_bytes + MEMORY_OVER_BYTES);
    assert!(disk_most_percent <= 100);
    assert!(figure("base_records") > memtables * changes / 5, "merges into the base end");
    engine.settle().unwrap();
    let map: Map = (0..memtables * changes).map(pair).collect();
    assert!(all(&*engine).unwrap() == map);
}

#[test]
fn a_load_in_shuffled_order_at_full_speed_keeps_to_its_bounds() {
    for (memory_mib, memtables) in [(1, 200), (4, 150), (16, 50)] {
        assert_load_keeps_to_its_bounds(memory_mib, memtables, Merges::Unhindered);
    }
}

/// On any machine merges are as slow here as the bounds permit.
#[test]
fn a_load_in_shuffled_order_keeps_to_its_bounds_though_merges_run_only_while_it_is_held() {
    for (memory_mib, memtables) in [(1, 200), (4, 150), (16, 50)] {
        assert_load_keeps_to_its_bounds(memory_mib, memtables, Merges::OnlyWhileHeld);
    }
}

#[test]
fn commits_go_on_while_a_store_settles_which_merges_what_was_there_when_it_began() {
    const BEFORE: u64 = 8;
    const LAST: u64 = 12;
    let (engine, gate) = open_gated(&FaultyStorage::default(), &OPTIONS, groups::SIZES);
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

/// A file whose batches are all durable is not flushed again when the next one begins, because the commit that begins
/// it would wait for the device twice.
#[test]
fn a_synced_commit_that_begins_a_file_waits_for_one_flush() {
    let (disk, hooks) = (FaultyStorage::default(), Arc::new(Hooks::default()));
    let storage = Hooked { inner: Arc::new(disk.clone()), hooks: Arc::clone(&hooks) };
    let engine = StrataEngine::open_sized(Arc::new(storage), &OPTIONS, groups::SIZES).unwrap();
    let flushes = || hooks.wal_flushes.load(Ordering::Relaxed);
    let before = flushes();
    for seq in 1..=12 {
        // More than half of a memtable, so that each batch begins the next file.
        try_commit(&engine, &fresh(seq), seq, Durability::Synced).unwrap();
        assert_eq!(flushes() - before, seq);
    }
    assert_eq!(stat(&engine, "wal_rotations"), 11);
    // A batch that is not durable is flushed by the commit that begins the next file.
    try_commit(&engine, &fresh(13), 13, Durability::Buffered).unwrap();
    assert_eq!(flushes() - before, 12);
    try_commit(&engine, &fresh(14), 14, Durability::Buffered).unwrap();
    assert_eq!(flushes() - before, 13);
}

#[test]
fn a_commit_that_is_held_keeps_no_replaced_file() {
    const LAST: u64 = 12;
    let disk = FaultyStorage::default();
    let (engine, gate) = open_gated(&disk, &OPTIONS, groups::SIZES);
    let mut pairs: Vec<(Key, Value)> = (0..4000).map(|n| (key(n), value(n))).collect();
    pairs.sort_unstable();
    engine.load_sorted(&pairs, &at(1)).unwrap();
    let loaded = segments(&disk);
    gate.close();
    let committed = Arc::new(AtomicU64::new(0));
    let writer = std::thread::spawn({
        let (engine, committed) = (Arc::clone(&engine), Arc::clone(&committed));
        move || {
            for seq in 2..=LAST {
                // First batches of ten memtables each, because there may not be as many runs of one memtable.
                let records = if seq < 8 { 2500 } else { 200 };
                let changes: Vec<_> = (0..records).map(|n| (key(seq * 10_000 + n), Some(value(n)))).collect();
                try_commit(&*engine, &changes, seq, Durability::Buffered).unwrap();
                committed.store(seq, Ordering::Relaxed);
            }
        }
    });
    let now = || committed.load(Ordering::Relaxed);
    wait_for("a commit that is held", || {
        let before = now();
        std::thread::sleep(Duration::from_millis(500));
        stat(&*engine, "merge_debt_percent") >= DEBT_HELD_PERCENT && now() == before
    });
    let held = now();
    assert!(held < LAST, "nothing holds commits");
    // Groups are replaced one by one. The debt stays until the last one is.
    wait_for("a replaced file to be removed", || {
        gate.let_one();
        std::thread::sleep(Duration::from_millis(200));
        loaded.iter().any(|name| !disk.names().contains(name))
    });
    assert_eq!(now(), held, "a file is removed only after the commit");
    gate.open();
    writer.join().unwrap();
}
