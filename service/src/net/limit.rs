//! How many connections may be open at once, and the file descriptors that they need.
//!
//! Owns: the count. Must not: wait; whoever finds no room is turned away. Threads: the network edge.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::figures::Listener;
use crate::status::{Shared, count};

/// One in so many gRPC connections is kept for the Unix socket: whoever takes every connection over the network does
/// not lock out the machine's own processes.
const UDS_SHARE: u32 = 8;

/// HTTP connections: a handful of scrapers and browsers, and a page of histograms may be a megabyte.
pub const HTTP_CONNECTIONS_MAX: usize = 128;

/// Descriptors left to the store, the log, the stream. RocksDB keeps every file of the store open: about one for each
/// 64 MB of it.
const FILES_RESERVE: u64 = 512;

/// Lets connections of one listener in while there is room. Clones share the room.
#[derive(Clone)]
pub struct Limit {
    rooms: Vec<Arc<Semaphore>>,
    listener: Listener,
    shared: Arc<Shared>,
}

impl Limit {
    /// The limits of gRPC on TCP and on the Unix socket, `max` in all.
    pub fn grpc(max: u32, shared: &Arc<Shared>) -> (Self, Self) {
        let all = Arc::new(Semaphore::new(max as usize));
        let network = Arc::new(Semaphore::new((max - max / UDS_SHARE) as usize));
        let tcp = vec![network, Arc::clone(&all)];
        (
            Self { rooms: tcp, listener: Listener::GrpcTcp, shared: Arc::clone(shared) },
            Self { rooms: vec![all], listener: Listener::GrpcUds, shared: Arc::clone(shared) },
        )
    }

    /// The limit of HTTP.
    pub fn http(shared: &Arc<Shared>) -> Self {
        let room = Arc::new(Semaphore::new(HTTP_CONNECTIONS_MAX));
        Self { rooms: vec![room], listener: Listener::Http, shared: Arc::clone(shared) }
    }

    /// Room for one more connection, held until it is dropped; none is counted as a refusal.
    pub fn admit(&self) -> Option<Admission> {
        let permits: Result<Vec<_>, _> = self.rooms.iter().map(|room| Arc::clone(room).try_acquire_owned()).collect();
        let figures = self.shared.net.of(self.listener);
        match permits {
            Ok(permits) => {
                count(&figures.accepted, 1);
                count(&figures.open, 1);
                Some(Admission { _permits: permits, listener: self.listener, shared: Arc::clone(&self.shared) })
            }
            Err(_) => {
                count(&figures.refused, 1);
                None
            }
        }
    }
}

/// An open connection.
pub struct Admission {
    _permits: Vec<OwnedSemaphorePermit>,
    listener: Listener,
    shared: Arc<Shared>,
}

impl Admission {
    /// What it came in by.
    pub fn listener(&self) -> Listener {
        self.listener
    }

    /// The service's figures.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Counts that the service ends it.
    pub fn cut(&self) {
        count(&self.shared.net.of(self.listener).cut, 1);
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        // ORDERING: Relaxed: a statistic; the permits are what limits.
        self.shared.net.of(self.listener).open.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Raises the process's soft limit of open files to the hard one: at a soft limit of 1024, as shells set it, sockets
/// would leave the engine none.
///
/// # Errors
/// The hard limit has no room for `max_connections`.
pub fn open_files(max_connections: u32) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .context("cannot raise the limit of open files")?;
    let needed = u64::from(max_connections) + HTTP_CONNECTIONS_MAX as u64 + FILES_RESERVE;
    ensure!(
        limit.maximum.is_none_or(|maximum| maximum >= needed),
        "max_connections={max_connections} needs more open files than the process may have: needed={needed} \
         hard_limit={}; give fewer, or raise LimitNOFILE= (systemd) or ulimit -Hn",
        limit.maximum.unwrap_or_default()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn the_network_leaves_room_for_the_unix_socket() {
        let shared = Shared::new(Default::default());
        let (tcp, uds) = Limit::grpc(16, &shared);
        let network: Vec<_> = std::iter::from_fn(|| tcp.admit()).collect();
        let local: Vec<_> = std::iter::from_fn(|| uds.admit()).collect();
        assert_eq!((network.len(), local.len()), (14, 2));
        let of = |listener| {
            let figures = shared.net.of(listener);
            [&figures.open, &figures.accepted, &figures.refused].map(|figure| figure.load(Ordering::Relaxed))
        };
        assert_eq!((of(Listener::GrpcTcp), of(Listener::GrpcUds)), ([14, 14, 1], [2, 2, 1]));
        drop(network);
        assert_eq!(of(Listener::GrpcTcp), [0, 14, 1]);
        assert!(uds.admit().is_some(), "what the network gave back is free for both");
    }
}
