//! Holes in the logs, as a power loss leaves them: the replay ends before a hole, and no batch after it comes back.

use std::fs;
use std::path::{Path, PathBuf};

use engine_api::{Checkpoint, Durability, Engine};
use solkv_engine_rocksdb::RocksdbEngine;

use crate::{commit, count, mark, pairs, small};

/// Bytes of a batch of [`BATCH_PAIRS`] in a log, chosen so that each block ends with the end of a batch.
const BATCH_BYTES: usize = 4096;
const BATCHES_OF_BLOCK: usize = (32 << 10) / BATCH_BYTES;
const BATCH_PAIRS: u64 = 50;
/// Bytes of the checkpoint, which fill the batch up to that size.
const FILLER_BYTES: usize = 706;
const BATCHES: u64 = 4 * BATCHES_OF_BLOCK as u64;

/// Creates a store whose batches are in one log alone, and returns the log.
fn written(dir: &Path) -> PathBuf {
    let engine = RocksdbEngine::open(dir, &small()).unwrap();
    for seq in 1..=BATCHES {
        let mut txn = engine.begin().unwrap();
        for (key, value) in pairs((seq - 1) * BATCH_PAIRS, seq * BATCH_PAIRS) {
            txn.put(&key, &value).unwrap();
        }
        txn.commit(&Checkpoint::new(seq, &[1; FILLER_BYTES]), Durability::Buffered).unwrap();
    }
    drop(engine);
    let logs = logs(dir);
    assert_eq!(logs.len(), 1, "{logs:?}");
    assert_eq!(fs::metadata(&logs[0]).unwrap().len(), BATCHES * BATCH_BYTES as u64);
    logs[0].clone()
}

/// Opens the store again, and returns its checkpoint's seq and its number of pairs.
fn found(dir: &Path) -> (u64, u64) {
    let engine = RocksdbEngine::open(dir, &small()).unwrap();
    (engine.checkpoint().unwrap().seq, count(&engine))
}

/// Checks that the store holds exactly the first `batches`: opened for reading alone, and then normally twice.
fn holds(dir: &Path, batches: u64) {
    for open in [RocksdbEngine::open_read_only, RocksdbEngine::open, RocksdbEngine::open] {
        let engine = open(dir, &small()).unwrap();
        assert_eq!((engine.checkpoint().unwrap().seq, count(&engine)), (batches, batches * BATCH_PAIRS));
    }
}

fn logs(dir: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut logs: Vec<_> = paths.filter(|path| path.extension().is_some_and(|ending| ending == "log")).collect();
    logs.sort();
    logs
}

fn number(log: &Path) -> u64 {
    log.file_stem().unwrap().to_str().unwrap().parse().unwrap()
}

#[test]
fn a_hole_up_to_the_end_of_a_block() {
    for (first, end, left) in [(2, 8, 2), (0, 8, 0), (7, 8, 7), (8, 24, 8), (20, 24, 20), (24, 32, 24)] {
        let temp = tempfile::tempdir().unwrap();
        let log = written(temp.path());
        let mut bytes = fs::read(&log).unwrap();
        bytes[first * BATCH_BYTES..end * BATCH_BYTES].fill(0);
        fs::write(&log, bytes).unwrap();
        println!("batches={first}..{end} are gone");
        holds(temp.path(), left);
    }
}

#[test]
fn a_hole_between_two_logs() {
    for (gone, left) in [(0, BATCHES), (1, 15), (BATCHES_OF_BLOCK, 8)] {
        let temp = tempfile::tempdir().unwrap();
        let log = written(temp.path());
        let bytes = fs::read(&log).unwrap();
        let (first, second) = bytes.split_at(bytes.len() / 2);
        fs::write(&log, &first[..first.len() - gone * BATCH_BYTES]).unwrap();
        fs::write(log.with_file_name(format!("{:06}.log", number(&log) + 1)), second).unwrap();
        println!("batches={gone} of the first log's end are gone");
        holds(temp.path(), left);
    }
}

#[test]
fn files_that_were_taken_in_while_somebody_reads_are_no_hole() {
    let temp = tempfile::tempdir().unwrap();
    let engine = RocksdbEngine::open(temp.path(), &small()).unwrap();
    commit(&engine, &pairs(0, 100), 1);
    let reader = engine.reader().unwrap();
    engine.load_sorted(&pairs(100, 200), &mark(2)).unwrap();
    engine.load_sorted(&pairs(200, 300), &mark(3)).unwrap();
    drop(reader);
    commit(&engine, &pairs(300, 400), 4);
    drop(engine);
    assert_eq!(found(temp.path()), (4, 400));
}

/// Recording the manifest's length may fail after the files were ingested and before the checkpoint that counts them.
#[test]
fn a_load_that_is_tried_again_with_more_pairs_leaves_no_gap() {
    let temp = tempfile::tempdir().unwrap();
    let engine = RocksdbEngine::open(temp.path(), &small()).unwrap();
    commit(&engine, &pairs(0, 100), 1);
    let reader = engine.reader().unwrap();
    let in_the_way = temp.path().join("SOLKV-MANIFEST.tmp");
    fs::create_dir(&in_the_way).unwrap();
    engine.load_sorted(&pairs(100, 200), &mark(2)).unwrap_err();
    fs::remove_dir(&in_the_way).unwrap();
    engine.load_sorted(&pairs(100, 300), &mark(2)).unwrap();
    drop(reader);
    commit(&engine, &pairs(300, 400), 3);
    drop(engine);
    assert_eq!(found(temp.path()), (3, 400));
}

#[test]
fn what_was_committed_before_a_load_does_not_depend_on_the_log() {
    let temp = tempfile::tempdir().unwrap();
    let engine = RocksdbEngine::open(temp.path(), &small()).unwrap();
    commit(&engine, &pairs(0, 100), 1);
    engine.load_sorted(&pairs(100, 200), &mark(2)).unwrap();
    drop(engine);
    // The power failed before the load's checkpoint was in the log.
    logs(temp.path()).iter().for_each(|log| fs::write(log, []).unwrap());
    assert_eq!(found(temp.path()), (1, 200));
}

/// The opening had written its mark at the start of a new log, and not yet its manifest.
#[test]
fn an_opening_that_died_behind_a_hole_makes_no_scrub_fail() {
    let temp = tempfile::tempdir().unwrap();
    let log = written(temp.path());
    let mut bytes = fs::read(&log).unwrap();
    bytes[2 * BATCH_BYTES..8 * BATCH_BYTES].fill(0);
    fs::write(&log, bytes).unwrap();
    let mark = [(1 + 2 * (BATCH_PAIRS + 1)).to_le_bytes().as_slice(), &[0; 4]].concat();
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&[1]), &mark);
    let masked = checksum.rotate_right(15).wrapping_add(0xa282_ead8);
    let record = [&masked.to_le_bytes()[..], &[mark.len() as u8, 0, 1], &mark].concat();
    fs::write(log.with_file_name(format!("{:06}.log", number(&log) + 1)), record).unwrap();
    let mut engine = RocksdbEngine::open_read_only(temp.path(), &small()).unwrap();
    assert_eq!(engine.scrub().unwrap(), 2 * BATCH_PAIRS);
    drop(engine);
    holds(temp.path(), 2);
}
