//! Counters of the network edge: connections by listener, connections turned away by each limit, refused requests,
//! bytes held.
//!
//! Owns: these figures. Must not: block. They are statistics with relaxed accesses, except the places held,
//! with which limits themselves count.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::figure::count;
use crate::base::label::labels;

labels! {
    /// The listener that accepted a connection; the label `listener` of the metrics.
    pub enum Listener {
        /// gRPC on TCP, with or without TLS.
        GrpcTcp = "grpc-tcp",
        /// gRPC on the Unix socket.
        GrpcUds = "grpc-uds",
        /// The Redis protocol on TCP, with or without TLS.
        RedisTcp = "redis-tcp",
        /// The Redis protocol on its Unix socket.
        RedisUds = "redis-uds",
        /// Lookups over HTTP on TCP, with or without TLS.
        HttpTcp = "http-tcp",
        /// Lookups over HTTP on their Unix socket.
        HttpUds = "http-uds",
        /// The metrics, probes and the dashboard.
        Metrics = "metrics",
    }
}

labels! {
    /// Reason why the service turns a connection away or ends it; the label `rule` of the metrics.
    pub enum Ending {
        /// As many settled connections as allowed were open, and no newcomer could give way.
        Full = "full",
        /// Its source had its share of settled connections.
        SourceShare = "source_share",
        /// Another connection took its place before it made a request that was admitted.
        Newcomer = "newcomer",
        /// The TLS handshake took too long.
        Handshake = "handshake",
        /// No opening line came in time, or over HTTP no complete request head.
        Greeting = "greeting",
        /// No request that was admitted came in time.
        FirstRequest = "first_request",
        /// No request was made for ten minutes.
        Idle = "idle",
        /// The client did not read its answers.
        Unread = "unread",
    }
}

labels! {
    /// Resource whose places clients share; the label `place` of the metrics.
    pub enum Place {
        Subscribers = "subscribers",
        /// Requests that wait for a slot.
        Waiters = "waiters",
        /// Keys of batches (GetMany) under way.
        BatchKeys = "batches",
        /// Dumps for subscribers of the feed.
        Dumps = "dumps",
        /// Requests to derived stores under way.
        Derived = "derived",
        /// Views of a derived store, for answers of several messages.
        Views = "views",
        /// Bytes of requests and answers in memory.
        Bytes = "bytes",
    }
}

labels! {
    /// Scope of a share of places; the label `scope` of the metrics.
    pub enum Scope {
        /// The share of one connection.
        Connection = "connection",
        /// The share of one source: an address, a network of 2^64 IPv6 addresses, or a user of the Unix socket.
        Source = "source",
        /// The share of all clients over TCP together.
        Network = "network",
        /// All places, whoever holds them.
        All = "all",
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
    connections: [Connections; Listener::ALL.len()],
    /// Number of TLS handshakes that failed or took too long.
    pub handshakes_failed: AtomicU64,
    /// Number of requests without a token, or with an unknown one.
    pub unauthenticated: AtomicU64,
    held: [AtomicU64; Place::ALL.len()],
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

    /// Returns the number of places held by all clients together, as `ask` counts them.
    pub fn held(&self, place: Place) -> &AtomicU64 {
        &self.held[place as usize]
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
