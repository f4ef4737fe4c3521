//! One error type, classified by the reaction that the caller should have.
//!
//! Owns: the classification. An engine maps its own errors to these kinds and keeps the original as `source`.

use std::error::Error as StdError;
use std::fmt;

use crate::Code;

/// The caller's reaction to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// A transient failure: nothing was changed, and the same call may succeed later. One case is a directory that
    /// another process has open.
    Retry,
    /// The caller's options, arguments or directory are wrong: for example another engine's files, a newer format, or a
    /// missing directory.
    FixInput,
    /// The disk is full, or the configured size is used up. Nothing committed is lost, and reads continue.
    FreeSpace,
    /// Stored bytes contradict each other. Restore a copy or bootstrap again; never ignore this.
    DataDamaged,
    /// A write or fsync failed, so the state on disk is not known, and the engine refuses further writes. Close the
    /// process and open the store again: recovery decides. Never retry the commit.
    Reopen,
    /// A bug in solkv or in the engine library: report it.
    Internal,
}

/// Error of an engine: a kind to react to, and a lower-case message with `key=value` details.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    code: Option<Code>,
    message: String,
    has_way_out: bool,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// Result whose error is an [`Error`] unless another type is given.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Builds an error without an underlying cause.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, code: None, message: message.into(), has_way_out: false, source: None }
    }

    /// Builds an error of [`ErrorKind::FixInput`] with a code.
    pub fn wrong(code: Code, message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::FixInput, code: Some(code), message: message.into(), has_way_out: false, source: None }
    }

    /// Builds an error that keeps the engine library's own error as its source.
    pub fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { kind, code: None, message: message.into(), has_way_out: false, source: Some(source.into()) }
    }

    /// Builds an error from an I/O error of the file or directory named in `message`. A full disk is
    /// [`ErrorKind::FreeSpace`]; missing files and permissions are [`ErrorKind::FixInput`]; everything else is
    /// [`ErrorKind::Reopen`]. So is a read-only file system: the kernel makes it one after an error of the device, and it
    /// may be mounted for writing again.
    pub fn io(message: impl Into<String>, source: std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let kind = match source.kind() {
            Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge => ErrorKind::FreeSpace,
            Io::NotFound | Io::PermissionDenied | Io::NotADirectory | Io::AlreadyExists => ErrorKind::FixInput,
            _ => ErrorKind::Reopen,
        };
        Self::with_source(kind, message, source)
    }

    /// Adds the way out of the error to the end of its message.
    #[must_use]
    pub fn with_way_out(self, way_out: &str) -> Self {
        Self { message: format!("{}: {way_out}", self.message), has_way_out: true, ..self }
    }

    /// Whether the message ends with a way out. A caller then need not add one.
    pub fn has_way_out(&self) -> bool {
        self.has_way_out
    }

    /// Returns the reaction that the error asks for.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Gives the error a code of its own, in the place of its kind's.
    #[must_use]
    pub fn with_code(self, code: Code) -> Self {
        Self { code: Some(code), ..self }
    }

    /// Returns the error's code, or that of its kind; `None` for a kind with many causes.
    pub fn code(&self) -> Option<Code> {
        self.code.or(match self.kind {
            ErrorKind::Retry | ErrorKind::FixInput => None,
            ErrorKind::FreeSpace => Some(Code::Space),
            ErrorKind::DataDamaged => Some(Code::Damaged),
            ErrorKind::Reopen => Some(Code::Reopen),
            ErrorKind::Internal => Some(Code::Bug),
        })
    }
}

impl Code {
    /// Returns the code of an error or of one of its causes; `None` if it has none.
    pub fn of(error: &(dyn StdError + 'static)) -> Option<Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            let known = error.downcast_ref::<Self>().copied();
            if let Some(code) = known.or_else(|| error.downcast_ref::<Error>().and_then(Error::code)) {
                return Some(code);
            }
            cause = error.source();
        }
        None
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
