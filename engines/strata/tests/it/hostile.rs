//! Attacks by those who choose keys, values, their order and their time: all they achieve is to store pairs.
//!
//! Owns: bytes made to look like records of a WAL, and keys that collide under a known hash.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use engine_api::{Checkpoint, Durability, Engine, Key, Value};
use solkv_engine_strata::StrataEngine;

use crate::support::{key, stat};
use crate::{SMALL, seq, wait_for};

/// Length of a WAL record's header (FORMAT.md, "WAL").
const HEADER_BYTES: usize = 56;
/// Length of the checkpoint that follows the header.
const CHECKPOINT_BYTES: usize = Checkpoint::ENCODED_MIN + OPAQUE_BYTES;
/// Length of one operation: its kind, key and value.
const OP_BYTES: usize = 65;
/// Number of bytes that each checkpoint here has in addition to its seq.
const OPAQUE_BYTES: usize = 48;

fn at(seq: u64) -> Checkpoint {
    Checkpoint::new(seq, &[9; OPAQUE_BYTES])
}

fn put(engine: &StrataEngine, seq: u64, pairs: &[(Key, Value)]) {
    let mut txn = engine.begin().unwrap();
    pairs.iter().for_each(|(key, value)| txn.put(key, value).unwrap());
    txn.commit(&at(seq), Durability::Synced).unwrap();
}

fn pairs(first: u64, count: u64) -> Vec<(Key, Value)> {
    (first..first + count).map(|n| (key(n), [1; 32])).collect()
}

/// Makes the record of a batch in which everything is right except the secret. Its salt is that of the file's previous
/// use, which is more than an attacker who only stores pairs could learn.
fn forged(dir: &Path, [file, batch, flushed, ops]: [u64; 4], body: &[u8]) -> Vec<u8> {
    let used = fs::read(dir.join("000000000001.wal")).unwrap();
    let mut record = vec![0; 4];
    record.extend_from_slice(&(body.len() as u32).to_le_bytes());
    record.extend_from_slice(&used[8..24]);
    [file, batch, flushed, ops].iter().for_each(|word| record.extend_from_slice(&word.to_le_bytes()));
    assert_eq!(record.len(), HEADER_BYTES);
    record.extend_from_slice(body);
    let crc = crc32c::crc32c(&record[4..]);
    record[..4].copy_from_slice(&crc.to_le_bytes());
    record
}

/// Returns the pairs whose operations in a WAL are these bytes, from the kind of the first on; `None` if a kind is not
/// a put.
fn as_pairs(mut bytes: Vec<u8>) -> Option<Vec<(Key, Value)>> {
    bytes.resize(bytes.len().next_multiple_of(OP_BYTES), 7);
    let pair = |op: &[u8]| (op[0] == 1).then(|| (op[1..33].try_into().unwrap(), op[33..].try_into().unwrap()));
    bytes.chunks(OP_BYTES).map(pair).collect()
}

/// Commits `first` to the first file. Then commits so much that the file is used again under another name, for a batch
/// of 10,000 pairs and an empty one. Closes the store and returns the bytes of that file.
fn used_twice(dir: &Path, engine: StrataEngine, first: &[(Key, Value)]) -> Vec<u8> {
    let inode = fs::metadata(dir.join("000000000001.wal")).unwrap().ino();
    put(&engine, 1, first);
    wait_for("the second file, which is made ahead", || dir.join("000000000002.wal").exists());
    // The batch takes less than half of a memtable, so nothing is made ahead, and the first file is free when the next
    // one is needed.
    put(&engine, 2, &pairs(100_000, 7_000));
    wait_for("the first file to be free", || stat(&engine, "flushes") > 0);
    put(&engine, 3, &pairs(200_000, 10_000));
    put(&engine, 4, &[]);
    Box::new(engine).close().unwrap();
    assert!(!dir.join("000000000001.wal").exists());
    // Its number varies, because a commit that comes before the second file is handed over makes its own. It need not be
    // the newest file: one may have been made ahead.
    let mut names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let used = names.find(|name| fs::metadata(name).unwrap().ino() == inode);
    fs::read(used.expect("the file has another name now")).unwrap()
}

#[test]
fn pairs_that_spell_a_later_record_do_not_make_a_store_refuse_to_open() {
    let dir = tempfile::tempdir().unwrap();
    let engine = StrataEngine::open(dir.path(), &SMALL).unwrap();
    put(&engine, 0, &[]);
    let mut first = pairs(0, 15_900);
    // A record whose first byte is the first byte of a key, one for each number that the file may get.
    for file in 2..30u64 {
        let mut body = [9; CHECKPOINT_BYTES];
        // The kind of the second operation, and a byte that makes its key different for each file.
        (body[OP_BYTES - 1 - HEADER_BYTES], body[20]) = (1, file as u8);
        let mut bytes = vec![1];
        bytes.extend(forged(dir.path(), [file, 1 << 60, 1 << 60, 0], &body));
        first.extend(as_pairs(bytes).unwrap());
    }
    let left = used_twice(dir.path(), engine, &first);
    let batch = (1u64 << 60).to_le_bytes();
    assert!(left.windows(8).any(|bytes| bytes == batch), "the forged records come after the batch");
    let engine = StrataEngine::open(dir.path(), &SMALL).unwrap();
    assert_eq!(engine.checkpoint().unwrap(), at(4));
}

#[test]
fn pairs_that_stand_where_a_record_ends_are_not_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let engine = StrataEngine::open(dir.path(), &SMALL).unwrap();
    put(&engine, 0, &[]);
    // Every 65th byte of the record is the kind of an operation.
    const FORGED_SEQ: u64 = 0x01_09;
    let mut forged_key = [0xee; 32];
    forged_key[2 * OP_BYTES - HEADER_BYTES - CHECKPOINT_BYTES - 1] = 1;
    let mut body = at(FORGED_SEQ).encode().unwrap();
    assert_eq!(body[OP_BYTES - HEADER_BYTES], 1);
    body.push(1);
    body.extend_from_slice(&forged_key);
    body.extend_from_slice(&[0xaa; 32]);
    let spelled = (0..1u64 << 20).find_map(|n| {
        // Some bytes of the value are free; vary them until the checksum begins with the kind of an operation.
        let end = body.len();
        body[end - 8..].copy_from_slice(&n.to_le_bytes());
        as_pairs(forged(dir.path(), [4, 6, 5, 1], &body))
    });
    let mut first = pairs(0, 10_000);
    first.extend(spelled.unwrap());
    first.extend(pairs(50_000, 3000));
    let left = used_twice(dir.path(), engine, &first);
    let end = 2 * (HEADER_BYTES + CHECKPOINT_BYTES) + 10_000 * OP_BYTES;
    assert_eq!(left[end + 24..end + 32], 4u64.to_le_bytes(), "the forged record begins where the last one ends");
    let engine = StrataEngine::open(dir.path(), &SMALL).unwrap();
    assert_eq!(engine.checkpoint().unwrap(), at(4));
    assert_eq!(engine.reader().unwrap().get(&forged_key).unwrap(), None);
}

/// Returns an absent key with the XXH3 of a present one, because a product does not depend on the order of its factors.
fn mirrored(key: &Key) -> Key {
    const SECRET: [[u8; 8]; 2] =
        [[0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb], [0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f]];
    let mut other = *key;
    for i in 0..8 {
        other[16 + i] = key[24 + i] ^ SECRET[0][i] ^ SECRET[1][i];
        other[24 + i] = key[16 + i] ^ SECRET[0][i] ^ SECRET[1][i];
    }
    other
}

fn loaded(dir: &Path, count: u64) -> StrataEngine {
    let engine = StrataEngine::open(dir, &SMALL).unwrap();
    let mut sorted = pairs(0, count);
    sorted.sort_unstable();
    engine.load_sorted(&sorted, &seq(1)).unwrap();
    engine
}

#[test]
fn absent_keys_that_collide_in_a_known_hash_are_stopped_by_filters_like_others() {
    let dir = tempfile::tempdir().unwrap();
    let engine = loaded(dir.path(), 20_000);
    assert_eq!(stat(&engine, "filter_planes_least"), 3);
    let mut reader = engine.reader().unwrap();
    for n in 0..2000 {
        assert_eq!(reader.get(&mirrored(&key(n))).unwrap(), None);
    }
    drop(reader);
    // Filters with three planes let 0.06% through.
    assert!(stat(&engine, "get_reads") < 20, "reads={}", stat(&engine, "get_reads"));
}

#[test]
fn the_same_pairs_have_other_hashes_in_another_store() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let segment = |dir: &Path| {
        drop(loaded(dir, 20_000));
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let segments: Vec<_> = entries.filter(|path| path.extension().is_some_and(|kind| kind == "seg")).collect();
        assert_eq!(segments.len(), 1);
        fs::read(&segments[0]).unwrap()
    };
    let (one, other) = (segment(one.path()), segment(other.path()));
    let footer = &one[one.len() - 4096..];
    let word = |at: usize| u64::from_le_bytes(footer[at..at + 8].try_into().unwrap()) as usize;
    let (plane, directory) = (word(112), word(112 + 3 * 24));
    assert!(one[..plane] == other[..plane], "the same pages");
    let alike = one[plane..directory].iter().zip(&other[plane..directory]).filter(|(a, b)| a == b).count();
    assert!(alike * 2 < directory - plane, "the filters differ: alike={alike} of {}", directory - plane);
}
