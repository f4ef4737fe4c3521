//! The page: 4 KiB with a checksum and pairs in ascending order of their keys. Leading bytes that all keys share are
//! stored once.
//!
//! Owns: its bytes (FORMAT.md, "Page"). Must not: do I/O. Decoding checks everything, because the bytes come from a
//! disk.

use std::cmp::Ordering;
use std::mem::offset_of;

use engine_api::{Key, Value};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::search::bisect;
use crate::storage::{PAGE_BYTES, PageBytes};

/// Version of a segment and its pages that is written, and the only one that is read. No older version was ever released.
pub(crate) const VERSION: u32 = 6;
/// Bytes of a key and its value.
pub(crate) const RECORD_BYTES: usize = 64;
/// Greatest number of leading key bytes that are stored once for the whole page. Keys of a billion uniform ones share
/// two with their neighbours; those of a derived store share a prefix of 16.
const ELIDED_MAX: usize = 16;
/// Number of pairs in a full page whose keys share no leading byte.
pub(crate) const PAGE_RECORDS_MIN: usize = capacity(0);
/// Largest number of pairs in a page.
pub(crate) const PAGE_RECORDS_MAX: usize = capacity(ELIDED_MAX);

/// Steps from the estimated place of a key after which a search of a page bisects: estimates are mostly nearer.
const NEAR_RECORDS: usize = 8;

/// Header of a page. The shared bytes of the keys follow it, then the records.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PageHeader {
    /// CRC32C of the rest of the page, xor the version.
    crc: U32,
    segment: U64,
    /// Number of the page in its segment, from 0.
    number: U32,
    records: u8,
    /// Number of leading key bytes that all records share and leave out.
    elided: u8,
    /// Bit i is set if record i is a tombstone.
    tombstones: [u8; 11],
}

const HEADER_BYTES: usize = size_of::<PageHeader>();
const RECORDS_AT: usize = offset_of!(PageHeader, records);
const ELIDED_AT: usize = offset_of!(PageHeader, elided);
const TOMBSTONES_AT: usize = offset_of!(PageHeader, tombstones);

const _: () = {
    assert!(HEADER_BYTES == 29 && offset_of!(PageHeader, segment) == 4 && offset_of!(PageHeader, number) == 12);
    assert!(RECORDS_AT == 16 && ELIDED_AT == 17 && TOMBSTONES_AT == 18);
    assert!(PAGE_RECORDS_MIN == 63 && capacity(2) == 65 && PAGE_RECORDS_MAX == 84 && PAGE_RECORDS_MAX <= 88);
};

/// Number of pairs that fit into a page whose keys share `elided` leading bytes.
const fn capacity(elided: usize) -> usize {
    (PAGE_BYTES - HEADER_BYTES - elided) / (RECORD_BYTES - elided)
}

/// Collects the pairs of a page and encodes it. It is reused for page after page.
pub(crate) struct PageBuilder {
    pairs: Vec<(Key, Option<Value>)>,
    bytes: Box<PageBytes>,
}

impl PageBuilder {
    pub(crate) fn new() -> Self {
        Self { pairs: Vec::with_capacity(PAGE_RECORDS_MAX), bytes: Box::new([0; PAGE_BYTES]) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Whether a pair with this key still fits. The key must be greater than all keys so far.
    pub(crate) fn fits(&self, key: &Key) -> bool {
        self.pairs.first().is_none_or(|(first, _)| self.pairs.len() < capacity(shared(first, key)))
    }

    /// Adds a pair, or a tombstone if `value` is `None`. The key must be greater than all so far, and the pair must
    /// fit.
    pub(crate) fn push(&mut self, key: &Key, value: Option<&Value>) {
        self.pairs.push((*key, value.copied()));
    }

    /// Encodes the page, passes its bytes to `take`, and empties the builder. The builder must hold a pair.
    pub(crate) fn seal<T>(&mut self, segment: u64, number: u32, take: impl FnOnce(&PageBytes) -> T) -> T {
        seal_into(&mut self.bytes, segment, number, self.pairs.iter().map(|(key, value)| (key, value.as_ref())));
        self.pairs.clear();
        take(&self.bytes)
    }
}

/// Returns the number of these pairs that fit into a page that begins with the first of them, by the rule of
/// [`PageBuilder::fits`]. Keys must ascend, and there must be a pair.
pub(crate) fn page_length(pairs: &[(Key, Value)]) -> usize {
    let first = &pairs[0].0;
    // This number fits whatever the keys share.
    let mut length = pairs.len().min(PAGE_RECORDS_MIN);
    while pairs.get(length).is_some_and(|(key, _)| length < capacity(shared(first, key))) {
        length += 1;
    }
    length
}

/// Encodes these pairs as a page. They must ascend and fit, and there must be a pair.
pub(crate) fn seal_pairs(page: &mut PageBytes, segment: u64, number: u32, pairs: &[(Key, Value)]) {
    seal_into(page, segment, number, pairs.iter().map(|(key, value)| (key, Some(value))));
}

/// Encodes these records as a page. They must ascend and fit, and there must be one. A tombstone has no value.
#[inline]
fn seal_into<'a>(
    page: &mut PageBytes,
    segment: u64,
    number: u32,
    records: impl DoubleEndedIterator<Item = (&'a Key, Option<&'a Value>)> + ExactSizeIterator + Clone,
) {
    let count = records.len();
    let (first, last) = (records.clone().next(), records.clone().next_back());
    let (first, last) = first.zip(last).expect("a page has a record");
    // Keys ascend, so the first and the last share the fewest leading bytes.
    let elided = shared(first.0, last.0);
    let mut tombstones = [0; 11];
    page[HEADER_BYTES + elided + count * (RECORD_BYTES - elided)..].fill(0);
    // Copy every key whole, because a copy of a known length is a few instructions. Its shared bytes overwrite the end
    // of the record before it, so encode the last record first. Those of the first key are the shared bytes of the
    // page.
    for (n, (key, value)) in records.enumerate().rev() {
        let at = HEADER_BYTES + n * (RECORD_BYTES - elided);
        let record: &mut [u8; RECORD_BYTES] = page[at..].first_chunk_mut().expect("it fits");
        record[..32].copy_from_slice(key);
        record[32..].copy_from_slice(value.unwrap_or(&[0; 32]));
        tombstones[n / 8] |= u8::from(value.is_none()) << (n % 8);
    }
    let header = PageHeader {
        crc: U32::ZERO,
        segment: segment.into(),
        number: number.into(),
        records: count as u8,
        elided: elided as u8,
        tombstones,
    };
    page[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    let crc = checksum(page);
    page[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Returns the checksum of a page. It differs between versions, because a repair reads pages whose footer is lost.
pub(crate) fn checksum(page: &PageBytes) -> u32 {
    crc32c::crc32c(&page[4..]) ^ VERSION
}

/// Number of leading bytes that two keys share, at most [`ELIDED_MAX`].
fn shared(a: &Key, b: &Key) -> usize {
    a.iter().zip(b).take(ELIDED_MAX).take_while(|(a, b)| a == b).count()
}

/// A page whose checksum and place were verified.
#[derive(Clone, Copy)]
pub(crate) struct Page<'a>(&'a PageBytes);

impl<'a> Page<'a> {
    /// Checks that `bytes` are page `number` of `segment`. The error describes the defect.
    pub(crate) fn verify(bytes: &'a PageBytes, segment: u64, number: u32) -> Result<Self, String> {
        let Ok((header, _)) = PageHeader::ref_from_prefix(bytes) else {
            return Err("shorter than a header".to_owned());
        };
        let computed = checksum(bytes);
        if header.crc != computed {
            return Err(format!("checksum stored={:08x} computed={computed:08x}", header.crc));
        }
        if header.segment != segment || header.number != number {
            let (found, at) = (header.segment, header.number);
            return Err(format!("another page: segment={found} page={at} expected_segment={segment} page={number}"));
        }
        let (records, elided) = (usize::from(header.records), usize::from(header.elided));
        if records == 0 || elided > ELIDED_MAX || records > capacity(elided) {
            return Err(format!("records={records} elided_bytes={elided}"));
        }
        Ok(Self(bytes))
    }

    /// Wraps a page that was verified when it was brought into memory.
    pub(crate) fn verified(bytes: &'a PageBytes) -> Self {
        Self(bytes)
    }

    pub(crate) fn len(self) -> usize {
        usize::from(self.0[RECORDS_AT])
    }

    pub(crate) fn key(self, index: usize) -> Key {
        let (elided, at) = self.place(index);
        // Load both halves of the key completely and then replace the shared bytes in the first one. So every copy has
        // a length that the compiler knows. Bytes before a record belong to the record before it or to the header.
        let half = |at: usize| u128::from_le_bytes(*self.0[at..].first_chunk().expect("half a key"));
        let ours = !u128::MAX.checked_shl(8 * elided as u32).unwrap_or(0);
        let first = half(at - elided) & !ours | half(HEADER_BYTES) & ours;
        let mut key = [0; 32];
        key[..16].copy_from_slice(&first.to_le_bytes());
        key[16..].copy_from_slice(&half(at - elided + 16).to_le_bytes());
        key
    }

    /// Returns the value of a record, or `None` for a tombstone.
    pub(crate) fn value(self, index: usize) -> Option<Value> {
        if self.0[TOMBSTONES_AT + index / 8] >> (index % 8) & 1 == 1 {
            return None;
        }
        let (elided, at) = self.place(index);
        self.0[at + 32 - elided..].first_chunk().copied()
    }

    /// Returns the index of `key`. `part` is an estimate of the key's position: see [`Page::rank`].
    #[inline]
    pub(crate) fn find(self, key: &Key, part: f64) -> Option<usize> {
        self.rank(key, part).ok()
    }

    /// Returns the index of `key`, or of the first greater key as an error, which is the number of records if there is
    /// none. `part` is an estimate of the key's position: its distance from the page's first key to the next page's, 0 to
    /// 1. Keys are mostly uniform, so the search begins there, and bisects the rest after a few steps.
    pub(crate) fn rank(self, key: &Key, part: f64) -> Result<usize, usize> {
        let (elided, start) = self.place(0);
        let (count, stride) = (self.len(), RECORD_BYTES - elided);
        match key[..elided].cmp(&self.0[HEADER_BYTES..start]) {
            Ordering::Less => return Err(0),
            Ordering::Greater => return Err(count),
            Ordering::Equal => {}
        }
        let wanted = u64::from_be_bytes(std::array::from_fn(|i| key[elided + i]));
        let is_before = |index: usize| word64(self.0, start + index * stride) < wanted;
        let mut at = ((part * count as f64) as usize).min(count);
        let (low, high) = (at.saturating_sub(NEAR_RECORDS), count.min(at + NEAR_RECORDS));
        while at > low && !is_before(at - 1) {
            at -= 1;
        }
        while at < high && is_before(at) {
            at += 1;
        }
        if at == low {
            at = bisect(0..low, is_before);
        } else if at == high {
            at = bisect(high..count, is_before);
        }
        // Only keys that were made alike share eight more bytes. Then the rest of them decides.
        let suffix = |index: usize| &self.0[start + index * stride..][..32 - elided];
        if at < count && *suffix(at) < key[elided..] {
            at = bisect(at + 1..count, |index| *suffix(index) < key[elided..]);
        }
        if at < count && *suffix(at) == key[elided..] { Ok(at) } else { Err(at) }
    }

    /// Returns the number of shared key bytes and the offset of a record.
    fn place(self, index: usize) -> (usize, usize) {
        // `verify` checked the bound. Repeating it here lets the compiler leave out its own check.
        let elided = usize::from(self.0[ELIDED_AT]).min(ELIDED_MAX);
        (elided, HEADER_BYTES + elided + index * (RECORD_BYTES - elided))
    }
}

/// Returns the approximate offset in its page of a record that is `part` of the way from the first to the last.
pub(crate) fn offset_at(part: f64) -> usize {
    HEADER_BYTES + (part * (PAGE_BYTES - HEADER_BYTES - RECORD_BYTES) as f64) as usize
}

/// Returns the first eight bytes of a key as a number that sorts as the keys do.
pub(crate) fn prefix(key: &Key) -> u64 {
    u64::from_be_bytes(*key.first_chunk().expect("a key is longer than 8 bytes"))
}

fn word64(bytes: &PageBytes, at: usize) -> u64 {
    u64::from_be_bytes(*bytes[at..].first_chunk().expect("eight bytes of a record"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Fills one page with as many of `keys` as fit. Returns the page and their number.
    fn page(keys: &[Key]) -> (PageBytes, usize) {
        let mut builder = PageBuilder::new();
        let mut count = 0;
        for (n, key) in keys.iter().enumerate() {
            if !builder.fits(key) {
                break;
            }
            let value = [n as u8; 32];
            builder.push(key, (n % 3 != 2).then_some(&value));
            count += 1;
        }
        (builder.seal(7, 9, |bytes| *bytes), count)
    }

    /// Makes keys that are equal before byte `differ`.
    fn keys(count: u8, differ: usize) -> Vec<Key> {
        let key = |n: u8| {
            let mut key = [5; 32];
            key[differ] = 2 * n;
            key
        };
        (0..count).map(key).collect()
    }

    #[test]
    fn every_record_is_found_and_no_other() {
        for differ in [0, 1, 2, 3, 9, 12, 13, 15, 16, 17, 20, 31] {
            for count in [1, 2, 40, 100] {
                let keys = keys(count, differ);
                let (bytes, held) = page(&keys);
                let page = Page::verify(&bytes, 7, 9).expect("sealed");
                assert_eq!(page.len(), held);
                assert!(held == usize::from(count) || held == capacity(differ.min(ELIDED_MAX)), "held={held}");
                for part in [0.0, 0.5, 1.0, f64::NAN] {
                    for (n, key) in keys[..held].iter().enumerate() {
                        let found = page.find(key, part).expect("there");
                        assert_eq!((page.key(found), page.value(found)), (*key, (n % 3 != 2).then_some([n as u8; 32])));
                        for (at, change) in [(differ, 1), (31, 1), (0, 8), (15, 16)] {
                            let mut other = *key;
                            other[at] ^= change;
                            let there = keys[..held].contains(&other);
                            assert_eq!(page.find(&other, part).is_some(), there, "differ={differ} at={at}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn pages_of_many_pairs_at_once_are_those_of_one_after_the_other() {
        for differ in [0, 1, 2, 9, 13, 16, 31] {
            let pairs: Vec<(Key, Value)> =
                keys(127, differ).into_iter().enumerate().map(|(n, key)| (key, [n as u8; 32])).collect();
            // The buffer has other bytes before, which must not remain in a page.
            let (mut page, mut at, mut number) = ([0xa5; PAGE_BYTES], 0, 0);
            while at < pairs.len() {
                let length = page_length(&pairs[at..]);
                let mut builder = PageBuilder::new();
                let fit = pairs[at..].iter().take_while(|(key, value)| {
                    let fits = builder.fits(key);
                    if fits {
                        builder.push(key, Some(value));
                    }
                    fits
                });
                assert_eq!(fit.count(), length, "differ={differ} at={at}");
                seal_pairs(&mut page, 7, number, &pairs[at..at + length]);
                assert!(builder.seal(7, number, |bytes| *bytes == page), "differ={differ} at={at}");
                assert_eq!(Page::verify(&page, 7, number).expect("sealed").len(), length);
                (at, number) = (at + length, number + 1);
            }
            assert!(number >= 2, "differ={differ}");
        }
    }

    #[test]
    fn any_flipped_bit_and_any_other_place_is_an_error() {
        let (bytes, _) = page(&keys(100, 2));
        assert!(Page::verify(&bytes, 7, 8).is_err() && Page::verify(&bytes, 8, 9).is_err());
        for bit in 0..PAGE_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Page::verify(&flipped, 7, 9).is_err(), "bit={bit}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_behind_a_right_checksum_are_a_page_or_an_error(
            header in any::<[u8; HEADER_BYTES]>(), rest in any::<u8>(), key in any::<Key>(), part in 0.0..1.0f64,
        ) {
            let mut bytes = [rest; PAGE_BYTES];
            bytes[..HEADER_BYTES].copy_from_slice(&header);
            let crc = checksum(&bytes);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            let segment = u64::from_le_bytes(std::array::from_fn(|i| bytes[4 + i]));
            let number = u32::from_le_bytes(std::array::from_fn(|i| bytes[12 + i]));
            if let Ok(page) = Page::verify(&bytes, segment, number) {
                let _ = page.find(&key, part);
                let _ = page.find(&page.key(0), part);
                for index in 0..page.len() {
                    let _ = (page.key(index), page.value(index));
                }
            }
        }
    }
}
