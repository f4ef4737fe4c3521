//! The page: 4 KiB with a checksum, 63 pairs in ascending order of their keys.
//!
//! Owns: its bytes (FORMAT.md, "Page"). Must not: do I/O. Decoding checks everything: the bytes come from a disk.

use engine_api::{Key, Value};

/// Bytes of a page, the unit of every read.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Bytes of its header.
const HEADER_BYTES: usize = 64;
/// Bytes of a pair.
pub(crate) const RECORD_BYTES: usize = 64;
/// Pairs of a full page.
pub(crate) const PAGE_RECORDS: usize = (PAGE_BYTES - HEADER_BYTES) / RECORD_BYTES;
const MAGIC: u32 = u32::from_le_bytes(*b"pg01");

const _: () = assert!(PAGE_RECORDS == 63 && HEADER_BYTES + PAGE_RECORDS * RECORD_BYTES == PAGE_BYTES);

/// A page's bytes.
pub(crate) type PageBytes = [u8; PAGE_BYTES];

/// Fills pages one pair after the other.
pub(crate) struct PageBuilder {
    bytes: Box<PageBytes>,
    count: usize,
    tombstones: u64,
}

impl PageBuilder {
    pub(crate) fn new() -> Self {
        Self { bytes: Box::new([0; PAGE_BYTES]), count: 0, tombstones: 0 }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count == PAGE_RECORDS
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a pair, or a tombstone where there is no value. Keys ascend; the page is not full.
    pub(crate) fn push(&mut self, key: &Key, value: Option<&Value>) {
        let at = HEADER_BYTES + self.count * RECORD_BYTES;
        self.bytes[at..at + 32].copy_from_slice(key);
        match value {
            Some(value) => self.bytes[at + 32..at + 64].copy_from_slice(value),
            None => {
                self.bytes[at + 32..at + 64].fill(0);
                self.tombstones |= 1 << self.count;
            }
        }
        self.count += 1;
    }

    /// Seals the page and gives its bytes to `take`; the builder is empty afterwards.
    pub(crate) fn seal<T>(&mut self, segment: u64, number: u32, take: impl FnOnce(&PageBytes) -> T) -> T {
        let end = HEADER_BYTES + self.count * RECORD_BYTES;
        self.bytes[end..].fill(0);
        let header = &mut self.bytes[..HEADER_BYTES];
        header.fill(0);
        header[4..8].copy_from_slice(&MAGIC.to_le_bytes());
        header[8..16].copy_from_slice(&segment.to_le_bytes());
        header[16..20].copy_from_slice(&number.to_le_bytes());
        header[20] = self.count as u8;
        header[24..32].copy_from_slice(&self.tombstones.to_le_bytes());
        let crc = crc32c::crc32c(&self.bytes[4..]);
        self.bytes[..4].copy_from_slice(&crc.to_le_bytes());
        self.count = 0;
        self.tombstones = 0;
        take(&self.bytes)
    }
}

/// A page that was verified.
#[derive(Clone, Copy)]
pub(crate) struct Page<'a>(&'a PageBytes);

impl<'a> Page<'a> {
    /// Checks that `bytes` are page `number` of `segment`; in words what is wrong otherwise.
    pub(crate) fn verify(bytes: &'a PageBytes, segment: u64, number: u32) -> Result<Self, String> {
        let stored = word32(bytes, 0);
        let computed = crc32c::crc32c(&bytes[4..]);
        if stored != computed {
            return Err(format!("checksum stored={stored:08x} computed={computed:08x}"));
        }
        let page = Self(bytes);
        let (found, at) = (word64(bytes, 8), word32(bytes, 16));
        if word32(bytes, 4) != MAGIC || found != segment || at != number {
            return Err(format!("another page: segment={found} page={at} expected_segment={segment} page={number}"));
        }
        if page.len() == 0 || page.len() > PAGE_RECORDS {
            return Err(format!("records={}", page.len()));
        }
        Ok(page)
    }

    /// A page that was verified when it was brought in.
    pub(crate) fn verified(bytes: &'a PageBytes) -> Self {
        Self(bytes)
    }

    pub(crate) fn len(self) -> usize {
        usize::from(self.0[20])
    }

    pub(crate) fn key(self, index: usize) -> &'a Key {
        let at = HEADER_BYTES + index * RECORD_BYTES;
        self.0[at..at + 32].first_chunk().expect("a key is 32 bytes")
    }

    /// The value, or `None` for a tombstone.
    pub(crate) fn value(self, index: usize) -> Option<Value> {
        if word64(self.0, 24) >> index & 1 == 1 {
            return None;
        }
        let at = HEADER_BYTES + index * RECORD_BYTES + 32;
        self.0[at..at + 32].first_chunk().copied()
    }

    /// Where `key` is. Keys are mostly uniform: the search starts where the key should be between the page's first
    /// prefix and the next page's, which is a few records off, and walks from there.
    pub(crate) fn find(self, key: &Key, next_prefix: Option<u64>) -> Option<usize> {
        let count = self.len();
        let (low, wanted) = (prefix(self.key(0)), prefix(key));
        let high = next_prefix.unwrap_or_else(|| prefix(self.key(count - 1)));
        let width = high.saturating_sub(low);
        let guess = if width == 0 {
            0
        } else {
            (u128::from(wanted.saturating_sub(low)) * count as u128 / u128::from(width)) as usize
        };
        let mut at = guess.min(count - 1);
        while at > 0 && self.key(at) > key {
            at -= 1;
        }
        while at + 1 < count && self.key(at) < key {
            at += 1;
        }
        (self.key(at) == key).then_some(at)
    }
}

/// The first eight bytes of a key as a number that sorts as the keys do.
pub(crate) fn prefix(key: &Key) -> u64 {
    u64::from_be_bytes(*key.first_chunk().expect("a key is longer than 8 bytes"))
}

fn word32(bytes: &PageBytes, at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn word64(bytes: &PageBytes, at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> Key {
        let mut key = [0; 32];
        key[3] = n;
        key
    }

    fn page(count: u8) -> PageBytes {
        let mut builder = PageBuilder::new();
        for n in 0..count {
            let value = [n; 32];
            builder.push(&key(2 * n), (n % 3 != 2).then_some(&value));
        }
        builder.seal(7, 9, |bytes| *bytes)
    }

    #[test]
    fn every_record_is_found_and_no_other() {
        for count in [1, 2, 62, 63] {
            let bytes = page(count);
            let page = Page::verify(&bytes, 7, 9).expect("sealed");
            for hint in [None, Some(u64::MAX), Some(prefix(&key(2 * count)))] {
                for n in 0..count {
                    let found = page.find(&key(2 * n), hint).expect("there");
                    assert_eq!(page.value(found), (n % 3 != 2).then_some([n; 32]));
                    assert_eq!(page.find(&key(2 * n + 1), hint), None);
                }
            }
        }
    }

    #[test]
    fn any_flipped_bit_and_any_other_place_is_an_error() {
        let bytes = page(63);
        assert!(Page::verify(&bytes, 7, 8).is_err() && Page::verify(&bytes, 8, 9).is_err());
        for bit in 0..PAGE_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Page::verify(&flipped, 7, 9).is_err(), "bit={bit}");
        }
    }
}
