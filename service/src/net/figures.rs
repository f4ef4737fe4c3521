//! What the network edge counts: connections by listener, failed handshakes, refused requests, bytes held.
//!
//! Owns: these figures. Must not: block. Statistics, so relaxed, but for `bytes_held`, which is a limit's own count.

use std::sync::atomic::AtomicU64;

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

/// The figures of one listener.
#[derive(Debug, Default)]
pub struct Connections {
    /// Open now.
    pub open: AtomicU64,
    /// Accepted since start, refused ones not among them.
    pub accepted: AtomicU64,
    /// Closed at once because as many as allowed were open.
    pub refused: AtomicU64,
    /// Ended by the service: nothing came in time, or nothing was read for too long.
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
    /// Bytes of large requests and answers in memory, as `rpc::budget` counts them.
    pub bytes_held: AtomicU64,
    /// Requests and answers refused because too many of these bytes were held.
    pub bytes_refused: AtomicU64,
}

impl Figures {
    /// Those of one listener.
    pub fn of(&self, listener: Listener) -> &Connections {
        &self.connections[listener as usize]
    }
}
