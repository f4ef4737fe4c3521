//! Reads a tar archive from its unpacked bytes.
//!
//! Owns: the order of headers, bytes and padding, and the rule for the archive's end: two blocks of zeros, and only
//! zeros after them. So an archive that was cut anywhere is never taken for a whole one. Must not: know entries. Runs
//! on the thread that reads the archive.

use super::error::{Error, Fault};
use super::reading::Reading;
use super::tar::{BLOCK_BYTES, Header};
use super::unpack::Unpacked;

/// Reads the archive up to its end, and checks that it has one.
pub(super) fn read(unpacked: &mut Unpacked, reading: &mut Reading<'_>) -> Result<(), Error> {
    while let Some(header) = next_header(unpacked, reading)? {
        entry(unpacked, &header, reading).map_err(|error| error.in_entry(reading.within()))?;
    }
    loop {
        let bytes = unpacked.fill(&mut || reading.tell_progress())?;
        if bytes.is_empty() {
            return Ok(());
        }
        if bytes.iter().any(|byte| *byte != 0) {
            return Err(reading.archive_error(Fault::AfterEnd));
        }
        let length = bytes.len();
        unpacked.consume(length);
        reading.advance(length)?;
    }
}

/// Returns the header of the next entry; `None` after the last one.
fn next_header(unpacked: &mut Unpacked, reading: &mut Reading<'_>) -> Result<Option<Header>, Error> {
    let mut block = [0; BLOCK_BYTES];
    match fill_from(unpacked, reading, &mut block)? {
        0 => return Err(reading.archive_error(Fault::Cut("before its end marker"))),
        BLOCK_BYTES => (),
        _ => return Err(reading.archive_error(Fault::Cut("within a header"))),
    }
    let header = Header::parse(&block).map_err(|fault| reading.archive_error(fault))?;
    reading.advance(BLOCK_BYTES)?;
    if header.is_none() {
        if fill_from(unpacked, reading, &mut block)? < BLOCK_BYTES {
            return Err(reading.archive_error(Fault::Cut("within its end marker")));
        }
        if block.iter().any(|byte| *byte != 0) {
            return Err(reading.archive_error(Fault::AfterEnd));
        }
        reading.advance(BLOCK_BYTES)?;
    }
    Ok(header)
}

fn entry(unpacked: &mut Unpacked, header: &Header, reading: &mut Reading<'_>) -> Result<(), Error> {
    reading.begin(header)?;
    let mut left = header.size;
    while left > 0 {
        let bytes = unpacked.fill(&mut || reading.tell_progress())?;
        if bytes.is_empty() {
            return Err(reading.cut());
        }
        let length = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        reading.push(&bytes[..length])?;
        unpacked.consume(length);
        reading.advance(length)?;
        left -= length as u64;
    }
    reading.end()?;
    let mut block = [0; BLOCK_BYTES];
    let padding = &mut block[..header.padding()];
    let length = padding.len();
    if fill_from(unpacked, reading, padding)? < length {
        return Err(reading.cut());
    }
    reading.advance(length)
}

/// Copies the bytes that come next, and returns their number: less than asked for only at the end of the stream.
fn fill_from(unpacked: &mut Unpacked, reading: &mut Reading<'_>, out: &mut [u8]) -> Result<usize, Error> {
    let mut filled = 0;
    while filled < out.len() {
        let bytes = unpacked.fill(&mut || reading.tell_progress())?;
        if bytes.is_empty() {
            break;
        }
        let length = bytes.len().min(out.len() - filled);
        out[filled..filled + length].copy_from_slice(&bytes[..length]);
        unpacked.consume(length);
        filled += length;
    }
    Ok(filled)
}
