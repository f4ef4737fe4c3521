//! The Redis protocol: lookups over TCP and a Unix socket, for programs and people without gRPC.
//!
//! Owns: the forms of requests and answers, in versions 2 and 3, and the commands. Must not: touch the engine, or decide who gets
//! an answer; `ask` does. Threads: the tokio runtime of the network edge, one task for each connection.
//!
//! Requests are read here, and not by a library of the protocol: those that were looked at read any kind of value, nested as a
//! client likes, and take memory as it says.

mod answer;
mod client;
mod command;
mod connection;
mod name;
mod options;
mod request;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::Context as _;
use futures::stream::{SelectAll, select_all};
use futures::{FutureExt as _, StreamExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

use crate::ask::Ask;
use crate::ask::budget::Peer;
use crate::base::slow::Transport;
use crate::net::Access;
use crate::net::accept::{Listening, Terms, connections};
use crate::net::connection::Connection;
use crate::net::discard::Discard;
use crate::net::figures::Listener;
use crate::net::limit::Room;
use crate::net::uds::{SocketFile, UdsListener};
use crate::status::Status;
use client::Shared;

/// Length of the shortest request: a line of one letter.
const GREETING_BYTES: u64 = 2;

/// How long requests under way may take after the shutdown has begun.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// The listeners, and the room for their connections.
pub struct Door {
    /// TCP listener, guarded by `access`.
    pub tcp: Option<TcpListener>,
    /// Unix socket, guarded by the permissions of its file.
    pub uds: Option<UdsListener>,
    pub access: Arc<Access>,
    pub room: Room,
}

type Incoming = SelectAll<ReceiverStream<io::Result<Connection<Arc<Peer>>>>>;

/// Serves until `shutdown` is ready, then finishes the requests under way and returns. Removes the file of the Unix socket.
///
/// # Errors
/// The Unix socket cannot be watched.
pub async fn serve<F>(door: Door, ask: Ask, status: Status, shutdown: F) -> anyhow::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let ended = shutdown.boxed().shared();
    let request_timeout = door.room.limits().request_timeout;
    let shared = Arc::new(Shared {
        ask,
        status,
        access: Arc::clone(&door.access),
        request_timeout,
        newest_id: AtomicU64::new(0),
        hits: AtomicU64::new(0),
        misses: AtomicU64::new(0),
    });
    let (mut incoming, _file) = listen(door, &shared.ask)?;
    let mut clients = JoinSet::new();
    loop {
        tokio::select! {
            () = ended.clone() => break,
            Some(_) = clients.join_next() => {}
            Some(Ok(connection)) = incoming.next() => {
                clients.spawn(connection::serve(connection, Arc::clone(&shared), ended.clone()));
            }
        }
    }
    drop(incoming);
    let all = async { while clients.join_next().await.is_some() {} };
    if tokio::time::timeout(SHUTDOWN_GRACE, all).await.is_err() {
        tracing::warn!("requests still under way are cut: grace_s={}", SHUTDOWN_GRACE.as_secs());
    }
    Ok(())
}

/// Accepts connections on both listeners.
fn listen(door: Door, ask: &Ask) -> anyhow::Result<(Incoming, Option<SocketFile>)> {
    let Door { tcp, uds, access, room } = door;
    let terms = |listener, transport| {
        let ask = ask.clone();
        let attach = move |seat: &_, from| ask.peer(transport, from, seat);
        let idle_timeout = room.limits().idle_timeout;
        Terms { limit: room.at(listener), greeting_bytes: GREETING_BYTES, idle_timeout, attach }
    };
    let (mut all, mut file) = (Vec::new(), None);
    if let Some(tcp) = tcp {
        all.push(connections(Listening::Tcp(tcp, access), terms(Listener::RedisTcp, Transport::RedisTcp)));
    }
    if let Some(uds) = uds {
        let (listener, of_socket) = uds.into_parts();
        let listener = UnixListener::from_std(listener).context("cannot watch a unix socket")?;
        let discard = Discard::start().context("cannot start the thread that closes connections")?;
        let listening = Listening::Uds(ManuallyDrop::new(listener), discard);
        all.push(connections(listening, terms(Listener::RedisUds, Transport::RedisUds)));
        file = Some(of_socket);
    }
    Ok((select_all(all), file))
}
