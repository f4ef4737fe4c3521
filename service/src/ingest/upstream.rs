//! The far end of a connection: how a Yellowstone server is reached, and what it is asked.
//!
//! Owns: the client's settings. Must not: decide when to connect or what an answer means, or log the token. Runs on a
//! receiver's task. The simulation puts a scripted server here.

use std::fmt::Display;
use std::time::Duration;

use futures::{Sink, Stream};
use tonic::Status;
use tonic::transport::ClientTlsConfig;
use yellowstone_grpc_client::{
    GeyserGrpcBuilder, GeyserGrpcBuilderError, GeyserGrpcClient, GeyserGrpcClientError, GeyserStream,
    SubscribeRequestSink,
};
use yellowstone_grpc_proto::geyser::{SubscribeRequest, SubscribeUpdate};

use super::connect::Ended;
use super::receive::ReceiveConfig;

/// The largest message taken in: an account is at most 10 MiB, and a server may not honour the slice.
const MESSAGE_MAX_BYTES: usize = 64 << 20;

/// Requests waiting inside the client's channel before its buffer pushes back; only pings and one subscription.
const CLIENT_BUFFER_REQUESTS: usize = 64;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Where connections lead to.
pub(crate) trait Upstream: Send + Sync {
    /// One connection.
    type Client: Client;

    /// Makes a connection.
    fn connect(&self) -> impl Future<Output = Result<Self::Client, Ended>> + Send;
}

/// One connection, as far as the ingest uses it.
pub(crate) trait Client: Send {
    /// Takes requests while the subscription lasts.
    type Requests: Sink<SubscribeRequest, Error: Display> + Send + Unpin;
    /// What the server sends.
    type Updates: Stream<Item = Result<SubscribeUpdate, Status>> + Send + Unpin;

    /// The oldest slot that the server can send again; `None` when it does not say.
    fn first_available(&mut self) -> impl Future<Output = Result<Option<u64>, GeyserGrpcClientError>> + Send;

    /// Subscribes.
    fn subscribe(
        &mut self,
        request: SubscribeRequest,
    ) -> impl Future<Output = Result<(Self::Requests, Self::Updates), GeyserGrpcClientError>> + Send;
}

impl Upstream for ReceiveConfig {
    type Client = GeyserGrpcClient;

    async fn connect(&self) -> Result<GeyserGrpcClient, Ended> {
        let builder = builder(self).map_err(|error| {
            // The token's own error does not hold the token.
            Ended::Refused(format!("cannot use the stream's settings: url={}: {error}", self.url))
        })?;
        builder.connect().await.map_err(|error| Ended::Retry(format!("cannot connect: {}", chain(&error))))
    }
}

impl Client for GeyserGrpcClient {
    type Requests = SubscribeRequestSink;
    type Updates = GeyserStream;

    async fn first_available(&mut self) -> Result<Option<u64>, GeyserGrpcClientError> {
        Ok(self.subscribe_replay_info().await?.first_available)
    }

    async fn subscribe(
        &mut self,
        request: SubscribeRequest,
    ) -> Result<(SubscribeRequestSink, GeyserStream), GeyserGrpcClientError> {
        self.subscribe_with_request(Some(request)).await
    }
}

fn builder(config: &ReceiveConfig) -> Result<GeyserGrpcBuilder, GeyserGrpcBuilderError> {
    let builder = GeyserGrpcBuilder::from_shared(config.url.clone())?
        .x_token(config.x_token.as_deref())?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_adaptive_window(true)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true)
        .buffer_size(CLIENT_BUFFER_REQUESTS)
        .max_decoding_message_size(MESSAGE_MAX_BYTES);
    if config.url.starts_with("https://") {
        return builder.tls_config(ClientTlsConfig::new().with_native_roots());
    }
    Ok(builder)
}

/// The error with its causes, each text once: the transport's own is only "transport error", and says it three times.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.ends_with(&words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    text
}
