//! Errors, sorted by the caller's reaction.
//!
//! Owns: the kinds of errors. Must not: carry a secret. Messages are the service's or this crate's, never a token.

/// The result of this crate's fallible calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a call has no answer, in words, and its kind.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// Kinds of errors, by how the caller should react.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The service has too much to do and has read nothing; the same call may succeed later.
    RetryLater,
    /// The call, the address, or a file that the settings name is wrong; repeating the call is of no use.
    BadInput,
    /// The service does not serve this call for this caller, or not in its present state. It refuses a token or
    /// certificate, does not follow the commitment, or did not reach the slot in time.
    Refused,
    /// There is no service, or the connection broke and the deadline left no time for another.
    Unavailable,
    /// The deadline passed before an answer came.
    DeadlineExceeded,
    /// The feed cannot continue from its last position, because the service no longer keeps the changes after it, or
    /// has another feed now. Begin again with a dump.
    FeedLost,
    /// A reader of the feed over shared memory was away for longer than the ring holds. The feed's log may still have
    /// the changes: read on over gRPC.
    FellBehind,
    /// The service failed, or sent an answer that its contract does not allow; its log says more.
    Failed,
}

impl Error {
    /// Returns the kind, which says how to react.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub(crate) fn bad_input(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadInput, message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    /// The refusal of a call over shared memory that only gRPC serves.
    #[cfg(all(feature = "grpc", feature = "shm"))]
    pub(crate) fn not_over_shm() -> Self {
        Self::new(
            ErrorKind::Refused,
            "derived stores do not answer over shared memory: connect to unix:///PATH or http://HOST:PORT",
        )
    }

    pub(crate) fn deadline() -> Self {
        Self::new(ErrorKind::DeadlineExceeded, "no answer within the deadline")
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failed, message)
    }
}
