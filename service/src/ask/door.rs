//! The door of a protocol: its listeners, and the place that each of their connections gets.
//!
//! Owns: putting the two together, for protocols that this service reads itself. Must not: read a request. Threads: the network
//! edge.

use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use futures::stream::{SelectAll, select_all};
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::ReceiverStream;

use super::Ask;
use super::budget::Peer;
use crate::base::slow::Transport;
use crate::net::Access;
use crate::net::accept::{Listening, Terms, connections};
use crate::net::connection::Connection;
use crate::net::discard::Discard;
use crate::net::figures::Listener;
use crate::net::limit::Room;
use crate::net::uds::{SocketFile, UdsListener};

/// The listeners of a protocol, and the room for their connections.
pub struct Door {
    /// TCP listener, guarded by `access`.
    pub tcp: Option<TcpListener>,
    /// Unix socket, guarded by the permissions of its file.
    pub uds: Option<UdsListener>,
    pub access: Arc<Access>,
    pub room: Room,
}

/// The connections of a protocol, from all of its listeners.
pub(crate) type Connections = SelectAll<ReceiverStream<io::Result<Connection<Arc<Peer>>>>>;

/// Names of a protocol's two listeners in figures and logs.
#[derive(Clone, Copy)]
pub(crate) struct Names {
    pub(crate) tcp: (Listener, Transport),
    pub(crate) uds: (Listener, Transport),
}

impl Door {
    /// Accepts connections of clients that begin with so many bytes. Returns them, and the Unix socket's file, which is removed
    /// when it is dropped.
    ///
    /// # Errors
    /// The Unix socket cannot be watched.
    pub(crate) fn open(
        self,
        ask: &Ask,
        names: Names,
        greeting_bytes: u64,
    ) -> Result<(Connections, Option<SocketFile>)> {
        let Self { tcp, uds, access, room } = self;
        let terms = |(listener, transport)| {
            let ask = ask.clone();
            let attach = move |seat: &_, from| ask.peer(transport, from, seat);
            Terms { limit: room.at(listener), greeting_bytes, idle_timeout: room.limits().idle_timeout, attach }
        };
        let (mut all, mut file) = (Vec::new(), None);
        if let Some(tcp) = tcp {
            all.push(connections(Listening::Tcp(tcp, access), terms(names.tcp)));
        }
        if let Some(uds) = uds {
            let (listener, of_socket) = uds.into_parts();
            let listener = UnixListener::from_std(listener).context("cannot watch a unix socket")?;
            let discard = Discard::start().context("cannot start the thread that closes connections")?;
            all.push(connections(Listening::Uds(ManuallyDrop::new(listener), discard), terms(names.uds)));
            file = Some(of_socket);
        }
        Ok((select_all(all), file))
    }
}
