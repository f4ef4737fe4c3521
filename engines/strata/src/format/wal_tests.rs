//! Tests of WAL records: encoded, cut, flipped and replayed.

use std::fs;

use proptest::prelude::*;

use super::*;
use crate::storage::DirStorage;

const KEY: WalKey = WalKey::from_bytes(&[5; SALT_BYTES]);

/// Replays `bytes` as WAL file `id`. Returns the next batch and the number of changes of each batch.
fn replayed(bytes: &[u8], id: u64, next: u64) -> Result<(u64, Vec<usize>)> {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join(name(id)), bytes).expect("written");
    let storage = DirStorage::open(dir.path()).expect("opened");
    let mut seen = Vec::new();
    let end = replay(&storage, (&KEY.salt(id), id), Position { next, end: None }, |_, batch| {
        seen.push(batch.ops.len());
        Ok(())
    })?;
    Ok((end.next, seen))
}

/// Writes a WAL of four batches, 11 to 14, flushed after the second. Returns its bytes and the end of each record.
fn written() -> (Vec<u8>, Vec<u64>) {
    let dir = tempfile::tempdir().expect("a directory");
    let storage = DirStorage::open(dir.path()).expect("opened");
    let mut wal = Wal::create(&storage, &KEY, 3, None, 10).expect("created");
    let ops = |n: usize| (0..n).map(|i| ([i as u8; 32], (i % 2 == 0).then_some([7; 32]))).collect::<Vec<_>>();
    let mut ends = Vec::new();
    for n in 1..5 {
        // Checkpoints of several lengths, the shortest and the longest among them.
        let checkpoint = Checkpoint::new(n as u64, &vec![7; [0, 5, Checkpoint::BYTES_MAX, 1][n - 1]]);
        wal.append(10 + n as u64, &checkpoint, &ops(n)).expect("written");
        ends.push(wal.bytes());
        if n == 2 {
            wal.sync().expect("flushed");
        }
    }
    (fs::read(dir.path().join(name(3))).expect("readable"), ends)
}

#[test]
fn replay_ends_at_the_first_record_that_is_not_whole() {
    let (whole, ends) = written();
    assert_eq!(replayed(&whole, 3, 11).expect("whole"), (15, vec![1, 2, 3, 4]));
    assert_eq!(replayed(&whole, 3, 15).expect("old"), (15, vec![]), "what is in the runs already is no damage");
    assert_eq!(replayed(&whole, 4, 11).expect("whole"), (11, vec![]), "another file's records are not its own");
    for cut in 0..whole.len() {
        let expected = ends.iter().filter(|end| **end <= cut as u64).count();
        assert_eq!(replayed(&whole[..cut], 3, 11).expect("torn").1.len(), expected, "cut={cut}");
    }
    // The file was begun after batch 10, so every batch before 11 must be elsewhere.
    assert!(replayed(&whole, 3, 10).expect_err("missing").to_string().contains("batch=11 at the start"));
}

#[test]
fn a_record_whose_checkpoint_has_another_length_than_it_says_is_none() {
    let checkpoint = Checkpoint::new(5, &[7; 200]);
    let mut bytes = Vec::new();
    encode(&mut bytes, (&KEY.salt(1), 1), (1, 0), &checkpoint, &[([1; 32], None), ([2; 32], None)])
        .expect("short enough");
    assert_eq!(replayed(&bytes, 1, 1).expect("whole").0, 2);
    // A byte more or less, 65 bytes more or fewer, and more than a checkpoint may have.
    for length in [199u16, 201, 265, 135, 1025, u16::MAX] {
        let mut other = bytes.clone();
        other[HEADER_BYTES + 2..HEADER_BYTES + 4].copy_from_slice(&length.to_le_bytes());
        let crc = crc32c::crc32c(&other[4..]);
        other[..4].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(replayed(&other, 1, 1).expect("garbage").0, 1, "length={length}");
    }
    let long = Checkpoint::new(5, &[7; Checkpoint::BYTES_MAX + 1]);
    assert_eq!(
        encode(&mut bytes, (&KEY.salt(1), 1), (2, 1), &long, &[]).expect_err("too long").kind(),
        ErrorKind::FixInput
    );
}

#[test]
fn a_flipped_bit_in_what_was_flushed_is_damage_and_behind_it_the_end() {
    let (whole, ends) = written();
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        let before = ends.iter().filter(|end| **end <= at as u64).count();
        match replayed(&flipped, 3, 11) {
            Ok((_, batches)) => assert!(before >= 2 && batches.len() == before, "byte={at}"),
            Err(error) => {
                assert!(before < 2, "byte={at}");
                assert_eq!(error.kind(), ErrorKind::DataDamaged, "{error}");
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_replayed_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = replayed(&bytes, 1, 1);
        // Again as a record with the right salt and checksum.
        if bytes.len() >= HEADER_BYTES {
            let body = (bytes.len() - HEADER_BYTES) as u32;
            bytes[4..8].copy_from_slice(&body.to_le_bytes());
            bytes[SALT_AT..SALT_AT + SALT_BYTES].copy_from_slice(&KEY.salt(1));
            for (at, word) in [(24, 1u64), (32, 1), (48, u64::from(body).saturating_sub(Checkpoint::ENCODED_MIN as u64) / 65)] {
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            let crc = crc32c::crc32c(&bytes[4..]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            let _ = replayed(&bytes, 1, 1);
            let _ = decode(&bytes);
        }
    }
}

#[test]
fn the_buffer_of_a_large_record_is_given_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let storage = DirStorage::open(dir.path()).expect("opened");
    let mut wal = Wal::create(&storage, &KEY, 3, None, 10).expect("created");
    let ops: Vec<_> = (0..100_000u32).map(|_| ([1; 32], Some([2; 32]))).collect();
    wal.append(11, &Checkpoint::default(), &ops).expect("written");
    assert!(wal.buffer.capacity() <= BUFFER_KEPT_BYTES, "capacity={}", wal.buffer.capacity());
    assert_eq!(wal.last_bytes(), wal.bytes());
    assert!(wal.last_bytes() > 6_500_000);
}
