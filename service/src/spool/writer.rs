//! Appends whole slots to the spool, and flushes them.
//!
//! Owns: the file's end, its bound, its lock. Must not: take a slot out of the chain's order, or continue after an
//! error: a flush that has failed is not tried again. Used on the thread `spool`.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};

use super::reader::{Found, find};
use super::record::{self, EVENTS_MAX, Origin};
use super::{FILE, SpoolFigures};
use crate::base::chain::{Base, WholeSlot};

/// Mode of the spool's directory: as private as the store's.
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Reason why the spool takes no more slots. The slots before it are kept.
#[derive(Debug)]
pub(crate) struct Full(pub String);

/// The writing end of a spool.
#[derive(Debug)]
pub(crate) struct Writer {
    file: File,
    path: PathBuf,
    bytes: u64,
    bytes_max: u64,
    slots: u64,
    last: Base,
    source: u32,
    frame: Vec<u8>,
    figures: Arc<SpoolFigures>,
}

impl Writer {
    /// Opens the spool in `dir`, or makes one that begins after `origin`. Cuts off the part of a frame that a crash has
    /// left. The spool takes no more than `bytes_max` bytes.
    ///
    /// # Errors
    /// I/O errors; another process writes the spool; its events are about something else than those of `origin`.
    pub(crate) fn open(dir: &Path, origin: &Origin, bytes_max: u64, figures: Arc<SpoolFigures>) -> Result<Self> {
        let path = dir.join(FILE);
        let shown = path.display();
        fs::DirBuilder::new()
            .recursive(true)
            .mode(DIR_MODE)
            .create(dir)
            .with_context(|| format!("cannot make the spool's directory: dir={}", dir.display()))?;
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(&path)
            .with_context(|| format!("cannot open file={shown}"))?;
        lock(&file, &path)?;
        let found = match find(&file, &path)? {
            Some(found) => found,
            None => begin(&file, dir, origin).with_context(|| format!("cannot begin file={shown}"))?,
        };
        ensure!(
            found.origin.meaning == origin.meaning,
            "the spool holds other values: dir={} meaning={:?} asked_meaning={:?}: give the same extract and follow, or \
             remove the directory of the spool",
            dir.display(),
            found.origin.meaning,
            origin.meaning
        );
        let Found { last, slots, bytes, .. } = found;
        let len_bytes = file.metadata().with_context(|| format!("cannot look at file={shown}"))?.len();
        if len_bytes > bytes {
            tracing::warn!(file = %shown, cut_bytes = len_bytes - bytes, slot = last.slot, "the spool's end is cut off: it is no whole slot");
            file.set_len(bytes).with_context(|| format!("cannot cut file={shown}"))?;
        }
        // Bytes that were found may still be in the page cache alone.
        file.sync_all().with_context(|| format!("cannot flush file={shown}"))?;
        figures.flushed(bytes, slots, last.slot);
        Ok(Self { file, path, bytes, bytes_max, slots, last, source: 0, frame: Vec::new(), figures })
    }

    /// The newest slot, or the block that the spool follows.
    pub(crate) fn last(&self) -> Base {
        self.last
    }

    /// Notes that the next slots come from the provider that [`source_of`](super::source_of) is this number.
    pub(crate) fn set_source(&mut self, source: u32) {
        self.source = source;
    }

    /// Appends the child of [`Self::last`]. A reader sees it after the next [`Self::flush`].
    ///
    /// # Errors
    /// The spool is full, or the disk is, or the slot cannot be written. Nothing may be appended after that.
    pub(crate) fn append(&mut self, slot: &WholeSlot) -> Result<(), Full> {
        let path = self.path.display();
        if slot.parent.slot != self.last.slot {
            return Err(Full(format!(
                "slot={} has parent_slot={}, but the spool ends at slot={}: file={path}",
                slot.slot, slot.parent.slot, self.last.slot
            )));
        }
        let fits = record::encode(slot, self.source, &mut self.frame)
            .map_err(|error| Full(format!("cannot pack slot={}: reason={error}", slot.slot)))?;
        if !fits {
            return Err(Full(format!(
                "slot={} has more events than the spool can hold: events={} maximum={EVENTS_MAX}",
                slot.slot,
                slot.events.len()
            )));
        }
        let end = self.bytes + self.frame.len() as u64;
        if end > self.bytes_max {
            return Err(Full(format!(
                "the spool is full: file={path} spool_max_bytes={}: raise it for the next start",
                self.bytes_max
            )));
        }
        let written = self.file.write_all_at(&self.frame, self.bytes);
        written.map_err(|error| Full(format!("cannot write file={path}: reason={error}")))?;
        self.bytes = end;
        self.slots += 1;
        self.last = Base { slot: slot.slot, blockhash: slot.blockhash };
        Ok(())
    }

    /// Flushes the appended slots to the device, and shows them to readers.
    ///
    /// # Errors
    /// The flush has failed: the slots since the last flush may be lost, and nothing may be appended after that.
    pub(crate) fn flush(&mut self) -> Result<(), Full> {
        if self.figures.flushed_bytes() == self.bytes {
            return Ok(());
        }
        let flushed = self.file.sync_data();
        flushed.map_err(|error| Full(format!("cannot flush file={}: reason={error}", self.path.display())))?;
        self.figures.flushed(self.bytes, self.slots, self.last.slot);
        Ok(())
    }
}

/// Removes the spool in `dir`, unless a process writes it.
///
/// # Errors
/// I/O errors; another process writes the spool.
pub(crate) fn remove(dir: &Path) -> Result<()> {
    let path = dir.join(FILE);
    let file = File::open(&path).with_context(|| format!("cannot open file={}", path.display()))?;
    lock(&file, &path)?;
    fs::remove_dir_all(dir).with_context(|| format!("cannot remove the spool: dir={}", dir.display()))
}

/// Removes the directory of a spool whose slots are gone: a kill can come between the removal of the file and that of the
/// directory. A directory with a file in it stays.
///
/// # Errors
/// The empty directory cannot be removed.
pub(crate) fn remove_empty(dir: &Path) -> Result<()> {
    match fs::remove_dir(dir) {
        Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {
            Err(error).with_context(|| format!("cannot remove the empty spool: dir={}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Takes the lock of a spool, which is held until `file` is closed.
fn lock(file: &File, path: &Path) -> Result<()> {
    let shown = path.display();
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => bail!("another process writes the spool: file={shown}: end it first"),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock file={shown}")),
    }
}

/// Writes the header of a new spool, and flushes it with the names that lead to it.
fn begin(file: &File, dir: &Path, origin: &Origin) -> io::Result<Found> {
    let header = origin.encode();
    file.set_len(0)?;
    file.write_all_at(&header, 0)?;
    file.sync_all()?;
    for dir in [Some(dir), dir.parent()].into_iter().flatten() {
        File::open(dir)?.sync_all()?;
    }
    Ok(Found { origin: origin.clone(), last: origin.base, slots: 0, bytes: header.len() as u64 })
}
