//! A small text file whose first line is a checksum of the rest. If the rest is TOML, so is the file.
//!
//! Owns: writing the file completely or not at all, and checking that it is unchanged. Must not: know the meaning of
//! the text. Runs on the caller's thread.

use std::fs::{self, File};
use std::io::{self, ErrorKind as Io, Write as _};
use std::path::Path;

use engine_api::{Error, Result};
use xxhash_rust::xxh3::xxh3_64;

use crate::regular::{read_small, read_up_to};

const NAME: &str = "checksum";

/// Result of reading and checking a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// The text is unchanged since it was written. The line with the checksum is not part of it.
    Whole(String),
    /// The text has no line with a checksum: an earlier version or a person has written the file.
    Unchecked(String),
    /// The text or the checksum has changed since the file was written.
    Damaged,
}

/// Reads and checks the file at `path`; `None` if there is no file.
///
/// # Errors
/// I/O errors of reading the file, which the message names.
pub fn read(path: &Path) -> Result<Option<Found>> {
    found(path, read_small(path))
}

/// Reads and checks the file at `path`, as [`read`] does, if it has at most `bytes_max`. [`read`] takes a mebibyte.
///
/// # Errors
/// As [`read`].
pub fn read_large(path: &Path, bytes_max: u64) -> Result<Option<Found>> {
    found(path, read_up_to(path, bytes_max))
}

fn found(path: &Path, read: io::Result<Vec<u8>>) -> Result<Option<Found>> {
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == Io::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(format!("cannot read file={} reason={e}", path.display()), e)),
    };
    let Ok(text) = String::from_utf8(bytes) else { return Ok(Some(Found::Damaged)) };
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    Ok(Some(match first.starts_with(NAME) {
        true if first == line(rest) => Found::Whole(rest.to_owned()),
        true => Found::Damaged,
        false => Found::Unchecked(text),
    }))
}

/// Replaces the file at `path` completely, or leaves it as it was. Meanwhile the new file has the ending `tmp`.
///
/// # Errors
/// I/O errors of writing, flushing or renaming the file, which the message names.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let temporary = path.with_extension("tmp");
    let write = || {
        let mut file = File::create(&temporary)?;
        writeln!(file, "{}", line(text))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        sync_dir(path.parent().unwrap_or(Path::new(".")))
    };
    write().map_err(|e| Error::io(format!("cannot write file={} reason={e}", path.display()), e))
}

/// Makes the names of the files in `dir` durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn line(text: &str) -> String {
    format!("{NAME} = \"{:016x}\"", xxh3_64(text.as_bytes()))
}
