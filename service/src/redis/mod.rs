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
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use tokio::task::JoinSet;

use crate::ask::Ask;
pub use crate::ask::door::Door;
use crate::ask::door::Names;
use crate::base::slow::Transport;
use crate::net::figures::Listener;
use crate::status::Status;
use client::Shared;

/// Length of the shortest request: a line of one letter.
const GREETING_BYTES: u64 = 2;

/// How long requests under way may take after the shutdown has begun.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

const NAMES: Names =
    Names { tcp: (Listener::RedisTcp, Transport::RedisTcp), uds: (Listener::RedisUds, Transport::RedisUds) };

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
    let (mut incoming, _file) = door.open(&shared.ask, NAMES, GREETING_BYTES)?;
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
