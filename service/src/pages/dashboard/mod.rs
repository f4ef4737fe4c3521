//! The dashboard: one self-contained page at `/`, and the figures that it polls at `/dashboard.json`.
//!
//! Owns: the page, its content security policy, the sampled history. Must not: load anything from outside, change
//! anything in the service, or render on a network thread. Threads: `sample` keeps the history, the blocking pool
//! renders, the tokio runtime of the network edge answers.

mod history;
mod identity;
mod json;
mod sample;

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::base::blocking;
use crate::pages::handles::Handles;

use history::History;
pub(crate) use identity::Identity;
pub(crate) use sample::Sampler;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// In load order: each script uses the ones before it.
const SCRIPTS: [&str; 5] = [
    include_str!("format.js"),
    include_str!("charts.js"),
    include_str!("state.js"),
    include_str!("sections.js"),
    include_str!("page.js"),
];

/// The page, and the content security policy that it is served with.
struct Page {
    html: String,
    policy: String,
}

static ASSEMBLED: LazyLock<Page> = LazyLock::new(|| {
    let script = SCRIPTS.concat();
    let html = PAGE.replace("/* style */", STYLE).replace("/* script */", &script);
    // The policy lets only these two texts run, and fetches only from this service. The page draws the icon itself.
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        hash(&script),
        hash(STYLE)
    );
    Page { html, policy }
});

/// Returns the hash of an inline text in the form that a policy uses.
fn hash(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    format!("sha256-{}", BASE64_STANDARD.encode(digest))
}

/// State from which the figures are rendered.
#[derive(Clone)]
pub(crate) struct Dashboard {
    pub(crate) handles: Handles,
    pub(crate) history: Arc<History>,
    pub(crate) identity: Arc<Identity>,
}

/// The routes `/` and `/dashboard.json`.
pub(crate) fn routes<S>(state: Dashboard) -> Router<S> {
    Router::new().route("/", get(page)).route("/dashboard.json", get(figures)).with_state(state)
}

async fn page() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, ASSEMBLED.policy.as_str()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // A newer version of the service may answer at the same address tomorrow.
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, ASSEMBLED.html.as_str()).into_response()
}

async fn figures(State(state): State<Dashboard>, RawQuery(query): RawQuery) -> Response {
    let Some(since) = since(query.as_deref()) else {
        return (StatusCode::BAD_REQUEST, "since must be the seq of a sample, as in dashboard.json?since=17\n")
            .into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, blocking(move || json::render(&state, since)).await).into_response()
}

/// Returns the `since` of a query. Without one it is 0, which asks for the whole history; `None` if it is not a number.
fn since(query: Option<&str>) -> Option<u64> {
    let given = query.unwrap_or_default().split('&').find_map(|part| part.strip_prefix("since="));
    given.map_or(Some(0), |seq| seq.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upper bound on the page's size. Operators open it over slow VPN links during incidents.
    const PAGE_BYTES_MAX: usize = 100_000;

    #[test]
    fn the_page_is_whole_small_and_self_contained() {
        let Page { html, policy } = &*ASSEMBLED;
        assert!(html.len() < PAGE_BYTES_MAX, "{} bytes", html.len());
        for (open, close) in [("<style>", "</style>"), ("<script>", "</script>")] {
            let (_, rest) = html.split_once(open).unwrap();
            let (text, rest) = rest.split_once(close).unwrap();
            assert!(policy.contains(&hash(text)), "the policy would refuse what is between {open} and {close}");
            assert!(!rest.contains(open), "one of each");
        }
        assert!(!html.contains("//cdn") && !html.contains("src=\"http") && !html.contains(" onclick="));
    }

    #[test]
    fn since_is_a_number_or_refused() {
        assert_eq!(
            [None, Some(""), Some("a=1"), Some("since=7"), Some("a=1&since=8")].map(since),
            [Some(0), Some(0), Some(0), Some(7), Some(8)]
        );
        assert_eq!([Some("since="), Some("since=-1"), Some("since=x")].map(since), [None; 3]);
    }
}
