//! Accepting: a connection is counted, makes its TLS handshake, and is passed to the HTTP/2 server.
//!
//! Owns: the listeners, turning away connections for which there is no room, the handshakes. Threads: the network edge;
//! one task for each listener and, until it is passed on, one for each connection.

use std::io::{self, ErrorKind};
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

use super::budget::{Budget, Peer};
use super::local::Local;
use super::socket::{Socket, Transport};
use crate::base::figure::count;
use crate::net::discard::Discard;
use crate::net::figures::Ending;
use crate::net::limit::{Admission, Limit};
use crate::net::source::Source;
use crate::net::{Access, Tls};

/// Limit on a TLS handshake, which takes two round trips. A slower client holds a connection that others could use.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Accepted connections that the server has not taken over yet. They are counted already, and the server takes them at
/// once.
const READY_QUEUE: usize = 16;

/// Pause after a failed accept that is not the client's fault, for example because no descriptor is left, and while too
/// many sockets wait to be closed. An immediate retry would only burn CPU.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener, with the rules of access to TCP, or the thread that closes connections of the Unix socket.
pub(super) enum Listening {
    Tcp(TcpListener, Arc<Access>),
    /// Closed only by the end of the process, which waits for nothing: a connection that nobody has accepted may hold
    /// descriptors.
    Uds(ManuallyDrop<UnixListener>, Discard),
}

/// Limits that apply to every connection of a listener.
#[derive(Clone)]
pub(super) struct Terms {
    pub(super) limit: Limit,
    pub(super) budget: Arc<Budget>,
    /// Idle limit of the connections; see
    /// `idle_timeout` of [`ConnectionLimits`](crate::net::limit::ConnectionLimits).
    pub(super) idle_timeout: Duration,
}

/// Returns a stream of accepted connections. When the stream is dropped, nobody else is accepted and handshakes are
/// abandoned.
pub(super) fn connections(listening: Listening, terms: Terms) -> ReceiverStream<io::Result<Socket>> {
    let (ready, sockets) = mpsc::channel(READY_QUEUE);
    tokio::spawn(accept(listening, terms, ready));
    ReceiverStream::new(sockets)
}

async fn accept(listening: Listening, terms: Terms, ready: mpsc::Sender<io::Result<Socket>>) {
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
                let Some(admission) = terms.limit.admit(accepted.source()) else { continue };
                let (terms, ready) = (terms.clone(), ready.clone());
                opening.spawn(async move {
                    if let Some(socket) = open(accepted, &terms, admission).await {
                        // An error means that the server has stopped.
                        let _stopped = ready.send(Ok(socket)).await;
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

enum Accepted {
    Uds(Local),
    Tcp(TcpStream, SocketAddr, Arc<Access>),
}

impl Accepted {
    fn source(&self) -> Source {
        match self {
            // A socket that is gone counts as a user that no process has, until that is noticed.
            Self::Uds(local) => Source::User(local.user().unwrap_or(u32::MAX)),
            Self::Tcp(_, from, _) => Source::of(from.ip()),
        }
    }
}

impl Listening {
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener, access) => {
                let (stream, from) = listener.accept().await?;
                Ok(Accepted::Tcp(stream, from, Arc::clone(access)))
            }
            Self::Uds(listener, discard) => {
                let (stream, _) = listener.accept().await?;
                Ok(Accepted::Uds(Local::new(stream, discard.clone())))
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

/// Prepares a connection for HTTP/2, including TLS. Returns `None` if the handshake fails.
async fn open(accepted: Accepted, terms: &Terms, admission: Admission) -> Option<Socket> {
    let (transport, from) = match accepted {
        Accepted::Uds(local) => (Box::new(local) as Box<dyn Transport>, None),
        Accepted::Tcp(stream, from, access) => {
            // An error means that the socket is gone, which the first read reports.
            stream.set_nodelay(true).ok();
            match &access.tls {
                None => (Box::new(stream) as Box<dyn Transport>, Some(from)),
                Some(tls) => (handshake(tls, stream, from, &admission).await?, Some(from)),
            }
        }
    };
    let peer = Peer::new(Arc::clone(&terms.budget), from, Arc::clone(admission.seat()));
    Some(Socket::new(transport, peer, admission, terms.idle_timeout))
}

async fn handshake(
    tls: &Tls,
    stream: TcpStream,
    from: SocketAddr,
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
            admission.cut(Ending::Handshake);
            format!("not done within {HANDSHAKE_TIMEOUT:?}")
        }
    };
    count(&admission.figures().handshakes_failed, 1);
    tracing::debug!(error = failed, %from, "TLS handshake failed");
    None
}
