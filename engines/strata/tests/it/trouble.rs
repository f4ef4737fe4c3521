//! Merges in trouble: no space, no descriptors, an unreadable segment. Writing continues, at the latest once the
//! trouble has passed. Readers never pay for the removal of replaced segments.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use engine_api::{Durability, Engine, ErrorKind, Key, Value};
use solkv_engine_strata::storage::Storage;
use solkv_engine_strata::{Sizes, StrataEngine, StrataOptions};

use crate::faulty::FaultyStorage;
use crate::groups::SIZES;
use crate::hooked::{Hooked, Hooks};
use crate::support::{Map, OPTIONS, all, apply, at, key, try_commit, value};

/// Number of pairs in a memtable of [`OPTIONS`].
const MEMTABLE: u64 = 16 << 10;

/// A store on a disk whose trouble a test decides, and its expected content.
pub(crate) struct Store {
    pub(crate) engine: StrataEngine,
    pub(crate) disk: FaultyStorage,
    pub(crate) hooks: Arc<Hooks>,
    pub(crate) map: Map,
    pub(crate) seq: u64,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self::with(OPTIONS)
    }

    fn with(options: StrataOptions) -> Self {
        Self::sized(options, Sizes::of(&options))
    }

    pub(crate) fn sized(options: StrataOptions, sizes: Sizes) -> Self {
        let (disk, hooks) = (FaultyStorage::default(), Arc::new(Hooks::default()));
        let storage = Hooked { inner: Arc::new(disk.clone()), hooks: Arc::clone(&hooks) };
        let engine = StrataEngine::open_sized(Arc::new(storage), &options, sizes).unwrap();
        Self { engine, disk, hooks, map: Map::new(), seq: 0 }
    }

    pub(crate) fn try_put(&mut self, keys: impl Iterator<Item = u64>) -> engine_api::Result<()> {
        let seq = self.seq + 1;
        let changes: Vec<(Key, Option<Value>)> = keys.map(|n| (key(n), Some(value(n ^ seq << 40)))).collect();
        try_commit(&self.engine, &changes, seq, Durability::Buffered)?;
        self.seq = seq;
        apply(&mut self.map, &changes);
        Ok(())
    }

    #[track_caller]
    pub(crate) fn put(&mut self, keys: impl Iterator<Item = u64>) {
        self.try_put(keys).unwrap();
    }

    /// Loads this many pairs into the base of the new store.
    pub(crate) fn load(&mut self, count: u64) {
        let mut pairs: Vec<(Key, Value)> = (0..count).map(|n| (key(n), value(n))).collect();
        pairs.sort_unstable();
        self.seq = 1;
        self.engine.load_sorted(&pairs, &at(1)).unwrap();
        self.map.extend(pairs);
    }

    pub(crate) fn stat(&self, name: &str) -> u64 {
        self.engine.stats().unwrap().details.iter().find(|(known, _)| *known == name).unwrap().1
    }

    #[track_caller]
    pub(crate) fn wait_until(&self, what: &str, happened: impl Fn(&Self) -> bool) {
        let since = Instant::now();
        while !happened(self) {
            assert!(since.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[track_caller]
    pub(crate) fn assert_holds(&self) {
        assert!(all(&self.engine).unwrap() == self.map, "content differs");
        assert_eq!(self.engine.checkpoint().unwrap(), at(self.seq));
    }

    /// Opens the store again on the same disk without any trouble, and expects the same content.
    #[track_caller]
    pub(crate) fn assert_holds_when_opened_again(self) {
        let Self { engine, disk, map, seq, .. } = self;
        Box::new(engine).close().unwrap();
        let engine = StrataEngine::open_on(Arc::new(disk), &OPTIONS).unwrap();
        assert!(all(&engine).unwrap() == map, "content differs");
        assert_eq!(engine.checkpoint().unwrap(), at(seq));
    }
}

/// Returns the names of the segments on the disk, oldest first.
pub(crate) fn segments(disk: &FaultyStorage) -> Vec<String> {
    let mut names: Vec<String> = disk.names().into_iter().filter(|name| name.ends_with(".seg")).collect();
    names.sort();
    names
}

#[test]
fn a_merge_without_room_writes_nothing_and_keeps_the_reserve() {
    let mut store = Store::new();
    let reserve_bytes = 3 * MEMTABLE * 64;
    store.hooks.disk_bytes.store(24 << 20, Ordering::Relaxed);
    let mut next = 0;
    loop {
        let refused = loop {
            match store.try_put(next..next + 4000) {
                Ok(()) => next += 4000,
                Err(refused) => break refused,
            }
            assert!(next < 1_000_000, "the disk never fills");
        };
        assert_eq!(refused.kind(), ErrorKind::FreeSpace, "{refused}");
        // Room for commits and a flush, but not for a merge of everything.
        let used = store.engine.stats().unwrap().disk_bytes;
        store.hooks.disk_bytes.store(used + reserve_bytes + (2 << 20), Ordering::Relaxed);
        // A merge that ended after the disk had filled gave room back, so there is more to fill.
        if store.engine.settle().is_err() {
            break;
        }
    }
    let settle = |store: &Store| {
        let refused = store.engine.settle().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::FreeSpace, "{refused}");
        assert!(refused.to_string().contains("a merge"), "{refused}");
        store.hooks.segment_bytes.load(Ordering::Relaxed)
    };
    let written = settle(&store);
    assert!(store.stat("merge_short_of_disk_bytes") > 0);
    assert_eq!(settle(&store), written, "nothing is written to be given back");
    // A flush may use the reserve, which exists for it.
    let least = store.hooks.least_free_bytes.load(Ordering::Relaxed);
    assert!(least + 2 * MEMTABLE * 64 >= reserve_bytes, "least_free_bytes={least}");
    store.assert_holds();
    store.hooks.disk_bytes.store(u64::MAX, Ordering::Relaxed);
    store.put(0..10);
    store.engine.settle().unwrap();
    assert_eq!(store.stat("delta_runs"), 0);
    assert_eq!(store.stat("merge_short_of_disk_bytes"), 0);
    store.assert_holds();
    store.assert_holds_when_opened_again();
}

#[test]
fn a_merge_of_several_segments_that_cannot_be_installed_begins_anew_and_loses_nothing() {
    let mut store = Store::sized(OPTIONS, SIZES);
    store.load(30_000);
    let loaded = store.stat("segments");
    // Fewer runs are not merged.
    const RUNS: u64 = 20;
    store.hooks.no_manifest.store(true, Ordering::Relaxed);
    for n in 0..=RUNS {
        store.put(n * 250..(n + 1) * 250);
    }
    store.wait_until("the merge", |store| store.stat("merges") == 1);
    assert!(!store.hooks.no_manifest.load(Ordering::Relaxed) && store.stat("merge_failures") == 1);
    let runs = store.stat("delta_runs");
    assert!(runs < RUNS && store.stat("segments") >= loaded + runs + 2, "the merge wrote several segments");
    store.assert_holds();
    store.assert_holds_when_opened_again();
}

#[test]
fn a_merge_without_room_does_not_keep_an_older_one_from_ending() {
    let mut store = Store::sized(OPTIONS, SIZES);
    store.load(100_000);
    // Larger runs, and so many that the newest are merged as soon as there are five.
    for n in 0..15 {
        store.put(n * 1100..(n + 1) * 1100);
    }
    // The first merge waits at its second segment.
    store.hooks.merge_segments_left.store(1, Ordering::Relaxed);
    for n in 0..6 {
        store.put(n * 250..(n + 1) * 250);
    }
    store.wait_until("the first segment", |store| store.hooks.merge_segments_left.load(Ordering::Relaxed) == 0);
    for n in 6..12 {
        store.put(n * 250..(n + 1) * 250);
    }
    store.wait_until("the flushes", |store| store.stat("flushes") >= 26);
    // Room for the rest of the first merge, and none for a merge of the six newer runs.
    let (used, reserve_bytes) = (store.engine.stats().unwrap().disk_bytes, 3 * 256 * 64);
    store.hooks.disk_bytes.store(used + reserve_bytes + (100 << 10), Ordering::Relaxed);
    store.hooks.merge_segments_left.store(u64::MAX, Ordering::Relaxed);
    store.wait_until("the first merge", |store| store.stat("merges") >= 1);
    store.hooks.disk_bytes.store(u64::MAX, Ordering::Relaxed);
    store.engine.settle().unwrap();
    store.assert_holds();
    store.assert_holds_when_opened_again();
}

#[test]
fn a_batch_larger_than_the_reserve_is_refused_before_anything_of_it_is_written() {
    let mut store = Store::sized(OPTIONS, SIZES);
    store.put(0..10);
    let (used, reserve_bytes) = (store.engine.stats().unwrap().disk_bytes, 3 * 256 * 64);
    // Room for its record, and not for the run that is written of it.
    store.hooks.disk_bytes.store(used + reserve_bytes + 3000 * 72, Ordering::Relaxed);
    let refused = store.try_put(0..3000).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::FreeSpace, "{refused}");
    assert_eq!(store.engine.stats().unwrap().disk_bytes, used);
    store.put(0..20);
    store.hooks.disk_bytes.store(u64::MAX, Ordering::Relaxed);
    store.put(0..3000);
    store.assert_holds();
    store.assert_holds_when_opened_again();
}

#[test]
fn a_name_of_a_wal_file_that_is_not_durable_ends_writing_whatever_the_reason() {
    let mut store = Store::sized(OPTIONS, SIZES);
    store.put(0..10);
    store.hooks.dir_full.store(1, Ordering::Relaxed);
    // The batch needs a new file, or the one that is made ahead fails.
    let refused = (1..4).find_map(|n| store.try_put(n * 250..(n + 1) * 250).err()).unwrap();
    assert_eq!(refused.kind(), ErrorKind::Reopen, "{refused}");
    std::thread::sleep(Duration::from_millis(100));
    let changes = store.disk.counts().0;
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(store.disk.counts().0, changes, "flushes and merges end as well");
    let Store { engine, disk, map, .. } = store;
    // It cannot be closed in order.
    drop(engine);
    let engine = StrataEngine::open_on(Arc::new(disk), &OPTIONS).unwrap();
    assert!(all(&engine).unwrap() == map, "content differs");
}

#[test]
fn a_moment_without_descriptors_ends_no_writing() {
    let mut store = Store::new();
    store.put(0..MEMTABLE - 100);
    store.hooks.no_descriptors.store(true, Ordering::Relaxed);
    let hooks = Arc::clone(&store.hooks);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            hooks.no_descriptors.store(false, Ordering::Relaxed);
        });
        // This commit needs the next WAL file.
        store.put(MEMTABLE..2 * MEMTABLE - 100);
    });
    // A flush needs a file too.
    store.hooks.no_descriptors.store(true, Ordering::Relaxed);
    let settled = store.engine.settle().unwrap_err();
    assert_eq!(settled.kind(), ErrorKind::Retry, "{settled}");
    store.hooks.no_descriptors.store(false, Ordering::Relaxed);
    store.put(5..10);
    store.engine.settle().unwrap();
    store.assert_holds();
    store.assert_holds_when_opened_again();
}

#[test]
fn a_flush_that_wants_descriptors_is_tried_again() {
    let mut store = Store::new();
    store.put(0..10_000);
    store.put(10_000..20_000);
    store.wait_until("the first flush", |store| store.stat("flushes") == 1);
    store.put(20_000..26_000);
    store.hooks.no_descriptors.store(true, Ordering::Relaxed);
    let failures = store.stat("merge_failures");
    let hooks = Arc::clone(&store.hooks);
    std::thread::scope(|scope| {
        let engine = &store.engine;
        // Only after a spare file was taken for the next WAL, so that nothing but the flush has to wait.
        let failed = move || {
            engine.stats().unwrap().details.iter().any(|(name, n)| *name == "merge_failures" && *n > failures + 1)
        };
        scope.spawn(move || {
            let since = Instant::now();
            while !failed() && since.elapsed() < Duration::from_secs(3) {
                std::thread::sleep(Duration::from_millis(5));
            }
            hooks.no_descriptors.store(false, Ordering::Relaxed);
        });
        engine.settle().ok();
    });
    store.put(0..10);
    store.engine.settle().unwrap();
    store.assert_holds();
}

#[test]
fn a_segment_of_the_base_that_cannot_be_read_is_left_alone() {
    let mut store = Store::new();
    store.load(600_000);
    let segments = segments(&store.disk);
    assert!(segments.len() >= 3, "{segments:?}");
    *store.hooks.unreadable.lock() = Some(segments[1].clone());
    for round in 0..2 {
        let first = round * 15_000;
        store.put(first..first + 10_000);
        store.engine.settle().unwrap();
        assert_eq!((store.stat("unreadable_segments"), store.stat("delta_runs")), (1, 1), "round={round}");
        let names = store.disk.names();
        assert!(names.contains(&segments[1]) && !names.contains(&segments[0]) && !names.contains(&segments[2]));
    }
    // A ninth of the written records lie in its range, and nothing else is left in the delta.
    let left = store.stat("delta_records");
    assert!((1_800..2_600).contains(&left), "left={left}");
    *store.hooks.unreadable.lock() = None;
    store.assert_holds();
    store.assert_holds_when_opened_again();
}

#[test]
fn a_merge_that_leaves_a_segment_out_goes_on_after_a_moment_without_descriptors() {
    let mut store = Store::new();
    store.load(600_000);
    let segments = segments(&store.disk);
    *store.hooks.unreadable.lock() = Some(segments[0].clone());
    store.put(0..10_000);
    // The first group is left out, and the second one is merged.
    store.hooks.merge_segments_left.store(1, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let settled = scope.spawn(|| store.engine.settle());
        store.wait_until("a group", |store| store.hooks.merge_segments_left.load(Ordering::Relaxed) == 0);
        store.hooks.no_manifest.store(true, Ordering::Relaxed);
        store.hooks.merge_segments_left.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(settled.join().unwrap().unwrap_err().kind(), ErrorKind::Retry);
    });
    store.engine.settle().unwrap();
    assert_eq!(store.stat("base_merges_begun"), 1, "what is merged is not merged again");
    assert_eq!((store.stat("unreadable_segments"), store.stat("delta_runs")), (1, 1));
    *store.hooks.unreadable.lock() = None;
    store.assert_holds();
    store.assert_holds_when_opened_again();
}

#[test]
fn a_delta_that_cannot_be_read_is_left_alone() {
    // Too little memory for its pages to stay in memory.
    let mut store = Store::with(StrataOptions { memory_bytes: 1 << 20, ..OPTIONS });
    store.put(0..MEMTABLE);
    store.put(MEMTABLE..MEMTABLE + 10);
    store.wait_until("a flush", |store| store.stat("delta_runs") == 1);
    let delta = store.disk.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    *store.hooks.unreadable.lock() = Some(delta.clone());
    let flushes = 24;
    for n in 1..=flushes {
        store.put(n * 1000..n * 1000 + MEMTABLE);
    }
    store.engine.settle().unwrap();
    assert_eq!(store.stat("unreadable_segments"), 1);
    assert!(store.disk.names().contains(&delta));
    store.wait_until("a merge of the others among themselves", |store| store.stat("delta_runs") < flushes);
    store.put(0..10);
    *store.hooks.unreadable.lock() = None;
    store.assert_holds();
    store.assert_holds_when_opened_again();
}

#[test]
fn what_merges_replace_is_dropped_by_the_store_s_threads_and_never_by_a_reader() {
    let mut store = Store::new();
    for n in 0..6 {
        store.put(n * 1000..n * 1000 + MEMTABLE);
    }
    store.engine.settle().unwrap();
    let old = segments(&store.disk);
    assert!(!old.is_empty());
    let mut reader = store.engine.reader().unwrap();
    store.seq += 1;
    let changes: Vec<_> = (0..10_000).map(|n| (key(n), Some([7; 32]))).collect();
    try_commit(&store.engine, &changes, store.seq, Durability::Buffered).unwrap();
    store.engine.settle().unwrap();
    assert!(old.iter().all(|name| store.disk.names().contains(name)), "a reader holds them");
    reader.refresh().unwrap();
    store.wait_until("they are removed", |store| old.iter().all(|name| !store.disk.names().contains(name)));
    let removed = store.hooks.removed.lock().clone();
    let segments: Vec<_> = removed.iter().filter(|(name, _)| name.ends_with(".seg")).collect();
    assert!(segments.len() > old.len(), "{segments:?}");
    let own = |thread: &str| ["strata-merge", "strata-flush"].contains(&thread);
    assert!(segments.iter().all(|(_, thread)| own(thread)), "{segments:?}");
    assert!(store.stat("replaced_dropped") > 0);
    drop(reader);
    apply(&mut store.map, &changes);
    store.assert_holds();
}

#[test]
fn a_store_that_loses_its_manifest_in_its_first_merge_keeps_everything() {
    let mut store = Store::sized(OPTIONS, SIZES);
    for n in 0..3 {
        store.put(n * 250..(n + 1) * 250);
    }
    // The merge into the base stands still once a part of its records is installed.
    store.hooks.merge_segments_left.store(1, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let settled = scope.spawn(|| store.engine.settle());
        store.wait_until("the first part of the base", |store| store.stat("base_records") > 0);
        let killed = store.disk.after_crash(0);
        store.hooks.merge_segments_left.store(u64::MAX, Ordering::Relaxed);
        settled.join().unwrap().unwrap();
        killed.remove("MANIFEST").unwrap();
        let storage: Arc<dyn Storage> = Arc::new(killed);
        StrataEngine::repair_on(&storage).unwrap();
        let engine = StrataEngine::open_sized(storage, &OPTIONS, SIZES).unwrap();
        assert!(all(&engine).unwrap() == store.map, "content differs");
        engine.settle().unwrap();
        assert!(all(&engine).unwrap() == store.map, "content differs after a merge");
    });
}
