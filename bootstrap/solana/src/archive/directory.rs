//! Reads a directory that an archive was unpacked into.
//!
//! Owns: the files of such a directory, in the order of their numbers. Must not: leave the directory by a name, or
//! parse a record. Runs on the thread that reads the archive.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Listing;
use super::contents::ACCOUNTS_FILES_MAX;
use super::error::{Error, Fault};
use super::name::number;
use super::reading::Reading;
use super::tar::{Header, Kind};

/// Bytes read at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// Reads `version`, the files of `snapshots`, and those of `accounts`; files elsewhere do not belong to the snapshot.
/// `count` always holds the number of bytes read so far.
pub(super) fn read(root: &Path, count: &AtomicU64, reading: &mut Reading<'_>) -> Result<(), Error> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut file = |name: &str, reading: &mut Reading<'_>| read_file(root, name, &mut buffer, count, reading);
    if exists(root, "version") {
        file("version", reading)?;
    }
    for name in names(root, "snapshots")? {
        let path = format!("snapshots/{name}");
        if !root.join(&path).is_dir() {
            file(&path, reading)?;
            continue;
        }
        for inner in names(root, &path)? {
            file(&format!("{path}/{inner}"), reading)?;
        }
    }
    // A tar file ends in a mark, but a directory that lacks files looks like any other.
    if reading.listing() == Listing::Empty {
        return Err(reading.archive_error(Fault::NoList));
    }
    let mut accounts = names(root, "accounts")?;
    if accounts.len() > ACCOUNTS_FILES_MAX {
        return Err(reading.archive_error(Fault::TooMany(ACCOUNTS_FILES_MAX)));
    }
    accounts.sort_by_cached_key(|name| name.split_once('.').map(|(slot, id)| (number(slot), number(id))));
    accounts.iter().try_for_each(|name| file(&format!("accounts/{name}"), reading))
}

/// Returns the length of the accounts files, which are nearly all of a snapshot. A file that cannot be looked at counts as
/// empty here, and is refused when it is read.
pub(super) fn bytes(root: &Path) -> u64 {
    let entries = fs::read_dir(root.join("accounts")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

fn exists(root: &Path, name: &str) -> bool {
    root.join(name).exists()
}

/// Returns the names in a directory, sorted; none when it does not exist.
///
/// # Errors
/// The directory cannot be read; a name that is not UTF-8, which no file of a snapshot has.
fn names(root: &Path, directory: &str) -> Result<Vec<String>, Error> {
    if !exists(root, directory) {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(root.join(directory)).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.map_err(|source| open_error(root, directory, source))?;
    let name = |entry: &fs::DirEntry| {
        entry.file_name().into_string().map_err(|name| {
            let text = "the file's name is not UTF-8, so that it is none of the snapshot's: remove the file";
            let path = format!("{directory}/{}", name.display());
            open_error(root, &path, io::Error::new(ErrorKind::InvalidInput, text))
        })
    };
    let mut names = entries.iter().map(name).collect::<Result<Vec<String>, Error>>()?;
    names.sort_unstable();
    Ok(names)
}

fn read_file(
    root: &Path,
    name: &str,
    buffer: &mut [u8],
    count: &AtomicU64,
    reading: &mut Reading<'_>,
) -> Result<(), Error> {
    let failed = |source| open_error(root, name, source);
    let path = root.join(name);
    // Before the opening, which waits for a writer where the file is a named pipe.
    let metadata = fs::metadata(&path).map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file")));
    }
    let mut file = File::open(&path).map_err(failed)?;
    reading.begin(&Header { path: name.to_owned(), kind: Kind::File, size: metadata.len() })?;
    let mut left = metadata.len();
    while left > 0 {
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = match file.read(&mut buffer[..most]) {
            Ok(0) => return Err(reading.cut()),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(source) => {
                let (archive, offset) = (root.display().to_string(), count.load(Ordering::Relaxed));
                return Err(Error::Io { archive, offset, within: reading.within(), source });
            }
        };
        count.fetch_add(read as u64, Ordering::Relaxed);
        reading.push(&buffer[..read])?;
        reading.advance(read)?;
        left -= read as u64;
    }
    reading.end()
}

fn open_error(root: &Path, name: &str, source: io::Error) -> Error {
    Error::Open { archive: root.join(name).display().to_string(), source }
}
