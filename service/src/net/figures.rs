//! Counters of the network edge: connections by listener, connections turned away by each limit, refused requests,
//! bytes held.
//!
//! Owns: these figures. Must not: block. They are statistics with relaxed accesses, except `bytes_held`, which a limit
//! itself counts with.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::figure::count;

/// The listener that accepted a connection; the label `listener` of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// gRPC on TCP, with or without TLS.
    GrpcTcp,
    /// gRPC on the Unix socket.
    GrpcUds,
    /// HTTP, for metrics, probes and the dashboard.
    Http,
}

impl Listener {
    pub const ALL: [Self; 3] = [Self::GrpcTcp, Self::GrpcUds, Self::Http];

    /// The label's value in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GrpcTcp => "grpc-tcp",
            Self::GrpcUds => "grpc-uds",
            Self::Http => "http",
        }
    }
}

/// Reason why the service turns a connection away or ends it; the label `rule` of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As many settled connections as allowed were open, and no newcomer could give way.
    Full,
    /// Its source had its share of settled connections.
    SourceShare,
    /// Another connection took its place before it made a request that was admitted.
    Newcomer,
    /// The TLS handshake took too long.
    Handshake,
    /// No opening line came in time, or over HTTP no complete request head.
    Greeting,
    /// No request that was admitted came in time.
    FirstRequest,
    /// No request was made for ten minutes.
    Idle,
    /// The client did not read its answers.
    Unread,
}

impl Ending {
    pub const ALL: [Self; 8] = [
        Self::Full,
        Self::SourceShare,
        Self::Newcomer,
        Self::Handshake,
        Self::Greeting,
        Self::FirstRequest,
        Self::Idle,
        Self::Unread,
    ];

    /// The label's value in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::SourceShare => "source_share",
            Self::Newcomer => "newcomer",
            Self::Handshake => "handshake",
            Self::Greeting => "greeting",
            Self::FirstRequest => "first_request",
            Self::Idle => "idle",
            Self::Unread => "unread",
        }
    }
}

/// Resource whose places clients share; the label `place` of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Subscribers,
    /// Requests that wait for a slot.
    Waiters,
    /// Keys of batches (GetMany) under way.
    BatchKeys,
    /// Dumps for subscribers of the feed.
    Dumps,
    /// Bytes of requests and answers in memory.
    Bytes,
}

impl Place {
    pub const ALL: [Self; 5] = [Self::Subscribers, Self::Waiters, Self::BatchKeys, Self::Dumps, Self::Bytes];

    /// The label's value in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Subscribers => "subscribers",
            Self::Waiters => "waiters",
            Self::BatchKeys => "batches",
            Self::Dumps => "dumps",
            Self::Bytes => "bytes",
        }
    }
}

/// Scope of a share of places; the label `scope` of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The share of one connection.
    Connection,
    /// The share of one source: an address, a network of 2^64 IPv6 addresses, or a user of the Unix socket.
    Source,
    /// The share of all clients over TCP together.
    Network,
    /// All places, whoever holds them.
    All,
}

impl Scope {
    pub const ALL: [Self; 4] = [Self::Connection, Self::Source, Self::Network, Self::All];

    /// The label's value in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Source => "source",
            Self::Network => "network",
            Self::All => "all",
        }
    }
}

/// Connection counters of one listener.
#[derive(Debug, Default)]
pub struct Connections {
    /// Number of connections open now.
    pub open: AtomicU64,
    /// Number of connections turned away: as many as allowed were open, or another one took their place before their
    /// first request.
    pub refused: AtomicU64,
    /// Number of connections that the service ended: no request came in time, no more came, or answers were not read.
    pub cut: AtomicU64,
}

/// Figures of the network edge.
#[derive(Debug, Default)]
pub struct Figures {
    connections: [Connections; 3],
    /// Number of TLS handshakes that failed or took too long.
    pub handshakes_failed: AtomicU64,
    /// Number of requests without a token, or with an unknown one.
    pub unauthenticated: AtomicU64,
    /// Bytes of large requests and answers in memory, as `rpc::budget` counts them.
    pub bytes_held: AtomicU64,
    endings: [AtomicU64; Ending::ALL.len()],
    no_place: [[AtomicU64; Scope::ALL.len()]; Place::ALL.len()],
}

impl Figures {
    /// Returns the figures of one listener.
    pub fn of(&self, listener: Listener) -> &Connections {
        &self.connections[listener as usize]
    }

    /// Counts a connection that the service turned away or ended.
    pub fn ended(&self, ending: Ending) {
        count(&self.endings[ending as usize], 1);
    }

    /// Returns the number of connections turned away or ended by this rule.
    pub fn endings(&self, ending: Ending) -> u64 {
        // ORDERING: Relaxed: a statistic.
        self.endings[ending as usize].load(Ordering::Relaxed)
    }

    /// Counts a request that was refused because a share of places was taken.
    pub fn no_place(&self, place: Place, scope: Scope) {
        count(&self.no_place[place as usize][scope as usize], 1);
    }

    /// Returns the number of requests refused because this share of places was taken.
    pub fn refused_places(&self, place: Place, scope: Scope) -> u64 {
        // ORDERING: Relaxed: a statistic.
        self.no_place[place as usize][scope as usize].load(Ordering::Relaxed)
    }
}
