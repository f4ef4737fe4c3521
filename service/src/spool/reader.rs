//! Reads the slots of a spool in order, also while it is written.
//!
//! Owns: the check that each slot follows the one before. Must not: read bytes that are not on the device yet, because
//! a crash may take them. Used on one thread.

use std::fs::File;
use std::io::ErrorKind as Io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};

use super::FILE;
use super::record::{self, FRAME_HEADER_BYTES, HEADER_BYTES, Head, Origin};
use crate::base::chain::{Base, WholeSlot};

/// Content of a spool that nobody writes, as its whole frames show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub origin: Origin,
    /// The newest slot, or the base if there is none.
    pub last: Base,
    pub slots: u64,
    /// Length of the file's part that is whole.
    pub bytes: u64,
}

/// A reader of slots, at a place between two of them.
#[derive(Debug)]
pub(crate) struct Reader {
    file: File,
    path: PathBuf,
    at: u64,
    /// The slot read last, or the base.
    last: Base,
    /// Number of the provider of that slot; 0 for one that is not known.
    source: u32,
}

/// Looks at the spool in `dir`: reads every frame and checks it. `None` if there is no spool, or if a crash has left
/// only its beginning.
///
/// # Errors
/// I/O errors; a file that is no spool.
pub(crate) fn look(dir: &Path) -> Result<Option<Found>> {
    let path = dir.join(FILE);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == Io::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot open file={}", path.display())),
    };
    find(&file, &path)
}

/// Looks at the open file of a spool: see [`look`].
pub(super) fn find(file: &File, path: &Path) -> Result<Option<Found>> {
    let shown = path.display();
    let len_bytes = file.metadata().with_context(|| format!("cannot look at file={shown}"))?.len();
    let mut header = [0; HEADER_BYTES];
    if len_bytes < HEADER_BYTES as u64 {
        return Ok(None);
    }
    file.read_exact_at(&mut header, 0).with_context(|| format!("cannot read file={shown}"))?;
    let origin = match Origin::decode(&header) {
        Ok(origin) => origin,
        // The header is flushed before the first frame, so nothing is lost.
        Err(_) if len_bytes == HEADER_BYTES as u64 => return Ok(None),
        Err(why) => bail!("the file is {why}: file={shown}: remove its directory, and start again"),
    };
    let mut found = Found { last: origin.base, origin, slots: 0, bytes: HEADER_BYTES as u64 };
    let mut frame = Vec::new();
    while let Some(head) = head_at(file, path, found.bytes, len_bytes)? {
        frame.resize(head.bytes, 0);
        file.read_exact_at(&mut frame, found.bytes).with_context(|| format!("cannot read file={shown}"))?;
        if !record::is_whole(&frame) || !head.follows(found.last) {
            break;
        }
        found.last = head.block;
        found.slots += 1;
        found.bytes += head.bytes as u64;
    }
    Ok(Some(found))
}

/// Reads the header of the frame at `at`. `None` if the first `until` bytes of the file hold no whole frame there.
fn head_at(file: &File, path: &Path, at: u64, until: u64) -> Result<Option<Head>> {
    if until.saturating_sub(at) < FRAME_HEADER_BYTES as u64 {
        return Ok(None);
    }
    let mut header = [0; FRAME_HEADER_BYTES];
    file.read_exact_at(&mut header, at).with_context(|| format!("cannot read file={}", path.display()))?;
    Ok(Head::read(&header).filter(|head| head.bytes as u64 <= until - at))
}

impl Reader {
    /// Opens the spool in `dir`.
    ///
    /// # Errors
    /// I/O errors; a file that is no spool.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE);
        let shown = path.display();
        let file = File::open(&path).with_context(|| format!("cannot open file={shown}"))?;
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).with_context(|| format!("cannot read file={shown}"))?;
        let origin = Origin::decode(&header).map_err(|why| anyhow!("the file is {why}: file={shown}"))?;
        Ok(Self { file, path, at: HEADER_BYTES as u64, last: origin.base, source: 0 })
    }

    /// The slot read or passed last, or the block that the spool follows.
    pub(crate) fn last(&self) -> Base {
        self.last
    }

    /// [`source_of`](super::source_of) the provider of the slot read last; 0 for one that is not known.
    pub(crate) fn source(&self) -> u32 {
        self.source
    }

    /// Passes the next slot without reading its events. Returns `false` at the end of the first `until` bytes.
    ///
    /// # Errors
    /// I/O errors; damage.
    pub(crate) fn pass(&mut self, until: u64) -> Result<bool> {
        let Some(head) = self.head(until)? else { return Ok(false) };
        self.at += head.bytes as u64;
        self.last = head.block;
        Ok(true)
    }

    /// Reads the next slot. `None` at the end of the first `until` bytes, which are flushed.
    ///
    /// # Errors
    /// I/O errors; damage.
    pub(crate) fn next(&mut self, until: u64) -> Result<Option<WholeSlot>> {
        let Some(head) = self.head(until)? else { return Ok(None) };
        let mut frame = vec![0; head.bytes];
        self.file
            .read_exact_at(&mut frame, self.at)
            .with_context(|| format!("cannot read file={}", self.path.display()))?;
        let slot = record::decode(&frame).map_err(|why| self.damaged(&why))?;
        self.at += head.bytes as u64;
        self.last = head.block;
        self.source = head.source;
        Ok(Some(slot))
    }

    fn head(&self, until: u64) -> Result<Option<Head>> {
        if self.at >= until {
            return Ok(None);
        }
        let head = head_at(&self.file, &self.path, self.at, until)?.filter(|head| head.follows(self.last));
        head.map(Some).ok_or_else(|| self.damaged("has a header that cannot be right"))
    }

    fn damaged(&self, why: &str) -> anyhow::Error {
        let (file, at, slot) = (self.path.display(), self.at, self.last.slot);
        anyhow!("the spool is damaged: file={file} offset={at}: the frame after slot={slot} {why}")
    }
}
