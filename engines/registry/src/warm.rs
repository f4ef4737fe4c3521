//! Warm-up of an engine that reads its files through the kernel's page cache.
//!
//! Owns: the choice of files, whether there is room for them, the order and the size of the reads. Must not: read a file on
//! which a lock ends when any descriptor of it is closed. Runs on the caller's thread.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use engine_api::{Error, Pace, Result, Warmed};
use rustix::fs::{Advice, fadvise};

/// Size of one read in bytes. A flash drive reaches its sequential rate with reads of 1 MiB, and a lookup that comes
/// meanwhile waits for [`UNDER_WAY_MAX`] of them at most.
const PIECE_BYTES: u64 = 1 << 20;

/// Number of pieces that the device has to read at a time: while the bytes of one are copied, it has the other.
const UNDER_WAY_MAX: usize = 2;

/// Number of failed reads after which the warm-up ends: the device may take seconds for each, and lookups wait meanwhile.
const FAILURES_MAX: usize = 16;

/// Reads the files in `dir` that have one of these endings into the page cache, as far as they are not there. Does nothing if
/// the files are larger than `room_bytes`, because the kernel would drop pages that were just read.
///
/// # Errors
/// Errors of listing or reading the files. Pieces that cannot be read are left out, and the first error is returned after
/// the others have been read, or after [`FAILURES_MAX`] of them.
pub(crate) fn read_in(
    dir: &Path,
    endings: &[&str],
    room_bytes: u64,
    go_on: &mut dyn FnMut(Warmed) -> Pace,
) -> Result<()> {
    let (files, bytes) = files(dir, endings).map_err(|e| failed("cannot list", dir, e))?;
    let missing_bytes = if bytes > room_bytes { 0 } else { files.iter().map(|path| missing_of(path)).sum() };
    let mut warmed = Warmed { read_bytes: 0, missing_bytes };
    if missing_bytes == 0 {
        return Ok(());
    }
    let mut pieces = Pieces { files: files.into_iter(), open: None };
    let (mut under_way, mut buffer, mut failures) = (VecDeque::new(), vec![0; PIECE_BYTES as usize], Vec::new());
    let mut pace = go_on(warmed);
    while pace != Pace::Stop && failures.len() < FAILURES_MAX {
        while pace == Pace::On && under_way.len() < UNDER_WAY_MAX {
            match pieces.next() {
                Some(Ok(piece)) => under_way.push_back(piece),
                Some(Err(e)) => failures.push(e),
                None => break,
            }
        }
        match under_way.pop_front() {
            Some(piece) => match piece.open.file.read_at(&mut buffer, piece.offset) {
                Ok(_) => warmed.read_bytes += piece.missing_bytes,
                Err(e) => failures.push(failed("cannot read", &piece.open.path, e)),
            },
            None if pace == Pace::On => break,
            None => {}
        }
        if pace == Pace::On || under_way.is_empty() {
            pace = go_on(warmed);
        }
    }
    failures.into_iter().next().map_or(Ok(()), Err)
}

/// A file that is being read.
struct Open {
    file: File,
    path: PathBuf,
}

/// A piece of a file of which the page cache lacks a part. The kernel was asked to read it.
struct Piece {
    open: Rc<Open>,
    offset: u64,
    missing_bytes: u64,
}

/// The pieces that the page cache lacks, file after file. Each is asked of the kernel when it is taken.
struct Pieces {
    files: std::vec::IntoIter<PathBuf>,
    /// The present file, and the offset of the first piece that was not looked at.
    open: Option<(Rc<Open>, u64)>,
}

impl Iterator for Pieces {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Result<Piece>> {
        loop {
            let (open, offset) = match self.open.take() {
                Some(at) => at,
                None => {
                    let path = self.files.next()?;
                    match open(path) {
                        Ok(Some(open)) => (Rc::new(open), 0),
                        Ok(None) => continue,
                        Err(e) => return Some(Err(e)),
                    }
                }
            };
            match ask_for(&open.file, offset) {
                Ok(None) => {}
                Ok(Some(missing_bytes)) => {
                    self.open = Some((Rc::clone(&open), offset + PIECE_BYTES));
                    if missing_bytes > 0 {
                        return Some(Ok(Piece { open, offset, missing_bytes }));
                    }
                }
                Err(e) => return Some(Err(failed("cannot look at the pages of", &open.path, e))),
            }
        }
    }
}

/// Opens a file for the warm-up; `None` if it has vanished.
fn open(path: PathBuf) -> Result<Option<Open>> {
    match File::open(&path) {
        Ok(file) => {
            // The kernel's own readahead would bring in pieces that were not looked at yet. Only advice.
            fadvise(&file, 0, None, Advice::Random).ok();
            Ok(Some(Open { file, path }))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed("cannot open", &path, e)),
    }
}

/// Asks the kernel to read the piece at `offset`, and returns the number of its bytes that the page cache lacked. `None` if
/// the file ends before it, or was removed meanwhile.
fn ask_for(file: &File, offset: u64) -> io::Result<Option<u64>> {
    let seen = file.metadata()?;
    let bytes = PIECE_BYTES.min(seen.len().saturating_sub(offset));
    if bytes == 0 || seen.nlink() == 0 {
        return Ok(None);
    }
    let missing = probe::missing_bytes(file, offset, bytes)?;
    if missing > 0 {
        // Only advice: without it the read itself asks the device.
        fadvise(file, offset, NonZeroU64::new(bytes), Advice::WillNeed).ok();
    }
    Ok(Some(missing))
}

/// Returns the bytes of this file that the page cache lacks; 0 if it cannot be looked at, which the reading finds too.
fn missing_of(path: &Path) -> u64 {
    let missing = || {
        let file = File::open(path)?;
        probe::missing_bytes(&file, 0, file.metadata()?.len())
    };
    missing().unwrap_or(0)
}

/// Returns the files in `dir` that have one of these endings, and the sum of their lengths. Files that vanish meanwhile are
/// left out.
fn files(dir: &Path, endings: &[&str]) -> io::Result<(Vec<PathBuf>, u64)> {
    let (mut files, mut bytes) = (Vec::new(), 0);
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if endings.iter().any(|ending| name.to_string_lossy().ends_with(ending))
            && let Ok(file) = entry.metadata()
        {
            // Not its blocks: holes take no room on disk, but they do in the page cache.
            bytes += file.len();
            files.push(entry.path());
        }
    }
    Ok((files, bytes))
}

fn failed(what: &str, path: &Path, e: io::Error) -> Error {
    Error::io(format!("{what} {} reason={e}", path.display()), e)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 4 << 20;

    #[test]
    fn files_are_read_in_if_there_is_room_for_all_of_them() {
        let dir = tempfile::tempdir_in(".").unwrap();
        for name in ["one.sst", "other.sst", "LOCK"] {
            fs::write(dir.path().join(name), vec![1; BYTES as usize / 2]).unwrap();
        }
        probe::drop_page_cache(dir.path()).unwrap();
        let read = |endings: &[&str], room_bytes, calls_max: u32| {
            let (mut calls, mut last) = (0, Warmed::default());
            let go_on = &mut |now| {
                (calls, last) = (calls + 1, now);
                if calls < calls_max { Pace::On } else { Pace::Stop }
            };
            read_in(dir.path(), endings, room_bytes, go_on).unwrap();
            (last.read_bytes, last.missing_bytes, probe::page_cache_bytes(dir.path()))
        };
        assert_eq!(read(&[".sst"], BYTES - 1, u32::MAX), (0, 0, 0), "no room");
        assert_eq!(read(&[], u64::MAX, u32::MAX), (0, 0, 0), "an engine that reads past the page cache");
        assert_eq!(read(&[".sst"], BYTES, 1), (0, BYTES, 0), "told to end before the first piece");
        let (read_bytes, missing_bytes, cached) = read(&[".sst"], BYTES, 3);
        assert_eq!((read_bytes, missing_bytes), (2 * PIECE_BYTES, BYTES), "told to end after the second piece");
        assert!((read_bytes..=read_bytes + PIECE_BYTES).contains(&cached), "cached={cached}");
        assert_eq!(read(&[".sst"], BYTES, u32::MAX), (BYTES - cached, BYTES - cached, BYTES), "the others alone");
        assert_eq!(read(&[".sst"], BYTES, u32::MAX), (0, 0, BYTES), "nothing lacks");
    }

    #[test]
    fn the_reads_under_way_end_before_a_pause() {
        let dir = tempfile::tempdir_in(".").unwrap();
        fs::write(dir.path().join("one.sst"), vec![1; BYTES as usize]).unwrap();
        probe::drop_page_cache(dir.path()).unwrap();
        let mut paces = [Pace::On, Pace::Drain, Pace::On, Pace::On, Pace::Stop].into_iter();
        let mut read = Vec::new();
        read_in(dir.path(), &[".sst"], BYTES, &mut |now| {
            read.push(now.read_bytes / PIECE_BYTES);
            paces.next().unwrap()
        })
        .unwrap();
        // After the first piece the second one is under way, and ends before `go_on` is asked again.
        assert_eq!(read, [0, 1, 2, 3, 4]);
        let file = File::open(dir.path().join("one.sst")).unwrap();
        assert_eq!(probe::missing_bytes(&file, 0, BYTES).unwrap(), 0);
    }

    #[test]
    fn a_piece_that_cannot_be_read_is_left_out() {
        let dir = tempfile::tempdir_in(".").unwrap();
        fs::create_dir(dir.path().join("directory.sst")).unwrap();
        fs::write(dir.path().join("file.sst"), vec![1; PIECE_BYTES as usize]).unwrap();
        probe::drop_page_cache(dir.path()).unwrap();
        let mut last = Warmed::default();
        let outcome = read_in(dir.path(), &[".sst"], u64::MAX, &mut |now| {
            last = now;
            Pace::On
        });
        assert!(outcome.unwrap_err().to_string().contains("directory.sst"));
        assert_eq!(last.read_bytes, PIECE_BYTES);
    }
}
