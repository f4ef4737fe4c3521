//! The layer before and after every request: admission, the size of request and answer, the time limit.
//!
//! Owns: the token check, which precedes reading anything of the request; settling the connection, which follows it;
//! charging the bytes read and sent; the service's own time limit. Must not: know a method, except health, which
//! everybody may call. Threads: the network edge.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use proto::v1::GET_MANY_KEYS_MAX;
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use super::{MESSAGE_BYTES_MAX, peer};
use crate::ask::budget::{Charge, FREE_BYTES, Peer, no_room};
use crate::ask::refusal::{Cause, Refusal};
use crate::net::Access;
use crate::net::access::bearer;
use crate::net::connection::UnderWay;

/// Path prefix that needs no token: load balancers call health without one, and it says nothing about the data.
const OPEN_PATHS: &str = "/grpc.health.v1.Health/";

/// The type of a gRPC request; the name of an encoding or parameters may follow.
const GRPC: &str = "application/grpc";

/// How a client sends a token.
const TOKEN_HOW: &str = "send metadata authorization: Bearer TOKEN";

/// Bytes before a message: a flag, and its length as a big-endian number.
const MESSAGE_HEADER_BYTES: usize = 5;

/// A service with the checks of this file around it.
#[derive(Clone)]
pub(super) struct Guard<S> {
    pub(super) inner: S,
    pub(super) access: Arc<Access>,
    pub(super) request_timeout: Duration,
}

impl<S> Service<Request<Body>> for Guard<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if let Err(refused) = check_form(&request) {
            return Box::pin(std::future::ready(Ok(refused)));
        }
        let peer = match peer(request.extensions()).and_then(|peer| admit(&self.access, peer, &request)) {
            Ok(peer) => peer,
            Err(refused) => return Box::pin(std::future::ready(Ok(Status::from(refused).into_http()))),
        };
        let under_way = UnderWay::new(&peer.seat);
        let charge = Arc::new(Charge::new(&peer));
        // A client without a token takes nothing that others need.
        let asked = (!is_open(&request)).then(|| Arc::clone(&charge));
        let request = request.map(|body| Body::new(Asked { body, charge: asked, free: FREE_BYTES, has_begun: false }));
        let timeout = self.request_timeout;
        let answer = tokio::time::timeout(timeout, self.inner.call(request));
        Box::pin(async move {
            let answered = answer.await;
            drop(charge);
            let Ok(answered) = answered else {
                let message = format!("not answered within limit={timeout:?}");
                return Ok(Status::from(Refusal::new(Cause::Overdue, message)).into_http());
            };
            Ok(answered?.map(|body| Body::new(Answer { body, peer, free: FREE_BYTES, _under_way: under_way })))
        })
    }
}

/// Admits a request of a connection, which it returns.
fn admit(access: &Access, peer: &Arc<Peer>, request: &Request<Body>) -> Result<Arc<Peer>, Refusal> {
    if !is_open(request) {
        peer.admit(access, bearer(request.headers()), TOKEN_HOW)?;
    }
    Ok(Arc::clone(peer))
}

/// Whether a request needs no token.
fn is_open<B>(request: &Request<B>) -> bool {
    request.uri().path().starts_with(OPEN_PATHS)
}

/// Refuses a request that is not gRPC's. A web page of any other site can send requests of some types without asking
/// before; gRPC's is not among them.
#[allow(clippy::result_large_err, reason = "it is returned once, and not passed on")]
fn check_form<B>(request: &Request<B>) -> Result<(), Response<Body>> {
    let refused = |status: StatusCode, name, value| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = status;
        response.headers_mut().insert(name, HeaderValue::from_static(value));
        Err(response)
    };
    if request.method() != Method::POST {
        return refused(StatusCode::METHOD_NOT_ALLOWED, ALLOW, "POST");
    }
    let rest = request.headers().get(CONTENT_TYPE).and_then(|value| value.as_bytes().strip_prefix(GRPC.as_bytes()));
    match rest {
        Some([] | [b'+' | b';', ..]) => Ok(()),
        _ => refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, ACCEPT, GRPC),
    }
}

/// Returns the number of `bytes` beyond the rest of the free ones, and reduces that rest.
fn charged(free: &mut usize, bytes: usize) -> usize {
    let granted = bytes.min(*free);
    *free -= granted;
    bytes - granted
}

/// A request's body. Its bytes are charged as they arrive, until the answer is there.
struct Asked {
    body: Body,
    /// `None` if the request may have no more than the free bytes.
    charge: Option<Arc<Charge>>,
    free: usize,
    /// Whether any of it has come.
    has_begun: bool,
}

impl HttpBody for Asked {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            if !std::mem::replace(&mut self.has_begun, true) {
                refuse_too_large(data).map_err(Status::from)?;
            }
            let bytes = charged(&mut self.free, data.len());
            if bytes > 0 && !self.charge.as_ref().is_some_and(|charge| charge.grow(bytes)) {
                return Poll::Ready(Some(Err(no_room("requests under way").into())));
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Refuses a message that is too large by its header, before any more of it is read. tonic would refuse it as well, with
/// a code that the feed has for another error. A client that sends less than a header first gets that code.
fn refuse_too_large(begins: &[u8]) -> Result<(), Refusal> {
    let Some([_, length @ ..]) = begins.first_chunk::<MESSAGE_HEADER_BYTES>() else { return Ok(()) };
    let bytes = u32::from_be_bytes(*length) as usize;
    if bytes <= MESSAGE_BYTES_MAX {
        return Ok(());
    }
    let message = format!(
        "the message is too large, ask in parts of at most {GET_MANY_KEYS_MAX} keys: bytes={bytes} \
         max_bytes={MESSAGE_BYTES_MAX}"
    );
    Err(Refusal::new(Cause::Invalid, message))
}

/// An answer's body. Its bytes are charged as they are produced, until they are sent.
struct Answer {
    body: Body,
    peer: Arc<Peer>,
    free: usize,
    _under_way: UnderWay,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            end => return Poll::Ready(end),
        };
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
        };
        let bytes = charged(&mut self.free, data.len());
        if bytes == 0 {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let charge = Charge::new(&self.peer);
        if charge.grow(bytes) {
            return Poll::Ready(Some(Ok(Frame::data(charge.hold(data)))));
        }
        self.body = Body::empty();
        let mut trailers = HeaderMap::new();
        let status = Status::from(no_room("answers not yet read"));
        Poll::Ready(Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
