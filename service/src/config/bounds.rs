//! The bounds of every number and duration among the settings.
//!
//! Owns: the bounds and the reason for each. Must not: look at the machine. Runs on `main`.
//!
//! A bound excludes values that nobody can mean. With such a value the service would run out of memory, reconnect
//! without end, or never do the work that the setting is for.

use std::time::Duration;

use anyhow::{Result, ensure};
use bytesize::ByteSize;

use super::Config;
use crate::feed::FRAME_CHANGES_MAX;
use crate::ingest::providers::LANES_MAX;

/// Shortest interval of heartbeats; a shorter one would be load without news.
const HEARTBEAT_MIN: Duration = Duration::from_millis(10);

/// Shortest time to wait for a peer on a network; with a shorter one no answer would ever come in time.
const WAIT_MIN: Duration = Duration::from_millis(10);

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Maximum number of lookup threads: no machine has as many cores for them, so more would only wait for one another.
const LOOKUP_THREADS_MAX: u32 = 256;

/// Maximum number of connections: each can cost 4.5 MiB, so 288 GiB in all.
const CONNECTIONS_MAX: u32 = 65_536;

/// Maximum number of subscribers: each holds up to 2 MiB of unread messages, so 2 GiB in all.
const SUBSCRIBERS_MAX: u32 = 1024;

/// Maximum size of the feed's log: a segment of it is at least 1 MiB, and each segment is a name in one directory and
/// an entry in memory.
const RETENTION_BYTES_MAX: ByteSize = ByteSize::tib(16);

/// Maximum age of the feed's changes: nobody follows a feed from further back, and dates before 1970 cannot be
/// expressed.
const RETENTION_TIME_MAX: Duration = Duration::from_secs(3650 * 24 * 3600);

/// Maximum lag in slots: a day of slots, after which a service is not ready by any measure.
const LAG_SLOTS_MAX: u64 = 216_000;

/// Maximum number of keys of the stream looked up together: nine mainnet slots.
const INGEST_DEPTH_MAX: u32 = 1 << 16;
/// Maximum number of providers: each is asked for its newest slot every two seconds.
const PROVIDERS_MAX: usize = 16;

/// Checks all bounds.
///
/// # Errors
/// The first setting out of its bounds, and those bounds.
pub(super) fn check(config: &Config) -> Result<()> {
    let most = FRAME_CHANGES_MAX as u32;
    if let Some(changes) = config.commit_every {
        ensure!((1..=most).contains(&changes), "commit_every={changes}: give 1 to {most}");
    }
    let depth = config.ingest_depth;
    ensure!(
        (1..=INGEST_DEPTH_MAX).contains(&depth),
        "ingest_depth={depth}: give 1 to {INGEST_DEPTH_MAX}, such as 1024"
    );
    if let Some(threads) = config.lookup_threads {
        ensure!(
            (1..=LOOKUP_THREADS_MAX).contains(&threads),
            "lookup_threads={threads}: give 1 to {LOOKUP_THREADS_MAX}"
        );
    }
    let connections = config.max_connections;
    ensure!((1..=CONNECTIONS_MAX).contains(&connections), "max_connections={connections}: give 1 to {CONNECTIONS_MAX}");
    let per_address = config.max_connections_per_address;
    ensure!(
        (1..=connections).contains(&per_address),
        "max_connections_per_address={per_address}: give 1 to max_connections={connections}"
    );
    let subscribers = config.feed_subscribers;
    ensure!(
        (1..=SUBSCRIBERS_MAX).contains(&subscribers),
        "feed_subscribers={subscribers}: give 1 to {SUBSCRIBERS_MAX}, because each may hold 2 MiB; feed = false keeps no \
         feed"
    );
    let retained = config.feed_retention_bytes;
    ensure!(retained <= RETENTION_BYTES_MAX, "feed_retention_bytes={retained}: give {RETENTION_BYTES_MAX} or less");
    let (lag_ms, lag_slots, most_ms) = (config.max_lag_ms, config.max_lag_slots, DAY.as_millis() as u64);
    ensure!((1..=most_ms).contains(&lag_ms), "max_lag_ms={lag_ms}: give 1 to {most_ms}, such as 10000");
    ensure!(
        (1..=LAG_SLOTS_MAX).contains(&lag_slots),
        "max_lag_slots={lag_slots}: give 1 to {LAG_SLOTS_MAX}, such as 150"
    );
    let takeover = config.takeover_lag_slots;
    ensure!(
        (1..=LAG_SLOTS_MAX).contains(&takeover),
        "takeover_lag_slots={takeover}: give 1 to {LAG_SLOTS_MAX}, such as 50"
    );
    let at_once = usize::from(config.geyser_at_once);
    ensure!((1..=LANES_MAX).contains(&at_once), "geyser_at_once={at_once}: give 1 or {LANES_MAX}");
    let providers = config.geyser.len();
    ensure!(
        at_once <= providers.max(1),
        "geyser_at_once={at_once} with {providers} server in geyser: name a second server, or give 1"
    );
    ensure!(providers <= PROVIDERS_MAX, "geyser has {providers} providers: give {PROVIDERS_MAX} or fewer");
    check_durations(config)
}

fn check_durations(config: &Config) -> Result<()> {
    let zero = Duration::ZERO;
    let bounds = [
        // Uncommitted slots are received again after a crash.
        ("commit_interval", config.commit_interval, zero, HOUR, "1s"),
        // A time below that of one slot would reconnect without end.
        ("idle_timeout", config.idle_timeout, Duration::from_millis(500), HOUR, "30s"),
        // Slots that wait are held in memory.
        ("gap_timeout", config.gap_timeout, WAIT_MIN, HOUR, "60s"),
        ("feed_retention_time", config.feed_retention_time, zero, RETENTION_TIME_MAX, "1day"),
        ("feed_heartbeat", config.feed_heartbeat, HEARTBEAT_MIN, HOUR, "1s"),
        // A stalled subscriber holds its place and its messages for this long.
        ("feed_stall_timeout", config.feed_stall_timeout, WAIT_MIN, DAY, "30s"),
        ("idle_connection_timeout", config.idle_connection_timeout, zero, 365 * DAY, "10m"),
        // A request holds its resources for this long.
        ("request_timeout", config.request_timeout, WAIT_MIN, HOUR, "10s"),
        ("slow_request", config.slow_request, zero, HOUR, "10ms"),
        // A service manager does not wait longer than this either.
        ("shutdown_timeout", config.shutdown_timeout, WAIT_MIN, HOUR, "10s"),
    ];
    for (name, given, least, most, such) in bounds {
        let shown = |duration| humantime::format_duration(duration).to_string();
        ensure!(
            (least..=most).contains(&given),
            "{name}={}: give {} to {}, such as {such}",
            shown(given),
            shown(least),
            shown(most)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Settings;

    fn resolve(more: &str) -> anyhow::Result<()> {
        let text = format!("dir = \"/a\"\ngeyser = \"http://h:1\"\n{more}");
        toml::from_str::<Settings>(&text).unwrap().resolve().map(drop)
    }

    #[test]
    fn every_number_has_a_greatest_and_where_zero_is_senseless_a_least() {
        for (key, good, wrong) in [
            ("commit_every", &["1", "1048576"][..], &["0", "1048577"][..]),
            ("ingest_depth", &["1", "65536"], &["0", "65537"]),
            ("lookup_threads", &["1", "256"], &["0", "257", "4294967295"]),
            ("max_connections", &["1", "65536"], &["0", "65537"]),
            ("feed_subscribers", &["1", "1024"], &["0", "1025", "1000000000"]),
            ("feed_retention_bytes", &["\"1B\"", "\"16TiB\""], &["\"17TiB\"", "\"15EiB\""]),
            ("max_lag_ms", &["1", "86400000"], &["0", "86400001"]),
            ("max_lag_slots", &["1", "216000"], &["0", "216001"]),
            ("geyser_at_once", &["1"], &["0", "2", "3"]),
            ("takeover_lag_slots", &["1", "216000"], &["0", "216001"]),
        ] {
            good.iter().for_each(|value| resolve(&format!("{key} = {value}")).unwrap());
            for value in wrong {
                let said = resolve(&format!("{key} = {value}")).unwrap_err().to_string();
                assert!(said.starts_with(&format!("{key}=")) && said.contains("give "), "{said}");
            }
        }
    }

    #[test]
    fn every_duration_has_a_greatest_and_where_zero_is_senseless_a_least() {
        for (key, zero, good) in [
            ("commit_interval", true, "1h"),
            ("idle_timeout", false, "500ms"),
            ("gap_timeout", false, "1h"),
            ("feed_retention_time", true, "3650days"),
            ("feed_heartbeat", false, "10ms"),
            ("feed_stall_timeout", false, "1day"),
            ("idle_connection_timeout", true, "365days"),
            ("request_timeout", false, "1h"),
            ("slow_request", true, "1h"),
            ("shutdown_timeout", false, "1h"),
        ] {
            resolve(&format!("{key} = \"{good}\"")).unwrap();
            assert_eq!(resolve(&format!("{key} = \"0s\"")).is_ok(), zero, "{key}");
            for wrong in ["584years", "100000years"] {
                let said = resolve(&format!("{key} = \"{wrong}\"")).unwrap_err().to_string();
                assert!(said.starts_with(&format!("{key}=")) && said.contains("such as"), "{said}");
            }
        }
    }
}
