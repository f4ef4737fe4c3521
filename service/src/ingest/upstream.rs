//! The seam to a Yellowstone server: how it is reached, and the requests that it gets.
//!
//! Owns: the interface that the ingest needs of a server. Must not: decide when to connect, or interpret an answer.
//! Runs on a receiver's task. The simulation puts a scripted server here.

use std::fmt::Display;

use futures::{Sink, Stream};
use serde::{Deserialize, Serialize};
use tonic::Status;
use tonic::codec::CompressionEncoding;
use yellowstone_grpc_client::GeyserGrpcClientError;
use yellowstone_grpc_proto::geyser::{SubscribeRequest, SubscribeUpdate};

use super::subscribe::Commitment;

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

/// Encoding in which the server may compress its answers, and in which requests to it are compressed. A server compresses each
/// message by itself, which costs it 30 us and the service 15 us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compression {
    /// Nothing is sent or accepted compressed.
    #[default]
    None,
    /// Requests and answers are compressed with gzip.
    Gzip,
    /// Requests and answers are compressed with Zstandard.
    Zstd,
}

impl Compression {
    /// The name of the encoding, as settings and the header `grpc-encoding` have it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    pub(super) const fn encoding(self) -> Option<CompressionEncoding> {
        match self {
            Self::None => None,
            Self::Gzip => Some(CompressionEncoding::Gzip),
            Self::Zstd => Some(CompressionEncoding::Zstd),
        }
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
