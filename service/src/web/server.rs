//! The HTTP/1 server below the paths.
//!
//! Owns: connections that are kept for further requests, and their limits beyond those of `net`. Must not: know a path. Threads:
//! the network edge.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::http::Request;
use futures::{FutureExt as _, StreamExt as _};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio_io_timeout::TimeoutWriter;

use super::{Shared, router};
use crate::ask::Ask;
use crate::ask::door::{Door, Names};
use crate::base::slow::Transport;
use crate::net::figures::Listener;
use crate::net::host::Hosts;

const NAMES: Names =
    Names { tcp: (Listener::HttpTcp, Transport::HttpTcp), uds: (Listener::HttpUds, Transport::HttpUds) };

/// Time in which a request's head has to come, also on a connection that is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// A client that reads nothing of its answers for this long is gone or hostile.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum size of a request's head: a line, a token and a few fields. A longer one is refused with 431.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// How long requests under way may take after the shutdown has begun.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Serves until `shutdown` is ready, then finishes the requests under way and returns. Removes the file of the Unix socket.
/// `address` is the setting `http`, whose name is one of those that are answered to.
///
/// # Errors
/// The Unix socket cannot be watched.
pub async fn serve<F>(door: Door, address: Option<String>, ask: Ask, shutdown: F) -> Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let shared = Arc::new(Shared {
        ask: ask.clone(),
        access: Arc::clone(&door.access),
        hosts: Hosts::new("http", address.as_deref().unwrap_or_default()),
        request_timeout: door.room.limits().request_timeout,
    });
    let paths = TowerToHyperService::new(router(shared));
    let (mut incoming, _file) = door.open(&ask, NAMES, 1)?;
    let graceful = GracefulShutdown::new();
    let mut shutdown = pin!(shutdown.fuse());
    loop {
        let connection = tokio::select! {
            Some(Ok(connection)) = incoming.next() => connection,
            () = &mut shutdown => break,
        };
        let (peer, paths) = (Arc::clone(&connection.attached), paths.clone());
        let mut io = TimeoutWriter::new(connection);
        io.set_timeout(Some(WRITE_TIMEOUT));
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Arc::clone(&peer));
            paths.call(request)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(Box::pin(io)), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection of http ended early");
            }
        });
    }
    drop(incoming);
    if tokio::time::timeout(SHUTDOWN_GRACE, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests still under way are cut: grace_s={}", SHUTDOWN_GRACE.as_secs());
    }
    Ok(())
}
