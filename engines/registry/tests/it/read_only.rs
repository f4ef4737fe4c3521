//! Opening for reading alone: the same pairs and checkpoint, nothing written, writers kept out.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use bytesize::ByteSize;
use engine_api::{Checkpoint, Durability, Engine, ErrorKind, Key, Value};
use engines::{EngineKind, EngineOptions, OpenMode, open_read_only};

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

/// Every name below `dir`, what is in it, and when it was changed.
fn contents(dir: &Path) -> BTreeMap<PathBuf, (SystemTime, Option<Vec<u8>>)> {
    let mut found = BTreeMap::new();
    let changed = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    found.insert(dir.to_owned(), (changed(dir), None));
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            let bytes = fs::read(&path).unwrap();
            found.insert(path.clone(), (changed(&path), Some(bytes)));
        }
    }
    found
}

/// As a kill leaves it: a copy of the files while the store is open. A file that the engine removes meanwhile was not part of
/// that state: then the copy is made again.
fn copy_as_killed(from: &Path, to: &Path) {
    loop {
        match copy_files(from, to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::remove_dir_all(to).unwrap(),
            copied => return copied.unwrap(),
        }
    }
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() {
            copy_files(&path, &to.join(name))?;
        } else {
            fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
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
            // Not even a scrub, which redb does by repairing.
            assert_eq!(engine.scrub().unwrap(), expected.len() as u64, "{kind}");
            engine.close().unwrap();
            assert_eq!(contents(dir), before, "{kind}");
        }
        // Nothing that was read has hurt it.
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
    assert!(error.kind() == ErrorKind::Retry && error.to_string().contains("holder_pid"), "{error}");
    engine.close().unwrap();
    let first = open_read_only(&dir, Some(MEMORY)).unwrap();
    let second = open_read_only(&dir, Some(MEMORY)).unwrap();
    let error = engines::open(&dir, &options(kind), OpenMode::Existing).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Retry);
    drop((first, second));
    engines::open(&dir, &options(kind), OpenMode::Existing).unwrap().close().unwrap();
    let missing = open_read_only(&home.path().join("missing"), None).err().unwrap();
    assert!(missing.kind() == ErrorKind::FixInput && !home.path().join("missing").exists(), "{missing}");
}
