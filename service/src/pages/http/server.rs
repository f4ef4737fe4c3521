//! The HTTP/1 server below the pages. It cuts clients that are slow to ask or to read.
//!
//! Owns: accepting, the limits of a connection. Must not: know a page. Threads: the network edge.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use futures::future::{Either, ready};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_io_timeout::TimeoutWriter;
use tower::ServiceBuilder;
use tower::limit::GlobalConcurrencyLimitLayer;

use crate::net::figures::Ending;
use crate::net::limit::{Admission, HTTP_SOURCE_MAX, Limit};
use crate::net::source::Source;

/// Time from the connection to a complete request head. Each connection serves one request, because an idle connection
/// could not be told from a slow head, and scrapers ask every few seconds at most.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// A client that reads nothing of its answer for this long is gone or hostile.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of a request head: a line and a few fields. A longer one is refused with 431.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Pages rendered at once; other requests wait. A metrics page takes milliseconds of CPU and a megabyte.
const PAGES_AT_ONCE: usize = 4;

/// Pause after a failed accept, for example because no descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` is ready, then finishes the requests under way and returns.
pub(super) async fn serve(listener: TcpListener, router: Router, limit: Limit, shutdown: impl Future<Output = ()>) {
    let service = ServiceBuilder::new().layer(GlobalConcurrencyLimitLayer::new(PAGES_AT_ONCE)).service(router);
    let pages = TowerToHyperService::new(service);
    let graceful = GracefulShutdown::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let (stream, admission) = tokio::select! {
            accepted = accept(&listener, &limit) => accepted,
            () = &mut shutdown => break,
        };
        let mut io = TimeoutWriter::new(stream);
        io.set_timeout(Some(WRITE_TIMEOUT));
        let (seat, pages) = (Arc::clone(admission.seat()), pages.clone());
        // A connection counts as a newcomer until its request head is complete.
        let service = service_fn(move |request| match seat.settle() {
            Ok(()) => Either::Left(pages.call(request)),
            Err(_) => Either::Right(ready(Ok(full()))),
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .keep_alive(false)
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(Box::pin(io)), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            let ended = tokio::select! {
                ended = connection => ended,
                () = admission.evicted() => return,
            };
            if let Err(error) = ended {
                if error.is_timeout() {
                    admission.cut(Ending::Greeting);
                }
                tracing::debug!(%error, "an HTTP connection ended early");
            }
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// Returns the answer to a connection over its source's share.
fn full() -> Response {
    let message = format!("too many connections from this address, try again later: max={HTTP_SOURCE_MAX}\n");
    (StatusCode::SERVICE_UNAVAILABLE, message).into_response()
}

/// Returns the next connection for which there is room, and closes the others.
async fn accept(listener: &TcpListener, limit: &Limit) -> (TcpStream, Admission) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                if let Some(admission) = limit.admit(Source::of(from.ip())) {
                    // An error means that the socket is gone, which the first read reports.
                    stream.set_nodelay(true).ok();
                    return (stream, admission);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
