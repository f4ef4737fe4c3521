//! The settings of the feed, and the limits of its subscribers.
//!
//! Owns: these settings and their bounds, and the limits that are fixed. Must not: know where the feed lies. Runs on
//! `main`.

use std::time::Duration;

use bytesize::ByteSize;

use crate::base::setting::settings;

/// Maximum size of the feed's log: a segment of it is at least 1 MiB, and each segment is a name in one directory and
/// an entry in memory.
const RETENTION_BYTES_MAX: ByteSize = ByteSize::tib(16);

/// One in this many gRPC connections may be a subscriber: 64 by default. A service with more subscribers needs more
/// connections anyway.
const CONNECTIONS_PER_SUBSCRIBER: u32 = 16;

/// Number of subscribers below which the share does not go, so that a service with few connections can spend all on them.
const SUBSCRIBERS_LEAST: u32 = 16;

/// Maximum number of subscribers: each holds up to 2 MiB of unread messages, so 2 GiB in all.
const SUBSCRIBERS_MAX: u32 = 1024;

/// Interval of heartbeats: a subscriber notices within seconds that its feed is dead, and one message a second is no load.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// How long a subscriber may read nothing. It holds its place and its messages meanwhile.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

settings! {
    /// The past that the feed keeps.
    #[derive(Copy)]
    pub struct FeedSettings from FeedGiven {
        /// Keep every committed change for subscribers to follow; false is for an operator without subscribers, who saves the
        /// writes to the disk [default: true]
        #[arg(value_name = "BOOL")]
        feed: bool = true;
        /// Disk space for changes kept for subscribers that reconnect, 112 bytes a change; for an operator whose subscribers
        /// stay away for longer [default: 1GiB]
        #[arg(value_name = "BYTES", value_parser = engines::size)]
        #[serde(deserialize_with = "crate::base::setting::size")]
        feed_retention_bytes: ByteSize = ByteSize::gib(1), within ByteSize::b(0)..=RETENTION_BYTES_MAX;
    }
}

/// Limits of the feed's subscribers.
#[derive(Clone, Copy, Debug)]
pub struct SubscriberLimits {
    /// Maximum number of subscribers at a time.
    pub subscribers: u32,
    /// A subscriber gets a heartbeat after this long without another message.
    pub heartbeat: Duration,
    /// A subscriber that reads nothing for this long is cut off.
    pub stall_timeout: Duration,
}

impl SubscriberLimits {
    /// Returns the limits of a service that takes so many gRPC connections.
    pub fn of(max_connections: u32) -> Self {
        let subscribers = (max_connections / CONNECTIONS_PER_SUBSCRIBER).clamp(SUBSCRIBERS_LEAST, SUBSCRIBERS_MAX);
        Self { subscribers, heartbeat: HEARTBEAT, stall_timeout: STALL_TIMEOUT }
    }
}
