//! A directory or ties that contradict the pages, with right checksums: a scrub names them, and a repair writes them anew
//! without a loss.

use std::fs;
use std::path::{Path, PathBuf};

use engine_api::{Engine, ErrorKind, Key, Value};
use solkv_engine_strata::StrataEngine;

use crate::support::key;
use crate::{SMALL, seq, wait_for};

const PAGE_BYTES: usize = 4096;

/// Makes a store of one segment, half of whose keys share their first eight bytes. Returns its pairs and its file.
fn store(dir: &Path) -> (Vec<(Key, Value)>, PathBuf) {
    let engine = StrataEngine::open(dir, &SMALL).unwrap();
    let shaped = |n: u64| {
        let mut key = key(n);
        if n.is_multiple_of(2) {
            key[..8].fill(7);
        }
        key
    };
    let mut pairs: Vec<_> = (0..20_000).map(|n| (shaped(n), [n as u8; 32])).collect();
    pairs.sort_unstable();
    engine.load_sorted(&pairs, &seq(1)).unwrap();
    Box::new(engine).close().unwrap();
    let mut files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    (pairs, files.find(|file| file.extension().is_some_and(|ending| ending == "seg")).unwrap())
}

/// Changes section `number` of a segment's file, and makes its checksum and that of the footer right again.
fn change(file: &Path, number: usize, change: impl FnOnce(&mut [u8])) {
    let mut bytes = fs::read(file).unwrap();
    let footer = bytes.len() - PAGE_BYTES;
    let at = footer + 112 + number * 24;
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let (offset, length) = (word(&bytes, at), word(&bytes, at + 8));
    change(&mut bytes[offset..offset + length]);
    let section = crc32c::crc32c(&bytes[offset..offset + length]);
    bytes[at + 16..at + 20].copy_from_slice(&section.to_le_bytes());
    let whole = crc32c::crc32c(&bytes[footer + 4..]);
    bytes[footer..footer + 4].copy_from_slice(&whole.to_le_bytes());
    fs::write(file, bytes).unwrap();
}

#[test]
fn a_scrub_names_them_and_a_repair_loses_nothing() {
    // The second word of the directory a little less, and a tie's key a little greater: both fit what an opening knows.
    for (section, byte) in [(3, 8), (4, 31)] {
        let dir = tempfile::tempdir().unwrap();
        let (pairs, file) = store(dir.path());
        change(&file, section, |bytes| bytes[byte] ^= 1);
        let engine = StrataEngine::open(dir.path(), &SMALL).unwrap();
        let found = engine.scrub().unwrap_err();
        assert!(
            found.kind() == ErrorKind::DataDamaged && found.to_string().contains("not that of the pages"),
            "{found}"
        );
        drop(engine);
        let repaired = StrataEngine::repair(dir.path()).unwrap();
        assert!(repaired.findings.len() >= 2 && repaired.lost.is_empty(), "{repaired:?}");
        let engine = StrataEngine::open(dir.path(), &SMALL).unwrap();
        engine.scrub().unwrap();
        wait_for("the filters", || crate::support::stat(&engine, "filter_planes_least") == 3);
        let mut reader = engine.reader().unwrap();
        assert!(pairs.iter().all(|(key, value)| reader.get(key).unwrap() == Some(*value)));
    }
}
