//! HTTP: lookups in JSON, over TCP and a Unix socket, for curl and for programs without gRPC.
//!
//! Owns: the paths, the forms of requests and answers, and who may ask. Must not: touch the engine, or decide which state is
//! answered; `ask` does. Threads: the tokio runtime of the network edge, one task for each connection.

mod answer;
mod lookup;
mod request;
mod server;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Router, middleware};

use crate::ask::Ask;
use crate::ask::budget::Peer;
pub use crate::ask::door::Door;
use crate::ask::refusal::{Cause, Refusal};
use crate::net::Access;
use crate::net::access::bearer;
use crate::net::connection::UnderWay;
use crate::net::host::Hosts;
use answer::{error, refused};
pub use server::serve;

/// The paths, as the answer to any other names them.
const PATHS: &str = "GET /v1/get/KEY, POST /v1/get-many, GET /v1/keys-of/VALUE, GET /v1/get-at/KEY/SLOT, GET /healthz";

/// How a client sends a token.
const TOKEN_HOW: &str = "send the header Authorization: Bearer TOKEN";

/// State that all requests over HTTP share.
struct Shared {
    ask: Ask,
    access: Arc<Access>,
    hosts: Hosts,
    request_timeout: Duration,
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/get/{key}", get(lookup::get))
        .route("/v1/get-many", post(lookup::get_many))
        .route("/v1/keys-of/{value}", get(lookup::keys_of))
        .route("/v1/get-at/{key}/{slot}", get(lookup::get_at))
        .fallback(async || refused(&Refusal::new(Cause::NotFound, format!("no such path: there are {PATHS}"))))
        .method_not_allowed_fallback(async || {
            error(StatusCode::METHOD_NOT_ALLOWED, "E-REQUEST", &format!("another method is needed: there are {PATHS}"))
        })
        .layer(from_fn_with_state(Arc::clone(&shared), guard))
        .with_state(shared)
        // Load balancers ask without a token, and it says nothing about the data.
        .route("/healthz", get(async || "ok\n"))
        .layer(middleware::map_response(answer::harden))
}

/// Lets a request through that may be made, and answers it within the time limit.
async fn guard(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Extension<Arc<Peer>>,
    request: Request,
    next: Next,
) -> Response {
    let needs_token = peer.from.is_some() && shared.access.tokens.is_some();
    // A page of another site can have its visitor's browser ask under a name of its own, and has no token to send.
    if peer.from.is_some()
        && !needs_token
        && let Err((status, message)) = shared.hosts.check(&request)
    {
        return error(status, "E-REQUEST", &message);
    }
    if let Err(refusal) = peer.admit(&shared.access, bearer(request.headers()), TOKEN_HOW) {
        return refused(&refusal);
    }
    if request.method() == Method::POST && !is_json(&request) {
        // A page of another site may send other types without asking the service before.
        return error(StatusCode::UNSUPPORTED_MEDIA_TYPE, "E-REQUEST", "send Content-Type: application/json");
    }
    let _under_way = UnderWay::new(&peer.seat);
    let limit = shared.request_timeout;
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => refused(&Refusal::new(Cause::Overdue, format!("not answered within limit={limit:?}"))),
    }
}

fn is_json(request: &Request) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}
