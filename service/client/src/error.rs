//! Errors, sorted by the caller's reaction.
//!
//! Owns: the kinds of errors, and the mapping of gRPC codes to them. Must not: carry a secret. Messages are the
//! service's or this crate's, never a token.

use tonic::{Code, Status};

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

    pub(crate) fn deadline() -> Self {
        Self::new(ErrorKind::DeadlineExceeded, "no answer within the deadline")
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failed, message)
    }

    /// Returns the error of a failed call, with the service's message.
    pub(crate) fn of_call(status: &Status) -> Self {
        let kind = match status.code() {
            Code::ResourceExhausted => ErrorKind::RetryLater,
            Code::InvalidArgument | Code::OutOfRange => ErrorKind::BadInput,
            Code::Unauthenticated | Code::PermissionDenied | Code::FailedPrecondition => ErrorKind::Refused,
            Code::Unavailable => ErrorKind::Unavailable,
            Code::DeadlineExceeded | Code::Cancelled => return Self::deadline(),
            _ if is_broken(status) => ErrorKind::Unavailable,
            _ => ErrorKind::Failed,
        };
        Self::new(kind, words(status))
    }

    /// Returns the error of a failed subscription, where two codes concern the feed instead of the call.
    pub(crate) fn of_feed(status: &Status) -> Self {
        match status.code() {
            Code::OutOfRange | Code::FailedPrecondition => Self::new(ErrorKind::FeedLost, words(status)),
            _ => Self::of_call(status),
        }
    }
}

/// Whether the connection failed: an error that the service itself sent has no source on this side.
pub(crate) fn is_broken(status: &Status) -> bool {
    let code = matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Internal);
    code && std::error::Error::source(status).is_some()
}

/// Returns the message with its causes, which tonic keeps apart.
fn words(status: &Status) -> String {
    let mut words = status.message().to_owned();
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let text = error.to_string();
        if !words.contains(&text) {
            words = format!("{words}: {text}");
        }
        cause = error.source();
    }
    words
}
