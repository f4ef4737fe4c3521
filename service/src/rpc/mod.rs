//! gRPC: `solkv.v1.Kv` and `solkv.v1.Feed` over TCP and a Unix socket, with health and reflection.
//!
//! Owns: the wire's checks, status codes and the servers' limits. Must not: touch the engine; it asks [`Lookups`].
//! Threads: the tokio runtime of the network edge.

mod accept;
mod budget;
mod dump;
mod feed;
mod guard;
mod health;
mod kv;
mod places;
mod socket;
pub(crate) mod uds;
mod wait;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use proto::v1::feed_server::FeedServer;
use proto::v1::kv_server::KvServer;
use tokio::net::TcpListener;
use tonic::codec::CompressionEncoding;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tower::layer::util::{Identity, Stack};

use crate::lookups::Lookups;
use crate::net::Access;
use crate::net::limit::{ConnectionLimits, Limit};
use crate::status::Shared;
use accept::{Listening, Terms, connections};
use budget::Budget;
use guard::GuardLayer;

pub use feed::{FeedLimits, FeedService};
pub use kv::status_response;
pub use uds::UdsListener;

// What one connection can cost at most, whoever opened it: its window of what is not yet read, 1 MiB
// (`CONNECTION_WINDOW_BYTES`); for each of 256 requests a list of headers (8 KiB), twice `budget::FREE_BYTES` (2 KiB)
// and a task (about 4 KiB), 3.5 MiB; and 16 MiB of large requests and answers (`budget::PEER_BYTES_MAX`), of which there
// are at most 64 MiB in all (`budget::BYTES_MAX`). 1024 connections that all do their worst: 4.6 GiB, for which they
// need 262,144 requests at once. A service under a small cap is given a small `max_connections`.

/// Requests one connection may have under way. Below the queue of the lookups, so one client alone cannot fill it.
const STREAMS_PER_CONNECTION: u32 = 256;

/// What one request may have on its way to us before we read it. The largest request fits, so none waits for a window.
const STREAM_WINDOW_BYTES: u32 = 512 * 1024;

/// The same for all requests of a connection: two of the largest; small ones never get near it.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;

/// Metadata of one request: a token and tracing headers take a few hundred bytes.
const HEADER_LIST_BYTES_MAX: u32 = 8 * 1024;

/// Requests that a client has taken back before we saw them: beyond it the connection ends, as it costs the client
/// nothing to go on forever (CVE-2023-44487).
const RESET_STREAMS_MAX: usize = 20;

/// Streams that we have reset because the client broke the protocol: as above, from the other side (CVE-2025-8671).
const BROKEN_STREAMS_MAX: usize = 64;

/// One message, either way: 10,000 keys are 340 KB, their answer 380 KB; a filter of 10,000 entries is as large as the
/// keys, 1000 changes 150 KB.
const MESSAGE_BYTES_MAX: usize = 512 * 1024;

/// A peer that is silently gone is noticed after the sum of the two.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long requests under way may take after the shutdown began. Streams that never end, as a health watch,
/// are cut then.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// What is served.
pub struct Services {
    /// The way to the engine.
    pub lookups: Lookups,
    /// The service's figures.
    pub shared: Arc<Shared>,
    /// The change feed.
    pub feed: FeedService,
    /// The engine's label.
    pub engine: &'static str,
}

/// The way in: where connections come from, and what each has to keep to.
pub struct Door {
    /// Guarded by `access`.
    pub tcp: TcpListener,
    /// Guarded by the permissions of its file.
    pub uds: Option<UdsListener>,
    /// TLS and tokens.
    pub access: Arc<Access>,
    /// On both listeners together.
    pub limits: ConnectionLimits,
    /// A request that is not answered for this long is given up. Streams of answers may last.
    pub request_timeout: Duration,
}

/// Serves until `shutdown` is ready, then finishes the requests under way and returns. The socket file is removed.
///
/// # Errors
/// Those of the transport, or of a descriptor set that reflection cannot read.
pub async fn serve<F>(door: Door, services: Services, shutdown: F) -> anyhow::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let (reporter, health_service) = tonic_health::server::health_reporter();
    health::begin(&reporter).await;
    let Services { lookups, shared, feed, engine } = services;
    let mut routes = Routes::builder();
    let feed = FeedServer::new(feed)
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Zstd)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    // Answers are sent as they are: compressing them would cost each lookup more time than a network takes.
    let kv = KvServer::new(kv::KvService::new(lookups, Arc::clone(&shared), engine))
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Zstd)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    routes
        .add_service(kv)
        .add_service(feed)
        .add_service(health_service)
        .add_service(reflection().build_v1()?)
        // Older tools speak only this one.
        .add_service(reflection().build_v1alpha()?);
    let routes = routes.routes();
    let figures = Arc::clone(&shared);
    let ended = async move {
        tokio::select! {
            () = shutdown => {}
            () = health::follow(reporter.clone(), figures) => {}
        }
        health::end(&reporter).await;
    }
    .boxed()
    .shared();
    let Door { tcp, uds, access, limits, request_timeout } = door;
    let (tcp_limit, uds_limit) = Limit::grpc(limits, &shared);
    let budget = Budget::new(shared);
    let guard = GuardLayer::new(Arc::clone(&access), request_timeout);
    let terms = |limit| Terms { limit, budget: Arc::clone(&budget), idle_timeout: limits.idle_timeout };
    let incoming = connections(Listening::Tcp(tcp, access), terms(tcp_limit));
    let on_tcp = router(routes.clone(), guard.clone()).serve_with_incoming_shutdown(incoming, ended.clone());
    let on_uds = async {
        let Some(uds) = uds else { return Ok(()) };
        let (listener, _file) = uds.into_parts();
        let incoming = connections(Listening::Uds(listener), terms(uds_limit));
        router(routes, guard).serve_with_incoming_shutdown(incoming, ended.clone()).await
    };
    let overdue = async {
        ended.clone().await;
        tokio::time::sleep(SHUTDOWN_GRACE).await;
    };
    tokio::select! {
        served = async { tokio::try_join!(on_tcp, on_uds) } => {
            served?;
        }
        () = overdue => tracing::warn!("requests still under way are cut: grace_s={}", SHUTDOWN_GRACE.as_secs()),
    }
    Ok(())
}

fn router(routes: Routes, guard: GuardLayer) -> Router<Stack<GuardLayer, Identity>> {
    Server::builder()
        .concurrency_limit_per_connection(STREAMS_PER_CONNECTION as usize)
        .max_concurrent_streams(Some(STREAMS_PER_CONNECTION))
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_max_header_list_size(HEADER_LIST_BYTES_MAX)
        .http2_max_pending_accept_reset_streams(Some(RESET_STREAMS_MAX))
        .http2_max_local_error_reset_streams(Some(BROKEN_STREAMS_MAX))
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .layer(guard)
        .add_routes(routes)
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::v1::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

#[cfg(test)]
mod tests;
