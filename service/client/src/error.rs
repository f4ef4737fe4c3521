//! Errors by what the caller should do.
//!
//! Owns: the kinds, and which gRPC code is which. Must not: carry a secret: messages are the service's or ours, never a
//! token.

use tonic::{Code, Status};

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The service has too much to do: nothing was read, the same call may succeed later.
    RetryLater,
    /// The call, the address or a file that was named is wrong: repeating it is of no use.
    BadInput,
    /// The service does not do this for this caller or as it is now: a token or certificate it does not take, a
    /// commitment it does not follow, a slot that it did not reach in time.
    Refused,
    /// No service there, or the connection broke and the deadline left no time for another.
    Unavailable,
    /// The deadline passed.
    DeadlineExceeded,
    /// The feed cannot go on from where it was: its changes are no longer kept, or it is another feed now. Begin again
    /// with a dump.
    FeedLost,
    /// A reader of the feed over shared memory was away for longer than the ring holds; the feed's log may have what it
    /// missed: read on over gRPC.
    FellBehind,
    /// The service failed, or answered what its contract does not allow; its log says more.
    Failed,
}

impl Error {
    /// What to do about it.
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

    /// An error of a call, in the service's words.
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

    /// An error of a subscription: there these two codes speak of the feed.
    pub(crate) fn of_feed(status: &Status) -> Self {
        match status.code() {
            Code::OutOfRange | Code::FailedPrecondition => Self::new(ErrorKind::FeedLost, words(status)),
            _ => Self::of_call(status),
        }
    }
}

/// Whether it is the connection that failed: what the service itself says has no cause on this side.
pub(crate) fn is_broken(status: &Status) -> bool {
    let code = matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Internal);
    code && std::error::Error::source(status).is_some()
}

/// The message and what caused it, which tonic keeps apart.
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
