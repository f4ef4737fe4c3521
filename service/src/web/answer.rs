//! Answers in JSON, and the status of each cause of a refusal.
//!
//! Owns: this table, and the headers of every answer. Must not: decide about a request. Threads: the network edge.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;

use crate::ask::budget::{Charge, FREE_BYTES, Peer, no_room};
use crate::ask::refusal::{Cause, Refusal};

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Headers of every answer: nothing keeps one, and no browser takes it for a page.
const HARDENED: [(HeaderName, HeaderValue); 2] = [
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
];

/// Returns an answer, whose bytes count as the client's until they are sent.
///
/// # Errors
/// [`Cause::Full`] where the client leaves too many answers unread.
pub(super) fn answer(peer: &Arc<Peer>, value: &impl Serialize) -> Result<Response, Refusal> {
    of_json(peer, json(value)?)
}

/// Returns the JSON of an answer.
///
/// # Errors
/// [`Cause::Internal`]: there is none, which is a bug.
pub(super) fn json(value: &impl Serialize) -> Result<Vec<u8>, Refusal> {
    serde_json::to_vec(value).map_err(|error| Refusal::new(Cause::Internal, error.to_string()))
}

/// Returns an answer of this JSON, as [`answer`] does.
///
/// # Errors
/// [`Cause::Full`].
pub(super) fn of_json(peer: &Arc<Peer>, bytes: Vec<u8>) -> Result<Response, Refusal> {
    let body = if bytes.len() <= FREE_BYTES {
        Body::from(bytes)
    } else {
        let charge = Charge::new(peer);
        if !charge.grow(bytes.len()) {
            return Err(no_room("answers not yet read"));
        }
        Body::from(charge.hold(bytes.into()))
    };
    Ok(([(header::CONTENT_TYPE, JSON)], body).into_response())
}

/// Returns the answer to a refused request.
pub(super) fn refused(refusal: &Refusal) -> Response {
    let status = match refusal.cause {
        Cause::Invalid => StatusCode::BAD_REQUEST,
        Cause::NotFound => StatusCode::NOT_FOUND,
        Cause::OutOfRange => StatusCode::GONE,
        Cause::Unauthenticated => StatusCode::UNAUTHORIZED,
        Cause::NotOffered => StatusCode::NOT_IMPLEMENTED,
        Cause::Full => StatusCode::TOO_MANY_REQUESTS,
        Cause::NotReached | Cause::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Cause::Overdue => StatusCode::GATEWAY_TIMEOUT,
        Cause::Damaged | Cause::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut response = error(status, refusal.code.as_str(), &refusal.message);
    let more = match status {
        StatusCode::UNAUTHORIZED => Some((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Some((header::RETRY_AFTER, HeaderValue::from_static("1")))
        }
        _ => None,
    };
    response.headers_mut().extend(more);
    response
}

/// Returns an error with a stable code and a text.
pub(super) fn error(status: StatusCode, code: &str, message: &str) -> Response {
    let body = serde_json::json!({ "error": { "code": code, "message": message } }).to_string();
    (status, [(header::CONTENT_TYPE, JSON)], body).into_response()
}

/// Adds the headers that every answer has.
pub(super) async fn harden(mut response: Response) -> Response {
    response.headers_mut().extend(HARDENED);
    response
}
