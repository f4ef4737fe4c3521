//! One file of the feed's log: created, opened, written, read.
//!
//! Owns: a segment's file and the places of its frames. Must not: know which changes are published, or retry a flush.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use engine_api::{Error, ErrorKind, Result};
use rustix::fs::{FallocateFlags, fallocate};

use super::record::{
    Beginning, FRAME_HEADER_BYTES, Frame, Header, Identity, SEGMENT_HEADER_BYTES, read_segment_header, segment_header,
};

/// Entry of a segment's file in the list of segments.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    /// Sequence number of the segment's first change.
    pub(super) first_seq: u64,
    pub(super) path: PathBuf,
    /// Length of the file in bytes, reserved space included.
    pub(super) bytes: u64,
}

/// Content at an offset of a segment.
#[derive(Debug)]
pub(super) enum Found {
    /// A frame, and the offset after it.
    Frame(Frame, u64),
    /// No frame was written here.
    End,
    /// An incomplete frame: torn by a crash, or damaged.
    Damaged,
}

impl Segment {
    /// Returns the path of the segment that begins with the change `first_seq`. Names sort as their numbers do.
    pub(super) fn path(dir: &Path, first_seq: u64) -> PathBuf {
        dir.join(format!("{first_seq:020}.log"))
    }

    /// Creates an empty segment of `bytes` bytes, durable before it returns. A file of that name is replaced, because
    /// it holds nothing that was published.
    pub(super) fn create(dir: &Path, identity: Identity, begins: Beginning, bytes: u64) -> Result<(Self, File)> {
        let first_seq = begins.first_seq;
        let path = Self::path(dir, first_seq);
        let failed = |source| Error::io(format!("cannot make a segment of the feed: file={}", path.display()), source);
        let make = || {
            let file = File::options().create(true).truncate(true).read(true).write(true).open(&path)?;
            reserve(&file, bytes)?;
            file.write_all_at(&segment_header(identity, begins), 0)?;
            file.sync_all()?;
            File::open(dir)?.sync_all()?;
            Ok(file)
        };
        match make() {
            Ok(file) => Ok((Self { first_seq, path, bytes }, file)),
            Err(source) => {
                // The remaining file holds no data, and the next attempt replaces it.
                fs::remove_file(&path).ok();
                Err(failed(source))
            }
        }
    }

    /// Opens an existing segment. Returns its entry, its file, and the feed that it is part of.
    pub(super) fn open(path: &Path) -> Result<(Self, File, Identity)> {
        let failed = |source| Error::io(format!("cannot read a segment of the feed: file={}", path.display()), source);
        let file = File::options().read(true).write(true).open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let (identity, Beginning { first_seq, .. }) = header(&file, path)?;
        let segment = Self { first_seq, path: path.to_owned(), bytes };
        Ok((segment, file, identity))
    }
}

/// Reads and checks a segment's header.
///
/// # Errors
/// [`ErrorKind::DataDamaged`] for a header that no segment has; I/O errors of reading the file.
pub(super) fn header(file: &File, path: &Path) -> Result<(Identity, Beginning)> {
    let mut header = [0; SEGMENT_HEADER_BYTES as usize];
    let held = read_up_to(file, &mut header, 0)
        .map_err(|source| Error::io(format!("cannot read a segment of the feed: file={}", path.display()), source))?;
    read_segment_header(&header[..held]).map_err(|what| {
        Error::new(ErrorKind::DataDamaged, format!("a segment of the feed is {what}: file={}", path.display()))
    })
}

/// Reserves space for `bytes` bytes, so that later writes never find a full disk.
fn reserve(file: &File, bytes: u64) -> std::io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        // The file system cannot reserve space. Writes may then find a full disk, which is reported like any other
        // error.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => file.set_len(bytes),
        reserved => Ok(reserved?),
    }
}

/// Writes zeros from `at` to `bytes`. The space stays reserved where the file system can do that.
pub(super) fn clear(file: &File, at: u64, bytes: u64) -> std::io::Result<()> {
    match fallocate(file, FallocateFlags::ZERO_RANGE, at, bytes.saturating_sub(at).max(1)) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            file.set_len(at)?;
            file.set_len(bytes.max(at))
        }
        cleared => Ok(cleared?),
    }
}

/// Reads and checks the frame at `at`, whose first change must be `expected_seq`. Any other frame there counts as
/// damage.
///
/// # Errors
/// I/O errors of reading the file.
pub(super) fn frame_at(file: &File, at: u64, expected_seq: u64, path: &Path) -> Result<Found> {
    let failed = |source| Error::io(format!("cannot read the feed: file={} offset={at}", path.display()), source);
    let mut header = [0; FRAME_HEADER_BYTES];
    if read_up_to(file, &mut header, at).map_err(failed)? < FRAME_HEADER_BYTES {
        return Ok(Found::End);
    }
    let bytes = match Frame::header(&header) {
        Header::Frame { first_seq, bytes, .. } if first_seq == expected_seq => bytes,
        Header::End => return Ok(Found::End),
        Header::Frame { .. } | Header::Damaged => return Ok(Found::Damaged),
    };
    let mut bytes = vec![0; bytes];
    if read_up_to(file, &mut bytes, at).map_err(failed)? < bytes.len() {
        return Ok(Found::Damaged);
    }
    Ok(match Frame::decode(&bytes) {
        Ok(frame) => Found::Frame(frame, at + bytes.len() as u64),
        Err(_) => Found::Damaged,
    })
}

/// Finds the frame that holds the change `seq`. Returns its offset and its first sequence number. Walks the headers
/// from the segment's start; `None` when the headers do not lead there.
///
/// # Errors
/// I/O errors of reading the file.
pub(super) fn find(file: &File, segment: &Segment, seq: u64) -> Result<Option<(u64, u64)>> {
    let (mut at, mut expected) = (SEGMENT_HEADER_BYTES, segment.first_seq);
    let mut header = [0; FRAME_HEADER_BYTES];
    loop {
        let held = read_up_to(file, &mut header, at).map_err(|source| {
            Error::io(format!("cannot read the feed: file={} offset={at}", segment.path.display()), source)
        })?;
        match Frame::header(&header[..held]) {
            Header::Frame { count, first_seq, bytes } if first_seq == expected => {
                if seq < expected + count as u64 {
                    return Ok(Some((at, expected)));
                }
                expected += count as u64;
                at += bytes as u64;
            }
            // The wanted change is the one that comes next.
            _ if seq == expected => return Ok(Some((at, expected))),
            _ => return Ok(None),
        }
    }
}

fn read_up_to(file: &File, out: &mut [u8], at: u64) -> std::io::Result<usize> {
    let mut held = 0;
    while held < out.len() {
        match file.read_at(&mut out[held..], at + held as u64) {
            Ok(0) => break,
            Ok(read) => held += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(held)
}
