//! The admin socket, on which the owner of a store asks the service that has it open for a snapshot or for its state.
//!
//! Owns: `DIR/admin.sock`, which only its owner may use, and the thread `snapshot`, one at a time. Must not: be
//! reachable over a network, or delay the ingest. Threads: the tokio runtime of the network edge; `snapshot` makes the
//! copy.

pub(crate) mod audit;
pub(crate) mod backup;
mod derive;

use std::io::{self, ErrorKind as Io};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use engine_api::{Engine, Error, ErrorKind};
use engine_latency::Measured;
use hyper_util::rt::TokioIo;
use proto::admin::admin_client::AdminClient;
use proto::admin::admin_server::{Admin as AdminRpc, AdminServer};
use proto::admin::{SnapshotRequest, SnapshotResponse};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Status};
use tower::service_fn;

use crate::ask::refusal::Refusal;
use crate::base::figure::count;
use crate::base::lock;
use crate::base::published::between_slots;
use crate::base::views::Views;
use crate::derive::Derived;
use crate::net::socket::SocketAccess;
use crate::net::uds::{SocketFile, UdsListener};
use crate::status;

/// Name of the socket in the store's directory.
pub(crate) const SOCKET: &str = "admin.sock";

/// How long a stop of the service waits for a snapshot under way. A snapshot of links takes less. A snapshot that
/// copies every byte is abandoned and leaves `DIR.partial`.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Figures of snapshots of the store since the start.
#[derive(Debug, Default)]
pub struct SnapshotFigures {
    /// Whether a snapshot is being made at this moment.
    pub running: AtomicBool,
    /// Number of snapshots completed since the start.
    pub made: AtomicU64,
    /// Number of snapshots that failed since the start.
    pub failed: AtomicU64,
}

/// The handlers of the socket's requests. Clones share their state.
#[derive(Clone)]
pub(crate) struct Admin {
    inner: Arc<Inner>,
}

struct Inner {
    /// Only borrowed, because the service needs the engine alone to close it at its stop.
    engine: Weak<Measured>,
    status: status::Status,
    figures: Arc<SnapshotFigures>,
    views: Arc<Views>,
    derived: Derived,
    running: Mutex<bool>,
    ended: Condvar,
}

impl Admin {
    /// Returns handlers for `engine`, which they keep alive only during a snapshot.
    pub(crate) fn new(
        engine: &Arc<Measured>,
        status: status::Status,
        derived: Derived,
        (figures, views): (Arc<SnapshotFigures>, Arc<Views>),
    ) -> Self {
        let (engine, running, ended) = (Arc::downgrade(engine), Mutex::new(false), Condvar::new());
        Self { inner: Arc::new(Inner { engine, status, figures, views, derived, running, ended }) }
    }

    /// Waits up to `STOP_GRACE` for a snapshot under way. Call it once no more requests are served.
    pub(crate) fn wait_for_snapshot(&self) {
        let running = lock(&self.inner.running);
        let waited = self.inner.ended.wait_timeout_while(running, STOP_GRACE, |running| *running);
        if *waited.unwrap_or_else(PoisonError::into_inner).0 {
            tracing::warn!(grace_s = STOP_GRACE.as_secs(), "a snapshot under way is given up");
        }
    }

    /// Starts a snapshot. Its outcome comes through the channel.
    fn start(&self, dir: PathBuf) -> Result<oneshot::Receiver<engine_api::Result<Duration>>, Status> {
        let engine = self.inner.engine.upgrade().ok_or_else(|| Status::unavailable("the service is shutting down"))?;
        let mut running = lock(&self.inner.running);
        if *running {
            return Err(Status::resource_exhausted("a snapshot is under way, try again later"));
        }
        if self.inner.status.ingest.published.is_healing() {
            return Err(Status::unavailable(between_slots().to_string()));
        }
        let (answer, answered) = oneshot::channel();
        let inner = Arc::clone(&self.inner);
        let make = move || {
            let made = inner.snapshot(&engine, &dir);
            // Before the end is announced: a stop of the service waits for the end and then needs the engine alone.
            drop(engine);
            *lock(&inner.running) = false;
            inner.ended.notify_all();
            // A client that is gone can read the outcome in the log.
            answer.send(made).ok();
        };
        std::thread::Builder::new()
            .name("snapshot".to_owned())
            .spawn(make)
            .map_err(|error| Status::resource_exhausted(format!("cannot start a thread: {error}")))?;
        *running = true;
        Ok(answered)
    }
}

impl Inner {
    fn snapshot(&self, engine: &Measured, dir: &Path) -> engine_api::Result<Duration> {
        let (figures, start) = (&self.figures, Instant::now());
        // ORDERING: Relaxed: a statistic.
        figures.running.store(true, Ordering::Relaxed);
        tracing::info!(dir = %dir.display(), "a snapshot begins");
        let held = self.views.hold();
        let made = engines::remove_cut_short(dir).and_then(|removed| {
            if let Some(removed) = removed {
                tracing::info!(removed = %removed.display(), "an earlier snapshot was cut short and is begun anew");
            }
            engine.snapshot(dir)
        });
        drop(held);
        let took = start.elapsed();
        match &made {
            Ok(()) => {
                count(&figures.made, 1);
                tracing::info!(dir = %dir.display(), took_ms = took.as_millis() as u64, "a snapshot is made");
            }
            Err(error) => {
                count(&figures.failed, 1);
                tracing::error!(%error, dir = %dir.display(), "a snapshot failed");
            }
        }
        figures.running.store(false, Ordering::Relaxed);
        made.map(|()| took)
    }
}

#[tonic::async_trait]
impl AdminRpc for Admin {
    async fn snapshot(&self, request: Request<SnapshotRequest>) -> Result<tonic::Response<SnapshotResponse>, Status> {
        let dir = PathBuf::from(request.into_inner().dir);
        if !dir.is_absolute() {
            return Err(Status::invalid_argument(format!("not an absolute path: dir={}", dir.display())));
        }
        let made = self.start(dir)?.await;
        let took = made.map_err(|_| Status::internal("the snapshot's thread panicked"))?.map_err(refusal)?;
        Ok(tonic::Response::new(SnapshotResponse { took_ms: took.as_millis() as u64 }))
    }
}

/// Answers `bootstrap info` for a store that is open in this service.
async fn info(State(admin): State<Admin>) -> Response {
    let Some(engine) = admin.inner.engine.upgrade() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the service is shutting down\n").into_response();
    };
    let ingest = &admin.inner.status.ingest;
    let (checkpoint, stats) = (ingest.published.checkpoint(), ingest.figures.stats.load());
    let json = serde_json::json!({
        "engine": engine.label(),
        "pairs_estimate": stats.pairs_estimate,
        "disk_bytes": stats.disk_bytes,
        "seq": checkpoint.seq,
        "slot": checkpoint.slot,
        "blockhash": bs58::encode(checkpoint.blockhash).into_string(),
        "phase": checkpoint.phase.to_string(),
        "details": stats.details,
    });
    ([(header::CONTENT_TYPE, "application/json")], json.to_string()).into_response()
}

fn refusal(error: Error) -> Status {
    match error.kind() {
        ErrorKind::FixInput => Status::failed_precondition(error.to_string()),
        _ => Refusal::from(error).into(),
    }
}

/// Serves the socket in `dir` until `shutdown` is ready; a request under way then gets no answer. If the socket cannot
/// be made, for example because its path is too long, the service runs without it and logs a warning.
pub(crate) async fn serve(dir: PathBuf, admin: Admin, shutdown: impl Future<Output = ()>) {
    let (listener, _file) = match bind(&dir) {
        Ok(bound) => bound,
        Err(error) => {
            let error = format!("{error:#}");
            tracing::warn!(error, "there is no admin socket: a snapshot needs the service stopped");
            return;
        }
    };
    let incoming = UnixListenerStream::new(listener);
    let info = axum::routing::get(info).with_state(admin.clone());
    let derived = derive::routes(admin.clone(), dir);
    let routes = Routes::new(AdminServer::new(admin)).into_axum_router().route_service("/info", info);
    let routes = routes.merge(derived);
    // HTTP/1 for these, because bootstrap does not speak gRPC.
    let server = Server::builder().accept_http1(true).add_routes(Routes::from(routes));
    tokio::select! {
        served = server.serve_with_incoming(incoming) => {
            if let Err(error) = served {
                tracing::error!(%error, "the admin socket is not served any more");
            }
        }
        () = shutdown => {}
    }
}

fn bind(dir: &Path) -> anyhow::Result<(UnixListener, SocketFile)> {
    let (listener, file) = UdsListener::bind(&dir.join(SOCKET), &SocketAccess::OWNER)?.into_parts();
    Ok((UnixListener::from_std(listener).context("cannot watch a unix socket")?, file))
}

/// Connects to the running service of the store in `dir`; `None` if no process listens.
///
/// # Errors
/// I/O errors of connecting, such as a lack of permission.
pub(crate) async fn connect(dir: &Path) -> anyhow::Result<Option<AdminClient<Channel>>> {
    let path = dir.join(SOCKET);
    // Connect once directly first, because the gRPC channel's error does not show the cause.
    match UnixStream::connect(&path).await {
        Ok(_) => {}
        Err(error) if matches!(error.kind(), Io::NotFound | Io::ConnectionRefused) => return Ok(None),
        Err(error) => {
            let user = "as its user, or as root";
            return Err(error)
                .with_context(|| format!("cannot reach the running service {user}: socket={}", path.display()));
        }
    }
    let connector = service_fn(move |_| {
        let path = path.clone();
        async move { Ok::<_, io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    // A placeholder: the connector ignores this name.
    let channel = Endpoint::from_static("http://admin").connect_with_connector(connector).await?;
    Ok(Some(AdminClient::new(channel)))
}
