//! Behaviour particular to redb: crash recovery without a walk, refused input, the disk reserve. The
//! behaviour common to all engines is tested by the conformance suite.

#![expect(clippy::unwrap_used, reason = "test helpers outside #[test] functions")]

mod damage;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use conformance::numbered::{all, at, commit, key, sorted, value};
use engine_api::{Checkpoint, Durability, Engine, ErrorKind};
use redb::{ReadableDatabase as _, ReadableTableMetadata as _};
use solkv_engine_redb::{FILE_NAME, RedbEngine, RedbOptions};

const OPTIONS: RedbOptions =
    RedbOptions { cache_bytes: 8 << 20, disk_reserve_bytes: 0, quick_repair_every: 1, sort_batches: false };

fn open(dir: &Path) -> RedbEngine {
    RedbEngine::open(dir, &OPTIONS).unwrap()
}

/// A copy of the file of an open store equals the file after a kill, because every write is in the page cache. redb
/// then opens it from the recorded allocator state.
#[test]
fn a_killed_process_loses_nothing_and_needs_no_walk() {
    let dir = tempfile::tempdir().unwrap();
    let killed = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    for (batch, durability) in [Durability::Synced, Durability::Buffered].into_iter().enumerate() {
        let batch = batch as u64;
        commit(&engine, batch * 1000, batch * 1000 + 1000, durability);
    }
    let mut cut = engine.begin().unwrap();
    cut.put(&key(5000), &value(5000)).unwrap();
    fs::copy(dir.path().join(FILE_NAME), killed.path().join(FILE_NAME)).unwrap();
    drop(cut);

    // redb calls this at least once if it has to walk the file.
    let mut builder = redb::Builder::new();
    builder.set_repair_callback(|session| {
        session.abort();
        panic!("walks the file, although every commit has recorded the allocator state");
    });
    drop(builder.open(killed.path().join(FILE_NAME)).unwrap());

    let recovered = open(killed.path());
    assert_eq!(recovered.checkpoint().unwrap(), at(2000));
    assert_eq!(all(&recovered), sorted(0, 2000));
    assert_eq!(recovered.stats().unwrap().pairs_estimate, 2000);
}

/// Copies the store in `dir` as a kill would leave it now, and opens the copy. Returns whether redb walked the file,
/// the open store, and its directory.
fn walks_after_a_kill(dir: &Path) -> (bool, RedbEngine, tempfile::TempDir) {
    let killed = tempfile::tempdir().unwrap();
    fs::copy(dir.join(FILE_NAME), killed.path().join(FILE_NAME)).unwrap();
    let walked = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&walked);
    let mut builder = redb::Builder::new();
    builder.set_repair_callback(move |_| seen.store(true, Ordering::Relaxed));
    drop(builder.open(killed.path().join(FILE_NAME)).unwrap());
    (walked.load(Ordering::Relaxed), open(killed.path()), killed)
}

/// The newest commit decides: a commit without quick repair removes the recorded allocator state.
#[test]
fn a_newest_commit_without_quick_repair_costs_a_walk_and_no_pair() {
    for (every, walks) in [(1, [false; 4]), (2, [true, false, true, false]), (0, [true; 4])] {
        let dir = tempfile::tempdir().unwrap();
        let engine = RedbEngine::open(dir.path(), &RedbOptions { quick_repair_every: every, ..OPTIONS }).unwrap();
        for (commits, walks) in (0..).zip(walks) {
            commit(&engine, commits * 100, commits * 100 + 100, Durability::Synced);
            let (walked, recovered, _dir) = walks_after_a_kill(dir.path());
            assert_eq!(walked, walks, "quick_repair_every={every} commits={}", commits + 1);
            assert_eq!(all(&recovered), sorted(0, commits * 100 + 100));
        }
    }
}

#[test]
fn a_sorted_batch_fills_its_leaves() {
    let leaves = |sort_batches| {
        let dir = tempfile::tempdir().unwrap();
        let engine = RedbEngine::open(dir.path(), &RedbOptions { sort_batches, ..OPTIONS }).unwrap();
        commit(&engine, 0, 20_000, Durability::Synced);
        assert_eq!(all(&engine), sorted(0, 20_000));
        drop(engine);
        let db = redb::Database::open(dir.path().join(FILE_NAME)).unwrap();
        let pairs: redb::TableDefinition<'_, &[u8; 32], &[u8; 32]> = redb::TableDefinition::new("pairs");
        db.begin_read().unwrap().open_table(pairs).unwrap().stats().unwrap().leaf_pages()
    };
    let (sorted, unsorted) = (leaves(true), leaves(false));
    assert!(sorted * 5 < unsorted * 4, "sorted={sorted} unsorted={unsorted}");
}

#[test]
fn a_second_open_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    let Err(error) = RedbEngine::open(dir.path(), &OPTIONS) else { panic!("opened twice") };
    assert_eq!(error.kind(), ErrorKind::FixInput);
    assert!(error.to_string().contains(FILE_NAME), "{error}");
    drop(first);
    open(dir.path());
}

#[test]
fn a_file_of_something_else_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(FILE_NAME), vec![0x5a; 1 << 16]).unwrap();
    let Err(error) = RedbEngine::open(dir.path(), &OPTIONS) else { panic!("opened noise") };
    assert_eq!(error.kind(), ErrorKind::FixInput, "{error}");

    let other = tempfile::tempdir().unwrap();
    drop(redb::Database::create(other.path().join(FILE_NAME)).unwrap());
    let Err(error) = RedbEngine::open(other.path(), &OPTIONS) else { panic!("opened foreign tables") };
    assert_eq!(error.kind(), ErrorKind::FixInput, "{error}");
}

#[test]
fn a_store_with_an_older_checkpoint_is_refused_by_name() {
    const OLD: redb::TableDefinition<'_, &str, &[u8; 64]> = redb::TableDefinition::new("meta");
    const NEW: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("meta");
    let dir = tempfile::tempdir().unwrap();
    commit(&open(dir.path()), 0, 10, Durability::Synced);
    let change = |change: &dyn Fn(&redb::WriteTransaction)| {
        let db = redb::Database::open(dir.path().join(FILE_NAME)).unwrap();
        let txn = db.begin_write().unwrap();
        change(&txn);
        txn.commit().unwrap();
    };
    let mut version_1 = [0; 64];
    version_1[0] = 1;
    // First a checkpoint of version 1 in today's table. Then the table of an older solkv, whose values have a fixed
    // length of 64 bytes.
    change(&|txn| drop(txn.open_table(NEW).unwrap().insert("checkpoint", version_1.as_slice()).unwrap()));
    for expected in ["written by an older solkv: version=1", "another version of solkv"] {
        for opened in [RedbEngine::open(dir.path(), &OPTIONS), RedbEngine::open_read_only(dir.path(), &OPTIONS)] {
            let error = opened.err().unwrap();
            assert!(error.kind() == ErrorKind::FixInput && error.to_string().contains(expected), "{error}");
        }
        change(&|txn| {
            txn.delete_table(NEW).ok();
            txn.open_table(OLD).unwrap().insert("checkpoint", &version_1).unwrap();
        });
    }
}

#[test]
fn an_interrupted_creation_leaves_no_store() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(format!("{FILE_NAME}.new")), b"half a file").unwrap();
    let engine = open(dir.path());
    assert_eq!(engine.checkpoint().unwrap(), Checkpoint::default());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn the_disk_reserve_refuses_writes_and_leaves_reads() {
    let dir = tempfile::tempdir().unwrap();
    commit(&open(dir.path()), 0, 10, Durability::Synced);
    let full = RedbEngine::open(dir.path(), &RedbOptions { disk_reserve_bytes: u64::MAX, ..OPTIONS }).unwrap();
    assert_eq!(full.begin().err().unwrap().kind(), ErrorKind::FreeSpace);
    let bulk = full.load_sorted(&[([0xff; 32], [1; 32])], &at(11));
    assert_eq!(bulk.unwrap_err().kind(), ErrorKind::FreeSpace);
    assert_eq!(full.reader().unwrap().get(&key(3)).unwrap(), Some(value(3)));
}
