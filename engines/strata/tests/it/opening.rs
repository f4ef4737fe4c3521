//! Openings that find something unexpected: they report it and leave every file unchanged. Also writes that are refused
//! because they could not be read back.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use engine_api::{Durability, Engine, ErrorKind};
use solkv_engine_strata::StrataEngine;
use solkv_engine_strata::storage::DirStorage;

use crate::faulty::Fault;
use crate::support::{Map, SMALLER, all, apply, assert_holds, batch, key, open_on, stat, written};
use crate::{SMALL, commit, seq, wait_for};

/// Makes a store with a segment, a WAL that was overwritten, and batches that are in no run.
fn store(dir: &Path) {
    let engine = StrataEngine::open(dir, &SMALL).unwrap();
    let mut sorted: Vec<_> = (0..5000).map(|n| (key(n), [1; 32])).collect();
    sorted.sort_unstable();
    engine.load_sorted(&sorted, &seq(1)).unwrap();
    for at in 2..5 {
        let mut txn = engine.begin().unwrap();
        (0..10_000).for_each(|n| txn.put(&key(at * 100_000 + n), &[2; 32]).unwrap());
        txn.commit(&seq(at), Durability::Synced).unwrap();
        wait_for("the flush", || stat(&engine, "flushes") + 2 >= at);
    }
    Box::new(engine).close().unwrap();
}

fn content(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

/// Expects both kinds of opening to report `expected` and to change nothing.
#[track_caller]
fn assert_refused(dir: &Path, expected: &[&str]) {
    let before = content(dir);
    for error in [StrataEngine::open(dir, &SMALL).err(), StrataEngine::open_read_only(dir, &SMALL).err()] {
        let error = error.expect("refused");
        assert_eq!(error.kind(), ErrorKind::DataDamaged, "{error}");
        expected.iter().for_each(|word| assert!(error.to_string().contains(word), "{word}: {error}"));
        assert!(content(dir) == before, "files were changed: {error}");
    }
}

fn named(dir: &Path, kind: &str) -> Vec<String> {
    content(dir).into_keys().filter(|name| name.ends_with(kind)).collect()
}

#[test]
fn a_missing_manifest_is_damage_and_no_new_store() {
    let dir = tempfile::tempdir().unwrap();
    store(dir.path());
    fs::remove_file(dir.path().join("MANIFEST")).unwrap();
    assert_refused(dir.path(), &["manifest is missing", "MANIFEST", "bootstrap repair"]);
    // Also with segments alone, or with WAL files alone.
    for kind in [".wal", ".seg"] {
        let part = tempfile::tempdir().unwrap();
        for name in named(dir.path(), kind) {
            fs::copy(dir.path().join(&name), part.path().join(&name)).unwrap();
        }
        assert_refused(part.path(), &["manifest is missing"]);
    }
}

#[test]
fn a_creation_that_was_cut_short_is_a_new_store() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("MANIFEST.tmp"), b"cut short").unwrap();
    fs::write(dir.path().join("notes.txt"), b"an operator's").unwrap();
    drop(StrataEngine::open(dir.path(), &SMALL).unwrap());
    assert_eq!(fs::read(dir.path().join("notes.txt")).unwrap(), b"an operator's");
}

#[test]
fn a_missing_or_damaged_file_is_named_and_nothing_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    store(dir.path());
    // A leftover of a crash, which an opening removes only if it finds nothing else wrong.
    let leftover = dir.path().join("000000000990.seg");
    fs::write(&leftover, vec![7; 8192]).unwrap();
    for name in named(dir.path(), ".seg").into_iter().filter(|name| !leftover.ends_with(name)) {
        let path = dir.path().join(&name);
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_refused(dir.path(), &[&name]);
        // Cut, longer, and with another segment's number in its footer.
        fs::write(&path, &bytes[..bytes.len() - 4096]).unwrap();
        assert_refused(dir.path(), &[&name]);
        fs::write(&path, [&bytes[..], &[0; 4096]].concat()).unwrap();
        assert_refused(dir.path(), &[&name]);
        let mut other = bytes.clone();
        let footer = bytes.len() - 4096;
        other[footer + 16] ^= 0x40;
        let crc = crc32c::crc32c(&other[footer + 4..]);
        other[footer..footer + 4].copy_from_slice(&crc.to_le_bytes());
        fs::write(&path, &other).unwrap();
        assert_refused(dir.path(), &[&name, "not what the manifest says"]);
        fs::write(&path, &bytes).unwrap();
    }
    let engine = StrataEngine::open(dir.path(), &SMALL).unwrap();
    assert_eq!(engine.checkpoint().unwrap(), seq(4));
    assert!(!leftover.exists(), "an opening that finds all in order removes what a crash has left");
}

#[test]
fn files_of_another_store_are_named_and_left_alone() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    store(dir.path());
    store(other.path());
    for kind in [".seg", ".wal"] {
        for (n, name) in named(other.path(), kind).iter().enumerate() {
            let bytes = fs::read(other.path().join(name)).unwrap();
            if bytes.is_empty() {
                continue;
            }
            let stray = format!("{:012}{kind}", 900 + n);
            fs::write(dir.path().join(&stray), bytes).unwrap();
            assert_refused(dir.path(), &[&stray, "another store", "nothing was changed"]);
            fs::remove_file(dir.path().join(&stray)).unwrap();
        }
    }
    // A file under its own number, which this store has not given yet.
    let engine = StrataEngine::open(other.path(), &SMALL).unwrap();
    engine.settle().unwrap();
    Box::new(engine).close().unwrap();
    let later = named(other.path(), ".seg").pop().unwrap();
    assert!(!dir.path().join(&later).exists(), "{later}");
    fs::copy(other.path().join(&later), dir.path().join(&later)).unwrap();
    assert_refused(dir.path(), &[&later, "a segment of another store", "nothing was changed"]);
    fs::remove_file(dir.path().join(&later)).unwrap();
    // The other store's manifest among the files of this one.
    let own = fs::read(dir.path().join("MANIFEST")).unwrap();
    fs::copy(other.path().join("MANIFEST"), dir.path().join("MANIFEST")).unwrap();
    assert_refused(dir.path(), &["file="]);
    fs::write(dir.path().join("MANIFEST"), own).unwrap();
    assert_eq!(StrataEngine::open(dir.path(), &SMALL).unwrap().checkpoint().unwrap(), seq(4));
}

#[test]
fn a_wal_that_becomes_runs_is_whole_whichever_flush_fails_meanwhile() {
    let (written, map) = written(3, 10, 200, Durability::Synced);
    let whole = written.after_crash(0);
    whole.set(Fault::None);
    drop(open_on(&whole, SMALLER).unwrap());
    let (_, _, flushes, _) = whole.counts();
    assert!(flushes > 5, "runs are written: flushes={flushes}");
    for fail_at in 1..=flushes {
        let storage = written.after_crash(0);
        storage.set(Fault::SyncAt(fail_at));
        drop(open_on(&storage, SMALLER));
        storage.set(Fault::None);
        let engine = open_on(&storage, SMALLER).unwrap_or_else(|error| panic!("fail_at={fail_at}: {error}"));
        assert_holds(&engine, &map, 10, &format!("fail_at={fail_at}"));
    }
}

#[test]
fn runs_that_are_written_of_a_wal_do_not_outlive_it() {
    // None of these records was flushed.
    let (killed, _) = written(5, 10, 200, Durability::Buffered);
    let whole = killed.copy();
    whole.set(Fault::None);
    drop(open_on(&whole, SMALLER).unwrap());
    let (changes, ..) = whole.counts();
    for crash_at in 1..=changes {
        let storage = killed.copy();
        storage.set(Fault::CrashAt(crash_at));
        drop(open_on(&storage, SMALLER));
        let left = storage.after_crash(crash_at);
        let engine = open_on(&left, SMALLER).unwrap_or_else(|error| panic!("crash_at={crash_at}: {error}"));
        let seq = engine.checkpoint().unwrap().seq;
        let mut map = Map::new();
        (1..=seq).for_each(|seq| apply(&mut map, &batch(5, seq, 200)));
        assert_holds(&engine, &map, seq, &format!("crash_at={crash_at}"));
    }
}

#[test]
fn a_manifest_that_is_older_than_the_segments_is_refused_and_repaired() {
    let dir = tempfile::tempdir().unwrap();
    store(dir.path());
    let manifest = dir.path().join("MANIFEST");
    let open = || StrataEngine::open(dir.path(), &SMALL).unwrap();
    let engine = open();
    engine.settle().unwrap();
    Box::new(engine).close().unwrap();
    let (older, before) = (fs::read(&manifest).unwrap(), named(dir.path(), ".seg"));
    let engine = open();
    let mut map = all(&engine).unwrap();
    commit(&engine, &[(key(7), Some([9; 32])), (key(8), None)], 5, &mut map);
    // A copy flushes the memtable into a run, and the next opening removes the WAL that held the batch.
    engine.snapshot(&dir.path().join("copy")).unwrap();
    Box::new(engine).close().unwrap();
    fs::remove_dir_all(dir.path().join("copy")).unwrap();
    Box::new(open()).close().unwrap();
    let newer = fs::read(&manifest).unwrap();
    let newest = named(dir.path(), ".seg").into_iter().rfind(|name| !before.contains(name)).expect("a run");
    fs::write(&manifest, &older).unwrap();
    assert_refused(dir.path(), &["manifest is older", &newest, "MANIFEST", "bootstrap repair", "nothing was changed"]);
    fs::write(&manifest, newer).unwrap();
    assert!(all(&open()).unwrap() == map);
    fs::write(&manifest, older).unwrap();
    let repaired = StrataEngine::repair(dir.path()).unwrap();
    assert!(repaired.findings.iter().any(|found| found.contains("manifest is older")), "{:?}", repaired.findings);
    let engine = open();
    assert_eq!(engine.checkpoint().unwrap(), seq(5));
    assert!(all(&engine).unwrap() == map);
}

#[test]
fn a_repair_with_any_older_manifest_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let manifest = dir.path().join("MANIFEST");
    let open = || StrataEngine::open_sized(Arc::new(DirStorage::open(dir.path()).unwrap()), &SMALL, SMALLER).unwrap();
    let (mut manifests, mut map) = (Vec::new(), Map::new());
    for round in 0..8 {
        let engine = open();
        for seq in round * 20 + 1..round * 20 + 21 {
            let changes: Vec<_> = (0..40).map(|n| (key((seq * 13 + n) % 900), Some([seq as u8; 32]))).collect();
            commit(&engine, &changes, seq, &mut map);
        }
        // Flushes replace WAL files, merges replace segments: here only a merge comes after the manifest.
        if round % 3 == 1 {
            let copy = tempfile::tempdir().unwrap();
            engine.snapshot(&copy.path().join("copy")).unwrap();
            manifests.push(fs::read(&manifest).unwrap());
            engine.settle().unwrap();
        }
        Box::new(engine).close().unwrap();
        manifests.push(fs::read(&manifest).unwrap());
    }
    let whole: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let whole: Vec<_> = whole.into_iter().map(|path| (fs::read(&path).unwrap(), path)).collect();
    for (round, older) in manifests.iter().enumerate() {
        fs::remove_dir_all(dir.path()).unwrap();
        fs::create_dir(dir.path()).unwrap();
        whole.iter().for_each(|(bytes, path)| fs::write(path, bytes).unwrap());
        fs::write(&manifest, older).unwrap();
        let repaired = StrataEngine::repair(dir.path()).unwrap();
        let engine = open();
        assert_eq!(engine.checkpoint().unwrap(), seq(160), "round={round} {repaired:?}");
        assert!(all(&engine).unwrap() == map, "round={round} {repaired:?}");
        Box::new(engine).close().unwrap();
    }
}

#[test]
fn a_name_that_strata_would_not_give_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    store(dir.path());
    for name in ["7.seg", "000000000007.seg.bak", "1.wal", "lost+found"] {
        fs::write(dir.path().join(name), b"not strata's").unwrap();
    }
    drop(StrataEngine::open(dir.path(), &SMALL).unwrap());
    for name in ["7.seg", "000000000007.seg.bak", "1.wal", "lost+found"] {
        assert_eq!(fs::read(dir.path().join(name)).unwrap(), b"not strata's");
    }
}

#[test]
fn a_batch_that_is_too_large_for_a_record_is_refused_as_it_grows_and_the_largest_comes_back() {
    const OPS_MAX: u64 = 1 << 20;
    let short = |n: u64| {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&n.to_be_bytes());
        key
    };
    let dir = tempfile::tempdir().unwrap();
    let engine = StrataEngine::open(dir.path(), &SMALL).unwrap();
    let mut txn = engine.begin().unwrap();
    (0..OPS_MAX).for_each(|n| txn.put(&short(n), &[1; 32]).unwrap());
    for refused in [txn.put(&short(OPS_MAX), &[1; 32]), txn.delete(&short(OPS_MAX))] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FixInput);
        assert!(error.to_string().contains("ops_max=1048576"), "{error}");
    }
    // A key that is in the batch already takes no more room.
    txn.put(&short(5), &[2; 32]).unwrap();
    txn.commit(&seq(1), Durability::Synced).unwrap();
    Box::new(engine).close().unwrap();
    let engine = StrataEngine::open(dir.path(), &SMALL).unwrap();
    assert_eq!(engine.checkpoint().unwrap(), seq(1));
    let mut reader = engine.reader().unwrap();
    for (n, value) in [(0, Some(1)), (5, Some(2)), (OPS_MAX - 1, Some(1)), (OPS_MAX, None)] {
        assert_eq!(reader.get(&short(n)).unwrap(), value.map(|byte| [byte; 32]), "n={n}");
    }
}

#[test]
fn filters_come_after_the_opening_although_a_reader_holds_its_state() {
    let dir = tempfile::tempdir().unwrap();
    let (mut pairs, mut map) = ((0..150_000).map(|n| (key(n), [1; 32])).collect::<Vec<_>>(), Map::new());
    pairs.sort_unstable();
    let engine = StrataEngine::open(dir.path(), &SMALL).unwrap();
    engine.load_sorted(&pairs, &seq(1)).unwrap();
    commit(&engine, &batch(5, 2, 100), 2, &mut map);
    Box::new(engine).close().unwrap();
    let engine = StrataEngine::open(dir.path(), &SMALL).unwrap();
    let mut reader = engine.reader().unwrap();
    // The flush of the replayed batch makes a new version, and the reader keeps the one before.
    wait_for("the flush", || stat(&engine, "memtable_records") == 0);
    wait_for("the filters", || stat(&engine, "filter_planes_least") == 3);
    assert!(pairs.iter().step_by(500).all(|(key, _)| reader.get(key).unwrap().is_some()));
}
