//! What the network edge counts: connections by listener, what each limit turned away, refused requests, bytes held.
//!
//! Owns: these figures. Must not: block. Statistics, so relaxed, but for `bytes_held`, which is a limit's own count.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::status::count;

/// What a connection came in by; the label `listener` of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// gRPC on TCP, with or without TLS.
    GrpcTcp,
    /// gRPC on the Unix socket.
    GrpcUds,
    /// HTTP.
    Http,
}

impl Listener {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::GrpcTcp, Self::GrpcUds, Self::Http];

    /// The label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GrpcTcp => "grpc-tcp",
            Self::GrpcUds => "grpc-uds",
            Self::Http => "http",
        }
    }
}

/// Why the service turns a connection away or ends it; the label `rule` of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As many settled connections as allowed were open.
    Full,
    /// Its source has its share of them.
    SourceShare,
    /// Another one took its place before it had made a request that was let in.
    Newcomer,
    /// The TLS handshake took too long.
    Handshake,
    /// No opening line came in time, or no whole head over HTTP.
    Greeting,
    /// No request that was let in came in time.
    FirstRequest,
    /// Nothing was asked for `idle_connection_timeout`.
    Idle,
    /// Answers were not read.
    Unread,
}

impl Ending {
    /// All of them.
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

    /// The label.
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

/// What clients have places in, of which each may take a share; the label `place` of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Subscriptions of the feed.
    Subscribers,
    /// Requests that wait for a slot.
    Waiters,
    /// Batches of gets.
    Batches,
    /// Dumps for subscribers.
    Dumps,
    /// Bytes of requests and answers.
    Bytes,
}

impl Place {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Subscribers, Self::Waiters, Self::Batches, Self::Dumps, Self::Bytes];

    /// The label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Subscribers => "subscribers",
            Self::Waiters => "waiters",
            Self::Batches => "batches",
            Self::Dumps => "dumps",
            Self::Bytes => "bytes",
        }
    }
}

/// Whose share of places is taken; the label `scope` of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One connection's.
    Connection,
    /// One source's: an address, a network of 2^64 IPv6 addresses, a user of the Unix socket.
    Source,
    /// That of all who come over TCP.
    Network,
    /// Everybody's.
    All,
}

impl Scope {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Connection, Self::Source, Self::Network, Self::All];

    /// The label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Source => "source",
            Self::Network => "network",
            Self::All => "all",
        }
    }
}

/// The figures of one listener.
#[derive(Debug, Default)]
pub struct Connections {
    /// Open now.
    pub open: AtomicU64,
    /// Accepted since start, refused ones not among them.
    pub accepted: AtomicU64,
    /// Turned away: as many as allowed were open, or another one took its place before its first request.
    pub refused: AtomicU64,
    /// Ended by the service: nothing came in time, nothing was asked, or nothing was read for too long.
    pub cut: AtomicU64,
}

/// The figures of the network edge.
#[derive(Debug, Default)]
pub struct Figures {
    connections: [Connections; 3],
    /// TLS handshakes that failed or took too long.
    pub handshakes_failed: AtomicU64,
    /// Requests without a token or with one that is not accepted.
    pub unauthenticated: AtomicU64,
    /// HTTP requests for a name that is not the service's.
    pub foreign_hosts: AtomicU64,
    /// Bytes of large requests and answers in memory, as `rpc::budget` counts them.
    pub bytes_held: AtomicU64,
    endings: [AtomicU64; Ending::ALL.len()],
    no_place: [[AtomicU64; Scope::ALL.len()]; Place::ALL.len()],
}

impl Figures {
    /// Those of one listener.
    pub fn of(&self, listener: Listener) -> &Connections {
        &self.connections[listener as usize]
    }

    /// Counts a connection that the service turned away or ended.
    pub fn ended(&self, ending: Ending) {
        count(&self.endings[ending as usize], 1);
    }

    /// How many connections were turned away or ended by this rule.
    pub fn endings(&self, ending: Ending) -> u64 {
        // ORDERING: Relaxed: a statistic.
        self.endings[ending as usize].load(Ordering::Relaxed)
    }

    /// Counts a request that was refused because a share of places was taken.
    pub fn no_place(&self, place: Place, scope: Scope) {
        count(&self.no_place[place as usize][scope as usize], 1);
    }

    /// How many requests were refused because this share of places was taken.
    pub fn refused_places(&self, place: Place, scope: Scope) -> u64 {
        // ORDERING: Relaxed: a statistic.
        self.no_place[place as usize][scope as usize].load(Ordering::Relaxed)
    }
}
