//! The differences between a store and a newer snapshot archive, on their way to ingest-apply.
//!
//! Owns: the file of differences, and the figures of healing. Must not: touch the engine or an archive. Threads: `heal`
//! writes the file; ingest-apply reads it.
//!
//! The file belongs to one process: it is not flushed, and a start removes it. The store's checkpoint alone says that a
//! heal is under way, and the comparison with an archive then finds the differences that are left.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use engine_api::{Error, Key, Value};
use serde_json::json;
use solana::ChainCheckpoint;
use tokio::sync::oneshot;

use crate::base::chain::Base;
use crate::feed::Change;

/// Bytes of a difference in the file: the key, which values there are, the old value and the new one.
const RECORD_BYTES: usize = 97;
/// Bytes that are written and read at a time: a full disk ends the comparison soon.
const BUFFER_BYTES: usize = 64 << 10;
const HAS_OLD: u8 = 1;
const HAS_NEW: u8 = 2;

/// Figures of healing since the start. Writers: the task that heals and watches the sources, and ingest-apply for `applied`.
#[derive(Debug, Default)]
pub struct HealFigures {
    /// Number of heals that ended well.
    pub healed: AtomicU64,
    /// Number of archives that could not be used.
    pub failed: AtomicU64,
    /// Keys in which the store differs from the archive of the newest heal.
    pub differences: AtomicU64,
    /// Number of these that were applied.
    pub applied: AtomicU64,
    /// Number of sources that could not be asked for archives.
    pub sources_failing: AtomicU64,
    /// Slot of the newest archive that the store could use, of the newest search that found one; 0 before the first.
    pub newest_archive_slot: AtomicU64,
}

/// Work for ingest-apply: the differences, and the channel that reports their end.
#[derive(Debug)]
pub struct Heal {
    /// The differences, in ascending order of their keys.
    pub differences: Differences,
    /// The store that was compared. A store that has continued since needs another comparison.
    pub from: ChainCheckpoint,
    /// Block of the archive. The blockhash is all zeros if the stream does not name it.
    pub to: Base,
    /// Whether the feed's log can keep the differences. Otherwise it leaves them out.
    pub fits_feed: bool,
    /// Sent once the store is at `to`; dropped if the store has continued, or the service stops.
    pub done: oneshot::Sender<()>,
}

/// The writing end of a file of differences.
#[derive(Debug)]
pub struct DifferenceWriter {
    file: BufWriter<File>,
    path: PathBuf,
    count: u64,
    /// The first error of writing. The comparison takes no errors, so that it is kept until the end.
    failed: Option<std::io::Error>,
}

/// The differences that are left to read.
#[derive(Debug)]
pub struct Differences {
    file: BufReader<File>,
    path: PathBuf,
    left: u64,
}

impl DifferenceWriter {
    /// Makes the file, and replaces one of an earlier heal.
    ///
    /// # Errors
    /// I/O errors, naming the file.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
        let file = file.with_context(|| format!("cannot make file={}", path.display()))?;
        Ok(Self { file: BufWriter::with_capacity(BUFFER_BYTES, file), path: path.to_owned(), count: 0, failed: None })
    }

    /// Adds a key whose value changes. Returns false after an error, which [`Self::finish`] returns.
    pub fn push(&mut self, key: &Key, old: Option<&Value>, new: Option<&Value>) -> bool {
        if self.failed.is_some() {
            return false;
        }
        let flags = u8::from(old.is_some()) * HAS_OLD + u8::from(new.is_some()) * HAS_NEW;
        let mut record = [0; RECORD_BYTES];
        record[..32].copy_from_slice(key);
        record[32] = flags;
        record[33..65].copy_from_slice(old.unwrap_or(&[0; 32]));
        record[65..].copy_from_slice(new.unwrap_or(&[0; 32]));
        match self.file.write_all(&record) {
            Ok(()) => self.count += 1,
            Err(error) => self.failed = Some(error),
        }
        self.failed.is_none()
    }

    /// Ends the writing, and begins the reading.
    ///
    /// # Errors
    /// The first I/O error, naming the file.
    pub fn finish(self) -> Result<Differences> {
        let Self { file, path, count, failed } = self;
        let written = failed.map_or(Ok(()), Err).and_then(|()| file.into_inner().map_err(|error| error.into_error()));
        let read = written.and_then(|mut file| {
            std::io::Seek::rewind(&mut file)?;
            Ok(BufReader::with_capacity(BUFFER_BYTES, file))
        });
        let file = read.with_context(|| format!("cannot write file={}", path.display()))?;
        Ok(Differences { file, path, left: count })
    }
}

impl Differences {
    /// Number of differences that are left.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Reads the next differences as changes of `slot`, at most `most`.
    ///
    /// # Errors
    /// I/O errors, naming the file.
    pub fn next(&mut self, slot: u64, most: usize) -> engine_api::Result<Vec<Change>> {
        let count = usize::try_from(self.left).unwrap_or(usize::MAX).min(most);
        let mut changes = Vec::with_capacity(count);
        let mut record = [0; RECORD_BYTES];
        for _ in 0..count {
            self.file
                .read_exact(&mut record)
                .map_err(|error| Error::io(format!("cannot read file={}", self.path.display()), error))?;
            changes.push(change(slot, &record));
        }
        self.left -= count as u64;
        Ok(changes)
    }
}

impl HealFigures {
    /// Returns the figures as `/status.json` gives them. `under_way`: whether the store is being healed.
    pub(crate) fn json(&self, under_way: bool) -> serde_json::Value {
        // ORDERING: Relaxed: statistics.
        let of = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        json!({
            "under_way": under_way,
            "differences": of(&self.differences),
            "applied": of(&self.applied),
            "healed": of(&self.healed),
            "failures": of(&self.failed),
            "sources_failing": of(&self.sources_failing),
            "newest_archive_slot": self.newest_archive_slot(),
        })
    }

    /// Returns the slot of the newest archive that the store could use; `None` before the first.
    pub(crate) fn newest_archive_slot(&self) -> Option<u64> {
        // ORDERING: Relaxed: a statistic.
        Some(self.newest_archive_slot.load(Ordering::Relaxed)).filter(|slot| *slot > 0)
    }

    pub(super) fn applied(&self, changes: usize) {
        // ORDERING: Relaxed: a statistic.
        self.applied.fetch_add(changes as u64, Ordering::Relaxed);
    }
}

fn change(slot: u64, record: &[u8; RECORD_BYTES]) -> Change {
    let field = |at: usize| std::array::from_fn(|byte| record[at + byte]);
    let value = |flag: u8, at| (record[32] & flag != 0).then(|| field(at));
    Change { slot, key: field(0), old: value(HAS_OLD, 33), new: value(HAS_NEW, 65) }
}

/// Returns the key after `key`; the last key of all is its own successor.
pub(super) fn successor(key: &Key) -> Key {
    let mut next = *key;
    for byte in next.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return next;
        }
    }
    *key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_read_in_pieces_as_they_were_written() {
        let temp = tempfile::tempdir().unwrap();
        let mut writer = DifferenceWriter::create(&temp.path().join("differences")).unwrap();
        let values = [(None, Some([1; 32])), (Some([2; 32]), None), (Some([3; 32]), Some([4; 32]))];
        for (at, (old, new)) in values.iter().enumerate() {
            writer.push(&[at as u8; 32], old.as_ref(), new.as_ref());
        }
        let mut differences = writer.finish().unwrap();
        let mut read = differences.next(7, 2).unwrap();
        assert_eq!((read.len(), differences.left()), (2, 1));
        read.extend(differences.next(7, 2).unwrap());
        let expected = values.iter().enumerate().map(|(at, (old, new))| Change {
            slot: 7,
            key: [at as u8; 32],
            old: *old,
            new: *new,
        });
        assert!(read.into_iter().eq(expected) && differences.next(7, 2).unwrap().is_empty());
    }

    #[test]
    fn a_full_disk_is_told_before_the_end() {
        let mut writer = DifferenceWriter::create(Path::new("/dev/full")).unwrap();
        let written = (0..100_000u32).take_while(|_| writer.push(&[0; 32], None, None)).count();
        assert!(written < 100_000, "the first flush of the buffer fails");
        let failed = format!("{:#}", writer.finish().unwrap_err());
        assert!(failed.contains("cannot write file=/dev/full"), "{failed}");
    }

    #[test]
    fn the_next_key_is_the_smallest_greater_one() {
        let key = |tail: [u8; 2]| std::array::from_fn(|at| if at < 30 { 5 } else { tail[at - 30] });
        assert_eq!(successor(&key([1, 255])), key([2, 0]));
        assert_eq!(successor(&key([1, 7])), key([1, 8]));
        assert_eq!(successor(&[255; 32]), [255; 32]);
    }
}
