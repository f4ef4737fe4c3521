//! Behaviour particular to LMDB: the size of the map, the file after a buffered commit and refused input. The
//! behaviour common to all engines is tested by the conformance suite.

#![expect(clippy::unwrap_used, reason = "test helpers outside #[test] functions")]

mod damage;

use std::fs;
use std::path::Path;

use conformance::numbered::{all, at, commit, key, sorted, value};
use engine_api::{Durability, Engine, Error, ErrorKind};
use solkv_engine_lmdb::{FILE_NAME, LmdbEngine, LmdbOptions};

const OPTIONS: LmdbOptions = LmdbOptions {
    map_bytes: Some(64 << 20),
    readers_max: 16,
    disk_reserve_bytes: 0,
    readahead_bytes_max: 0,
    sort_batches: false,
};

fn open_with(dir: &Path, options: LmdbOptions) -> LmdbEngine {
    LmdbEngine::open(dir, &options).unwrap()
}

fn open(dir: &Path) -> LmdbEngine {
    open_with(dir, OPTIONS)
}

fn map_bytes(engine: &LmdbEngine) -> u64 {
    let details = engine.stats().unwrap().details;
    details.into_iter().find(|(name, _)| *name == "map_bytes").unwrap().1
}

/// Commits `from..to` in batches of 500 until one fails. Returns the failure and the number of keys committed before
/// it.
fn fill(engine: &dyn Engine, from: u64, to: u64) -> Result<(), (Error, u64)> {
    for start in (from..to).step_by(500) {
        let batch = || {
            let mut txn = engine.begin()?;
            for i in start..start + 500 {
                txn.put(&key(i), &value(i))?;
            }
            txn.commit(&at(start + 500), Durability::Buffered)
        };
        batch().map_err(|error| (error, start))?;
    }
    Ok(())
}

#[test]
fn a_store_with_an_older_checkpoint_is_refused_by_name() {
    use lmdb::Transaction as _;
    let dir = tempfile::tempdir().unwrap();
    commit(&open(dir.path()), 0, 10, Durability::Synced);
    let env = lmdb::Environment::new().set_max_dbs(2).set_map_size(64 << 20).open(dir.path()).unwrap();
    let meta = env.open_db(Some("meta")).unwrap();
    let mut version_1 = [0; 64];
    version_1[0] = 1;
    let mut txn = env.begin_rw_txn().unwrap();
    txn.put(meta, b"checkpoint", &version_1, lmdb::WriteFlags::empty()).unwrap();
    txn.commit().unwrap();
    drop(env);
    let error = LmdbEngine::open(dir.path(), &OPTIONS).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::FixInput);
    assert!(error.to_string().contains("an older solkv: version=1 known=2: load the store again"), "{error}");
}

#[test]
fn a_map_that_is_full_says_so_and_a_larger_one_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open_with(dir.path(), LmdbOptions { map_bytes: Some(8 << 20), ..OPTIONS });
    let (error, kept) = fill(&engine, 0, 200_000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FreeSpace);
    assert!(
        error.to_string().contains("map_bytes=8388608: open the store again, with a larger --lmdb-map-size"),
        "{error}"
    );
    assert_eq!(map_bytes(&engine), 8 << 20);
    // Nothing of the batch that failed is there.
    assert_eq!(all(&engine), sorted(0, kept));
    assert_eq!(engine.checkpoint().unwrap(), at(kept));

    // Deleting needs room too, because pages are copied. Small batches find it in pages that were freed before.
    drop(engine);
    for map_bytes in [Some(16 << 20), None] {
        let engine = open_with(dir.path(), LmdbOptions { map_bytes, ..OPTIONS });
        let kept = engine.checkpoint().unwrap().seq;
        fill(&engine, kept, kept + 1000).unwrap();
        assert_eq!(engine.checkpoint().unwrap(), at(kept + 1000));
    }
}

/// A copy of the file of an open store equals the file after a kill, because every write is in the page cache.
#[test]
fn a_killed_process_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let killed = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    commit(&engine, 0, 1000, Durability::Synced);
    commit(&engine, 1000, 2000, Durability::Buffered);
    let mut cut = engine.begin().unwrap();
    cut.put(&key(5000), &value(5000)).unwrap();
    fs::copy(dir.path().join(FILE_NAME), killed.path().join(FILE_NAME)).unwrap();
    drop(cut);
    let recovered = open(killed.path());
    assert_eq!(recovered.checkpoint().unwrap(), at(2000));
    assert_eq!(all(&recovered), sorted(0, 2000));
    assert_eq!(recovered.stats().unwrap().pairs_estimate, 2000);
    Box::new(recovered).close().unwrap();
}

#[test]
fn a_sorted_batch_fills_its_leaves() {
    let leaves = |sort_batches| {
        let dir = tempfile::tempdir().unwrap();
        let engine = open_with(dir.path(), LmdbOptions { sort_batches, ..OPTIONS });
        commit(&engine, 0, 20_000, Durability::Synced);
        assert_eq!(all(&engine), sorted(0, 20_000));
        let stats = engine.stats().unwrap();
        stats.details.into_iter().find(|(name, _)| *name == "leaf_pages").unwrap().1
    };
    let (sorted, unsorted) = (leaves(true), leaves(false));
    assert!(sorted * 5 < unsorted * 4, "sorted={sorted} unsorted={unsorted}");
}

#[test]
fn a_sorted_batch_that_does_not_fit_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let small = LmdbOptions { map_bytes: Some(1 << 20), sort_batches: true, ..OPTIONS };
    let engine = open_with(dir.path(), small);
    commit(&engine, 0, 100, Durability::Synced);
    let mut txn = engine.begin().unwrap();
    for i in 100..50_000 {
        txn.put(&key(i), &value(i)).unwrap();
    }
    let full = txn.commit(&at(50_000), Durability::Synced).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::FreeSpace, "{full}");
    commit(&engine, 100, 200, Durability::Synced);
    assert_eq!(all(&engine), sorted(0, 200));
}

#[test]
fn a_second_open_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    let Err(error) = LmdbEngine::open(dir.path(), &OPTIONS) else { panic!("opened twice") };
    assert_eq!(error.kind(), ErrorKind::FixInput);
    assert!(error.to_string().contains(dir.path().to_str().unwrap()), "{error}");
    drop(first);
    open(dir.path());
}

#[test]
fn a_file_of_something_else_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(FILE_NAME), vec![0x5a; 1 << 16]).unwrap();
    let Err(error) = LmdbEngine::open(dir.path(), &OPTIONS) else { panic!("opened noise") };
    assert_eq!(error.kind(), ErrorKind::FixInput, "{error}");

    let other = tempfile::tempdir().unwrap();
    let env = lmdb::Environment::new().set_max_dbs(1).open(other.path()).unwrap();
    env.create_db(Some("foreign"), lmdb::DatabaseFlags::empty()).unwrap();
    drop(env);
    let Err(error) = LmdbEngine::open(other.path(), &OPTIONS) else { panic!("opened foreign tables") };
    assert_eq!(error.kind(), ErrorKind::FixInput, "{error}");
}

#[test]
fn too_many_readers_are_told_to_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open_with(dir.path(), LmdbOptions { readers_max: 3, ..OPTIONS });
    commit(&engine, 0, 1, Durability::Synced);
    let mut readers: Vec<_> = (0..3).map(|_| engine.reader().unwrap()).collect();
    assert_eq!(engine.reader().err().unwrap().kind(), ErrorKind::Retry);
    readers.pop();
    assert_eq!(engine.reader().unwrap().get(&key(0)).unwrap(), Some(value(0)));
}

#[test]
fn the_disk_reserve_refuses_writes_and_leaves_reads() {
    let dir = tempfile::tempdir().unwrap();
    commit(&open(dir.path()), 0, 10, Durability::Synced);
    let full = open_with(dir.path(), LmdbOptions { disk_reserve_bytes: u64::MAX, ..OPTIONS });
    assert_eq!(full.begin().err().unwrap().kind(), ErrorKind::FreeSpace);
    assert_eq!(full.reader().unwrap().get(&key(3)).unwrap(), Some(value(3)));
}

#[test]
fn a_terabyte_of_map_costs_no_disk() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open_with(dir.path(), LmdbOptions { disk_reserve_bytes: 0, ..LmdbOptions::default() });
    commit(&engine, 0, 1000, Durability::Synced);
    assert_eq!(map_bytes(&engine), 1 << 40);
    assert!(engine.stats().unwrap().disk_bytes < 1 << 20);
}
