//! Warm-up of an engine that reads its files through the kernel's page cache.
//!
//! Owns: the choice of files, whether there is room for them, the order and the size of the reads. Must not: read a file on
//! which a lock ends when any descriptor of it is closed. Runs on the caller's thread.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use engine_api::{Error, Pace, Result, Warmed};
use rustix::fs::{Advice, SeekFrom, fadvise, seek};
use rustix::io::Errno;

use crate::regular;

/// Size of one read in bytes. A flash drive reaches its sequential rate with reads of 1 MiB, and a lookup that comes
/// meanwhile waits for [`UNDER_WAY_MAX`] of them at most.
const PIECE_BYTES: u64 = 1 << 20;

/// Number of pieces that the device has to read at a time: while the bytes of one are copied, it has the other.
const UNDER_WAY_MAX: usize = 2;

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
    let (mut ahead, mut failures) = (VecDeque::new(), Vec::new());
    if store_bytes <= room_bytes {
        for path in files {
            match lacking(&path) {
                Ok(pieces) => ahead.extend(pieces),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => failures.push(failed("cannot look at the pages of", &path, e)),
            }
        }
    }
    let room_bytes = room_bytes.min(store_bytes);
    let missing_bytes = ahead.iter().map(|piece| piece.missing_bytes).sum();
    let mut warmed = Warmed { store_bytes, room_bytes, missing_bytes, left_bytes: missing_bytes, read_bytes: 0 };
    let mut pieces = Pieces { ahead, ahead_bytes: missing_bytes, failed_bytes: 0, open: None };
    let (mut under_way, mut buffer) = (VecDeque::new(), vec![0; PIECE_BYTES as usize]);
    let mut pace = go_on(warmed);
    while missing_bytes > 0 && pace != Pace::Stop && failures.len() < FAILURES_MAX {
        while pace == Pace::On && under_way.len() < UNDER_WAY_MAX {
            match pieces.next() {
                Some(Ok(asked)) => under_way.push_back(asked),
                Some(Err(e)) => failures.push(e),
                None => break,
            }
        }
        let oldest = under_way.pop_front();
        let ended = oldest.is_none() && pace == Pace::On;
        if let Some((file, piece)) = oldest {
            match file.read_at(&mut buffer, piece.offset) {
                Ok(_) => warmed.read_bytes += piece.missing_bytes,
                Err(e) => failures.push(pieces.failed("cannot read", &piece, e)),
            }
        }
        // With two pieces under way at most, none is left of them after one that was read in a drain.
        let asked_bytes: u64 = under_way.iter().map(|(_, piece)| piece.missing_bytes).sum();
        warmed.left_bytes = pieces.ahead_bytes + asked_bytes + pieces.failed_bytes;
        pace = go_on(warmed);
        if ended {
            break;
        }
    }
    failures.into_iter().next().map_or(Ok(()), Err)
}

/// A piece of a file of which the page cache lacks a part.
struct Piece {
    path: Rc<Path>,
    offset: u64,
    missing_bytes: u64,
}

/// The pieces that the page cache lacked at the beginning, file after file. Each is looked at again when it is taken, and
/// asked of the kernel.
struct Pieces {
    ahead: VecDeque<Piece>,
    /// Number of the missing bytes that are ahead.
    ahead_bytes: u64,
    /// Number of the missing bytes that could not be read.
    failed_bytes: u64,
    /// The file of the newest piece.
    open: Option<(Rc<Path>, Rc<File>)>,
}

impl Pieces {
    /// Counts a piece that could not be read, and returns the error.
    fn failed(&mut self, what: &str, piece: &Piece, e: io::Error) -> Error {
        self.failed_bytes += piece.missing_bytes;
        failed(what, &piece.path, e)
    }

    /// Opens the file, unless it is open already.
    fn file(&mut self, path: &Rc<Path>) -> io::Result<Rc<File>> {
        if let Some((_, file)) = self.open.as_ref().filter(|(open, _)| Rc::ptr_eq(open, path)) {
            return Ok(Rc::clone(file));
        }
        let file = Rc::new(open(path)?);
        // The kernel's own readahead would bring in pieces that were not looked at yet. Only advice.
        fadvise(&*file, 0, None, Advice::Random).ok();
        self.open = Some((Rc::clone(path), Rc::clone(&file)));
        Ok(file)
    }
}

impl Iterator for Pieces {
    /// A piece with the bytes that it lacks now, and its file, of which the kernel was asked to read it.
    type Item = Result<(Rc<File>, Piece)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let mut piece = self.ahead.pop_front()?;
            self.ahead_bytes -= piece.missing_bytes;
            let asked = self.file(&piece.path).and_then(|file| Ok((ask_for(&file, piece.offset)?, file)));
            match asked {
                Ok((0, _)) => {}
                Ok((missing_bytes, file)) => {
                    piece.missing_bytes = missing_bytes.min(piece.missing_bytes);
                    return Some(Ok((file, piece)));
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Some(Err(self.failed("cannot ask for", &piece, e))),
            }
        }
    }
}

/// Opens a file for reading. If a pipe has taken its place, this does not wait for a writer.
fn open(path: &Path) -> io::Result<File> {
    regular::open(path, OpenOptions::new().read(true))
}

/// Asks the kernel to read the piece at `offset`, and returns the number of its bytes that the page cache lacked: 0 if the
/// file was removed meanwhile, as compactions do.
///
/// # Errors
/// Errors of looking at the file; it was cut, and ends before the piece.
fn ask_for(file: &File, offset: u64) -> io::Result<u64> {
    let seen = file.metadata()?;
    if seen.nlink() == 0 {
        return Ok(0);
    }
    let bytes = PIECE_BYTES.min(seen.len().saturating_sub(offset));
    if bytes == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("cut to bytes={}", seen.len())));
    }
    let missing = probe::missing_bytes(file, offset, bytes)?;
    if missing > 0 {
        // Only advice: without it the read itself asks the device.
        fadvise(file, offset, NonZeroU64::new(bytes), Advice::WillNeed).ok();
    }
    Ok(missing)
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
        assert!((2 * PIECE_BYTES..=3 * PIECE_BYTES).contains(&cached), "cached={cached}");
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
    fn the_reads_under_way_end_before_a_pause() {
        let dir = tempfile::tempdir_in(".").unwrap();
        fs::write(dir.path().join("one.sst"), vec![1; BYTES as usize]).unwrap();
        probe::drop_page_cache(dir.path()).unwrap();
        let paces = [Pace::On, Pace::Drain, Pace::On, Pace::On, Pace::Stop];
        let mut read = Vec::new();
        read_in(dir.path(), &[".sst"], BYTES, &mut |now| {
            if read.len() > 1 && paces[read.len() - 1] == Pace::Drain {
                assert_eq!(probe::page_cache_bytes(dir.path()), now.read_bytes, "nothing is under way");
            }
            read.push(now.read_bytes / PIECE_BYTES);
            paces[read.len() - 1]
        })
        .unwrap();
        // After the first piece the second one is under way, and ends before `go_on` is asked again.
        assert_eq!(read, [0, 1, 2, 3, 4]);
        let file = File::open(dir.path().join("one.sst")).unwrap();
        assert_eq!(probe::missing_bytes(&file, 0, BYTES).unwrap(), 0);
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
