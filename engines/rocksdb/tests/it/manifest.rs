//! A manifest that is cut or damaged: refused before RocksDB removes the files that it no longer names.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use engine_api::{Engine, ErrorKind};
use solkv_engine_rocksdb::RocksdbEngine;

use crate::{PAIRS, commit, count, mark, pairs, small};

/// File in which the adapter records the manifest's length.
const KNOWN: &str = "SOLKV-MANIFEST";

fn open(dir: &Path) -> Box<RocksdbEngine> {
    Box::new(RocksdbEngine::open(dir, &small()).unwrap())
}

/// Creates a store with pairs in ingested files, in flushed and in compacted files, and in the log alone.
fn filled(dir: &Path) -> Box<RocksdbEngine> {
    let engine = open(dir);
    engine.load_sorted(&pairs(0, PAIRS), &mark(1)).unwrap();
    commit(&engine, &pairs(PAIRS, 2 * PAIRS), 2);
    engine.settle().unwrap();
    commit(&engine, &pairs(2 * PAIRS, 3 * PAIRS), 3);
    engine.settle().unwrap();
    commit(&engine, &pairs(3 * PAIRS, 4 * PAIRS), 4);
    engine
}

fn manifest(dir: &Path) -> PathBuf {
    dir.join(fs::read_to_string(dir.join("CURRENT")).unwrap().trim_end())
}

fn files(dir: &Path) -> Vec<(String, u64)> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let mut files: Vec<_> = entries
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.metadata().unwrap().len()))
        .collect();
    files.sort();
    files
}

fn copy_files(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
}

fn refused(dir: &Path, what: &str) {
    let before = files(dir);
    for opened in [RocksdbEngine::open_read_only(dir, &small()), RocksdbEngine::open(dir, &small())] {
        let error = opened.err().unwrap_or_else(|| panic!("unnoticed: {what}"));
        assert_eq!(error.kind(), ErrorKind::DataDamaged, "{what}: {error}");
        assert!(error.to_string().contains("MANIFEST-"), "{what}: {error}");
        assert_eq!(files(dir), before, "{what}");
    }
}

#[test]
fn a_manifest_that_is_cut_or_damaged_anywhere_is_refused_and_nothing_is_removed() {
    let home = tempfile::tempdir().unwrap();
    let (closed, killed, snapshot) = (home.path().join("closed"), home.path().join("killed"), home.path().join("copy"));
    let engine = filled(&closed);
    copy_files(&closed, &killed);
    engine.snapshot(&snapshot).unwrap();
    engine.close().unwrap();
    for dir in [closed, killed, snapshot] {
        let path = manifest(&dir);
        let sound = fs::read(&path).unwrap();
        assert!(sound.len() > 100);
        for at in 0..sound.len() {
            fs::write(&path, &sound[..at]).unwrap();
            refused(&dir, &format!("{} cut at {at} of {}", dir.display(), sound.len()));
            let mut flipped = sound.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&path, &flipped).unwrap();
            refused(&dir, &format!("{} flipped at {at} of {}", dir.display(), sound.len()));
        }
        fs::write(&path, &sound).unwrap();
        assert_eq!(count(&open(&dir)), 4 * PAIRS);
    }
}

#[test]
fn a_record_that_a_crash_has_cut_is_none_of_it() {
    let home = tempfile::tempdir().unwrap();
    let (dir, killed) = (home.path().join("store"), home.path().join("killed"));
    let engine = filled(&dir);
    copy_files(&dir, &killed);
    drop(engine);
    // The header of a record of 200 bytes, and a few of its bytes.
    let begun = [1, 2, 3, 4, 200, 0, 1, 9, 9, 9];
    for cut in 1..=begun.len() {
        OpenOptions::new().append(true).open(manifest(&killed)).unwrap().write_all(&begun[..cut]).unwrap();
        assert_eq!(count(&RocksdbEngine::open_read_only(&killed, &small()).unwrap()), 4 * PAIRS);
        assert_eq!(count(&open(&killed)), 4 * PAIRS, "{cut}");
    }
    // A kill after a new manifest was begun and before its length was recorded.
    let known = fs::read(killed.join(KNOWN)).unwrap();
    drop(open(&killed));
    fs::write(killed.join(KNOWN), known).unwrap();
    OpenOptions::new().append(true).open(manifest(&killed)).unwrap().write_all(&begun).unwrap();
    assert_eq!(count(&open(&killed)), 4 * PAIRS);
}

#[test]
fn a_store_of_an_earlier_version_opens_where_its_manifest_is_whole() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("store");
    filled(&dir).close().unwrap();
    for damage in [None, Some("no line of ours")] {
        fs::remove_file(dir.join(KNOWN)).unwrap();
        if let Some(damage) = damage {
            fs::write(dir.join(KNOWN), damage).unwrap();
        }
        let path = manifest(&dir);
        let sound = fs::read(&path).unwrap();
        fs::write(&path, &sound[..sound.len() - 1]).unwrap();
        refused(&dir, "cut");
        fs::write(&path, &sound).unwrap();
        assert_eq!(count(&open(&dir)), 4 * PAIRS);
        // From now on the length is recorded.
        let sound = fs::read(manifest(&dir)).unwrap();
        fs::write(manifest(&dir), &sound[..sound.len() - 1]).unwrap();
        refused(&dir, "cut later");
        fs::write(manifest(&dir), &sound).unwrap();
    }
}

#[test]
fn an_older_manifest_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let (dir, copy) = (home.path().join("store"), home.path().join("copy"));
    filled(&dir).close().unwrap();
    copy_files(&dir, &copy);
    open(&dir).close().unwrap();
    for file in [manifest(&copy), copy.join("CURRENT")] {
        fs::copy(&file, dir.join(file.file_name().unwrap())).unwrap();
    }
    refused(&dir, "older");
    fs::remove_file(manifest(&dir)).unwrap();
    refused(&dir, "missing");
}
