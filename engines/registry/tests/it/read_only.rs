//! Opening for reading alone: the same pairs and checkpoint, nothing written, writers kept out.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use ::conformance::files::{contents, copy_as_killed};
use bytesize::ByteSize;
use engine_api::{Checkpoint, Durability, Engine, ErrorKind, Key, Value};
use solkv_engine_registry::{self as engines, EngineKind, EngineOptions, OpenMode, open_read_only};

const MEMORY: ByteSize = ByteSize::mib(64);

type Map = BTreeMap<Key, Value>;

fn options(engine: EngineKind) -> EngineOptions {
    EngineOptions { memory: Some(MEMORY), ..EngineOptions::new(engine) }
}

fn commit(engine: &dyn Engine, keys: std::ops::Range<u8>, seq: u64) -> Checkpoint {
    let mut txn = engine.begin().unwrap();
    for key in keys {
        txn.put(&[key; 32], &[key; 32]).unwrap();
    }
    let checkpoint = Checkpoint::new(seq, &[7; 40]);
    txn.commit(&checkpoint, Durability::Synced).unwrap();
    checkpoint
}

fn pairs(engine: &dyn Engine) -> Map {
    let mut map = Map::new();
    let mut reader = engine.reader().unwrap();
    reader
        .scan(&mut |key, value| {
            map.insert(*key, *value);
            ControlFlow::Continue(())
        })
        .unwrap();
    map
}

#[test]
fn what_was_closed_and_what_was_killed_is_read_and_not_written() {
    for &kind in engines::compiled() {
        let home = tempfile::tempdir().unwrap();
        let (dir, killed) = (home.path().join("store"), home.path().join("killed"));
        let engine = engines::open(&dir, &options(kind), OpenMode::Create).unwrap();
        commit(&*engine, 0..100, 100);
        engine.settle().unwrap();
        let last = commit(&*engine, 50..200, 250);
        let expected = pairs(&*engine);
        copy_as_killed(&dir, &killed);
        engine.close().unwrap();
        for dir in [&dir, &killed] {
            let before = contents(dir);
            let mut engine = open_read_only(dir, Some(MEMORY)).unwrap();
            assert_eq!((pairs(&*engine), engine.checkpoint().unwrap()), (expected.clone(), last.clone()), "{kind}");
            assert!(engine.stats().unwrap().disk_bytes > 0);
            assert!(engine.begin().is_err() && engine.snapshot(&home.path().join("copy")).is_err());
            // Not even a scrub writes, although redb repairs in order to scrub.
            assert_eq!(engine.scrub().unwrap(), expected.len() as u64, "{kind}");
            engine.close().unwrap();
            assert_eq!(contents(dir), before, "{kind}");
        }
        // Reading the store has not damaged it.
        let engine = engines::open(&killed, &options(kind), OpenMode::Existing).unwrap();
        assert_eq!((pairs(&*engine), engine.checkpoint().unwrap()), (expected, last), "{kind}");
        engine.close().unwrap();
    }
}

#[test]
fn readers_share_a_store_and_keep_writers_out() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("store");
    let kind = engines::default_engine();
    let engine = engines::open(&dir, &options(kind), OpenMode::Create).unwrap();
    let error = open_read_only(&dir, Some(MEMORY)).err().unwrap();
    let holder = format!("holder_pid={}:", std::process::id());
    assert!(error.kind() == ErrorKind::Retry && error.to_string().contains(&holder), "{error}");
    engine.close().unwrap();
    let first = open_read_only(&dir, Some(MEMORY)).unwrap();
    let second = open_read_only(&dir, Some(MEMORY)).unwrap();
    let error = engines::open(&dir, &options(kind), OpenMode::Existing).err().unwrap();
    let is_named = |error: &str| error.contains("a program is reading the store") && !error.contains("holder_pid");
    assert!(error.kind() == ErrorKind::Retry && is_named(&error.to_string()), "{error}");
    drop((first, second));
    // A program that is none of ours. The pid in the lock file is that of the last writer.
    let other = std::fs::File::open(&dir).unwrap();
    other.try_lock().unwrap();
    let error = engines::open(&dir, &options(kind), OpenMode::Existing).err().unwrap().to_string();
    assert!(error.contains("holder_pid=unknown") && error.contains("fuser"), "{error}");
    assert_eq!(engines::holder(&dir).unwrap().as_deref(), Some("unknown"));
    drop(other);
    engines::open(&dir, &options(kind), OpenMode::Existing).unwrap().close().unwrap();
    let missing = open_read_only(&home.path().join("missing"), None).err().unwrap();
    assert!(missing.kind() == ErrorKind::FixInput && !home.path().join("missing").exists(), "{missing}");
}
