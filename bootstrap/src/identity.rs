//! Tells whether two sources are the same: by the file's metadata, and by a digest of the records that were read.
//!
//! Owns: both, their comparison, and the form of such a number in files. Must not: read a source. Used on the main
//! thread.

use std::fs::{self, File};
use std::io::ErrorKind as Io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::source::{Record, Source};

/// A file's size and times. While they are unchanged, so is the content: a change that keeps size and time of
/// modification still moves the time of change, which no program can set. A write through a shared memory map moves the
/// times only when it makes a clean page dirty, so the file is flushed before its times are read. A file system without
/// pages to flush, such as tmpfs, is an exception: there such a write moves nothing and is not noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    pub(crate) bytes: u64,
    /// Time of the last modification, in ns since 1970.
    modified_ns: i64,
    /// Time of the last change of content, owner, mode or name, in ns since 1970.
    changed_ns: i64,
}

impl Stamp {
    /// Takes the stamp of a source's file, or one stamp of several files. `None` for synthetic pairs, standard input, pipes
    /// and everything else that has no stamp.
    ///
    /// # Errors
    /// I/O errors of opening or flushing a file, or of reading its metadata.
    pub(crate) fn of(source: &Source) -> Result<Option<Self>> {
        let Some(files) = source.files() else { return Ok(None) };
        let mut all = Self { bytes: 0, modified_ns: 0, changed_ns: 0 };
        // Any other time of any file makes another stamp.
        let and = |times: i64, time: i64| times.wrapping_mul(31).wrapping_add(time);
        for path in files {
            let Some(one) = Self::of_file(&path)? else { return Ok(None) };
            all = Self {
                bytes: all.bytes + one.bytes,
                modified_ns: and(all.modified_ns, one.modified_ns),
                changed_ns: and(all.changed_ns, one.changed_ns),
            };
        }
        Ok(Some(all))
    }

    fn of_file(path: &Path) -> Result<Option<Self>> {
        let failed = || format!("cannot open file={}", path.display());
        if fs::metadata(path).with_context(failed)?.is_file() {
            let flushed = File::open(path).with_context(failed)?.sync_data();
            // A file system that has nothing to flush may answer with these errors.
            match flushed.map_err(|error| (error.kind(), error)) {
                Err((kind, error)) if ![Io::InvalidInput, Io::Unsupported, Io::ReadOnlyFilesystem].contains(&kind) => {
                    return Err(error).with_context(|| format!("cannot flush file={}", path.display()));
                }
                _ => {}
            }
        }
        let file = fs::metadata(path).with_context(failed)?;
        let ns = |seconds: i64, ns: i64| seconds.saturating_mul(1_000_000_000).saturating_add(ns);
        Ok(file.is_file().then(|| Self {
            bytes: file.len(),
            modified_ns: ns(file.mtime(), file.mtime_nsec()),
            changed_ns: ns(file.ctime(), file.ctime_nsec()),
        }))
    }
}

/// Number of records between two borders of the digest. At a border the digest is a single number, so reading can be
/// resumed there.
pub(crate) const BORDER_RECORDS: u64 = 1024;

/// The digest of a source's records, in the order in which they are read.
#[derive(Clone)]
pub(crate) struct Content {
    chain: u64,
    records: u64,
    open: Xxh3,
    /// Whether the numbers of the records are a part of the digest, because they decide between versions of a key.
    has_versions: bool,
}

impl Content {
    /// The digest of no records.
    pub(crate) fn new(has_versions: bool) -> Self {
        Self { chain: 0, records: 0, open: Xxh3::new(), has_versions }
    }

    /// Continues a digest at a border. `chain` is the value of [`Self::chain`] at that border.
    pub(crate) fn resume(chain: u64, records: u64, has_versions: bool) -> Self {
        Self { chain, records, open: Xxh3::new(), has_versions }
    }

    pub(crate) fn add(&mut self, record: &Record) {
        if self.has_versions {
            self.open.update(&record.0.to_le_bytes());
        }
        self.open.update(&record.1);
        self.open.update(&record.2);
        self.records += 1;
        if self.is_at_border() {
            self.chain = xxh3_64_with_seed(&self.open.digest().to_le_bytes(), self.chain);
            self.open.reset();
        }
    }

    /// Returns the number of records added so far.
    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// Whether [`Self::chain`] covers every record.
    pub(crate) fn is_at_border(&self) -> bool {
        self.records.is_multiple_of(BORDER_RECORDS)
    }

    /// The digest of the records up to the last border.
    pub(crate) fn chain(&self) -> u64 {
        self.chain
    }

    /// The digest of all records added so far.
    pub(crate) fn digest(&self) -> u64 {
        let rest = if self.is_at_border() { 0 } else { self.open.digest() };
        let mut end = [0u8; 16];
        end[..8].copy_from_slice(&self.records.to_le_bytes());
        end[8..].copy_from_slice(&rest.to_le_bytes());
        xxh3_64_with_seed(&end, self.chain)
    }
}

/// Formats a source's id for markers and states. It is hex because TOML's integers are signed.
pub(crate) fn hex(source_id: u64) -> String {
    format!("{source_id:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64) -> Record {
        (number, [number as u8; 32], [(number >> 8) as u8; 32])
    }

    #[test]
    fn a_digest_goes_on_at_a_border_and_tells_every_change() {
        let digest = |records: &[Record]| {
            let mut content = Content::new(false);
            records.iter().for_each(|record| content.add(record));
            content.digest()
        };
        let all: Vec<Record> = (0..3000).map(record).collect();
        let mut begun = Content::new(false);
        all[..2048].iter().for_each(|record| begun.add(record));
        assert!(begun.is_at_border());
        let mut resumed = Content::resume(begun.chain(), begun.records(), false);
        all[2048..].iter().for_each(|record| resumed.add(record));
        assert_eq!((resumed.digest(), resumed.records()), (digest(&all), 3000));
        let mut swapped = all.clone();
        swapped.swap(5, 2900);
        let mut flipped = all.clone();
        flipped[2999].2[31] ^= 1;
        for other in [&swapped[..], &flipped, &all[..2999], &all[..2048], &[]] {
            assert_ne!(digest(other), digest(&all));
        }
    }
}
