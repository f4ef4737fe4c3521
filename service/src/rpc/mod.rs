//! gRPC: `solkv.v1.Kv` and `solkv.v1.Feed` over TCP and a Unix socket, with health and reflection.
//!
//! Owns: decoding and encoding of messages, status codes and the servers' limits. Must not: touch the engine, or decide who
//! gets an answer; `ask` does.
//! Threads: the tokio runtime of the network edge.

mod code;
mod dump;
mod feed;
mod guard;
mod health;
mod kv;
mod subscription;

use std::future::Future;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::{FutureExt as _, TryFutureExt as _};
use proto::v1::feed_server::FeedServer;
use proto::v1::kv_server::KvServer;
use tokio::net::{TcpListener, UnixListener};
use tonic::codec::CompressionEncoding;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::{Connected, Router};
use tower::layer::layer_fn;
use tower::layer::util::{Identity, Stack};

use crate::ask::Ask;
use crate::ask::budget::Peer;
use crate::ask::refusal::{Cause, Refusal};
use crate::base::slow::Transport;
use crate::net::Access;
use crate::net::accept::{Listening, Terms, connections};
use crate::net::connection::Connection;
use crate::net::discard::Discard;
use crate::net::figures::Listener;
use crate::net::limit::Room;
use crate::status::Status;
use guard::Guard;

pub use crate::net::uds::UdsListener;
pub use feed::FeedService;

// Maximum memory of one connection, from any client. Its window of unread bytes takes 1 MiB
// (`CONNECTION_WINDOW_BYTES`). Each of 256 requests takes a list of headers (8 KiB), twice `ask::budget::FREE_BYTES` (2 KiB)
// and a task (about 4 KiB), 3.5 MiB together. Large requests and answers take 16 MiB (`budget::PEER_BYTES_MAX`), but at
// most 64 MiB over all connections (`budget::BYTES_MAX`). 1024 connections at their maximum take 4.6 GiB, for which
// they need 262,144 requests at once. A service under a small memory cap needs a small `max_connections`.

/// Length of HTTP/2's opening line, `PRI * HTTP/2.0...`.
const GREETING_BYTES: u64 = 24;

/// Maximum number of requests under way on one connection. It is below the lookups' queue, so that one client alone
/// cannot fill that.
const STREAMS_PER_CONNECTION: u32 = 256;

/// Bytes of one request that may arrive before the service reads them. The largest request fits, so that none waits for
/// a window update.
const STREAM_WINDOW_BYTES: u32 = 512 * 1024;

/// Bytes of all requests of a connection that may arrive before the service reads them: two of the largest requests.
/// Small ones never get near it.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;

/// Maximum size of one request's metadata: a token and tracing headers take a few hundred bytes.
const HEADER_LIST_BYTES_MAX: u32 = 8 * 1024;

/// Maximum number of requests that a client has reset before the service saw them. Beyond it the connection ends,
/// because the client could continue without end at no cost (CVE-2023-44487).
const RESET_STREAMS_MAX: usize = 20;

/// Maximum number of streams that the service has reset because the client broke the protocol: the same attack from the
/// other side (CVE-2025-8671).
const BROKEN_STREAMS_MAX: usize = 64;

/// Maximum size of one message in either direction: 10,000 keys are 340 KB and their answer 380 KB, a filter of 10,000
/// entries is as large as the keys, and 1000 changes are 150 KB.
const MESSAGE_BYTES_MAX: usize = 512 * 1024;

/// Interval of HTTP/2 pings. A peer that has vanished silently is noticed after this and [`KEEPALIVE_TIMEOUT`]
/// together.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// Longest wait for the answer to a ping.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long requests under way may take after the shutdown has begun. Endless streams, such as a health watch, are cut
/// then.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// The state and the handlers that the gRPC methods use.
pub struct Services {
    pub ask: Ask,
    pub status: Status,
    pub feed: FeedService,
}

/// The listeners, and the limits of their connections.
pub struct Door {
    /// TCP listener, guarded by `access`.
    pub tcp: TcpListener,
    /// Unix socket, guarded by the permissions of its file; `None` without the setting.
    pub uds: Option<UdsListener>,
    pub access: Arc<Access>,
    /// Room for connections, and the limits of their requests.
    pub room: Room,
}

/// Serves until `shutdown` is ready, then finishes the requests under way and returns. Removes the file of the Unix
/// socket.
///
/// # Errors
/// Errors of the transport, or of a descriptor set that reflection cannot decode.
pub async fn serve<F>(door: Door, services: Services, shutdown: F) -> anyhow::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let (reporter, health_service) = tonic_health::server::health_reporter();
    health::begin(&reporter).await;
    let Services { ask, status, feed } = services;
    let mut routes = Routes::builder();
    let feed = FeedServer::new(feed)
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Zstd)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    // Answers are sent uncompressed: compression would add more time to a lookup than it saves on a network.
    let kv = KvServer::new(kv::KvService::new(ask.clone(), status.clone()))
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Zstd)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    routes
        .add_service(kv)
        .add_service(feed)
        .add_service(health_service)
        .add_service(reflection().build_v1()?)
        // Older tools speak only this version.
        .add_service(reflection().build_v1alpha()?);
    let routes = routes.routes();
    let ended = async move {
        tokio::select! {
            () = shutdown => {}
            () = health::follow(reporter.clone(), status) => {}
        }
        health::end(&reporter).await;
    }
    .boxed()
    .shared();
    let Door { tcp, uds, access, room } = door;
    let limits = room.limits();
    let guard = {
        let (access, request_timeout) = (Arc::clone(&access), limits.request_timeout);
        layer_fn(move |inner| Guard { inner, access: Arc::clone(&access), request_timeout })
    };
    let terms = |listener, transport| {
        let (ask, idle_timeout) = (ask.clone(), limits.idle_timeout);
        let attach = move |seat: &_, from| ask.peer(transport, from, seat);
        Terms { limit: room.at(listener), greeting_bytes: GREETING_BYTES, idle_timeout, attach }
    };
    let incoming = connections(Listening::Tcp(tcp, access), terms(Listener::GrpcTcp, Transport::GrpcTcp));
    let on_tcp = router(routes.clone(), guard.clone()).serve_with_incoming_shutdown(incoming, ended.clone()).err_into();
    let on_uds = async {
        let Some(uds) = uds else { return anyhow::Ok(()) };
        let (listener, _file) = uds.into_parts();
        let listener = UnixListener::from_std(listener).context("cannot watch a unix socket")?;
        let discard = Discard::start().context("cannot start the thread that closes connections")?;
        let listening = Listening::Uds(ManuallyDrop::new(listener), discard);
        let incoming = connections(listening, terms(Listener::GrpcUds, Transport::GrpcUds));
        Ok(router(routes, guard).serve_with_incoming_shutdown(incoming, ended.clone()).await?)
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

/// The connection's peer, which requests find among their extensions.
impl Connected for Connection<Arc<Peer>> {
    type ConnectInfo = Arc<Peer>;

    fn connect_info(&self) -> Arc<Peer> {
        Arc::clone(&self.attached)
    }
}

/// Returns the connection that a request came in on.
///
/// # Errors
/// The request has none, which only a fault of the service can cause.
fn peer(extensions: &http::Extensions) -> Result<&Arc<Peer>, Refusal> {
    extensions.get().ok_or_else(|| Refusal::new(Cause::Internal, "a request of no connection: this is a bug"))
}

fn router<L: Clone>(routes: Routes, guard: L) -> Router<Stack<L, Identity>> {
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
