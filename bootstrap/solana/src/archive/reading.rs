//! [`Reading`]: the entries of one archive on their way to the caller, wherever they come from.
//!
//! Owns: the order of begin, bytes and end of each entry, the counts, and the place of every fault. Must not: do I/O.
//! Runs on the thread that reads the archive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::append_vec::{AppendVec, Refusal};
use super::contents::{Contents, Part, VERSION_BYTES_MAX};
use super::error::{Error, Fault, Within};
use super::http::Failures;
use super::manifest::Manifest;
use super::tar::Header;
use super::{Listing, Progress, Summary, Take, Tell};

/// Unpacked bytes between two calls of the caller's progress: some hundred calls a second.
const TELL_BYTES: u64 = 4 << 20;

/// Beginning of every version that this reader knows.
const VERSION_KNOWN: &str = "1.";

/// The entries of one archive on their way to the caller.
pub(super) struct Reading<'a> {
    archive: &'a str,
    contents: Contents,
    entry: Entry,
    packed: Arc<AtomicU64>,
    failures: Arc<Failures>,
    unpacked: u64,
    /// Number of unpacked bytes after which the caller gets the progress.
    tell_at: u64,
    versions: u64,
    blockhash: Option<[u8; 32]>,
    tell: &'a mut Tell<'a>,
    take: &'a mut Take<'a>,
}

/// The entry that is being read.
struct Entry {
    name: String,
    /// Number of its bytes that were read.
    at: u64,
    bytes: Bytes,
}

/// Destination of an entry's bytes.
enum Bytes {
    Version(Vec<u8>),
    Accounts(Box<AppendVec>),
    Manifest(Manifest),
    Ignored,
}

impl<'a> Reading<'a> {
    /// Begins the archive `archive`, of which no entry was met. `packed` is the number of its bytes that were
    /// read so far, and `failures` its server's failures, both kept up to date by the source.
    pub(super) fn new(
        archive: &'a str,
        contents: Contents,
        (packed, failures): (Arc<AtomicU64>, Arc<Failures>),
        tell: &'a mut Tell<'a>,
        take: &'a mut Take<'a>,
    ) -> Self {
        Self {
            archive,
            contents,
            entry: Entry { name: String::new(), at: 0, bytes: Bytes::Ignored },
            packed,
            failures,
            unpacked: 0,
            tell_at: 0,
            versions: 0,
            blockhash: None,
            tell,
            take,
        }
    }

    /// Begins the entry with this header, if a snapshot may have such an entry.
    pub(super) fn begin(&mut self, header: &Header) -> Result<(), Error> {
        self.entry = Entry { name: header.path.clone(), at: 0, bytes: Bytes::Ignored };
        let part = self.contents.enter(header).map_err(|fault| self.entry_error(0, fault))?;
        self.entry.bytes = match part {
            Part::Version => Bytes::Version(Vec::with_capacity(VERSION_BYTES_MAX as usize)),
            Part::Accounts { slot, file } => Bytes::Accounts(Box::new(AppendVec::new(slot, file, header.size))),
            Part::Manifest { slot } => Bytes::Manifest(Manifest::new(slot)),
            Part::Ignored => Bytes::Ignored,
        };
        Ok(())
    }

    /// Takes the next bytes of the entry. All of its bytes have to be pushed before [`end`](Self::end).
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let outcome = match &mut self.entry.bytes {
            Bytes::Accounts(file) => file.push(bytes, self.take),
            Bytes::Version(text) => {
                text.extend_from_slice(bytes);
                Ok(())
            }
            Bytes::Manifest(manifest) => {
                manifest.push(bytes, &mut |file| self.contents.list(file));
                Ok(())
            }
            Bytes::Ignored => Ok(()),
        };
        outcome.map_err(|refusal| self.refused(refusal))?;
        self.entry.at += bytes.len() as u64;
        Ok(())
    }

    /// Ends the entry, of which every byte was pushed.
    pub(super) fn end(&mut self) -> Result<(), Error> {
        match std::mem::replace(&mut self.entry.bytes, Bytes::Ignored) {
            Bytes::Accounts(file) => {
                self.versions += file.finish().map_err(|refusal| self.refused(refusal))?;
            }
            Bytes::Version(text) if !text.starts_with(VERSION_KNOWN.as_bytes()) => {
                return Err(self.entry_error(0, Fault::Version(text.escape_ascii().to_string())));
            }
            Bytes::Manifest(manifest) => {
                let blockhash = manifest.finish().map_err(|fault| self.entry_error(0, fault))?;
                self.contents.end_list(blockhash.is_some());
                self.blockhash = blockhash;
                // An archive of another block need not be read any further.
                self.tell_progress()?;
            }
            Bytes::Version(_) | Bytes::Ignored => (),
        }
        Ok(())
    }

    /// Counts unpacked bytes, of entries or between them, and tells the caller now and then.
    pub(super) fn advance(&mut self, bytes: usize) -> Result<(), Error> {
        self.unpacked += bytes as u64;
        if self.unpacked >= self.tell_at {
            self.tell_at = self.unpacked + TELL_BYTES;
            self.tell_progress()?;
        }
        Ok(())
    }

    /// Ends the archive, and checks that nothing is missing.
    pub(super) fn finish(mut self) -> Result<Summary, Error> {
        let (slot, files) = self.contents.finish().map_err(|fault| self.archive_error(fault))?;
        self.tell_progress()?;
        let listing = self.listing();
        let Self { blockhash, versions, unpacked: unpacked_bytes, .. } = self;
        let blockhash = blockhash.unwrap_or_default();
        Ok(Summary { slot, blockhash, files, listing, versions, unpacked_bytes })
    }

    /// Returns how the accounts files are listed, as far as the manifest was read.
    pub(super) fn listing(&self) -> Listing {
        self.contents.listing()
    }

    /// Returns the error for a fault of the archive as a whole, at the current offset.
    pub(super) fn archive_error(&self, fault: Fault) -> Error {
        Error::Archive { archive: self.archive.to_owned(), offset: self.unpacked, fault }
    }

    /// Returns the error for an archive that ends within the current entry.
    pub(super) fn cut(&self) -> Error {
        self.entry_error(self.entry.at, Fault::Cut("within this entry"))
    }

    /// Returns the current entry and the number of its bytes that were read.
    pub(super) fn within(&self) -> Within {
        Within(Some((self.entry.name.clone(), self.entry.at)))
    }

    /// Passes the progress to the caller, who may ask to stop.
    pub(super) fn tell_progress(&mut self) -> Result<(), Error> {
        let (failures, last_failure) = self.failures.shown();
        let progress = Progress {
            packed_bytes: self.packed.load(Ordering::Relaxed),
            unpacked_bytes: self.unpacked,
            versions: self.versions,
            blockhash: self.blockhash,
            failures,
            last_failure,
            next_try: None,
        };
        (self.tell)(progress).map_err(Error::Stopped)
    }

    fn refused(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Fault(offset, fault) => self.entry_error(offset, fault),
            Refusal::Stopped(stop) => Error::Stopped(stop),
        }
    }

    fn entry_error(&self, offset: u64, fault: Fault) -> Error {
        Error::Entry { archive: self.archive.to_owned(), entry: self.entry.name.clone(), offset, fault }
    }
}
