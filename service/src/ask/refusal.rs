//! Refusals: why a request has no answer, in words and as a cause, from which each protocol takes its own code.
//!
//! Owns: the causes, and the cause and the words of each refusal that the engine, lookups and connections have. Must not:
//! know a protocol's codes: each has one table of them, `rpc::code` for gRPC and `shm::session` for shared memory. Any
//! thread.

use std::borrow::Cow;

use engine_api::{Code, ErrorKind};

use crate::base::published::BETWEEN_SLOTS;
use crate::derive::DerivedError;
use crate::lookups::LookupError;
use crate::net::limit::Refused;

/// The cause of a refusal. Each one says how a client gets an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Correct the request: it would be refused again.
    Invalid,
    /// Name something that there is.
    NotFound,
    /// Begin at another change of the feed.
    OutOfRange,
    /// Send a token that the service knows.
    Unauthenticated,
    /// Ask for something that the service is configured for.
    NotOffered,
    /// Ask again once the slot is reached.
    NotReached,
    /// Ask again later, or for less at once: a share or a queue is full.
    Full,
    /// Ask again later, or another service.
    Unavailable,
    /// Ask again, or for less: the time limit has passed.
    Overdue,
    /// Nothing: the store is damaged, which its owner has to repair.
    Damaged,
    /// Nothing: the service is at fault.
    Internal,
}

/// Returns the refusal of a commitment's name that there is not.
pub(crate) fn unknown_commitment() -> Refusal {
    Refusal::invalid("unknown commitment: use processed, confirmed or finalized")
}

/// The reason why a request has no answer.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) cause: Cause,
    pub(crate) code: Code,
    pub(crate) message: Cow<'static, str>,
}

impl Refusal {
    /// Makes the refusal of a request that no repetition makes right.
    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Cause::Invalid, message)
    }

    /// Makes a refusal with the code that most refusals of this cause have.
    pub(crate) fn new(cause: Cause, message: impl Into<Cow<'static, str>>) -> Self {
        let code = match cause {
            Cause::Invalid | Cause::NotFound => Code::Request,
            Cause::OutOfRange => Code::FeedRange,
            Cause::Unauthenticated => Code::Token,
            Cause::NotOffered => Code::Commitment,
            Cause::NotReached => Code::Slot,
            Cause::Full => Code::Busy,
            Cause::Unavailable => Code::NotReady,
            Cause::Overdue => Code::Deadline,
            Cause::Damaged => Code::Damaged,
            Cause::Internal => Code::Bug,
        };
        Self { cause, code, message: message.into() }
    }

    pub(crate) fn with_code(self, code: Code) -> Self {
        Self { code, ..self }
    }

    /// The refusal of requests that come while the service ends.
    pub(crate) fn stopping(message: &'static str) -> Self {
        Self::new(Cause::Unavailable, message).with_code(Code::Stopping)
    }
}

impl From<LookupError> for Refusal {
    fn from(error: LookupError) -> Self {
        let (cause, message) = match error {
            LookupError::Busy => (Cause::Full, "too many lookups are waiting, try again later"),
            LookupError::Stopped => return Self::stopping("the service is shutting down"),
            LookupError::NotFollowed => (
                Cause::NotOffered,
                "this service does not follow processed slots: ask at confirmed, or start it with processed = true",
            ),
            LookupError::Overflowed => {
                let message =
                    "the overlay of processed slots is full and starts over: ask at confirmed, or try again later";
                return Self::new(Cause::Unavailable, message).with_code(Code::Commitment);
            }
            LookupError::NotFinal => {
                let message = "no finalized answer yet: slots applied before or since the start are not final; ask at \
                               confirmed, or try again later";
                return Self::new(Cause::Unavailable, message).with_code(Code::Commitment);
            }
            LookupError::Healing => (Cause::Unavailable, BETWEEN_SLOTS),
            LookupError::Engine(error) => {
                tracing::error!(%error, kind = ?error.kind(), "a lookup failed");
                return Self::from(error);
            }
        };
        Self::new(cause, message)
    }
}

impl From<DerivedError> for Refusal {
    fn from(error: DerivedError) -> Self {
        let (cause, message): (_, Cow<'static, str>) = match error {
            DerivedError::NotThere(way) => (Cause::NotOffered, way.into()),
            DerivedError::OtherCursor => (
                Cause::OutOfRange,
                "the cursor is of another request or derived store, or no longer kept: begin without one".into(),
            ),
            DerivedError::ViewEnded => {
                (Cause::OutOfRange, "the answer took longer than 60 s: go on with the last cursor".into())
            }
            DerivedError::OutOfRange(reason) => (Cause::OutOfRange, reason.into()),
            DerivedError::Unavailable(reason) => (Cause::Unavailable, reason.into()),
            DerivedError::Behind => (Cause::Unavailable, "the derived store is behind its map: try again later".into()),
            DerivedError::Lookup(error) => return error.into(),
            DerivedError::Stopped => return Self::stopping("the service is shutting down"),
            DerivedError::Engine(error) => {
                tracing::error!(%error, kind = ?error.kind(), "a derived store cannot be read");
                return Self::from(error);
            }
        };
        Self::new(cause, message).with_code(Code::Derived)
    }
}

impl From<engine_api::Error> for Refusal {
    fn from(error: engine_api::Error) -> Self {
        let cause = match error.kind() {
            ErrorKind::Retry | ErrorKind::FreeSpace | ErrorKind::Reopen => Cause::Unavailable,
            ErrorKind::DataDamaged => Cause::Damaged,
            // The request's input was checked before: if the engine refuses it now, the service is at fault.
            ErrorKind::FixInput | ErrorKind::Internal => Cause::Internal,
        };
        let refusal = Self::new(cause, error.to_string());
        match error.code() {
            Some(code) => refusal.with_code(code),
            None => refusal,
        }
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Source { max } => Self::new(
                Cause::Full,
                format!(
                    "too many connections from this address, send requests over fewer or raise max_connections: max={max}, \
                     a quarter of it"
                ),
            ),
            Refused::Gone => {
                Self::new(Cause::Unavailable, "the connection is closed to make room for another, connect again")
                    .with_code(Code::Busy)
            }
        }
    }
}
