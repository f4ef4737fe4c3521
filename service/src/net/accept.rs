//! Accepting: a connection is counted, makes its TLS handshake, and is passed to the server of its protocol.
//!
//! Owns: the listeners, turning away connections for which there is no room, the handshakes. Must not: know a protocol.
//! Threads: the network edge; one task for each listener and, until it is passed on, one for each connection.

use std::io::{self, ErrorKind};
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

use super::connection::{Connection, Transport};
use super::discard::Discard;
use super::figures::Ending;
use super::limit::{Admission, Limit, Seat};
use super::local::Local;
use super::source::Source;
use super::{Access, Tls};
use crate::base::figure::count;

/// Limit on a TLS handshake, which takes two round trips. A slower client holds a connection that others could use.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Accepted connections that the server has not taken over yet. They are counted already, and the server takes them at
/// once.
const READY_QUEUE: usize = 16;

/// Pause after a failed accept that is not the client's fault, for example because no descriptor is left, and while too
/// many sockets wait to be closed. An immediate retry would only burn CPU.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener, with the rules of access to TCP, or the thread that closes connections of the Unix socket.
pub(crate) enum Listening {
    Tcp(TcpListener, Arc<Access>),
    /// Closed only by the end of the process, which waits for nothing: a connection that nobody has accepted may hold
    /// descriptors.
    Uds(ManuallyDrop<UnixListener>, Discard),
}

/// Terms that apply to every connection of a listener.
#[derive(Clone)]
pub(crate) struct Terms<A> {
    pub(crate) limit: Limit,
    /// Number of bytes with which the protocol's clients begin.
    pub(crate) greeting_bytes: u64,
    /// Idle limit of the connections, zero for none; see
    /// `idle_timeout` of [`ConnectionLimits`](super::limit::ConnectionLimits).
    pub(crate) idle_timeout: Duration,
    /// Makes the state that the connection's requests share, from its place and the client's address on the network.
    pub(crate) attach: A,
}

/// Returns a stream of accepted connections. When the stream is dropped, nobody else is accepted and handshakes are
/// abandoned.
pub(crate) fn connections<P, A>(listening: Listening, terms: Terms<A>) -> ReceiverStream<io::Result<Connection<P>>>
where
    P: Send + 'static,
    A: Fn(&Arc<Seat>, Option<SocketAddr>) -> P + Clone + Send + Sync + 'static,
{
    let (ready, accepted) = mpsc::channel(READY_QUEUE);
    tokio::spawn(accept(listening, terms, ready));
    ReceiverStream::new(accepted)
}

async fn accept<P, A>(listening: Listening, terms: Terms<A>, ready: mpsc::Sender<io::Result<Connection<P>>>)
where
    P: Send + 'static,
    A: Fn(&Arc<Seat>, Option<SocketAddr>) -> P + Clone + Send + Sync + 'static,
{
    let mut opening = JoinSet::new();
    loop {
        let has_room = listening.has_room();
        let accepted = tokio::select! {
            () = ready.closed() => return,
            // The outcome of a finished handshake concerns only its own connection.
            Some(_) = opening.join_next() => continue,
            accepted = listening.accept(), if has_room => accepted,
            () = tokio::time::sleep(ACCEPT_PAUSE), if !has_room => continue,
        };
        match accepted {
            Ok(accepted) => {
                // Dropping the accepted connection refuses it.
                let Some(admission) = terms.limit.admit(accepted.source) else { continue };
                let (terms, ready) = (terms.clone(), ready.clone());
                opening.spawn(async move {
                    let Accepted { transport, from, access, .. } = accepted;
                    let tls = access.as_ref().and_then(|access| access.tls.as_ref());
                    let opened = match tls {
                        Some(tls) => handshake(tls, transport, from, &admission).await,
                        None => Some(transport),
                    };
                    if let Some(transport) = opened {
                        let attached = (terms.attach)(admission.seat(), from);
                        let Terms { greeting_bytes, idle_timeout, .. } = terms;
                        let connection = Connection::new(transport, admission, attached, greeting_bytes, idle_timeout);
                        // An error means that the server has stopped.
                        let _stopped = ready.send(Ok(connection)).await;
                    }
                });
            }
            Err(error) if of_the_client(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// An accepted connection, before its TLS handshake.
struct Accepted {
    transport: Box<dyn Transport>,
    source: Source,
    /// The client's address on the network; `None` over the Unix socket.
    from: Option<SocketAddr>,
    access: Option<Arc<Access>>,
}

impl Listening {
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener, access) => {
                let (stream, from) = listener.accept().await?;
                // An error means that the socket is gone, which the first read reports.
                stream.set_nodelay(true).ok();
                let (source, access) = (Source::of(from.ip()), Some(Arc::clone(access)));
                Ok(Accepted { transport: Box::new(stream), source, from: Some(from), access })
            }
            Self::Uds(listener, discard) => {
                let (stream, _) = listener.accept().await?;
                let local = Local::new(stream, discard.clone());
                // A socket that is gone counts as a user that no process has, until that is noticed.
                let source = Source::User(local.user().unwrap_or(u32::MAX));
                Ok(Accepted { transport: Box::new(local), source, from: None, access: None })
            }
        }
    }

    /// Whether another connection may be accepted.
    fn has_room(&self) -> bool {
        match self {
            Self::Tcp(..) => true,
            Self::Uds(_, discard) => discard.has_room(),
        }
    }
}

fn of_the_client(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused)
}

/// Makes the TLS handshake. Returns `None` if it fails.
async fn handshake(
    tls: &Tls,
    stream: Box<dyn Transport>,
    from: Option<SocketAddr>,
    admission: &Admission,
) -> Option<Box<dyn Transport>> {
    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.acceptor().accept(stream));
    let done = tokio::select! {
        done = handshake => done,
        () = admission.evicted() => return None,
    };
    let failed = match done {
        Ok(Ok(stream)) => return Some(Box::new(stream)),
        Ok(Err(error)) => error.to_string(),
        Err(_) => {
            admission.seat().cut(Ending::Handshake);
            format!("not done within {HANDSHAKE_TIMEOUT:?}")
        }
    };
    count(&admission.seat().figures().handshakes_failed, 1);
    tracing::debug!(error = failed, ?from, "TLS handshake failed");
    None
}
