//! Accepting: a connection is counted, does its TLS handshake, and is handed to the HTTP/2 server.
//!
//! Owns: the listeners, turning away what there is no room for, the handshakes. Threads: the network edge; one task a
//! listener and, until it is handed over, one a connection.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

use super::budget::{Budget, Peer};
use super::socket::{Socket, Transport};
use crate::net::Access;
use crate::net::limit::{Admission, Limit};
use crate::status::count;

/// A TLS handshake takes two round trips; whoever is slower than this holds a connection that others could use.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections that are through and not yet taken over. They are counted already; the server takes them at once.
const READY_QUEUE: usize = 16;

/// After an error of accepting that is not the client's, as having no descriptor left: trying again at once would only
/// burn the processor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where connections come from.
pub(super) enum Listening {
    Tcp(TcpListener, Arc<Access>),
    Uds(UnixListener),
}

/// Accepts until the stream of connections is dropped; then the listener is closed and handshakes are given up.
pub(super) fn connections(
    listening: Listening,
    limit: Limit,
    budget: Arc<Budget>,
) -> ReceiverStream<io::Result<Socket>> {
    let (ready, sockets) = mpsc::channel(READY_QUEUE);
    tokio::spawn(accept(listening, limit, budget, ready));
    ReceiverStream::new(sockets)
}

async fn accept(listening: Listening, limit: Limit, budget: Arc<Budget>, ready: mpsc::Sender<io::Result<Socket>>) {
    let mut opening = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = ready.closed() => return,
            // What went wrong in one is its own affair.
            Some(_) = opening.join_next() => continue,
            accepted = listening.accept() => accepted,
        };
        match accepted {
            Ok(accepted) => {
                // Dropping it is the refusal.
                let Some(admission) = limit.admit() else { continue };
                let (budget, ready) = (Arc::clone(&budget), ready.clone());
                opening.spawn(async move {
                    if let Some(socket) = open(accepted, budget, admission).await {
                        // An error is a server that has stopped.
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
    Plain(Box<dyn Transport>),
    Tcp(TcpStream, SocketAddr, Arc<Access>),
}

impl Listening {
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener, access) => {
                let (stream, from) = listener.accept().await?;
                Ok(Accepted::Tcp(stream, from, Arc::clone(access)))
            }
            Self::Uds(listener) => Ok(Accepted::Plain(Box::new(listener.accept().await?.0))),
        }
    }
}

fn of_the_client(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused)
}

/// Up to where HTTP/2 begins; nothing when it does not come to that.
async fn open(accepted: Accepted, budget: Arc<Budget>, admission: Admission) -> Option<Socket> {
    let (transport, from) = match accepted {
        Accepted::Plain(transport) => (transport, None),
        Accepted::Tcp(stream, from, access) => {
            // An error is a socket that is gone, which the first read tells.
            stream.set_nodelay(true).ok();
            match &access.tls {
                None => (Box::new(stream) as Box<dyn Transport>, Some(from)),
                Some(tls) => {
                    let handshake = tls.acceptor().accept(stream);
                    let failed = match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
                        Ok(Ok(stream)) => return Some(socket(Box::new(stream), Some(from), budget, admission)),
                        Ok(Err(error)) => error.to_string(),
                        Err(_) => {
                            admission.cut();
                            format!("not done within {HANDSHAKE_TIMEOUT:?}")
                        }
                    };
                    count(&admission.shared().net.handshakes_failed, 1);
                    tracing::debug!(error = failed, %from, "TLS handshake failed");
                    return None;
                }
            }
        }
    };
    Some(socket(transport, from, budget, admission))
}

fn socket(
    transport: Box<dyn Transport>,
    from: Option<SocketAddr>,
    budget: Arc<Budget>,
    admission: Admission,
) -> Socket {
    Socket::new(transport, Peer::new(budget, from), admission)
}
