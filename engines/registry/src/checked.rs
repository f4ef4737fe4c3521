//! A small text file whose first line is the checksum of the rest, and is TOML if the rest is.
//!
//! Owns: its writing, whole or not at all, and whether it is as it was written. Must not: know what the text says. Runs on
//! the caller's thread.

use std::fs::{self, File};
use std::io::{self, ErrorKind as Io, Write as _};
use std::path::Path;

use engine_api::{Error, Result};
use xxhash_rust::xxh3::xxh3_64;

use crate::regular::read_small;

const NAME: &str = "checksum";

/// What a file turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// Its text, as it was written.
    Whole(String),
    /// It has no line for a checksum: an earlier version wrote it, or somebody's hand.
    Unchecked(String),
    /// Something in it has changed.
    Damaged,
}

/// The file at `path`; `None` where there is none.
///
/// # Errors
/// The file system's, naming the file.
pub fn read(path: &Path) -> Result<Option<Found>> {
    let bytes = match read_small(path) {
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

/// Replaces `path` by a complete file or leaves it as it was. Meanwhile the new one has the ending `tmp`.
///
/// # Errors
/// The file system's, naming the file.
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

/// Makes the names in `dir` durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn line(text: &str) -> String {
    format!("{NAME} = \"{:016x}\"", xxh3_64(text.as_bytes()))
}
