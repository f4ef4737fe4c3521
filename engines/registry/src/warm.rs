//! Warm-up of an engine that reads its files through the kernel's page cache.
//!
//! Owns: the choice of files, whether there is room for them, the order and the size of the reads. Must not: read a file on
//! which a lock ends when any descriptor of it is closed. Runs on the caller's thread.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use engine_api::{Error, Pace, Result, Warmed};
use rustix::fs::{Advice, SeekFrom, fadvise, seek};
use rustix::io::Errno;

use crate::regular;

/// Size of one read in bytes. A flash drive reaches its sequential rate with reads of 1 MiB, and a lookup that comes
/// meanwhile waits for one read at most.
const PIECE_BYTES: u64 = 2 << 20;

/// Number of failed reads after which the warm-up ends: the device may take seconds for each, and lookups wait meanwhile.
const FAILURES_MAX: usize = 16;

/// Reads the files in `dir` that have one of these endings into the page cache, as far as they are not there. Reads nothing
/// if the files are larger than `room_bytes`, because the kernel would drop pages that were just read.
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
    let (files, store_bytes) = files(dir, endings).map_err(|e| failed("cannot list", dir, e))?;
    let (mut pieces, mut failures) = (Vec::new(), Vec::new());
    if store_bytes <= room_bytes {
        for path in files {
            match lacking(&path) {
                Ok(lacking) => pieces.extend(lacking),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => failures.push(failed("cannot look at the pages of", &path, e)),
            }
        }
    }
    let room_bytes = room_bytes.min(store_bytes);
    let missing_bytes = pieces.iter().map(|piece| piece.missing_bytes).sum();
    let mut warmed = Warmed { store_bytes, room_bytes, missing_bytes, left_bytes: missing_bytes, read_bytes: 0 };
    let (mut failed_bytes, mut buffer) = (0, vec![0; PIECE_BYTES as usize]);
    let mut ahead_bytes = missing_bytes;
    let mut pace = go_on(warmed);
    for piece in pieces {
        // No read is under way here, so a drain has ended.
        while pace == Pace::Drain {
            pace = go_on(warmed);
        }
        if pace == Pace::Stop || failures.len() >= FAILURES_MAX {
            break;
        }
        ahead_bytes -= piece.missing_bytes;
        match piece.read(&mut buffer) {
            Ok(read_bytes) => warmed.read_bytes += read_bytes,
            Err(e) => {
                failed_bytes += piece.missing_bytes;
                failures.push(failed("cannot read", &piece.path, e));
            }
        }
        warmed.left_bytes = ahead_bytes + failed_bytes;
        pace = go_on(warmed);
    }
    failures.into_iter().next().map_or(Ok(()), Err)
}

/// A piece of a file of which the page cache lacked a part at the beginning.
struct Piece {
    path: Rc<Path>,
    offset: u64,
    missing_bytes: u64,
}

impl Piece {
    /// Reads the piece, and returns the number of its bytes that the page cache still lacked: 0 if the file was removed
    /// meanwhile, as compactions do.
    ///
    /// # Errors
    /// Errors of reading the file; it was cut, and ends before the piece.
    fn read(&self, buffer: &mut [u8]) -> io::Result<u64> {
        let file = match open(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
            file => file?,
        };
        let file_bytes = file.metadata()?.len();
        let bytes = PIECE_BYTES.min(file_bytes.saturating_sub(self.offset));
        if bytes == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("cut to bytes={file_bytes}")));
        }
        let missing_bytes = probe::missing_bytes(&file, self.offset, bytes)?;
        if missing_bytes > 0 {
            // Only advice. The kernel's own readahead would read pieces that were not looked at yet.
            fadvise(&file, 0, None, Advice::Random).ok();
            fadvise(&file, self.offset, NonZeroU64::new(bytes), Advice::WillNeed).ok();
            file.read_at(buffer, self.offset)?;
        }
        Ok(missing_bytes.min(self.missing_bytes))
    }
}

/// Opens a file for reading. If a pipe has taken its place, this does not wait for a writer.
fn open(path: &Path) -> io::Result<File> {
    regular::open(path, OpenOptions::new().read(true))
}

/// Returns the pieces of a file that the page cache lacks. Holes are left out: lookups read nothing there.
fn lacking(path: &Path) -> io::Result<Vec<Piece>> {
    let file = open(path)?;
    let (path, length) = (Rc::from(path), file.metadata()?.len());
    let (mut pieces, mut offset) = (Vec::new(), 0);
    while let Some(data) = data_from(&file, offset)? {
        let start = data - data % PIECE_BYTES;
        offset = start + PIECE_BYTES;
        let missing_bytes = probe::missing_bytes(&file, start, PIECE_BYTES.min(length.saturating_sub(start)))?;
        if missing_bytes > 0 {
            pieces.push(Piece { path: Rc::clone(&path), offset: start, missing_bytes });
        }
    }
    Ok(pieces)
}

/// Returns where the next data from `offset` on begin; `None` if only a hole follows, or the end.
fn data_from(file: &File, offset: u64) -> io::Result<Option<u64>> {
    match seek(file, SeekFrom::Data(offset)) {
        Ok(data) => Ok(Some(data)),
        Err(Errno::NXIO) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Returns the regular files in `dir` that have one of these endings or names, and the bytes that the page cache can hold of
/// them. Files that vanish meanwhile are left out.
fn files(dir: &Path, endings: &[&str]) -> io::Result<(Vec<PathBuf>, u64)> {
    let (mut files, mut bytes) = (Vec::new(), 0);
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        let is_meant = |ending: &&str| match ending.strip_prefix('.') {
            Some(_) => name.to_string_lossy().ends_with(*ending),
            None => name == **ending,
        };
        // Of a link the file that it leads to, as the engine opens it.
        if endings.iter().any(is_meant)
            && let Ok(file) = fs::metadata(&path)
            && file.is_file()
        {
            bytes += probe::cacheable_file_bytes(&file);
            files.push(path);
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

    const BYTES: u64 = 8 << 20;

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
            (last, probe::page_cache_bytes(dir.path()))
        };
        let seen = |room_bytes, missing_bytes, read_bytes| Warmed {
            store_bytes: BYTES,
            room_bytes,
            missing_bytes,
            left_bytes: missing_bytes - read_bytes,
            read_bytes,
        };
        assert_eq!(read(&[".sst"], BYTES - 1, u32::MAX), (seen(BYTES - 1, 0, 0), 0), "no room");
        assert_eq!(read(&[".sst"], BYTES, 1), (seen(BYTES, BYTES, 0), 0), "told to end before the first piece");
        let (warmed, cached) = read(&[".sst"], BYTES, 3);
        assert_eq!(warmed, seen(BYTES, BYTES, 2 * PIECE_BYTES), "told to end after the second piece");
        assert_eq!(cached, 2 * PIECE_BYTES);
        let missing_bytes = BYTES - cached;
        assert_eq!(
            read(&[".sst"], BYTES, u32::MAX),
            (seen(BYTES, missing_bytes, missing_bytes), BYTES),
            "the others alone"
        );
        assert_eq!(read(&[".sst"], u64::MAX, u32::MAX), (seen(BYTES, 0, 0), BYTES), "nothing lacks");
    }

    #[test]
    fn pieces_that_others_read_meanwhile_are_not_left_and_were_not_read() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("one.sst");
        fs::write(&path, vec![1; BYTES as usize]).unwrap();
        probe::drop_page_cache(dir.path()).unwrap();
        let mut last = Warmed::default();
        read_in(dir.path(), &[".sst"], BYTES, &mut |now| {
            if now.read_bytes == 0 {
                probe::fill_page_cache(dir.path()).unwrap();
            }
            last = now;
            Pace::On
        })
        .unwrap();
        assert_eq!((last.missing_bytes, last.left_bytes, last.read_bytes), (BYTES, 0, 0));
    }

    #[test]
    fn no_read_is_under_way_in_a_pause() {
        let dir = tempfile::tempdir_in(".").unwrap();
        fs::write(dir.path().join("one.sst"), vec![1; BYTES as usize]).unwrap();
        probe::drop_page_cache(dir.path()).unwrap();
        let paces = [Pace::On, Pace::Drain, Pace::On, Pace::On, Pace::Stop];
        let mut read = Vec::new();
        read_in(dir.path(), &[".sst"], BYTES, &mut |now| {
            if read.len() > 1 && paces[read.len() - 1] == Pace::Drain {
                assert_eq!(probe::page_cache_bytes(dir.path()), now.read_bytes);
            }
            read.push(now.read_bytes / PIECE_BYTES);
            paces[read.len() - 1]
        })
        .unwrap();
        assert_eq!(read, [0, 1, 1, 2, 3]);
        let file = File::open(dir.path().join("one.sst")).unwrap();
        assert_eq!(probe::missing_bytes(&file, 0, BYTES).unwrap(), PIECE_BYTES);
    }

    #[test]
    fn holes_of_a_file_take_no_room_and_are_not_read() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let file = File::create(dir.path().join("one.sst")).unwrap();
        file.set_len(8 * BYTES).unwrap();
        file.write_all_at(&vec![1; PIECE_BYTES as usize], 3 * PIECE_BYTES).unwrap();
        file.write_all_at(&[1; 4096], 20 * PIECE_BYTES).unwrap();
        probe::drop_page_cache(dir.path()).unwrap();
        let mut last = Warmed::default();
        read_in(dir.path(), &[".sst"], PIECE_BYTES + 4096, &mut |now| {
            last = now;
            Pace::On
        })
        .unwrap();
        assert_eq!((last.store_bytes, last.room_bytes), (PIECE_BYTES + 4096, PIECE_BYTES + 4096));
        assert_eq!((last.read_bytes, last.left_bytes), (2 * PIECE_BYTES, 0), "two pieces, one of them mostly a hole");
    }

    #[test]
    fn a_piece_that_cannot_be_read_is_left_out() {
        let dir = tempfile::tempdir_in(".").unwrap();
        for name in ["cut.sst", "whole.sst"] {
            fs::write(dir.path().join(name), vec![1; BYTES as usize]).unwrap();
        }
        probe::drop_page_cache(dir.path()).unwrap();
        let (mut last, mut calls) = (Warmed::default(), 0);
        let outcome = read_in(dir.path(), &[".sst"], u64::MAX, &mut |now| {
            if calls == 0 {
                File::options().write(true).open(dir.path().join("cut.sst")).unwrap().set_len(PIECE_BYTES).unwrap();
            }
            (last, calls) = (now, calls + 1);
            Pace::On
        });
        assert!(outcome.unwrap_err().to_string().contains("cut.sst"));
        assert_eq!((last.read_bytes, last.left_bytes), (BYTES + PIECE_BYTES, BYTES - PIECE_BYTES));
    }

    #[test]
    fn files_of_other_names_and_kinds_are_not_read_and_links_are_followed() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let other = tempfile::tempdir_in(".").unwrap();
        fs::write(other.path().join("kept"), vec![1; BYTES as usize]).unwrap();
        let link = |from: &str, to: &str| {
            std::os::unix::fs::symlink(fs::canonicalize(other.path()).unwrap().join(from), dir.path().join(to))
                .unwrap();
        };
        link("kept", "data.mdb");
        link("missing", "gone.sst");
        fs::create_dir(dir.path().join("directory.sst")).unwrap();
        fs::write(dir.path().join("otherdata.mdb"), vec![1; BYTES as usize]).unwrap();
        let (files, bytes) = files(dir.path(), &["data.mdb", ".sst"]).unwrap();
        assert_eq!((files, bytes), (vec![dir.path().join("data.mdb")], BYTES));
    }
}
