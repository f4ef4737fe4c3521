//! The settings of the feed.
//!
//! Owns: these settings and their bounds. Must not: know where the feed lies. Runs on `main`.

use std::time::Duration;

use anyhow::{Result, ensure};
use bytesize::ByteSize;

use super::Retention;
use crate::base::setting::{DAY, HOUR, WAIT_MIN, settings};

/// Maximum size of the feed's log: a segment of it is at least 1 MiB, and each segment is a name in one directory and
/// an entry in memory.
const RETENTION_BYTES_MAX: ByteSize = ByteSize::tib(16);

/// Maximum age of the feed's changes: nobody follows a feed from further back.
const RETENTION_TIME_MAX: Duration = Duration::from_secs(3650 * 24 * 3600);

/// Maximum number of subscribers: each holds up to 2 MiB of unread messages, so 2 GiB in all.
const SUBSCRIBERS_MAX: u32 = 1024;

/// Shortest interval of heartbeats; a shorter one would be load without news.
const HEARTBEAT_MIN: Duration = Duration::from_millis(10);

settings! {
    /// The past that the feed keeps, and the limits of its subscribers.
    #[derive(Copy)]
    pub struct FeedSettings from FeedGiven {
        /// Keep every committed change for subscribers to follow: true or false [default: true]
        #[arg(value_name = "BOOL")]
        feed: bool = true;
        /// Disk space for changes kept for subscribers that reconnect, 112 bytes a change [default: 1GiB]
        #[arg(value_name = "BYTES", value_parser = engines::size)]
        #[serde(deserialize_with = "crate::base::setting::size")]
        feed_retention_bytes: ByteSize = ByteSize::gib(1), within ByteSize::b(0)..=RETENTION_BYTES_MAX;
        /// Maximum age of changes kept for subscribers that reconnect, counted in slots of 400 ms [default: 1day]
        #[arg(value_name = "DURATION", value_parser = humantime::parse_duration)]
        #[serde(with = "crate::base::setting::duration")]
        feed_retention_time: Duration = DAY, within Duration::ZERO..=RETENTION_TIME_MAX;
        /// Subscribers of the feed at a time, 1 to 1024 [default: 64]
        #[arg(value_name = "N", value_parser = bootstrap::count::<u32>)]
        #[serde(deserialize_with = "crate::base::setting::count")]
        feed_subscribers: u32 = 64;
        /// A subscriber gets a heartbeat after this long without another message [default: 1s]
        #[arg(value_name = "DURATION", value_parser = humantime::parse_duration)]
        #[serde(with = "crate::base::setting::duration")]
        feed_heartbeat: Duration = Duration::from_secs(1), within HEARTBEAT_MIN..=HOUR;
        /// A subscriber that reads nothing for this long is cut off [default: 30s]
        #[arg(value_name = "DURATION", value_parser = humantime::parse_duration)]
        #[serde(with = "crate::base::setting::duration")]
        // A stalled subscriber holds its place and its messages for this long.
        feed_stall_timeout: Duration = Duration::from_secs(30), within WAIT_MIN..=DAY;
    }
}

impl FeedSettings {
    /// Checks the number of subscribers.
    ///
    /// # Errors
    /// There are none or too many.
    pub fn check(&self) -> Result<()> {
        let subscribers = self.feed_subscribers;
        ensure!(
            (1..=SUBSCRIBERS_MAX).contains(&subscribers),
            "feed_subscribers={subscribers}: give 1 to {SUBSCRIBERS_MAX}, because each may hold 2 MiB; feed = false keeps \
             no feed"
        );
        Ok(())
    }

    /// Returns the bounds on the past that the feed keeps.
    pub fn retention(&self) -> Retention {
        Retention { bytes: self.feed_retention_bytes.as_u64(), time: self.feed_retention_time }
    }
}
