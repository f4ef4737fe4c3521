//! Solana's snapshot archives: every version of every account, in one pass.
//!
//! Owns: the reading of an archive from a file, a directory, standard input or a URL, unpacked on the way. Must not:
//! know an engine or an extraction, decide which version of an account counts, or trust any byte. The archive is read
//! on the thread of the caller, and unpacked on a thread of its own.
//!
//! An archive holds every account as it was at the end of a slot, and may hold older versions of it in other files, in
//! any order: the version with the highest (slot, file, offset) counts, also one without lamports, which is a closed
//! account. This has to be decided before anything is left out. The hash in an archive's name cannot be verified here;
//! an archive is as good as the server that it came from.
//!
//! # Memory
//! Whatever an archive's size: four buffers of 1 MiB, one of 256 KiB, and the decoder's window (512 KiB to 8 MiB for a
//! validator's archives), and a table of the accounts files, at most 80 bytes each (mainnet: 432,000 files, 35 MB). Both
//! have [`Limits`]. An entry is never held as a whole.

pub mod append_vec;
mod contents;
mod decode;
mod directory;
mod error;
pub mod gzip;
mod http;
mod input;
mod lz4;
mod manifest;
mod name;
mod reading;
mod stream;
mod tar;
mod unpack;

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use contents::{ACCOUNTS_FILES_MAX, Contents};
use decode::WINDOW_BYTES_MAX;
pub use error::{Error, Fault, Stop, Within};
pub use http::{is_url, shown as shown_url};
use input::{Input, Source};
pub use name::{BadName, Name, Packing};
use reading::Reading;
use serde::{Deserialize, Serialize};
use unpack::Unpacked;

pub use crate::extract::HEAD_BYTES;

/// One version of an account, borrowed from the reader's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version<'a> {
    /// Slot that wrote this version: that of its file's name, `accounts/SLOT.FILE`.
    pub slot: u64,
    /// Number of its file, which tells several files of one slot apart.
    pub file: u64,
    /// Offset of the record in its file, in bytes.
    pub offset: u64,
    /// Address of the account that this version belongs to.
    pub key: &'a [u8; 32],
    /// Balance of the account; zero for a closed one.
    pub lamports: u64,
    /// Program that owns the account.
    pub owner: &'a [u8; 32],
    /// Whether the account is a program.
    pub executable: bool,
    /// Length of the account's data in bytes.
    pub data_len: u64,
    /// The first `data_len` or [`HEAD_BYTES`] bytes of the data, whichever is less.
    pub data: &'a [u8],
}

/// Function that takes every version, in the archive's order. An error stops the reading.
pub type Take<'a> = dyn FnMut(&Version<'_>) -> Result<(), Stop> + 'a;

/// Function that gets the progress after every few megabytes. An error stops the reading.
pub type Tell<'a> = dyn FnMut(Progress) -> Result<(), Stop> + 'a;

/// How far the reading of an archive has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of the archive's bytes that were read; these are a few megabytes ahead of the others.
    pub packed_bytes: u64,
    /// Number of unpacked bytes that were parsed.
    pub unpacked_bytes: u64,
    /// Number of versions that were taken.
    pub versions: u64,
    /// Blockhash of the archive's slot, once the manifest was read, if it names one.
    pub blockhash: Option<[u8; 32]>,
    /// Number of failures of the archive's server since its last byte. It is asked again until it has failed for ten
    /// minutes.
    pub failures: u32,
    /// Text of the last of these failures.
    pub last_failure: Option<Arc<str>>,
    /// Time of the next request to a server that has failed before the archive was opened.
    pub next_try: Option<Instant>,
}

/// The numbers of an archive that was read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Slot of the archive's manifest, which its name agrees with.
    pub slot: u64,
    /// Blockhash of the slot, as the manifest names it; all zeros if its layout is unknown.
    pub blockhash: [u8; 32],
    /// Number of its accounts files.
    pub files: u64,
    /// How these files are listed in the manifest.
    pub listing: Listing,
    /// Number of versions in all of them.
    pub versions: u64,
    /// Length of the unpacked archive in bytes.
    pub unpacked_bytes: u64,
}

/// List of accounts files in an archive's manifest. A later variant proves less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Listing {
    /// The archive has exactly the files of the list.
    #[default]
    Compared,
    /// The manifest lists no file, as newer validators write it. The end of the archive alone shows that it is whole.
    #[serde(rename = "none")]
    Empty,
    /// The manifest has a layout that this reader does not know. A file that its writer has left out is not noticed.
    Unknown,
}

impl Listing {
    /// Whether the archive has exactly the files of the list.
    pub fn is_compared(&self) -> bool {
        *self == Self::Compared
    }

    /// Returns the list's name in facts; `None` for one that was compared.
    pub fn shown(self) -> Option<&'static str> {
        match self {
            Self::Compared => None,
            Self::Empty => Some("none"),
            Self::Unknown => Some("unknown"),
        }
    }
}

/// An archive that is open, and was not read yet.
pub struct Archive {
    input: Input,
    limits: Limits,
}

/// The largest archives of which the memory grows. Larger values than the defaults count as the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Window of an archive packed by zstd, in bytes: 128 MiB by default.
    pub window_bytes: u64,
    /// Number of accounts files: 5 million by default, as agave has it.
    pub accounts_files: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { window_bytes: WINDOW_BYTES_MAX, accounts_files: ACCOUNTS_FILES_MAX }
    }
}

impl Archive {
    /// Opens the archive at `location`: a file, the directory that one was unpacked into, `-` for standard input, or an
    /// http(s) URL. Nothing of a stream is read yet. A server that fails is not asked again.
    ///
    /// # Errors
    /// [`Error::Open`] when there is nothing to read, [`Error::Name`] when the name is almost that of an archive.
    pub fn open(location: &str) -> Result<Self, Error> {
        Ok(Self { input: Input::open(location, None)?, limits: Limits::default() })
    }

    /// Opens the archive as [`Self::open`] does. A server that fails is asked again for ten minutes or longer, in
    /// which `progress` is called several times a second.
    ///
    /// # Errors
    /// Those of [`Self::open`]; [`Error::Stopped`] with the error of `progress`.
    pub fn open_telling(location: &str, progress: &mut Tell<'_>) -> Result<Self, Error> {
        Ok(Self { input: Input::open(location, Some(progress))?, limits: Limits::default() })
    }

    /// Takes an archive from any reader. Messages show it as `shown`. Without a name, the first bytes show the packing.
    pub fn from_reader(shown: &str, name: Option<Name>, bytes: impl Read + Send + 'static) -> Self {
        let source = Source::Stream(Box::new(bytes));
        let (shown, location) = (shown.to_owned(), shown.to_owned());
        let input = Input { source, name, shown, location, packed_bytes: None, failures: Arc::default() };
        Self { input, limits: Limits::default() }
    }

    /// Makes [`Self::read`] refuse an archive beyond these limits.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Returns the parts of the archive's name. Standard input has none, nor does a file of another name.
    pub fn name(&self) -> Option<&Name> {
        self.input.name.as_ref()
    }

    /// Returns the location for messages: that of a URL after all redirections, without user, password and query.
    pub fn shown(&self) -> &str {
        &self.input.shown
    }

    /// Returns the location at which the archive can be opened again: that of a URL after all redirections, with user,
    /// password and query. It must not be shown.
    pub fn location(&self) -> &str {
        &self.input.location
    }

    /// Returns the number of bytes that will be read, where it is known: of a plain file, a directory, and most URLs.
    pub fn packed_bytes(&self) -> Option<u64> {
        self.input.packed_bytes
    }

    /// Whether the archive was unpacked into a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.input.source, Source::Directory(_))
    }

    /// Reads the whole archive in one pass. `take` gets every version of every account, in the archive's order;
    /// `progress` is called after every few megabytes, several times a second while a stream brings no
    /// bytes, and at the end.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Unpack`] while the bytes come, [`Error::Archive`] and [`Error::Entry`] when they are
    /// no snapshot or only a part of one, [`Error::Stopped`] with the error of `progress` or `take`. Versions taken
    /// before an error prove nothing: the archive was not whole.
    pub fn read(self, progress: &mut Tell<'_>, take: &mut Take<'_>) -> Result<Summary, Error> {
        let Input { source, name, shown, failures, .. } = self.input;
        let packed = Arc::new(AtomicU64::new(0));
        let contents = Contents::new(name.as_ref(), self.limits.accounts_files);
        let mut reading = Reading::new(&shown, contents, (Arc::clone(&packed), failures), progress, take);
        match source {
            Source::Directory(path) => directory::read(&path, &packed, &mut reading)?,
            Source::Stream(bytes) => {
                let packing = name.as_ref().map(|name| name.packing);
                let mut unpacked = Unpacked::start(&shown, bytes, packing, packed, self.limits.window_bytes)
                    .map_err(|source| Error::Open { archive: shown.clone(), source })?;
                stream::read(&mut unpacked, &mut reading)?;
            }
        }
        reading.finish()
    }
}
