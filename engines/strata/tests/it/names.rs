//! Files whose names have strata's form, but which it did not write, or not under that name: each is reported by name,
//! and nothing is removed.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use engine_api::{Durability, Engine, ErrorKind};
use solkv_engine_strata::StrataEngine;

use crate::support::{Map, all, key};
use crate::{SMALL, commit, seq, wait_for};

/// Makes a store with batches in a segment and batches only in the WAL.
fn store(dir: &Path) -> Map {
    let engine = StrataEngine::open(dir, &SMALL).unwrap();
    let mut map = Map::new();
    let pairs: Vec<_> = (0..500).map(|n| (key(n), Some([1; 32]))).collect();
    commit(&engine, &pairs, 1, &mut map);
    engine.settle().unwrap();
    for at in 2..6 {
        commit(&engine, &[(key(at * 1000), Some([at as u8; 32]))], at, &mut map);
    }
    Box::new(engine).close().unwrap();
    map
}

fn names(dir: &Path) -> BTreeMap<String, u64> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len())).collect()
}

#[track_caller]
fn assert_refused(dir: &Path, words: &[&str]) {
    let before = names(dir);
    for error in [StrataEngine::open(dir, &SMALL).err(), StrataEngine::open_read_only(dir, &SMALL).err()] {
        let error = error.expect("refused");
        assert!([ErrorKind::DataDamaged, ErrorKind::FixInput].contains(&error.kind()), "{:?} {error}", error.kind());
        words.iter().for_each(|word| assert!(error.to_string().contains(word), "{word}: {error}"));
        assert_eq!(names(dir), before, "{error}");
    }
}

#[track_caller]
fn assert_sound(dir: &Path, map: &Map) {
    let engine = StrataEngine::open(dir, &SMALL).unwrap();
    assert_eq!(engine.checkpoint().unwrap(), seq(5));
    assert!(all(&engine).unwrap() == *map);
    Box::new(engine).close().unwrap();
}

#[test]
fn a_number_that_the_store_cannot_have_come_to_is_refused_by_name_and_set_aside_by_a_repair() {
    for planted in ["18446744073709551615.wal", "18446744073709551615.seg", "999999999999.wal", "1000000000000.seg"] {
        let dir = tempfile::tempdir().unwrap();
        let map = store(dir.path());
        let path = dir.path().join(planted);
        fs::write(&path, []).unwrap();
        assert_refused(dir.path(), &[planted, "cannot have come to", "move it away", "nothing was changed"]);
        let repaired = StrataEngine::repair(dir.path()).unwrap();
        assert!(repaired.findings.iter().any(|found| found.contains(planted)), "{:?}", repaired.findings);
        assert!(!path.exists() && dir.path().join(format!("{planted}.set-aside")).exists());
        assert_sound(dir.path(), &map);
        // The same with a manifest that is rebuilt.
        fs::write(&path, []).unwrap();
        fs::remove_file(dir.path().join("MANIFEST")).unwrap();
        StrataEngine::repair(dir.path()).unwrap();
        assert_sound(dir.path(), &map);
    }
}

#[test]
fn a_file_that_a_crash_may_have_left_costs_no_walk_over_the_numbers_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut map = store(dir.path());
    // As far ahead as an opening believes: a walk over that many numbers would take hours.
    fs::write(dir.path().join("004000000000.wal"), []).unwrap();
    let engine = StrataEngine::open(dir.path(), &SMALL).unwrap();
    commit(&engine, &[(key(7), Some([7; 32]))], 6, &mut map);
    engine.settle().unwrap();
    wait_for("the flush", || all(&engine).unwrap() == map);
    let mut txn = engine.begin().unwrap();
    txn.put(&key(8), &[8; 32]).unwrap();
    map.insert(key(8), [8; 32]);
    txn.commit(&seq(5), Durability::Synced).unwrap();
    Box::new(engine).close().unwrap();
    assert_sound(dir.path(), &map);
}

#[test]
fn what_is_no_regular_file_is_refused_by_name_without_waiting_for_it() {
    for (name, in_the_way) in [("000000000099.wal", false), ("000000000099.seg", false), ("MANIFEST", true)] {
        let dir = tempfile::tempdir().unwrap();
        let map = store(dir.path());
        let (path, kept) = (dir.path().join(name), dir.path().join("kept"));
        if in_the_way {
            fs::rename(&path, &kept).unwrap();
        }
        let fifo = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the path ends in a zero byte and outlives the call.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        for error in [StrataEngine::open(dir.path(), &SMALL).err(), StrataEngine::repair(dir.path()).err()] {
            let error = error.expect("refused").to_string();
            assert!(error.contains(name) && error.contains("not a regular file"), "{error}");
        }
        let error = StrataEngine::open_read_only(dir.path(), &SMALL).err().expect("refused").to_string();
        assert!(error.contains(name) && error.contains("move it away"), "{error}");
        fs::remove_file(&path).unwrap();
        if in_the_way {
            fs::rename(&kept, &path).unwrap();
        }
        assert_sound(dir.path(), &map);
    }
}

#[test]
fn a_wal_under_another_number_is_refused_with_the_name_that_it_had() {
    let dir = tempfile::tempdir().unwrap();
    let map = store(dir.path());
    let is_wal = |(name, length): (String, u64)| (name.ends_with(".wal") && length > 0).then_some(name);
    // The last of the files with records; others wait to be overwritten.
    let last = names(dir.path()).into_iter().filter_map(is_wal).next_back().expect("a WAL");
    for other in ["000000000777.wal", "000000000000.wal"] {
        let renamed = dir.path().join(other);
        fs::rename(dir.path().join(&last), &renamed).unwrap();
        assert_refused(dir.path(), &[other, &last, "another name", "nothing was changed"]);
        let error = StrataEngine::repair(dir.path()).unwrap_err().to_string();
        assert!(error.contains(other) && error.contains(&last), "{error}");
        fs::rename(&renamed, dir.path().join(&last)).unwrap();
    }
    assert_sound(dir.path(), &map);
}
