//! Repairs of files that the device does not give, or for which descriptors are lacking.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::faulty::{Fault, FaultyStorage};
use engine_api::{Engine, ErrorKind};
use solkv_engine_strata::storage::Storage;
use solkv_engine_strata::{Sizes, StrataEngine};

use crate::groups::SIZES;
use crate::hooked::{Hooked, Hooks};
use crate::support::{Map, OPTIONS, all, at};
use crate::trouble::{Store, segments};

/// A closed store with a base and newer batches that are only in the WAL.
struct Closed {
    disk: FaultyStorage,
    hooks: Arc<Hooks>,
    /// Content without the batches in the WAL, and its seq.
    settled: (Map, u64),
    /// Whole content, and its seq.
    whole: (Map, u64),
}

impl Closed {
    fn new() -> Self {
        let mut store = Store::sized(OPTIONS, SIZES);
        store.put(0..4000);
        store.engine.settle().unwrap();
        let settled = (store.map.clone(), store.seq);
        store.put(3900..4010);
        store.put(4010..4020);
        let Store { engine, disk, hooks, map, seq } = store;
        Box::new(engine).close().unwrap();
        Self { disk, hooks, settled, whole: (map, seq) }
    }

    /// Returns the names of the WAL files, oldest first.
    fn wals(&self) -> Vec<String> {
        let mut wals: Vec<String> = self.disk.names().into_iter().filter(|name| name.ends_with(".wal")).collect();
        wals.sort();
        wals
    }

    /// Repairs a copy of the store on a device that does not give the file `name`. Returns the losses and the content
    /// with its seq, both as the device still is.
    fn repaired_without(&self, name: &str, has_manifest: bool) -> (Vec<String>, (Map, u64)) {
        let disk = self.disk.copy();
        if !has_manifest {
            disk.remove("MANIFEST").unwrap();
        }
        *self.hooks.unreadable.lock() = Some(name.to_owned());
        let storage: Arc<dyn Storage> = Arc::new(Hooked { inner: Arc::new(disk), hooks: Arc::clone(&self.hooks) });
        let lost = StrataEngine::repair_on(&storage).unwrap_or_else(|error| panic!("{name}: {error}")).lost;
        if name == "MANIFEST" {
            // A new file has the name now.
            *self.hooks.unreadable.lock() = None;
        }
        let engine = StrataEngine::open_sized(storage, &OPTIONS, SIZES).unwrap();
        let content = all(&engine).unwrap();
        let seq = (0..10).find(|seq| engine.checkpoint().unwrap() == at(*seq)).unwrap();
        engine.settle().unwrap();
        assert!(all(&engine).unwrap() == content, "{name}: content differs after a merge");
        (lost, (content, seq))
    }
}

#[test]
fn a_wal_that_the_device_does_not_give_costs_a_repair_its_batches_and_no_others() {
    let store = Closed::new();
    let wals = store.wals();
    let (newest, spares) = wals.split_last().unwrap();
    for has_manifest in [true, false] {
        let (lost, content) = store.repaired_without(newest, has_manifest);
        assert!(content == store.settled, "seq={} lost={lost:?}", content.1);
        assert!(lost.iter().any(|line| line.contains("batches from") || line.contains(newest)), "{lost:?}");
    }
    for spare in spares {
        let (lost, content) = store.repaired_without(spare, true);
        assert!(content == store.whole && lost.is_empty(), "{spare}: seq={} lost={lost:?}", content.1);
    }
}

#[test]
fn a_manifest_that_the_device_does_not_give_is_made_anew() {
    let store = Closed::new();
    let (lost, content) = store.repaired_without("MANIFEST", true);
    assert!(content == store.whole, "seq={}", content.1);
    assert!(lost.iter().any(|line| line.contains("only the lost manifest")), "{lost:?}");
}

#[test]
fn an_error_of_writing_ends_a_repair_and_is_no_damage_of_the_wal_that_it_reads() {
    // More changes in the WAL than a repair holds in memory, so that it writes a run while it reads.
    let sizes = Sizes { mem_records: 400_000, segment_records: 400_000, wal_bytes: 64 << 20 };
    let mut store = Store::sized(OPTIONS, sizes);
    for n in 0..14 {
        store.put(n * 10_000..(n + 1) * 10_000);
    }
    let Store { engine, disk, hooks, map, seq } = store;
    Box::new(engine).close().unwrap();
    disk.remove("MANIFEST").unwrap();
    for write in [1, 5, 20] {
        let disk = disk.copy();
        disk.set(Fault::WriteAt(write));
        let refused = StrataEngine::repair_on(&(Arc::new(disk) as Arc<dyn Storage>)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Reopen, "write={write}: {refused}");
    }
    let storage: Arc<dyn Storage> = Arc::new(Hooked { inner: Arc::new(disk.clone()), hooks: Arc::clone(&hooks) });
    hooks.disk_bytes.store(storage.used_bytes().unwrap() + (1 << 20), Ordering::Relaxed);
    let refused = StrataEngine::repair_on(&storage).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::FreeSpace, "{refused}");
    hooks.disk_bytes.store(u64::MAX, Ordering::Relaxed);
    StrataEngine::repair_on(&storage).unwrap();
    let engine = StrataEngine::open_sized(storage, &OPTIONS, sizes).unwrap();
    assert!(all(&engine).unwrap() == map, "content differs");
    assert_eq!(engine.checkpoint().unwrap(), at(seq));
}

#[test]
fn a_want_of_descriptors_is_no_damage_to_a_repair() {
    let mut store = Store::new();
    store.put(0..900);
    store.engine.settle().unwrap();
    let Store { engine, disk, hooks, map, .. } = store;
    Box::new(engine).close().unwrap();
    let names = disk.names();
    *hooks.unopened.lock() = names.iter().find(|name| name.ends_with(".seg")).cloned();
    let storage: Arc<dyn Storage> = Arc::new(Hooked { inner: Arc::new(disk.clone()), hooks });
    let refused = StrataEngine::repair_on(&storage).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Retry, "{refused}");
    assert_eq!(disk.names(), names, "nothing is set aside");
    assert!(StrataEngine::repair_on(&storage).unwrap().lost.is_empty());
    let engine = StrataEngine::open_on(Arc::new(disk), &OPTIONS).unwrap();
    assert!(all(&engine).unwrap() == map, "content differs");
}

#[test]
fn a_footer_that_the_device_does_not_give_costs_a_repair_its_segment_and_no_other() {
    let mut store = Store::sized(OPTIONS, SIZES);
    store.put(0..4000);
    store.engine.settle().unwrap();
    let Store { engine, disk, hooks, map, seq } = store;
    Box::new(engine).close().unwrap();
    let segments = segments(&disk);
    for names_are_known in [true, false] {
        let disk = disk.copy();
        if !names_are_known {
            disk.remove("MANIFEST").unwrap();
        }
        *hooks.unreadable.lock() = Some(segments[1].clone());
        let storage: Arc<dyn Storage> = Arc::new(Hooked { inner: Arc::new(disk.clone()), hooks: Arc::clone(&hooks) });
        let repaired = StrataEngine::repair_on(&storage).unwrap();
        assert!(repaired.lost.iter().any(|line| line.contains(&segments[1])), "{:?}", repaired.lost);
        *hooks.unreadable.lock() = None;
        let engine = StrataEngine::open_sized(Arc::new(disk), &OPTIONS, SIZES).unwrap();
        let left = all(&engine).unwrap();
        let missing = map.len() - left.len();
        assert!(missing > 0 && missing <= SIZES.segment_records as usize * 3 / 2, "missing={missing}");
        assert!(left.iter().all(|(key, value)| map.get(key) == Some(value)));
        assert_eq!(engine.checkpoint().unwrap(), at(seq));
    }
}

#[test]
fn a_file_that_the_store_does_not_use_and_the_device_does_not_give_is_set_aside() {
    let mut store = Store::sized(OPTIONS, SIZES);
    store.put(0..4000);
    store.engine.settle().unwrap();
    let Store { engine, disk, hooks, map, .. } = store;
    Box::new(engine).close().unwrap();
    // As a crash leaves it, with a number that was given.
    let left = "000000000001.seg".to_owned();
    assert!(!disk.names().contains(&left));
    disk.create(&left).unwrap().write_at(&[7; 4096], 0).unwrap();
    *hooks.unreadable.lock() = Some(left.clone());
    let storage: Arc<dyn Storage> = Arc::new(Hooked { inner: Arc::new(disk.clone()), hooks });
    let repaired = StrataEngine::repair_on(&storage).unwrap();
    assert!(repaired.lost.is_empty() && repaired.findings.iter().any(|line| line.contains("cannot be read")));
    let names = disk.names();
    assert!(!names.contains(&left) && names.contains(&format!("{left}.set-aside")), "{names:?}");
    let engine = StrataEngine::open_sized(storage, &OPTIONS, SIZES).unwrap();
    assert!(all(&engine).unwrap() == map, "content differs");
}
