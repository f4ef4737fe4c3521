//! Requests of `bootstrap derive` to the service that has the map open: a copy of the map to build of, and the change to the
//! store that was built.
//!
//! Owns: these requests over `DIR/admin.sock`. Must not: build a store, which takes memory that the service may not have.
//! Threads: `snapshot` makes the copy, `derive` changes stores.

use std::path::{Path, PathBuf};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use tokio::sync::oneshot;

use super::Admin;
use crate::derive;

/// Copies the map to the directory in which `bootstrap derive` expects it, and answers with the feed's id.
async fn copy(State((admin, dir)): State<(Admin, PathBuf)>) -> Response {
    let feed_id = match admin.inner.derived.build() {
        Ok(id) => id,
        Err(error) => return refusal(error.to_string()),
    };
    let made = match admin.start(bootstrap::derived_copy(&dir)) {
        Ok(made) => made.await,
        Err(status) => return refusal(status.message().to_owned()),
    };
    match made {
        Ok(Ok(_)) => serde_json::json!({ "feed_id": feed_id }).to_string().into_response(),
        Ok(Err(error)) => refusal(error.to_string()),
        Err(_) => refusal("the copy's thread panicked".to_owned()),
    }
}

/// Puts the store that was built in its place.
async fn adopt(State((admin, dir)): State<(Admin, PathBuf)>) -> Response {
    replace(admin, Some(bootstrap::derived_partial(&dir))).await
}

/// Removes the derived store and its files.
async fn remove(State((admin, _)): State<(Admin, PathBuf)>) -> Response {
    replace(admin, None).await
}

async fn replace(admin: Admin, made: Option<PathBuf>) -> Response {
    let (answer, answered) = oneshot::channel();
    let derived = admin.inner.derived.clone();
    let change = move || answer.send(derived.replace(made.as_deref())).ok();
    if let Err(error) = std::thread::Builder::new().name("derive".to_owned()).spawn(change) {
        return refusal(format!("cannot start a thread: {error}"));
    }
    match answered.await {
        Ok(Ok(Some(derive::State::Broken(reason)))) => refusal(reason),
        Ok(Ok(_)) => "{}".into_response(),
        Ok(Err(error)) => refusal(error.to_string()),
        Err(_) => refusal("the thread panicked".to_owned()),
    }
}

fn refusal(why: String) -> Response {
    (StatusCode::CONFLICT, why).into_response()
}

/// Returns the routes for the map in `dir`.
pub(super) fn routes(admin: Admin, dir: impl AsRef<Path>) -> Router {
    let routes = Router::new().route("/derive/copy", post(copy)).route("/derive/adopt", post(adopt));
    routes.route("/derive/remove", post(remove)).with_state((admin, dir.as_ref().to_owned()))
}
