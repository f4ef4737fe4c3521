//! Entry points for the fuzz targets, one for each decoder. Each decodes arbitrary bytes as they are, with a right
//! checksum, and as changes of a valid encoding.
//!
//! Owns: nothing. Must not: be in a build of the engine. It is a module of strata that only `cargo fuzz` and the tests
//! compile, because the decoders are private. Any thread.

use std::io;

use engine_api::{Checkpoint, ErrorKind, Key};

use crate::format::filter::plane_bytes;
use crate::format::footer::{Footer, MergedRange, Origin, Section, SegmentInfo};
use crate::format::manifest::Manifest;
use crate::format::page::{PAGE_RECORDS_MAX, Page, PageBuilder, checksum};
use crate::format::secret::{SALT_BYTES, Salt};
use crate::format::ties::{DirectoryBuilder, Ties, can_be};
use crate::format::wal::{self, HEADER_BYTES, Position, replay_file};
use crate::huge::Pool;
use crate::storage::{PageBytes, StorageFile};

/// Number of the segment, of the WAL file, and of the first batch.
const NUMBER: u64 = 1;
/// Salt of the WAL file.
const SALT: Salt = [0xa5; SALT_BYTES];

/// Calls `check` with the bytes, with the bytes and a right checksum, and with a `sample` that the bytes change: three
/// bytes are an offset and the new byte. Without the sample no fuzzer would guess a magic number and the length after
/// it.
fn each(bytes: &[u8], mut sample: Vec<u8>, seal: impl Fn(&mut [u8]), check: impl Fn(&[u8])) {
    check(bytes);
    let mut sealed = bytes.to_vec();
    seal(&mut sealed);
    check(&sealed);
    for change in bytes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % sample.len();
        sample[at] = change[2];
    }
    seal(&mut sample);
    check(&sample);
}

/// Sets the first four bytes to the checksum of the others.
fn seal(bytes: &mut [u8]) {
    if let Some((stored, rest)) = bytes.split_first_chunk_mut() {
        *stored = crc32c::crc32c(rest).to_le_bytes();
    }
}

/// Returns the first bytes as a page, padded with zeros.
fn whole_page(bytes: &[u8]) -> PageBytes {
    std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0))
}

fn key(n: u8) -> Key {
    [n; 32]
}

/// Fuzzes a page. In an accepted page every lookup ends, and if the keys are in order it finds each record.
pub fn page(bytes: &[u8]) {
    let mut sample = PageBuilder::new();
    let keys = (0..PAGE_RECORDS_MAX as u8).map(key);
    for (n, key) in keys.enumerate() {
        if sample.fits(&key) {
            sample.push(&key, (n % 5 != 0).then_some(&key));
        }
    }
    let sample = sample.seal(NUMBER, 0, |bytes| bytes.to_vec());
    let seal_page = |bytes: &mut [u8]| {
        let sum = checksum(&whole_page(bytes));
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
    };
    each(&whole_page(bytes), sample, seal_page, |bytes| look_up(&whole_page(bytes)));
}

fn look_up(bytes: &PageBytes) {
    let segment = u64::from_le_bytes(std::array::from_fn(|i| bytes[4 + i]));
    let number = u32::from_le_bytes(std::array::from_fn(|i| bytes[12 + i]));
    let Ok(page) = Page::verify(bytes, segment, number) else { return };
    assert!((1..=PAGE_RECORDS_MAX).contains(&page.len()), "records={}", page.len());
    let keys: Vec<Key> = (0..page.len()).map(|index| page.key(index)).collect();
    let ordered = keys.is_sorted_by(|a, b| a < b);
    for (index, key) in keys.iter().enumerate() {
        page.value(index);
        for part in [0.0, 0.3, 1.0, f64::NAN, -1.0, index as f64 / page.len() as f64] {
            let found = page.find(key, part);
            assert!(!ordered || found == Some(index), "index={index} found={found:?}");
        }
    }
}

fn checkpoint() -> Checkpoint {
    Checkpoint::new(3, &[8; 5])
}

fn segment(id: u64, first: u8, last: u8) -> SegmentInfo {
    SegmentInfo { id, records: 500, tombstones: 5, first: key(first), last: key(last) }
}

/// Fuzzes a manifest. An accepted one is the same when it is encoded again.
pub fn manifest(bytes: &[u8]) {
    let runs = vec![vec![segment(1, 1, 9)], vec![segment(2, 1, 2), segment(3, 3, 4)], vec![]];
    let sample = Manifest {
        next_id: 9,
        wal_floor: 4,
        batch: 17,
        runs,
        checkpoint: checkpoint(),
        merge_at: key(10),
        joined_at: vec![key(3), key(10)],
        ..Manifest::default()
    };
    let sample = sample.encode().expect("a short checkpoint");
    assert!(Manifest::decode(&sample).is_ok());
    each(bytes, sample, seal, |bytes| {
        if let Ok(found) = Manifest::decode(bytes) {
            let again = found.encode().expect("as short as it was");
            assert_eq!(Manifest::decode(&again).expect("just written"), found);
        }
    });
}

/// Fuzzes a segment's footer. An accepted one is the same when it is encoded again, and its lengths agree.
pub fn footer(bytes: &[u8]) {
    let info = SegmentInfo { tombstones: 0, ..segment(NUMBER, 1, 9) };
    let section = |at: u64, bytes: usize| Section { offset: at << 12, bytes: bytes as u64, crc: 7 };
    let planes = std::array::from_fn(|n| section(8 + n as u64, plane_bytes(n, info.records)));
    let merged = Some(MergedRange { from: key(1), to: Some(key(10)), batch: 2 });
    let origin = Origin { batch: 2, checkpoint: checkpoint(), base: true, merged, ..Origin::default() };
    let sample = Footer { info, pages: 8, planes, directory: section(11, 64), ties: section(12, 36), origin }.encode();
    let sample = sample.expect("a short checkpoint");
    // The sample must be valid, because changes of a refused one would reach nothing.
    assert!(Footer::decode(&sample).is_ok());
    each(&whole_page(bytes), sample.to_vec(), seal, |bytes| {
        let Ok(footer) = Footer::decode(&whole_page(bytes)) else { return };
        let again = footer.encode().expect("as short as it was");
        assert_eq!(Footer::decode(&again), Ok(footer.clone()), "another footer");
        assert!(footer.info.records <= u64::from(footer.pages) * PAGE_RECORDS_MAX as u64);
        assert_eq!(footer.directory.bytes, u64::from(footer.pages) * 8);
    });
}

/// Fuzzes a directory with its ties. With accepted ones the page of any key is one of those that may hold it.
pub fn ties(bytes: &[u8]) {
    const PAGES: usize = 6;
    let first = |page: u8| std::array::from_fn(|at| if at < 8 { page / 4 } else { page });
    let mut pages = DirectoryBuilder::default();
    (0..PAGES as u8).for_each(|page| pages.push(&first(page), page.checked_sub(1).map(first).as_ref()));
    let mut sample = vec![0; pages.bytes().iter().sum()];
    let (directory, ties) = sample.split_at_mut(PAGES * 8);
    pages.encode_directory(directory);
    pages.encode_ties(ties);
    each(bytes, sample, |_| (), |bytes| look_up_ties(bytes, PAGES));
}

fn look_up_ties(bytes: &[u8], pages: usize) {
    let Some((directory, ties)) = bytes.split_at_checked(pages * 8) else { return };
    let words: Vec<u64> = directory.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    if !words.is_sorted() || !can_be(ties.len() as u64, pages as u64) {
        return;
    }
    let mut whole = Pool::default().take(ties.len()).expect("memory");
    whole.whole_pages_mut()[..ties.len()].copy_from_slice(ties);
    let ties = Ties::new(whole);
    if ties.check(&words).is_err() {
        return;
    }
    for (word, tail) in words.iter().flat_map(|word| [0, 0x80, 0xff].map(|tail| (*word, tail))) {
        let mut key = [tail; 32];
        key[..8].copy_from_slice(&word.to_be_bytes());
        let alike = words.partition_point(|one| *one < word)..words.partition_point(|one| *one <= word);
        let page = ties.page_of(&key, alike.clone(), pages);
        assert!(page < alike.end && page + 1 >= alike.start, "page={page} alike={alike:?}");
    }
}

/// Fuzzes a WAL file. Replayed batches are consecutive from the first number on; damage is an error.
pub fn wal(bytes: &[u8]) {
    let mut sample = Vec::new();
    for count in 0..3 {
        let ops: Vec<_> = (0..count).map(|n| (key(n), (n != 1).then_some(key(n)))).collect();
        let mut record = Vec::new();
        wal::encode(&mut record, (&SALT, NUMBER), (NUMBER + u64::from(count), NUMBER), &checkpoint(), &ops)
            .expect("short");
        sample.extend(record);
    }
    let whole = replay_file(&Bytes(&sample), "sample", (&SALT, NUMBER), Position::behind(0), |_, _| Ok(()));
    assert_eq!(whole.map(|end| end.next).ok(), Some(NUMBER + 3));
    each(bytes, sample, seal_records, |bytes| {
        let mut expected = NUMBER;
        let from = Position { next: NUMBER, end: None };
        let end = replay_file(&Bytes(bytes), "fuzzed", (&SALT, NUMBER), from, |number, _| {
            assert_eq!(number, expected);
            expected += 1;
            Ok(())
        });
        match end {
            Ok(end) => assert_eq!(end.next, expected),
            Err(error) => assert_eq!(error.kind(), ErrorKind::DataDamaged, "{error}"),
        }
    });
}

/// Gives every record this file's salt and number, the next batch number, and a right checksum.
fn seal_records(mut bytes: &mut [u8]) {
    let mut number = NUMBER;
    while bytes.len() >= HEADER_BYTES {
        let body = u32::from_le_bytes(std::array::from_fn(|i| bytes[4 + i])) as usize;
        let Some((record, rest)) = bytes.split_at_mut_checked(HEADER_BYTES + body) else { return };
        record[8..24].copy_from_slice(&SALT);
        record[24..32].copy_from_slice(&NUMBER.to_le_bytes());
        record[32..40].copy_from_slice(&number.to_le_bytes());
        seal(record);
        number += 1;
        bytes = rest;
    }
}

/// Bytes as a read-only file.
struct Bytes<'a>(&'a [u8]);

impl StorageFile for Bytes<'_> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let read = self.0.get(offset as usize..offset as usize + buf.len());
        buf.copy_from_slice(read.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, _bytes: &[u8], _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn forget_pages(&self) {}
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_target_begins_with_what_its_decoder_accepts() {
        super::page(&[]);
        super::manifest(&[]);
        super::footer(&[]);
        super::wal(&[]);
        super::ties(&[]);
    }
}
