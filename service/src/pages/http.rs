//! HTTP: metrics, probes, histograms, the status as JSON, and the dashboard.
//!
//! Owns: these pages. Must not: serve lookups. Threads: the tokio runtime of the network edge. A snapshot of the
//! histograms takes milliseconds and therefore runs on the blocking pool.

mod server;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, middleware};
use engine_latency::{Latency, Snapshot, export};
use futures::FutureExt as _;
use tokio::net::TcpListener;

use crate::base::blocking;
use crate::config::Config;
use crate::net::limit::Limit;
use crate::pages::dashboard::{self, Dashboard, Identity, Sampler};
use crate::pages::handles::Handles;
use crate::pages::{metrics, status};

use crate::net::host::Hosts;

/// How long a request under way may take after the shutdown has begun.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

const TEXT: &str = "text/plain; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";

/// State from which the pages are rendered.
#[derive(Clone)]
pub(crate) struct HttpState {
    latency: Arc<Latency>,
    dashboard: Dashboard,
    /// Host names that requests may use.
    hosts: Arc<Hosts>,
}

impl HttpState {
    /// Returns the state of a service that has these histograms and handles, with the running sampler of its dashboard.
    ///
    /// # Errors
    /// The operating system cannot start a thread.
    pub(crate) fn start(config: &Config, latency: Arc<Latency>, handles: Handles) -> Result<(Self, Sampler)> {
        let (sampler, history) = Sampler::start(Arc::clone(&latency), handles.clone(), config.store.dir.clone())
            .context("cannot start the sampling thread")?;
        let dashboard = Dashboard { handles, history, identity: Arc::new(Identity::of(config)) };
        Ok((Self { latency, dashboard, hosts: Arc::new(Hosts::new("metrics", &config.http.metrics)) }, sampler))
    }
}

/// Serves until `shutdown` is ready, then finishes the requests under way and returns.
pub(crate) async fn serve<F>(listener: TcpListener, state: HttpState, shutdown: F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let ended = shutdown.boxed().shared();
    let overdue = ended.clone().then(|()| tokio::time::sleep(SHUTDOWN_GRACE));
    let limit = Limit::http(&state.dashboard.handles.net);
    tokio::select! {
        () = server::serve(listener, router(state), limit, ended) => {}
        () = overdue => {}
    }
}

fn router(state: HttpState) -> Router {
    let host = middleware::from_fn_with_state(Arc::clone(&state.hosts), check_host);
    Router::new()
        .route("/healthz", get(async || page(TEXT, "ok\n")))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/status.json", get(status))
        .route("/histograms.json", get(histograms_json))
        .route("/histograms.hlog", get(histograms_hlog))
        .merge(dashboard::routes(state.dashboard.clone()))
        .with_state(state)
        .layer(host)
}

async fn check_host(State(hosts): State<Arc<Hosts>>, request: Request, next: Next) -> Response {
    match hosts.check(&request) {
        Ok(()) => next.run(request).await,
        Err((status, message)) => (status, page(TEXT, format!("{message}\n"))).into_response(),
    }
}

async fn readyz(State(state): State<HttpState>) -> Response {
    let status = state.dashboard.handles.status.response();
    if status.ready {
        return page(TEXT, "ready\n");
    }
    (StatusCode::SERVICE_UNAVAILABLE, page(TEXT, format!("{}\n", status.not_ready_reason))).into_response()
}

async fn metrics(State(state): State<HttpState>) -> Response {
    let Dashboard { handles, history, .. } = state.dashboard.clone();
    let resources = history.resources();
    let render = move |snapshot: &Snapshot| metrics::prometheus(&handles, resources, snapshot).into_bytes();
    of_snapshot(state, PROMETHEUS, render).await
}

async fn histograms_json(State(state): State<HttpState>) -> Response {
    of_snapshot(state, JSON, |snapshot| {
        serde_json::to_vec(&export::report(snapshot)).expect("a report has string keys only")
    })
    .await
}

async fn histograms_hlog(State(state): State<HttpState>) -> Response {
    of_snapshot(state, TEXT, export::hlog).await
}

async fn status(State(state): State<HttpState>) -> Response {
    page(JSON, status::json(&state.dashboard.handles).to_string())
}

async fn of_snapshot(
    state: HttpState,
    content_type: &'static str,
    render: impl FnOnce(&Snapshot) -> Vec<u8> + Send + 'static,
) -> Response {
    page(content_type, blocking(move || render(&state.latency.snapshot())).await)
}

fn page(content_type: &'static str, body: impl IntoResponse) -> Response {
    ([(header::CONTENT_TYPE, content_type)], body).into_response()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::SocketAddr;
    use std::process::{Command, Stdio};

    use conformance::{Ability, able};
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;
    use crate::base::chain::{Commitment, Gap, Phase};
    use crate::ingest::progress::Age;
    use crate::lookups::Origin;
    use crate::lookups::tests::Pool;

    async fn fetch(address: SocketAddr, path: &str) -> (u16, String) {
        fetch_as(address, path, "host: localhost\r\n").await
    }

    async fn fetch_as(address: SocketAddr, path: &str, host: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\n{host}connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    async fn start(pool: &Pool) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let latency = Arc::clone(pool.engine.latency());
        let (history, identity) = Default::default();
        let dashboard = Dashboard { handles: pool.handles.clone(), history, identity };
        let state = HttpState { latency, dashboard, hosts: Arc::new(Hosts::new("metrics", "")) };
        tokio::spawn(serve(listener, state, std::future::pending()));
        address
    }

    #[tokio::test]
    async fn readyz_follows_readiness_and_names_the_gap() {
        let pool = Pool::start();
        let address = start(&pool).await;
        assert_eq!(fetch(address, "/readyz").await, (503, "starting\n".to_owned()));
        pool.handles.status.ingest.progress.slot_applied(Age::Known(Duration::from_millis(20)));
        pool.handles.status.ingest.progress.set_phase(Phase::Live);
        assert_eq!(fetch(address, "/readyz").await.0, 200);
        let gap = Gap { first_slot: 8, last_slot: 9, detail: "parent".to_owned(), contradicts: false };
        pool.handles.status.ingest.progress.set_phase(Phase::Gap(gap));
        let (code, reason) = fetch(address, "/readyz").await;
        assert_eq!((code, reason.as_str()), (503, "E-GAP: slots are missing: first_slot=8 last_slot=9: parent\n"));
        assert_eq!(fetch(address, "/healthz").await.0, 200);
        assert_eq!(fetch(address, "/none").await.0, 404);
    }

    #[tokio::test]
    async fn a_page_of_another_name_reads_nothing() {
        let pool = Pool::start();
        let address = start(&pool).await;
        for path in ["/", "/dashboard.json", "/status.json", "/metrics", "/readyz", "/healthz", "/none"] {
            let (code, body) = fetch_as(address, path, "host: rebound.example:7401\r\n").await;
            assert_eq!(code, 421, "{path}");
            assert!(body.contains("rebound.example") && body.contains("with the setting metrics"), "{body}");
        }
        let two = "host: localhost\r\nhost: rebound.example\r\n";
        assert_eq!(fetch_as(address, "/healthz", two).await.0, 421);
        assert_eq!(fetch_as(address, "http://rebound.example/healthz", "host: localhost\r\n").await.0, 421);
        assert_eq!(fetch_as(address, "/healthz", &format!("host: {address}\r\n")).await.0, 200);
        assert_eq!(fetch_as(address, "/healthz", "").await.0, 400, "HTTP/1.1 without a host");
    }

    #[tokio::test]
    async fn metrics_are_what_prometheus_reads() {
        let pool = Pool::start();
        let address = start(&pool).await;
        pool.lookups.get([1; 32], Commitment::Confirmed, Origin::default()).await.unwrap();
        let stats = engine_api::Stats { pairs_estimate: 1, disk_bytes: 2, details: vec![("cache_bytes", 3)] };
        pool.handles.status.ingest.figures.stats.store(Arc::new(stats));
        let gap = Gap { first_slot: 8, last_slot: 9, detail: String::new(), contradicts: false };
        pool.handles.status.ingest.progress.set_phase(Phase::Gap(gap));
        let (_, text) = fetch(address, "/metrics").await;
        for line in [
            "# TYPE solkv_lookups_total counter",
            "solkv_lookups_total 1",
            "solkv_ready 0",
            "solkv_checkpoint_slot 7",
            "solkv_gap_first_slot 8",
            "solkv_gap_last_slot 9",
        ] {
            assert!(text.lines().any(|found| found == line), "missing {line}\n{text}");
        }
        for sample in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = sample.rsplit_once(' ').unwrap();
            assert!(name.starts_with("solkv_") && value.parse::<f64>().is_ok(), "{sample}");
        }
        let mut promtool = Command::new("promtool");
        promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The assertions above need no tool; where Prometheus is installed (Debian package prometheus), `promtool`
        // checks the text as well.
        let Some(mut child) = able(Ability::Promtool, promtool.spawn()) else { return };
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
    }

    #[tokio::test]
    async fn status_and_histograms_are_json() {
        let pool = Pool::start();
        let address = start(&pool).await;
        pool.lookups.get([1; 32], Commitment::Confirmed, Origin::default()).await.unwrap();
        let (_, body) = fetch(address, "/status.json").await;
        let status: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(status["checkpoint"]["slot"], 7);
        assert_eq!(status["checkpoint"]["blockhash"], "1".repeat(32));
        assert_eq!(status["counters"]["lookups"], 1);
        assert_eq!(status["warm_up"]["state"], "not_open");
        let load = json!({
            "under_way": false, "read_bytes": 0, "archive_bytes": null, "versions": 0, "pairs": 0, "waiting": null,
        });
        assert_eq!(status["load"], load);
        let spool = json!({ "under_way": false, "bytes": 0, "slots": 0, "last_slot": null, "stopped": null });
        assert_eq!(status["spool"], spool);
        let heal = json!({
            "under_way": false, "differences": 0, "applied": 0, "healed": 0, "failures": 0, "sources_failing": 0,
            "newest_archive_slot": null,
        });
        assert_eq!(status["heal"], heal);
        let (_, body) = fetch(address, "/histograms.json").await;
        let report: export::Report = serde_json::from_str(&body).unwrap();
        assert_eq!(report.get("rpc", engine_latency::Op::ReadPositive).map(|series| series.count), Some(1));
        assert!(fetch(address, "/histograms.hlog").await.1.starts_with('#'));
    }
}
