//! Contents of the Grafana dashboard: the panels of each group and their queries.
//!
//! Owns: titles, queries, legends, units. Must not: lay anything out; `grafana` does. In a query `@` stands for the
//! instances chosen at the top of the dashboard; `$__rate_interval` is Grafana's own.

use super::catalogue::Group;

pub(super) struct Panel {
    pub(super) group: Group,
    pub(super) title: &'static str,
    /// Grafana's identifier of the unit.
    pub(super) unit: &'static str,
    /// Whether the panel shows a single value instead of a curve.
    pub(super) stat: bool,
    /// Queries, each with its legend.
    pub(super) queries: &'static [(&'static str, &'static str)],
}

macro_rules! panels {
    ($($group:ident { $($kind:ident $title:literal $unit:literal: $($query:expr => $legend:literal),+;)+ })+) => {
        pub(super) const PANELS: &[Panel] = &[$($(Panel {
            group: Group::$group,
            title: $title,
            unit: $unit,
            stat: matches!(stringify!($kind).as_bytes(), b"stat"),
            queries: &[$(($query, $legend)),+],
        }),+),+];
    };
}

/// Builds the query for a quantile of an operation's latency, by instance and source.
macro_rules! quantile {
    ($quantile:literal, $op:literal) => {
        concat!(
            "histogram_quantile(",
            $quantile,
            ", sum by (instance, source, le) (rate(solkv_op_latency_seconds_bucket{@,op=\"",
            $op,
            "\"}[$__rate_interval])))"
        )
    };
}

panels! {
    Health {
        stat "Ready" "bool_yes_no": "solkv_ready{@}" => "{{instance}}";
        stat "Gap" "bool_yes_no": "solkv_gap{@}" => "{{instance}}";
        stat "Missing slots" "none": "solkv_gap_last_slot{@} - solkv_gap_first_slot{@} + 1" => "{{instance}}";
        stat "Running for" "s": "time() - solkv_start_time_seconds{@}" => "{{instance}}";
        stat "Version" "none": "solkv_build_info{@}" => "{{instance}} {{version}} {{engine}}";
        curve "Ingest busy with one message" "s": "solkv_ingest_busy_seconds{@}" => "{{instance}}";
    }
    Lag {
        curve "Lag" "s": "solkv_lag_seconds{@}" => "{{instance}}";
        curve "Lag in slots" "none": "solkv_lag_slots{@}" => "{{instance}}";
        curve "Slots" "none":
            "solkv_newest_slot{@}" => "{{instance}} newest known",
            "solkv_checkpoint_slot{@}" => "{{instance}} applied";
        curve "Since the last update and commit" "s":
            "time() - solkv_last_update_time_seconds{@}" => "{{instance}} update",
            "time() - solkv_last_commit_time_seconds{@}" => "{{instance}} commit";
        curve "Connected to the stream" "none":
            "solkv_connected{@}" => "{{instance}} connected",
            "increase(solkv_connects_total{@}[$__rate_interval])" => "{{instance}} connections made";
        curve "Provider followed" "none":
            "solkv_provider_condition{@,condition=\"followed\"}" => "{{instance}} {{provider}}",
            "increase(solkv_provider_takeovers_total{@}[$__rate_interval])" => "{{instance}} takeovers";
        curve "Lag of each provider in slots" "none":
            "solkv_provider_lag_slots{@}" => "{{instance}} {{provider}}";
        curve "Slots that each of two providers brought first, and told otherwise" "none":
            "increase(solkv_provider_slots_first_total{@}[$__rate_interval])" => "{{instance}} {{provider}} first",
            "increase(solkv_provider_slots_differing_total{@}[$__rate_interval])" => "{{instance}} {{provider}} otherwise";
        curve "Errors of each provider" "none":
            "increase(solkv_provider_errors_total{@}[$__rate_interval])" => "{{instance}} {{provider}}";
        curve "Batches waiting for the ingest thread (at most 256)" "none": "solkv_queue_batches{@}" => "{{instance}}";
    }
    Ingest {
        curve "Updates received" "ops":
            "rate(solkv_updates_received_total{@}[$__rate_interval])" => "{{instance}} received",
            "rate(solkv_updates_duplicate_total{@}[$__rate_interval])" => "{{instance}} duplicate",
            "rate(solkv_updates_malformed_total{@}[$__rate_interval])" => "{{instance}} malformed";
        curve "Events" "ops":
            "rate(solkv_events_applied_total{@}[$__rate_interval])" => "{{instance}} applied",
            "rate(solkv_events_written_total{@}[$__rate_interval])" => "{{instance}} written",
            "rate(solkv_events_deleted_total{@}[$__rate_interval])" => "{{instance}} deleted";
        curve "Commits" "ops":
            "rate(solkv_commits_total{@}[$__rate_interval])" => "{{instance}}",
            "rate(solkv_commits_without_space_total{@}[$__rate_interval])" => "{{instance}} without space";
        curve "Slots" "ops":
            "rate(solkv_slots_applied_total{@}[$__rate_interval])" => "{{instance}} applied",
            "rate(solkv_slots_dead_total{@}[$__rate_interval])" => "{{instance}} dead",
            "rate(solkv_slots_duplicate_total{@}[$__rate_interval])" => "{{instance}} duplicate";
        curve "Changes committed" "ops": "rate(solkv_checkpoint_seq{@}[$__rate_interval])" => "{{instance}}";
    }
    Loading {
        stat "Loading" "bool_yes_no": "solkv_loading{@}" => "{{instance}}";
        stat "Warming up" "bool_yes_no": "solkv_warming{@}" => "{{instance}}";
        stat "Spool takes no more" "bool_yes_no": "solkv_spool_stopped{@}" => "{{instance}}";
        curve "Archive read" "bytes":
            "solkv_load_read_bytes{@}" => "{{instance}} read",
            "solkv_load_archive_bytes{@}" => "{{instance}} all";
        curve "Pairs loaded" "none": "solkv_load_pairs{@}" => "{{instance}}";
        curve "Warm-up" "bytes":
            "solkv_warm_up_missing_bytes{@}" => "{{instance}} missing at the start",
            "solkv_warm_up_left_bytes{@}" => "{{instance}} left",
            "solkv_warm_up_read_bytes{@}" => "{{instance}} read";
        curve "Spool" "bytes": "solkv_spool_bytes{@}" => "{{instance}}";
        curve "Slots in the spool" "none": "solkv_spool_slots{@}" => "{{instance}}";
        stat "Healing" "bool_yes_no": "solkv_healing{@}" => "{{instance}}";
        curve "Heal" "none":
            "solkv_heal_differences{@}" => "{{instance}} differences",
            "solkv_heal_applied{@}" => "{{instance}} applied";
        curve "Heals" "none":
            "increase(solkv_heals_total{@}[$__rate_interval])" => "{{instance}} healed",
            "increase(solkv_heal_failures_total{@}[$__rate_interval])" => "{{instance}} archive not usable";
        curve "Sources of archives that fail" "none": "solkv_heal_sources_failing{@}" => "{{instance}}";
        curve "Newest archive behind the store, in slots" "none":
            "solkv_checkpoint_slot{@} - solkv_heal_newest_archive_slot{@}" => "{{instance}}";
    }
    Latency {
        curve "Negative read" "s":
            quantile!("0.5", "read_negative") => "{{instance}} {{source}} p50",
            quantile!("0.99", "read_negative") => "{{instance}} {{source}} p99",
            quantile!("0.999", "read_negative") => "{{instance}} {{source}} p99.9";
        curve "Positive read" "s":
            quantile!("0.5", "read_positive") => "{{instance}} {{source}} p50",
            quantile!("0.99", "read_positive") => "{{instance}} {{source}} p99",
            quantile!("0.999", "read_positive") => "{{instance}} {{source}} p99.9";
        curve "get_many" "s":
            quantile!("0.5", "get_many") => "{{instance}} {{source}} p50",
            quantile!("0.99", "get_many") => "{{instance}} {{source}} p99",
            quantile!("0.999", "get_many") => "{{instance}} {{source}} p99.9";
        curve "Write" "s":
            quantile!("0.5", "write") => "{{instance}} {{source}} p50",
            quantile!("0.99", "write") => "{{instance}} {{source}} p99",
            quantile!("0.999", "write") => "{{instance}} {{source}} p99.9";
        curve "Commit" "s":
            quantile!("0.5", "commit") => "{{instance}} {{source}} p50",
            quantile!("0.99", "commit") => "{{instance}} {{source}} p99",
            quantile!("0.999", "commit") => "{{instance}} {{source}} p99.9";
        curve "Longest since the start" "s":
            "solkv_op_latency_quantile_seconds{@,stat=\"max\"}" => "{{instance}} {{source}} {{op}}";
        stat "Cost of the clock in each figure" "s": "solkv_op_latency_instrument_seconds{@}" => "{{instance}}";
        curve "Lookups" "ops":
            "rate(solkv_lookups_total{@}[$__rate_interval])" => "{{instance}} keys",
            "rate(solkv_lookups_refused_total{@}[$__rate_interval])" => "{{instance}} requests refused";
        curve "Slow requests" "ops":
            "rate(solkv_slow_requests_total{@}[$__rate_interval])" => "{{instance}} {{transport}}";
    }
    Memory {
        curve "Memory against the cap" "bytes":
            "solkv_memory_cap_bytes{@}" => "{{instance}} cap",
            "solkv_memory_bytes{@}" => "{{instance}} {{kind}}";
        curve "Resident" "bytes": "solkv_memory_resident_bytes{@}" => "{{instance}} {{kind}}";
        curve "Disk" "bytes":
            "solkv_disk_free_bytes{@}" => "{{instance}} free",
            "solkv_disk_size_bytes{@}" => "{{instance}} size",
            "solkv_engine_disk_bytes{@}" => "{{instance}} store",
            "solkv_feed_log_bytes{@}" => "{{instance}} feed";
    }
    Engine {
        curve "Pairs" "none": "solkv_engine_pairs{@}" => "{{instance}}";
        curve "Bytes" "bytes": "solkv_engine_detail{@,name=~\".*_bytes\"}" => "{{instance}} {{name}}";
        curve "Figures" "none": "solkv_engine_detail{@,name!~\".*_(bytes|us)\"}" => "{{instance}} {{name}}";
        curve "Commits held up" "none":
            "increase(solkv_engine_detail{@,name=\"write_stalls\"}[$__rate_interval])"
                => "{{instance}} strata: waited for a flush",
            "solkv_engine_detail{@,name=\"write_stopped\"}" => "{{instance}} rocksdb: writes stopped";
    }
    Feed {
        curve "Changes kept" "none": "solkv_feed_seq{@} - solkv_feed_oldest_seq{@} + 1" => "{{instance}}";
        curve "Subscribers" "none": "solkv_feed_subscribers{@}" => "{{instance}}";
        curve "Furthest behind, in changes" "none": "solkv_feed_subscriber_lag{@}" => "{{instance}}";
        curve "Changes sent" "ops":
            "rate(solkv_feed_changes_sent_total{@}[$__rate_interval])" => "{{instance}}";
        curve "Subscribers cut off" "none":
            "increase(solkv_feed_cut_off_total{@}[$__rate_interval])" => "{{instance}}";
        curve "Dumps and views held" "none":
            "solkv_feed_dumps{@}" => "{{instance}} dumps",
            "solkv_views{@}" => "{{instance}} views";
        curve "Oldest view" "s": "solkv_view_age_seconds{@}" => "{{instance}}";
    }
    Connections {
        curve "Open" "none":
            "solkv_connections{@}" => "{{instance}} {{listener}}",
            "solkv_shm_sessions{@}" => "{{instance}} shared memory";
        curve "Accepted" "ops":
            "rate(solkv_connections_accepted_total{@}[$__rate_interval])" => "{{instance}} {{listener}}";
        curve "Refused and cut" "ops":
            "rate(solkv_connections_refused_total{@}[$__rate_interval])" => "{{instance}} {{listener}} refused",
            "rate(solkv_connections_cut_total{@}[$__rate_interval])" => "{{instance}} {{listener}} cut";
        curve "Connections ended, by rule" "ops":
            "rate(solkv_connections_ended_total{@}[$__rate_interval])" => "{{instance}} {{rule}}";
        curve "Requests refused, by share of places" "ops":
            "rate(solkv_places_refused_total{@}[$__rate_interval])" => "{{instance}} {{place}} {{scope}}";
        curve "Requests refused, by cause" "ops":
            "rate(solkv_tls_handshakes_failed_total{@}[$__rate_interval])" => "{{instance}} handshake failed",
            "rate(solkv_requests_unauthenticated_total{@}[$__rate_interval])" => "{{instance}} no token",
            "rate(solkv_wire_refused_total{@}[$__rate_interval])" => "{{instance}} no room",
            "rate(solkv_http_foreign_hosts_total{@}[$__rate_interval])" => "{{instance}} foreign host";
        curve "Bytes of requests and unread answers" "bytes": "solkv_wire_bytes{@}" => "{{instance}}";
    }
    Commitments {
        curve "Slots ahead of and behind the store" "none":
            "solkv_processed_slot{@} - solkv_checkpoint_slot{@}" => "{{instance}} processed ahead",
            "solkv_checkpoint_slot{@} - solkv_finalized_slot{@}" => "{{instance}} finalized behind";
        curve "Changes not yet final" "none": "solkv_undo_changes{@}" => "{{instance}}";
        curve "Banks not yet committed" "none":
            "solkv_overlay_banks{@}" => "{{instance}} banks",
            "solkv_overlay_connected{@}" => "{{instance}} connected",
            "solkv_overlay_overflowed{@}" => "{{instance}} overflowed";
        curve "Bytes of banks" "bytes": "solkv_overlay_bytes{@}" => "{{instance}}";
        curve "Processed updates" "ops":
            "rate(solkv_overlay_updates_received_total{@}[$__rate_interval])" => "{{instance}}";
        curve "Banks dropped" "ops":
            "rate(solkv_overlay_banks_dropped_total{@}[$__rate_interval])" => "{{instance}} {{reason}}";
    }
    Snapshots {
        stat "Snapshot running" "bool_yes_no": "solkv_snapshot_running{@}" => "{{instance}}";
        stat "Newest snapshot's age" "s": "time() - solkv_snapshot_last_time_seconds{@}" => "{{instance}}";
        stat "Newest snapshot's duration" "s": "solkv_snapshot_last_took_seconds{@}" => "{{instance}}";
        stat "Snapshots" "none": "solkv_snapshots_total{@}" => "{{instance}} {{result}}";
    }
}
