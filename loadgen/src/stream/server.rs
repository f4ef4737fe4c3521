//! The gRPC side of the stream: the Geyser service over real sockets.
//!
//! Owns: sockets, tokens, and the mapping of calls to the log. `Subscribe` is answered with whole chunks of frames
//! instead of through the generated server, because that would encode message by message. Must not: generate slots.
//! Runs on the stream's tokio runtime.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::codec::{Codec, CompressionEncoding};
use tonic::server::NamedService;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status, Streaming};
use yellowstone_grpc_proto::geyser::geyser_server::{Geyser, GeyserServer};
use yellowstone_grpc_proto::geyser::{
    CommitmentLevel, GetBlockHeightRequest, GetBlockHeightResponse, GetLatestBlockhashRequest,
    GetLatestBlockhashResponse, GetSlotRequest, GetSlotResponse, GetVersionRequest, GetVersionResponse,
    IsBlockhashValidRequest, IsBlockhashValidResponse, PingRequest, PongResponse, SubscribeDeshredRequest,
    SubscribeGossipRequest, SubscribeReplayInfoRequest, SubscribeReplayInfoResponse, SubscribeRequest, SubscribeUpdate,
    SubscribeUpdateDeshred, SubscribeUpdateGossip,
};

use crate::stream::chain::Block;
use crate::stream::compress;
use crate::stream::feed::{End, Feed};
use crate::stream::filter::bad_commitment;
use crate::stream::shared::Shared;

/// Largest request in bytes: filters of some thousand pubkeys.
const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Number of blocks that the public server adds to a block's height for the last height at which its blockhash is
/// valid. (On the chain it is half of that.)
const BLOCKHASH_VALID_BLOCKS: u64 = 300;

/// Serves all calls until `shutdown` resolves.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    token: Option<String>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_service_status("geyser.Geyser", tonic_health::ServingStatus::Serving).await;
    let unary = GeyserServer::new(Unary { shared: Arc::clone(&shared) })
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Zstd);
    let service = GeyserService { shared, unary, token: token.map(Arc::from) };
    let sockets = TcpListenerStream::new(listener).map(|socket| {
        let socket = socket?;
        socket.set_nodelay(true)?;
        Ok::<_, io::Error>(Socket { socket, kill: Kill::default() })
    });
    tonic::transport::Server::builder()
        .add_service(health_service)
        .add_service(service)
        .serve_with_incoming_shutdown(sockets, shutdown)
        .await
}

/// Flag that makes a connection's socket fail.
#[derive(Clone, Debug, Default)]
struct Kill(Arc<AtomicBool>);

impl Kill {
    fn check(&self) -> io::Result<()> {
        // ORDERING: Acquire pairs with the Release in `Feed::next_chunk`; both run on the connection's task.
        if self.0.load(Ordering::Acquire) { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }
}

/// A socket that can be cut in the middle of a message.
struct Socket {
    socket: TcpStream,
    kill: Kill,
}

impl Connected for Socket {
    type ConnectInfo = Kill;

    fn connect_info(&self) -> Kill {
        self.kill.clone()
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.kill.check()?;
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.kill.check()?;
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.kill.check()?;
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.kill.check()?;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// Routes `Subscribe` to a [`Feed`], and all other calls to the generated server.
#[derive(Clone)]
struct GeyserService {
    shared: Arc<Shared>,
    unary: GeyserServer<Unary>,
    token: Option<Arc<str>>,
}

impl NamedService for GeyserService {
    const NAME: &'static str = "geyser.Geyser";
}

impl tower::Service<http::Request<Body>> for GeyserService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if !self.authorized(&request) {
            let status = Status::unauthenticated("No valid auth token");
            return Box::pin(std::future::ready(Ok(status.into_http())));
        }
        let response = match request.uri().path() {
            "/geyser.Geyser/Subscribe" => subscribe(&self.shared, request).unwrap_or_else(Status::into_http),
            _ if self.shared.delivery.unary_disabled => Status::unimplemented("method disabled").into_http(),
            _ => return Box::pin(self.unary.call(request)),
        };
        Box::pin(std::future::ready(Ok(response)))
    }
}

impl GeyserService {
    fn authorized(&self, request: &http::Request<Body>) -> bool {
        let Some(token) = &self.token else { return true };
        let given = request.headers().get("x-token").map_or(&b""[..], |value| value.as_bytes());
        // Compare every byte, so that the time taken does not tell where a guess is wrong.
        given.len() == token.len() && given.iter().zip(token.bytes()).fold(0, |diff, (a, b)| diff | (a ^ b)) == 0
    }
}

fn subscribe(shared: &Arc<Shared>, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let encoding_of_requests = compress::named(header("grpc-encoding"));
    let encoding = shared.delivery.compression.for_client(header("grpc-accept-encoding"));
    let kill = request.extensions().get::<Kill>().cloned().unwrap_or_default();
    let decoder = tonic_prost::ProstCodec::<SubscribeUpdate, SubscribeRequest>::default().decoder();
    let requests = Streaming::new_request(decoder, request.into_body(), encoding_of_requests, Some(REQUEST_BYTES_MAX));
    let feed = Feed::new(Arc::clone(shared), requests, kill.0)?;
    let body = Chunks { next: Some(next(feed, encoding)), encoding, ended: false };
    let response = http::Response::builder().header(http::header::CONTENT_TYPE, "application/grpc");
    let response = match encoding {
        Some(encoding) => response.header("grpc-encoding", encoding.to_string()),
        None => response,
    };
    Ok(response.body(Body::new(body)).expect("fixed headers make a valid response"))
}

type Next = Pin<Box<dyn Future<Output = (Feed, Result<Bytes, End>)> + Send>>;

fn next(mut feed: Feed, encoding: Option<CompressionEncoding>) -> Next {
    Box::pin(async move {
        let chunk = feed.next_chunk().await.and_then(|chunk| match encoding {
            None => Ok(chunk),
            Some(encoding) => compress::compressed(chunk, encoding)
                .map_err(|error| End::Status(Status::internal(format!("cannot compress a message: {error}")))),
        });
        (feed, chunk)
    })
}

/// A response body of gRPC frames, some hundred in a chunk.
struct Chunks {
    next: Option<Next>,
    encoding: Option<CompressionEncoding>,
    ended: bool,
}

impl http_body::Body for Chunks {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(future) = &mut self.next else { return Poll::Ready(None) };
        let Poll::Ready((feed, result)) = future.as_mut().poll(cx) else { return Poll::Pending };
        match result {
            Ok(chunk) => {
                self.next = Some(next(feed, self.encoding));
                Poll::Ready(Some(Ok(Frame::data(chunk))))
            }
            Err(end) => {
                self.next = None;
                self.ended = true;
                Poll::Ready(Some(end_frame(end)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

fn end_frame(end: End) -> Result<Frame<Bytes>, Status> {
    let End::Status(status) = end else { return Err(Status::unavailable("connection cut on purpose")) };
    let mut trailers = http::HeaderMap::new();
    status.add_header(&mut trailers)?;
    Ok(Frame::trailers(trailers))
}

/// The calls that answer once, for the generated server.
struct Unary {
    shared: Arc<Shared>,
}

impl Unary {
    fn tip(&self, commitment: Option<i32>) -> Result<Arc<Block>, Status> {
        let tip = self.shared.log.tip();
        let block = match level(commitment)? {
            CommitmentLevel::Processed => tip.processed,
            CommitmentLevel::Confirmed => tip.confirmed,
            CommitmentLevel::Finalized => tip.finalized,
        };
        block.ok_or_else(|| Status::internal("block is not available yet"))
    }
}

fn level(commitment: Option<i32>) -> Result<CommitmentLevel, Status> {
    let commitment = commitment.unwrap_or(0);
    CommitmentLevel::try_from(commitment).map_err(|_| Status::unknown(bad_commitment(commitment)))
}

type Never<T> = tokio_stream::Pending<Result<T, Status>>;

#[tonic::async_trait]
impl Geyser for Unary {
    type SubscribeStream = Never<SubscribeUpdate>;
    type SubscribeDeshredStream = Never<SubscribeUpdateDeshred>;
    type SubscribeGossipStream = Never<SubscribeUpdateGossip>;

    async fn subscribe(
        &self,
        _: Request<Streaming<SubscribeRequest>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        Err(Status::internal("subscribe is routed past the generated server"))
    }

    async fn subscribe_deshred(
        &self,
        _: Request<Streaming<SubscribeDeshredRequest>>,
    ) -> Result<Response<Self::SubscribeDeshredStream>, Status> {
        Err(Status::unimplemented("SubscribeDeshred is not served by this stream"))
    }

    async fn subscribe_gossip(
        &self,
        _: Request<SubscribeGossipRequest>,
    ) -> Result<Response<Self::SubscribeGossipStream>, Status> {
        Err(Status::unimplemented("SubscribeGossip is not served by this stream"))
    }

    async fn subscribe_replay_info(
        &self,
        _: Request<SubscribeReplayInfoRequest>,
    ) -> Result<Response<SubscribeReplayInfoResponse>, Status> {
        Ok(Response::new(SubscribeReplayInfoResponse { first_available: self.shared.log.first_available() }))
    }

    async fn ping(&self, request: Request<PingRequest>) -> Result<Response<PongResponse>, Status> {
        Ok(Response::new(PongResponse { count: request.into_inner().count }))
    }

    async fn get_latest_blockhash(
        &self,
        request: Request<GetLatestBlockhashRequest>,
    ) -> Result<Response<GetLatestBlockhashResponse>, Status> {
        let block = self.tip(request.into_inner().commitment)?;
        Ok(Response::new(GetLatestBlockhashResponse {
            slot: block.slot,
            blockhash: block.hash_base58(),
            last_valid_block_height: block.height + BLOCKHASH_VALID_BLOCKS,
        }))
    }

    async fn get_block_height(
        &self,
        request: Request<GetBlockHeightRequest>,
    ) -> Result<Response<GetBlockHeightResponse>, Status> {
        let block = self.tip(request.into_inner().commitment)?;
        Ok(Response::new(GetBlockHeightResponse { block_height: block.height }))
    }

    async fn get_slot(&self, request: Request<GetSlotRequest>) -> Result<Response<GetSlotResponse>, Status> {
        let block = self.tip(request.into_inner().commitment)?;
        Ok(Response::new(GetSlotResponse { slot: block.slot }))
    }

    async fn is_blockhash_valid(
        &self,
        request: Request<IsBlockhashValidRequest>,
    ) -> Result<Response<IsBlockhashValidResponse>, Status> {
        let request = request.into_inner();
        level(request.commitment)?;
        let block = self.shared.log.find(&request.blockhash)?;
        let tip = self.tip(request.commitment)?;
        let valid = block.is_some_and(|block| block.height <= tip.height);
        Ok(Response::new(IsBlockhashValidResponse { slot: tip.slot, valid }))
    }

    async fn get_version(&self, _: Request<GetVersionRequest>) -> Result<Response<GetVersionResponse>, Status> {
        let version = serde_json::json!({
            "version": { "package": "solkv-loadgen", "version": env!("CARGO_PKG_VERSION"), "proto": "14.0.1" }
        });
        Ok(Response::new(GetVersionResponse { version: version.to_string() }))
    }
}
