//! Opens regular files alone, and reads small ones as a whole: markers, locks, a load's own file.
//!
//! Owns: the refusal of anything but a regular file, and of a file that is too long. Must not: know the files' content.
//! Runs on the caller's thread.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind as Io, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Flag for opening: if a pipe is in the file's place, opening it must not wait.
const NONBLOCK: i32 = OFlags::NONBLOCK.bits() as i32;

/// Limit of a small file's length. None of these files has more than a few kilobytes.
const BYTES_MAX: u64 = 1 << 20;

/// Opens the file at `path`, and never waits for a writer.
///
/// # Errors
/// `InvalidInput` if it is not a regular file; otherwise I/O errors of opening it.
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.custom_flags(NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(Io::InvalidInput, "not a regular file")),
    }
}

/// Reads all of the file at `path`. Anything but a regular file is refused before it is opened, because opening a pipe
/// would wait, and a device may have no end.
///
/// # Errors
/// `InvalidInput` if it is not a regular file or is longer than 1 MiB; otherwise I/O errors of reading it.
pub fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    read_up_to(path, BYTES_MAX)
}

/// Reads all of the file at `path`, as [`read_small`] does, if it has at most `bytes_max`.
pub(crate) fn read_up_to(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(Io::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::new(Io::InvalidInput, format!("longer than bytes={bytes_max}")));
    }
    Ok(bytes)
}
