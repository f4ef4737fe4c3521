//! Small files that are read whole: markers, locks, a load's own file.
//!
//! Owns: the refusal of what is no regular file, or too long for one of these. Must not: know what is in them. Runs on the
//! caller's thread.

use std::fs::{self, File};
use std::io::{self, ErrorKind as Io, Read as _};
use std::path::Path;

/// None of these files has more than a few kilobytes.
const BYTES_MAX: u64 = 1 << 20;

/// All of the file at `path`. What is no regular file is refused before it is opened: a pipe would be waited for, and
/// a device may have no end.
///
/// # Errors
/// `InvalidInput` for what is no small file. The file system's.
pub fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(Io::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(io::Error::new(Io::InvalidInput, format!("longer than bytes={BYTES_MAX}")));
    }
    Ok(bytes)
}
