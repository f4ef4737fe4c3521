//! The seam to a Yellowstone server: how it is reached, and the requests that it gets.
//!
//! Owns: the interface that the ingest needs of a server. Must not: decide when to connect, or interpret an answer.
//! Runs on a receiver's task. The simulation puts a scripted server here.

use std::fmt::Display;

use futures::channel::mpsc;
use futures::{Sink, SinkExt as _, Stream};
use tonic::{Status, Streaming};
use yellowstone_grpc_client::GeyserGrpcClientError;
use yellowstone_grpc_proto::geyser::{SubscribeReplayInfoRequest, SubscribeRequest, SubscribeUpdate};

use super::provider::{Compression, Provider, ProviderClient};
use super::refusals::explained;
use super::subscribe::Commitment;

/// Maximum number of requests of one subscription that wait to be sent: the subscription, and the answers to pings.
const REQUESTS: usize = 64;

/// A server that connections can be made to.
pub(crate) trait Upstream: Send + Sync {
    /// Type of a connection to the server.
    type Client: Client;

    /// Makes a new connection with the current credentials. The error says why it cannot.
    fn connect(&self) -> impl Future<Output = Result<Self::Client, String>> + Send;

    /// Waits until a new connection would be made with other credentials than the newest one.
    fn renewed(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Returns how the server is asked.
    fn access(&self) -> Access {
        Access::default()
    }

    /// Returns a server's message without the secrets that the server was sent.
    fn masked(&self, words: &str) -> String {
        words.to_owned()
    }

    /// Asks for the newest slot that the server has at this commitment, on a connection of its own. The error says why
    /// there is no answer.
    fn newest_slot(&self, commitment: Commitment) -> impl Future<Output = Result<u64, String>> + Send;

    /// Number of SIGHUPs so far.
    fn hangups(&self) -> u64 {
        0
    }
}

/// How a server is asked, as far as the meaning of its errors depends on it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Access {
    /// Whether requests carry a token.
    pub(crate) token: bool,
    /// Whether the connection is encrypted.
    pub(crate) https: bool,
    pub(crate) compression: Compression,
}

/// One connection, reduced to the requests that the ingest makes.
pub(crate) trait Client: Send {
    /// Sink that takes requests while the subscription lasts.
    type Requests: Sink<SubscribeRequest, Error: Display + Send> + Send + Unpin;
    /// Stream of the updates that the server sends.
    type Updates: Stream<Item = Result<SubscribeUpdate, Status>> + Send + Unpin;

    /// Asks for the oldest slot that the server can send again; `None` when it does not say.
    fn first_available(&mut self) -> impl Future<Output = Result<Option<u64>, GeyserGrpcClientError>> + Send;

    /// Subscribes, and returns the request sink and the update stream of the subscription.
    fn subscribe(
        &mut self,
        request: SubscribeRequest,
    ) -> impl Future<Output = Result<(Self::Requests, Self::Updates), GeyserGrpcClientError>> + Send;
}

impl Upstream for Provider {
    type Client = ProviderClient;

    async fn connect(&self) -> Result<ProviderClient, String> {
        self.client().await.map_err(|error| explained(chain(error.as_ref()), self.access().https))
    }

    async fn renewed(&self) {
        Self::renewed(self).await;
    }

    fn access(&self) -> Access {
        Self::access(self)
    }

    fn masked(&self, words: &str) -> String {
        Self::masked(self, words)
    }

    async fn newest_slot(&self, commitment: Commitment) -> Result<u64, String> {
        let failed = |error: anyhow::Error| explained(chain(error.as_ref()), self.access().https);
        Self::newest_slot(self, commitment).await.map_err(failed)
    }

    fn hangups(&self) -> u64 {
        Self::hangups(self)
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

/// Returns the error with its causes, each text once. The transport's own text is only "transport error", three times
/// over.
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
