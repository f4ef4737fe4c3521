//! The codes of gRPC as this crate's kinds of errors.
//!
//! Owns: the mapping, and the texts of nested errors. Must not: decide whether a call is repeated.

use tonic::{Code, Status};

use crate::error::{Error, ErrorKind};

/// Returns the error of a failed call, with the service's message.
pub(crate) fn of_call(status: &Status) -> Error {
    let kind = match status.code() {
        Code::ResourceExhausted => ErrorKind::RetryLater,
        Code::InvalidArgument | Code::OutOfRange => ErrorKind::BadInput,
        Code::Unauthenticated | Code::PermissionDenied | Code::FailedPrecondition => ErrorKind::Refused,
        Code::Unavailable => ErrorKind::Unavailable,
        Code::DeadlineExceeded | Code::Cancelled => return Error::deadline(),
        _ if is_broken(status) => ErrorKind::Unavailable,
        _ => ErrorKind::Failed,
    };
    Error::new(kind, with_causes(status.message(), status))
}

/// Returns the error of a failed subscription, where two codes concern the feed instead of the call.
pub(crate) fn of_feed(status: &Status) -> Error {
    match status.code() {
        Code::OutOfRange | Code::FailedPrecondition => {
            Error::new(ErrorKind::FeedLost, with_causes(status.message(), status))
        }
        _ => of_call(status),
    }
}

/// Whether the connection failed: an error that the service itself sent has no source on this side.
pub(crate) fn is_broken(status: &Status) -> bool {
    let code = matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Internal);
    code && std::error::Error::source(status).is_some()
}

/// Returns a text with those of the causes of `error`, each once: transports nest errors in one another that repeat
/// them.
pub(crate) fn with_causes(text: &str, error: &dyn std::error::Error) -> String {
    let mut all = text.to_owned();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !all.contains(&text) {
            all = format!("{all}: {text}");
        }
        cause = error.source();
    }
    all
}
