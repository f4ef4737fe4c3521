//! The HTTP/1 server below the pages. It cuts clients that are slow to ask or to read.
//!
//! Owns: the limits of a connection beyond those of `net`. Must not: know a page. Threads: the network edge.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use futures::StreamExt as _;
use futures::future::{Either, ready};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio_io_timeout::TimeoutWriter;
use tower::ServiceBuilder;
use tower::limit::GlobalConcurrencyLimitLayer;

use crate::net::accept::{Listening, Terms, connections};
use crate::net::figures::Ending;
use crate::net::limit::{HTTP_SOURCE_MAX, Limit, Seat};

/// Time from the connection to a complete request head. Each connection serves one request, because an idle connection
/// could not be told from a slow head, and scrapers ask every few seconds at most.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// A client that reads nothing of its answer for this long is gone or hostile.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of a request head: a line and a few fields. A longer one is refused with 431.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Pages rendered at once; other requests wait. A metrics page takes milliseconds of CPU and a megabyte.
const PAGES_AT_ONCE: usize = 4;

/// Serves until `shutdown` is ready, then finishes the requests under way and returns.
pub(super) async fn serve(listener: TcpListener, router: Router, limit: Limit, shutdown: impl Future<Output = ()>) {
    let service = ServiceBuilder::new().layer(GlobalConcurrencyLimitLayer::new(PAGES_AT_ONCE)).service(router);
    let pages = TowerToHyperService::new(service);
    let graceful = GracefulShutdown::new();
    let mut shutdown = pin!(shutdown);
    let attach = |seat: &Arc<Seat>, _| Arc::clone(seat);
    let terms = Terms { limit, greeting_bytes: 1, idle_timeout: Duration::ZERO, attach };
    let mut accepted = connections(Listening::Tcp(listener, Arc::default()), terms);
    loop {
        let connection = tokio::select! {
            Some(Ok(connection)) = accepted.next() => connection,
            () = &mut shutdown => break,
        };
        let (seat, pages) = (Arc::clone(&connection.attached), pages.clone());
        let own = Arc::clone(&seat);
        let mut io = TimeoutWriter::new(connection);
        io.set_timeout(Some(WRITE_TIMEOUT));
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
            if let Err(error) = connection.await {
                if error.is_timeout() {
                    own.cut(Ending::Greeting);
                }
                tracing::debug!(%error, "an HTTP connection ended early");
            }
        });
    }
    drop(accepted);
    graceful.shutdown().await;
}

/// Returns the answer to a connection over its source's share.
fn full() -> Response {
    let message = format!("too many connections from this address, try again later: max={HTTP_SOURCE_MAX}\n");
    (StatusCode::SERVICE_UNAVAILABLE, message).into_response()
}
