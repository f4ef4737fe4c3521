//! Errors of reading an archive, by the reaction that they call for, and the faults that an archive can have.
//!
//! Owns: the words of every message. Must not: hold a URL's user, password or query. Any thread.

use std::{fmt, io};

use super::name::{BadName, Packing};

/// An error of the caller's own, handed through unchanged.
pub type Stop = Box<dyn std::error::Error + Send + Sync>;

/// Reason why an archive could not be read to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The location names an archive wrongly.
    #[error(transparent)]
    Name(#[from] BadName),
    /// The archive is not there, or may not be opened.
    #[error("cannot open the archive: archive={archive}")]
    Open { archive: String, source: io::Error },
    /// The archive's bytes cannot be read.
    #[error("cannot read the archive: archive={archive} packed_offset={offset}{within}")]
    Io { archive: String, offset: u64, within: Within, source: io::Error },
    /// The archive's bytes cannot be unpacked: they are damaged or cut short, and another copy is needed.
    #[error("cannot unpack the archive: archive={archive} packing={packing} packed_offset={offset}{within}")]
    Unpack { archive: String, packing: Packing, offset: u64, within: Within, source: io::Error },
    /// The archive as a whole does not have the form of a snapshot.
    #[error("bad snapshot archive: archive={archive} offset={offset}: {fault}")]
    Archive { archive: String, offset: u64, fault: Fault },
    /// One entry does not have the form of a snapshot's entry.
    #[error("bad snapshot archive: archive={archive} entry={entry} offset={offset}: {fault}")]
    Entry { archive: String, entry: String, offset: u64, fault: Fault },
    /// The caller stopped the reading.
    #[error("{0}")]
    Stopped(Stop),
}

impl Error {
    /// Adds the entry to an error of the bytes, which come from a thread that knows no entries.
    pub(super) fn in_entry(self, within: Within) -> Self {
        match self {
            Self::Io { archive, offset, source, .. } => Self::Io { archive, offset, within, source },
            Self::Unpack { archive, packing, offset, source, .. } => {
                Self::Unpack { archive, packing, offset, within, source }
            }
            other => other,
        }
    }
}

/// The entry within which the bytes ended. `None` before the first entry, between two, and after the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Within(pub(super) Option<(String, u64)>);

impl fmt::Display for Within {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some((entry, offset)) => write!(f, " entry={entry} entry_offset={offset}"),
            None => Ok(()),
        }
    }
}

/// A defect of an archive. It is damage, an unknown format, or an attack; only another archive helps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The sum of a header's bytes differs from the stored one.
    #[error("the tar header's checksum is wrong: stored={stored} computed={computed}")]
    Checksum { stored: u64, computed: u64 },
    /// A number of a header cannot be read.
    #[error("the tar header has a bad number: field={0}")]
    HeaderNumber(&'static str),
    /// An entry of a kind that snapshots never have.
    #[error(
        "the tar entry is neither a regular file nor a directory: kind={0}: unpack the archive, and pack its files again with \
         tar --format=ustar"
    )]
    Kind(&'static str),
    /// A name that points out of the archive, or cannot be shown.
    #[error("the tar entry's name is not allowed")]
    Path,
    /// A name that no entry of a snapshot has.
    #[error("unknown entry in a snapshot: expected version, snapshots/... or accounts/SLOT.ID")]
    UnknownEntry,
    /// A file of macOS's own beside a snapshot's.
    #[error(
        "an AppleDouble file, which tar on macOS adds: unpack the archive, and pack its files again with COPYFILE_DISABLE=1 \
         tar --format=ustar"
    )]
    AppleDouble,
    /// The data of an accounts file whose accounts lie elsewhere.
    #[error(
        "agave's split accounts file storage is not supported yet: get an archive from a validator that writes \
         accounts/SLOT.ID alone"
    )]
    Split,
    /// A directory with bytes of its own.
    #[error("a directory entry has data: size_bytes={0}")]
    DirectoryData(u64),
    /// An entry larger than any that a validator writes.
    #[error("the entry is too large: size_bytes={size} limit_bytes={limit}")]
    TooLarge { size: u64, limit: u64 },
    /// More entries than a snapshot has.
    #[error("too many entries: limit={0}")]
    TooMany(usize),
    /// More accounts files than the caller has memory for, or than a snapshot has.
    #[error(
        "too many accounts files: limit={0}: each takes memory, so that a process with more memory takes more of them, but \
         no validator writes over 5000000"
    )]
    TooManyFiles(usize),
    /// A manifest whose queue of blockhashes contradicts itself.
    #[error("the manifest's newest blockhash is not in its own list: get the archive again")]
    Blockhash,
    /// Two entries of one name.
    #[error("the archive has two entries of this name")]
    Duplicate,
    /// Two manifests, or one of another slot.
    #[error("the manifest is of another slot: slot={found} expected={expected}")]
    ManifestSlot { found: u64, expected: u64 },
    /// An accounts file from after the archive's slot.
    #[error("an accounts file has a later slot than the archive: slot={slot} archive_slot={archive}")]
    SlotAbove { slot: u64, archive: u64 },
    /// An accounts file that an incremental archive cannot have.
    #[error("an accounts file in an incremental archive is not newer than its base: slot={slot} base={base}")]
    SlotBelow { slot: u64, base: u64 },
    /// An accounts file in an incremental archive whose name does not tell when its accounts were written.
    #[error(
        "an accounts file of slot=0 in an incremental archive, as Firedancer named all of them at first, does not tell which \
         version of an account is the newest: get an incremental archive from a newer validator, or a full one"
    )]
    SlotZero,
    /// A format of snapshots that this reader does not know.
    #[error("unknown version of snapshots: version={0}: this program knows versions that begin with 1.")]
    Version(String),
    /// An entry that every snapshot has is missing.
    #[error("the archive has no {0}")]
    Missing(&'static str),
    /// The bytes end too early.
    #[error("the archive is cut short: it ends {0}: get the archive again")]
    Cut(&'static str),
    /// There is something after the archive's end.
    #[error("there are bytes after the end of the tar archive")]
    AfterEnd,
    /// A flag that is neither 0 nor 1.
    #[error("damaged account record: executable={0}")]
    Executable(u8),
    /// An account with more data than any account can have.
    #[error("damaged account record: data_len={len} limit={limit}")]
    DataLength { len: u64, limit: u64 },
    /// A record that does not fit into its file.
    #[error("damaged account record: it reaches beyond the end of its file: file_bytes={0}")]
    RecordEnd(u64),
    /// Something other than zeros after the last record.
    #[error("damaged accounts file: its padding has bytes other than zero")]
    Padding,
    /// An unpacked archive of which nothing tells whether it is whole.
    #[error(
        "the manifest lists no accounts files, so a directory does not show whether it has all of them: give the archive \
         itself, which need not be unpacked"
    )]
    NoList,
    /// An accounts file of the manifest's list that the archive does not have.
    #[error(
        "the archive has not all of its accounts: entry=accounts/{slot}.{file} is missing, which its manifest lists with \
         bytes={bytes}: get the archive again"
    )]
    FileMissing { slot: u64, file: u64, bytes: u64 },
    /// An accounts file that is shorter than the manifest's list says.
    #[error(
        "the archive has not all of its accounts: entry=accounts/{slot}.{file} bytes={found}, and its manifest lists \
         bytes={listed}: get the archive again"
    )]
    FileShort { slot: u64, file: u64, found: u64, listed: u64 },
    /// An accounts file that the manifest's list does not have.
    #[error("entry=accounts/{slot}.{file} is not in the manifest's list of accounts files: get the archive again")]
    FileUnlisted { slot: u64, file: u64 },
    /// An accounts file that got more or fewer bytes than its size.
    #[error("the accounts file has another size than was said: file_bytes={0}")]
    FileSize(u64),
}
