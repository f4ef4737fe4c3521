//! The metric catalogue: every family that /metrics can show, with its type, unit, labels and help.
//!
//! Owns: all of that, in one place; /metrics, METRICS.md and the Grafana dashboard are made from it. Must not: hold
//! values. A family that is not here cannot be written, because `collect` takes only entries of the catalogue.

use engine_latency::export;

use crate::base::label::labels;

labels! {
    /// Type of a metric family, with its name in the Prometheus text format.
    pub enum Kind {
        /// A count that only grows, until a restart.
        Counter = "counter",
        /// A value that goes up and down.
        Gauge = "gauge",
        /// A distribution: buckets, their sum and their count.
        Histogram = "histogram",
    }
}

labels! {
    /// Unit of a family's values, in words for METRICS.md.
    pub enum Unit {
        /// A flag: 1 or 0.
        Bool = "1 or 0",
        Bytes = "bytes",
        /// A number of things that the metric's name gives.
        Count = "count",
        Seconds = "seconds",
        /// A time, in seconds since the Unix epoch.
        UnixSeconds = "unix seconds",
        Slot = "slot",
        /// Sequence numbers of changes in the feed.
        Seq = "seq",
        /// Units differ between values; the name of each value gives its unit.
        Mixed = "by name",
    }
}

labels! {
    /// Groups of families: the sections of METRICS.md and the rows of the dashboard, in their order and with their
    /// headings.
    pub enum Group {
        Health = "Health",
        Lag = "Lag",
        Ingest = "Ingest",
        Loading = "Load, warm-up, spool and heal",
        Latency = "Latency and lookups",
        Memory = "Memory and disk",
        Engine = "Engine",
        Feed = "Feed and subscribers",
        Connections = "Connections and refusals",
        Commitments = "Processed and finalized",
        Snapshots = "Snapshots",
    }
}

/// Condition on which a family has samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The family has samples in every scrape.
    Always,
    /// Samples only while this condition, in words, holds.
    If(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Name as scraped; a counter's ends with `_total`.
    pub name: &'static str,
    pub kind: Kind,
    pub unit: Unit,
    pub group: Group,
    /// Labels, each as `name`, or as `name=one|other` if its values are known.
    pub labels: &'static [&'static str],
    pub when: When,
    /// Meaning of the values, as a sentence without a full stop.
    pub help: &'static str,
    /// Title of the Grafana panel that the family shares with others of its group; empty if it has one of its own.
    pub panel: &'static str,
}

impl Metric {
    /// The name for JSON, without the program's own name, which would be repeated on every line.
    pub fn short_name(&self) -> &'static str {
        self.name.trim_start_matches("solkv_").trim_end_matches("_total")
    }
}

macro_rules! catalogue {
    ($($group:ident {
        $($id:ident $kind:ident $unit:ident [$($label:expr),*] $when:expr, $name:expr, $help:expr $(=> $panel:literal)?;)+
    })+) => {
        $($(
            pub const $id: Metric = Metric {
                name: $name,
                kind: Kind::$kind,
                unit: Unit::$unit,
                group: Group::$group,
                labels: &[$($label),*],
                when: $when,
                help: $help,
                panel: concat!($($panel)?),
            };
        )+)+

        /// Every family, in the order of the groups.
        pub const ALL: &[Metric] = &[$($($id),+),+];
    };
}

const OPS: &str = "op=read_negative|read_positive|write|commit|commit_per_item|get_many|scan";
const SOURCES: &str = "source=ingest|rpc|shm";
const REASONS: &str = "reason=committed|dead|abandoned|overflow|disconnected|duplicate";
const ENDINGS: &str = "rule=full|source_share|newcomer|handshake|greeting|first_request|idle|unread";
const PLACES: &str = "place=subscribers|waiters|batches|dumps|derived|views|bytes";
const STORES: &str = "store=values|history";
const SCOPES: &str = "scope=connection|source|network|all";
const CONDITIONS: &str = "condition=followed|standby|fails|distrusted";
const LISTENERS: &str = "listener=grpc-tcp|grpc-uds|redis-tcp|redis-uds|http-tcp|http-uds|metrics";

const ALWAYS: When = When::Always;
const SLOT_KNOWN: When = When::If("a slot is known, from a load or from the stream");
const HEARD: When = When::If("the stream has sent updates");
const APPLIED: When = When::If("a slot has been applied since the start");
const GAP: When = When::If("slots are missing");
const WITH_FEED: When = When::If("feed = true");
const WITH_PROCESSED: When = When::If("processed = true");
const SAMPLED: When = When::If("the kernel provides it");
const IN_CGROUP: When = When::If("the process is in a memory cgroup");
const ARCHIVE_FOUND: When = When::If("an archive has been found in heal_from since the start");

catalogue! {
    Health {
        BUILD_INFO Gauge Bool ["version", "engine"] ALWAYS, "solkv_build_info",
            "Constant 1; its labels say which version runs on which engine";
        START_TIME Gauge UnixSeconds [] ALWAYS, "solkv_start_time_seconds", "When the service started";
        READY Gauge Bool [] ALWAYS, "solkv_ready", "1 while lookups are up to date with the live chain, else 0";
        GAP_OPEN Gauge Bool [] ALWAYS, "solkv_gap", "1 while slots are missing and nothing is applied, else 0";
        GAP_FIRST_SLOT Gauge Slot [] GAP, "solkv_gap_first_slot", "First missing slot"
            => "Missing slots after the applied one";
        GAP_LAST_SLOT Gauge Slot [] GAP, "solkv_gap_last_slot", "Last missing slot" => "Missing slots after the applied one";
        INGEST_BUSY Gauge Seconds [] ALWAYS, "solkv_ingest_busy_seconds",
            "How long the ingest thread has worked on its current message; 0 while it waits for one";
    }
    Lag {
        CONNECTED Gauge Bool [] ALWAYS, "solkv_connected", "1 when connected to the stream, else 0";
        CONNECTS Counter Count [] ALWAYS, "solkv_connects_total", "Connections made to the stream's server";
        NEWEST_SLOT Gauge Slot [] HEARD, "solkv_newest_slot", "Newest slot known from the stream";
        CHECKPOINT_SLOT Gauge Slot [] SLOT_KNOWN, "solkv_checkpoint_slot", "Last slot applied completely";
        CHECKPOINT_SEQ Gauge Seq [] ALWAYS, "solkv_checkpoint_seq", "Seq of the newest committed change";
        LAG_SLOTS Gauge Count [] HEARD, "solkv_lag_slots",
            "Number of slots from the newest applied one to the newest one known from the stream";
        LAG Gauge Seconds [] APPLIED, "solkv_lag_seconds",
            "Age of the newest applied slot, from the creation of its block meta to its commit; after a second without \
             a slot the time since is added";
        LAST_UPDATE_TIME Gauge UnixSeconds [] HEARD, "solkv_last_update_time_seconds",
            "When updates of the stream were last passed to the ingest thread";
        PROVIDER_CONDITION Gauge Bool ["provider", CONDITIONS] ALWAYS, "solkv_provider_condition",
            "1 for the present condition of each provider of the stream, else 0";
        PROVIDER_SLOTS_FIRST Counter Count ["provider"] ALWAYS, "solkv_provider_slots_first_total",
            "Slots that the provider completed before the other one; counted while two are followed at once"
            => "Slots of two providers at once: first, differing";
        PROVIDER_SLOTS_DIFFERING Counter Count ["provider"] ALWAYS, "solkv_provider_slots_differing_total",
            "Slots for which the provider sent other accounts than the one that was first, for the same block"
            => "Slots of two providers at once: first, differing";
        PROVIDER_TAKEOVERS Counter Count [] ALWAYS, "solkv_provider_takeovers_total",
            "Takeovers of the stream by another provider";
        QUEUE_BATCHES Gauge Count [] ALWAYS, "solkv_queue_batches",
            "Batches of updates that wait for the ingest thread; at most 256";
    }
    Ingest {
        UPDATES_RECEIVED Counter Count [] ALWAYS, "solkv_updates_received_total", "Updates received from the stream"
            => "Updates received";
        UPDATES_MALFORMED Counter Count [] ALWAYS, "solkv_updates_malformed_total",
            "Malformed updates; each ends its connection, and leaves a gap until it arrives well formed" => "Updates received";
        UPDATES_DUPLICATE Counter Count [] ALWAYS, "solkv_updates_duplicate_total",
            "Account updates dropped because their slot was complete already; a replay repeats such updates"
            => "Updates received";
        EVENTS_APPLIED Counter Count [] ALWAYS, "solkv_events_applied_total", "Events applied to the store" => "Events";
        EVENTS_WRITTEN Counter Count [] ALWAYS, "solkv_events_written_total", "Events that set a value" => "Events";
        EVENTS_DELETED Counter Count [] ALWAYS, "solkv_events_deleted_total", "Events that removed a key" => "Events";
        SLOTS_APPLIED Counter Count [] ALWAYS, "solkv_slots_applied_total", "Slots applied" => "Slots";
        SLOTS_DEAD Counter Count [] ALWAYS, "solkv_slots_dead_total", "Slots dropped because they are not on the chain"
            => "Slots";
        SLOTS_DUPLICATE Counter Count [] ALWAYS, "solkv_slots_duplicate_total",
            "Slots dropped because they were applied before" => "Slots";
        COMMITS Counter Count [] ALWAYS, "solkv_commits_total", "Commits of the ingest path" => "Commits";
        COMMITS_WITHOUT_SPACE Counter Count [] ALWAYS, "solkv_commits_without_space_total",
            "Attempts to commit that found no space on the disk; the batch is kept and the commit is retried" => "Commits";
    }
    Loading {
        LOADING Gauge Bool [] ALWAYS, "solkv_loading",
            "1 while the store is loaded from a snapshot archive and lookups are refused, else 0";
        WARMING Gauge Bool [] ALWAYS, "solkv_warming",
            "1 while the store is read into memory in the background after its opening, else 0";
        WARM_UP_MISSING Gauge Bytes [] ALWAYS, "solkv_warm_up_missing_bytes",
            "Bytes that had room in memory and were not there when the warm-up began; 0 without one since the start"
            => "Warm-up";
        WARM_UP_LEFT Gauge Bytes [] ALWAYS, "solkv_warm_up_left_bytes",
            "Missing bytes that the warm-up has still to read, or could not read; 0 without one since the start" => "Warm-up";
        WARM_UP_READ Gauge Bytes [] ALWAYS, "solkv_warm_up_read_bytes",
            "Missing bytes that the warm-up has read, and not a lookup before it; 0 without one since the start" => "Warm-up";
        SPOOL Gauge Bytes [] ALWAYS, "solkv_spool_bytes",
            "Bytes of the slots that are kept on disk until the store can take them; at most spool_max_bytes";
        SPOOL_SLOTS Gauge Count [] ALWAYS, "solkv_spool_slots", "Slots that are kept on disk until the store can take them";
        SPOOL_STOPPED Gauge Bool [] ALWAYS, "solkv_spool_stopped",
            "1 once the spool takes no more slots, because it is full or the disk has failed, else 0";
        HEALING Gauge Bool [] ALWAYS, "solkv_healing",
            "1 while a gap is closed from snapshot archives, the wait for one included, else 0";
        HEAL_DIFFERENCES Gauge Count [] ALWAYS, "solkv_heal_differences",
            "Keys in which the store differed from the archive of the newest heal; 0 without one since the start" => "Heal";
        HEAL_APPLIED Gauge Count [] ALWAYS, "solkv_heal_applied", "Differences of the newest heal that were applied" => "Heal";
        HEALS Counter Count [] ALWAYS, "solkv_heals_total", "Gaps that were closed from snapshot archives" => "Heals";
        HEAL_FAILURES Counter Count [] ALWAYS, "solkv_heal_failures_total",
            "Attempts to heal with an archive that could not be used" => "Heals";
        HEAL_SOURCES_FAILING Gauge Count [] ALWAYS, "solkv_heal_sources_failing",
            "Sources in heal_from that could not be asked for archives; they are asked every ten minutes, and during a heal";
        HEAL_NEWEST_ARCHIVE_SLOT Gauge Slot [] ARCHIVE_FOUND, "solkv_heal_newest_archive_slot",
            "Slot of the newest archive that the store could be healed from; it stays while no search finds one";
    }
    Latency {
        OP_LATENCY Histogram Seconds ["engine", OPS, SOURCES, "le"] ALWAYS,
            export::LATENCY.name, export::LATENCY.help;
        LOOKUPS Counter Count [] ALWAYS, "solkv_lookups_total", "Keys looked up" => "Lookups";
        LOOKUPS_REFUSED Counter Count [] ALWAYS, "solkv_lookups_refused_total",
            "Lookup requests refused because too many were waiting" => "Lookups";
        SLOW_REQUESTS Counter Count ["transport=grpc-tcp|grpc-uds|redis-tcp|redis-uds|http-tcp|http-uds|shm"] ALWAYS, "solkv_slow_requests_total",
            "Lookup requests that took slow_request or longer; the log gives their causes";
    }
    Memory {
        MEMORY_CAP Gauge Bytes [] SAMPLED, "solkv_memory_cap_bytes",
            "Memory that this process may use: its cgroup's limit, or the machine's memory" => "Memory against the cap";
        MEMORY Gauge Bytes ["kind=charged|anon|page_cache"] IN_CGROUP, "solkv_memory_bytes",
            "Memory charged to the cgroup that sets the cap: in all, anonymous memory, page cache" => "Memory against the cap";
        RESIDENT Gauge Bytes ["kind=anon|file"] SAMPLED, "solkv_memory_resident_bytes",
            "Resident memory of this process: anonymous memory, mapped files" => "Memory against the cap";
        DISK_FREE Gauge Bytes [] SAMPLED, "solkv_disk_free_bytes", "Free space of the store's file system" => "Disk";
        DISK_SIZE Gauge Bytes [] SAMPLED, "solkv_disk_size_bytes", "Size of the store's file system" => "Disk";
        ENGINE_DISK Gauge Bytes [] ALWAYS, "solkv_engine_disk_bytes", "Bytes that the store occupies on disk" => "Disk";
    }
    Engine {
        ENGINE_PAIRS Gauge Count [] ALWAYS, "solkv_engine_pairs",
            "Pairs in the store; exact for lmdb and redb, an estimate for rocksdb; for strata at most so many, because a key that \
             was changed since the last full merge counts again";
        ENGINE_DETAIL Gauge Mixed ["name"] ALWAYS, "solkv_engine_detail",
            "The engine's own figures, each in the unit at the end of its name";
    }
    Feed {
        FEED_SEQ Gauge Seq [] WITH_FEED, "solkv_feed_seq", "Seq of the newest published change"
            => "Newest and oldest change, from the committed one";
        FEED_OLDEST_SEQ Gauge Seq [] WITH_FEED, "solkv_feed_oldest_seq", "Seq of the oldest change that is kept"
            => "Newest and oldest change, from the committed one";
        FEED_LOG Gauge Bytes [] WITH_FEED, "solkv_feed_log_bytes", "Bytes of the feed's log on disk";
        FEED_SUBSCRIBERS Gauge Count [] WITH_FEED, "solkv_feed_subscribers", "Subscribers of the feed";
        FEED_SUBSCRIBER_LAG Gauge Count [] WITH_FEED, "solkv_feed_subscriber_lag",
            "Changes not yet sent to the subscriber that is furthest behind";
        FEED_CUT_OFF Counter Count [] WITH_FEED, "solkv_feed_cut_off_total",
            "Subscribers cut off because they did not read";
        FEED_DUMPS Gauge Count [] WITH_FEED, "solkv_feed_dumps", "Subscribers that are receiving a dump; at most 8";
        DERIVED_LAG Gauge Count [STORES] When::If("the map has a derived store that can be used"), "solkv_derived_lag",
            "Changes of the map that the derived store has still to take";
        DERIVED_BROKEN Gauge Bool [STORES] When::If("the map has a derived store"), "solkv_derived_broken",
            "1 once the derived store has to be made anew, else 0";
        VIEW_AGE Gauge Seconds [] ALWAYS, "solkv_view_age_seconds",
            "Age of the oldest view of the store, 0 without one; a dump releases its view within a second";
    }
    Connections {
        CONNECTIONS Gauge Count [LISTENERS] ALWAYS, "solkv_connections", "Connections open now" => "Open";
        CONNECTIONS_REFUSED Counter Count [LISTENERS] ALWAYS, "solkv_connections_refused_total",
            "Connections closed because a limit was reached: new ones, or older ones that had made no request"
            => "Refused and cut";
        CONNECTIONS_CUT Counter Count [LISTENERS] ALWAYS, "solkv_connections_cut_total",
            "Connections ended by the service: nothing arrived in time, no request was made, or answers were not read"
            => "Refused and cut";
        CONNECTIONS_ENDED Counter Count [ENDINGS] ALWAYS, "solkv_connections_ended_total",
            "Connections refused or ended by the service on all listeners, by the rule that applied";
        PLACES_REFUSED Counter Count [PLACES, SCOPES] ALWAYS, "solkv_places_refused_total",
            "Requests refused because a share of the shared places was used up, by place and by the owner of the share";
        SHM_SESSIONS Gauge Count [] ALWAYS, "solkv_shm_sessions", "Clients on shared memory; at most 64" => "Open";
        TLS_FAILED Counter Count [] ALWAYS, "solkv_tls_handshakes_failed_total",
            "TLS handshakes that failed or took too long" => "Requests refused, by cause";
        UNAUTHENTICATED Counter Count [] ALWAYS, "solkv_requests_unauthenticated_total",
            "Requests refused because they carried no valid bearer token" => "Requests refused, by cause";
        WIRE_REFUSED Counter Count [] ALWAYS, "solkv_wire_refused_total",
            "Requests and answers refused because there was no room for their bytes" => "Requests refused, by cause";
        WIRE Gauge Bytes [] ALWAYS, "solkv_wire_bytes",
            "Bytes of large requests and of answers not yet read; at most 64 MiB";
    }
    Commitments {
        FINALIZED_SLOT Gauge Slot [] When::If("finalized lookups can be answered"), "solkv_finalized_slot",
            "Newest finalized slot that can be read" => "Slots from the applied one";
        UNDO_CHANGES Gauge Count [] When::If("commitment = confirmed"), "solkv_undo_changes",
            "Changes after the finalized slot, whose old values are kept in memory";
        PROCESSED_SLOT Gauge Slot [] When::If("processed = true and a slot is known"), "solkv_processed_slot",
            "Newest slot on the processed fork" => "Slots from the applied one";
        OVERLAY Gauge Bytes [] WITH_PROCESSED, "solkv_overlay_bytes", "Bytes of the banks that are not committed yet; at most 256 MiB";
        OVERLAY_OVERFLOWED Gauge Bool [] WITH_PROCESSED, "solkv_overlay_overflowed",
            "1 while processed lookups are refused because there were too many banks or bytes, else 0";
        OVERLAY_DROPPED Counter Count [REASONS] WITH_PROCESSED, "solkv_overlay_banks_dropped_total",
            "Banks dropped, by reason; of these, committed, dead and abandoned are normal on the chain";
    }
    Snapshots {
        SNAPSHOTS Counter Count ["result=made|failed"] ALWAYS, "solkv_snapshots_total",
            "Snapshots of the store requested on its admin socket, by result";
        SNAPSHOT_RUNNING Gauge Bool [] ALWAYS, "solkv_snapshot_running", "1 while a snapshot is being made, else 0";
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_say_type_and_unit() {
        let names: BTreeSet<&str> = ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), ALL.len());
        for Metric { name, kind, unit, help, .. } in ALL {
            assert!(name.starts_with("solkv_") && !help.is_empty() && !help.ends_with('.'), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            let seconds = matches!(unit, Unit::Seconds | Unit::UnixSeconds);
            assert_eq!(name.ends_with("_seconds"), seconds, "{name}");
            assert_eq!(name.ends_with("_time_seconds"), *unit == Unit::UnixSeconds, "{name}");
            assert_eq!(name.ends_with("_bytes"), *unit == Unit::Bytes, "{name}");
        }
    }
}
