//! One error type, classified by what the caller should do about it.
//!
//! Owns: the classification. An engine maps its own errors here and keeps the original as `source`.

use std::error::Error as StdError;
use std::fmt;

/// The reaction an error asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Transient: the same call may succeed later, nothing was changed. A directory that another process has open is
    /// one case.
    Retry,
    /// The caller's options, arguments or directory are wrong: another engine's files, a newer format, a directory
    /// that is missing.
    FixInput,
    /// The disk or the configured size is full. Nothing committed is lost; reads go on.
    FreeSpace,
    /// Stored bytes contradict themselves. Restore or re-bootstrap; never ignore.
    DataDamaged,
    /// A write or fsync failed, so what is on disk is not known: the engine refuses further writes. Close the
    /// process and open again; recovery decides. Never retry the commit.
    Reopen,
    /// A fault of solkv or of the engine library: report it.
    Internal,
}

/// An engine's error: a kind to react to, and a lower-case message with `key=value` details.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// Result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error without an underlying cause.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// An error that keeps the engine library's own error as its source.
    pub fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { kind, message: message.into(), source: Some(source.into()) }
    }

    /// An I/O error of the file or directory named in `message`: a full disk is [`ErrorKind::FreeSpace`],
    /// missing files and permissions are [`ErrorKind::FixInput`], everything else [`ErrorKind::Reopen`].
    pub fn io(message: impl Into<String>, source: std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let kind = match source.kind() {
            Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge => ErrorKind::FreeSpace,
            Io::NotFound | Io::PermissionDenied | Io::NotADirectory | Io::AlreadyExists | Io::ReadOnlyFilesystem => {
                ErrorKind::FixInput
            }
            _ => ErrorKind::Reopen,
        };
        Self::with_source(kind, message, source)
    }

    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}
