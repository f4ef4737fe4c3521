//! The frame format that RocksDB's manifest and logs share: records in fragments, fragments in blocks.
//!
//! Owns: the reading of that format. Must not: know the content of a record, or write. Runs on the caller's thread.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};

/// Size of a block. No fragment of a record crosses the end of one.
const BLOCK_BYTES: usize = 32 << 10;
/// Size of the header before each fragment: its checksum (4 bytes), its length (2), and its kind (1): which part of a
/// record it is. The kind is never zero.
pub(crate) const HEADER_BYTES: usize = 7;
const FULL: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// Visits the whole records of `file` from `from` on, up to the first record that is not whole. `from` must be 0 or the
/// end of a record. Returns the offset at which the last whole record ends.
///
/// # Errors
/// I/O errors of reading the file.
pub(crate) fn read(file: &mut File, from: u64, visit: &mut dyn FnMut(&[u8])) -> io::Result<u64> {
    let start = from - from % BLOCK_BYTES as u64;
    file.seek(SeekFrom::Start(start))?;
    let (mut end, mut open) = (from, false);
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    let mut record = Vec::new();
    for number in 0u64.. {
        block.clear();
        (&mut *file).take(BLOCK_BYTES as u64).read_to_end(&mut block)?;
        let at = start + number * BLOCK_BYTES as u64;
        let skip = usize::try_from(from.saturating_sub(at)).unwrap_or(BLOCK_BYTES).min(block.len());
        let mut fragments = Fragments { block: &block, at: skip };
        while let Some((kind, payload)) = fragments.next() {
            open = match (kind, open) {
                (FULL, false) | (LAST, true) => false,
                (FIRST, false) | (MIDDLE, true) => true,
                _ => return Ok(end),
            };
            record.extend_from_slice(payload);
            if !open {
                visit(&record);
                record.clear();
                end = at + fragments.at as u64;
            }
        }
        if block.len() < BLOCK_BYTES || !fragments.is_at_end() {
            break;
        }
    }
    Ok(end)
}

/// Iterator over the fragments of a block, up to the first one that is not whole.
struct Fragments<'b> {
    block: &'b [u8],
    at: usize,
}

impl<'b> Fragments<'b> {
    /// Whether a full block was read to its end. A rest that is too short for a header must be zeros.
    fn is_at_end(&self) -> bool {
        let rest = &self.block[self.at..];
        rest.len() < HEADER_BYTES && rest.iter().all(|byte| *byte == 0)
    }

    /// Returns the next fragment: its kind and its bytes. `None` if there is no other, or it is not whole.
    fn next(&mut self) -> Option<(u8, &'b [u8])> {
        let (header, rest) = self.block.get(self.at..)?.split_first_chunk::<HEADER_BYTES>()?;
        let length = usize::from(u16::from_le_bytes([header[4], header[5]]));
        let payload = rest.get(..length)?;
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&header[6..]), payload);
        // RocksDB stores checksums masked.
        let masked = checksum.rotate_right(15).wrapping_add(0xa282_ead8);
        if u32::from_le_bytes([header[0], header[1], header[2], header[3]]) != masked {
            return None;
        }
        self.at += HEADER_BYTES + length;
        Some((header[6], payload))
    }
}
