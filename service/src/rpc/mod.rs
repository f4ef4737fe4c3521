//! gRPC: `solkv.v1.Kv` over TCP and a Unix socket, with health and reflection.
//!
//! Owns: the wire's checks, status codes and the servers' limits. Must not: touch the engine; it asks [`Lookups`].
//! Threads: the tokio runtime of the network edge.

mod kv;
pub(crate) mod uds;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use proto::v1::kv_server::KvServer;
use tokio::net::TcpListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::{Router, TcpIncoming};

use crate::lookups::Lookups;
use crate::status::Shared;

pub use kv::status_response;
pub use uds::UdsListener;

/// Requests one connection may have under way. Below the queue of the lookups, so one client alone cannot fill it.
const STREAMS_PER_CONNECTION: u32 = 256;

/// A peer that is silently gone is noticed after the sum of the two.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long requests under way may take after the shutdown began. Streams that never end, as a health watch,
/// are cut then.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Serves until `shutdown` is ready, then finishes the requests under way and returns. The socket file is removed.
///
/// # Errors
/// Those of the transport, or of a descriptor set that reflection cannot read.
pub async fn serve<F>(
    tcp: TcpListener,
    uds: Option<UdsListener>,
    lookups: Lookups,
    shared: Arc<Shared>,
    engine: &'static str,
    shutdown: F,
) -> anyhow::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<KvServer<kv::KvService>>().await;
    let mut routes = Routes::builder();
    routes
        .add_service(KvServer::new(kv::KvService::new(lookups, shared, engine)))
        .add_service(health_service)
        .add_service(reflection().build_v1()?)
        // Older tools speak only this one.
        .add_service(reflection().build_v1alpha()?);
    let routes = routes.routes();
    let ended = async move {
        shutdown.await;
        health.set_not_serving::<KvServer<kv::KvService>>().await;
    }
    .boxed()
    .shared();
    let on_tcp = router(routes.clone())
        .serve_with_incoming_shutdown(TcpIncoming::from(tcp).with_nodelay(Some(true)), ended.clone());
    let on_uds = async {
        let Some(uds) = uds else { return Ok(()) };
        let (listener, _file) = uds.into_parts();
        router(routes).serve_with_incoming_shutdown(UnixListenerStream::new(listener), ended.clone()).await
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

fn router(routes: Routes) -> Router {
    Server::builder()
        .concurrency_limit_per_connection(STREAMS_PER_CONNECTION as usize)
        .max_concurrent_streams(Some(STREAMS_PER_CONNECTION))
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_routes(routes)
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::v1::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

#[cfg(test)]
mod tests;
