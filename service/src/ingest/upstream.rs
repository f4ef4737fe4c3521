//! The far end of a connection: how a Yellowstone server is reached, and what it is asked.
//!
//! Owns: what the ingest needs of a server. Must not: decide when to connect or what an answer means. Runs on a
//! receiver's task. The simulation puts a scripted server here.

use std::fmt::Display;

use futures::channel::mpsc;
use futures::{Sink, SinkExt as _, Stream};
use tonic::{Status, Streaming};
use yellowstone_grpc_client::GeyserGrpcClientError;
use yellowstone_grpc_proto::geyser::{SubscribeReplayInfoRequest, SubscribeRequest, SubscribeUpdate};

use super::connect::Ended;
use super::provider::{Provider, ProviderClient};

/// Requests of one subscription that wait to be sent: the subscription, and the answers to pings.
const REQUESTS: usize = 64;

/// Where connections lead to.
pub(crate) trait Upstream: Send + Sync {
    /// One connection.
    type Client: Client;

    /// Makes a connection.
    fn connect(&self) -> impl Future<Output = Result<Self::Client, Ended>> + Send;

    /// Ready once a new connection would be made with other credentials than the newest one was.
    fn renewed(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Whether connections carry a token.
    fn has_token(&self) -> bool {
        false
    }

    /// A server's words without the secrets that it was sent.
    fn masked(&self, words: &str) -> String {
        words.to_owned()
    }
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

impl Upstream for Provider {
    type Client = ProviderClient;

    async fn connect(&self) -> Result<ProviderClient, Ended> {
        self.client().await.map_err(|error| Ended::Retry(chain(error.as_ref())))
    }

    async fn renewed(&self) {
        Self::renewed(self).await;
    }

    fn has_token(&self) -> bool {
        Self::has_token(self)
    }

    fn masked(&self, words: &str) -> String {
        Self::masked(self, words)
    }
}

impl Client for ProviderClient {
    type Requests = mpsc::Sender<SubscribeRequest>;
    type Updates = Streaming<SubscribeUpdate>;

    async fn first_available(&mut self) -> Result<Option<u64>, GeyserGrpcClientError> {
        Ok(self.subscribe_replay_info(SubscribeReplayInfoRequest {}).await?.into_inner().first_available)
    }

    async fn subscribe(
        &mut self,
        request: SubscribeRequest,
    ) -> Result<(mpsc::Sender<SubscribeRequest>, Streaming<SubscribeUpdate>), GeyserGrpcClientError> {
        let (mut requests, sent) = mpsc::channel(REQUESTS);
        requests.send(request).await.map_err(|_| Status::internal("a new channel is closed: this is a bug"))?;
        Ok((requests, Self::subscribe(self, sent).await?.into_inner()))
    }
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
