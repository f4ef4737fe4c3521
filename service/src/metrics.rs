//! The metric catalogue: every `solkv_*` family of the service, its type and its help text.
//!
//! Owns: names (units last) and their Prometheus text. Must not: hold values; they are read from [`Shared`] at each
//! scrape. The operation latencies are engine-latency's own families.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine_api::Stats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::feed::Feed;
use crate::net::figures::{Figures, Listener};
use crate::overlay::{Commitment, Overlay};
use crate::status::{Counters, Readiness, Shared};

/// Appends the service's families in the Prometheus text format. `engine` is the engine's label.
pub fn prometheus(engine: &'static str, shared: &Arc<Shared>, feed: Option<&Arc<Feed>>, out: &mut String) {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Families { engine, shared: Arc::clone(shared), feed: feed.cloned() }));
    let mut text = String::new();
    encode_registry(&mut text, &registry).expect("a string takes every write");
    classic(&text, out);
}

/// The counters as `(name without _total, help, value)`.
pub fn counters(counters: &Counters) -> [(&'static str, &'static str, u64); 13] {
    // ORDERING: Relaxed: statistics, nothing is inferred from them.
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let c = counters;
    [
        ("solkv_updates_received", "Updates received from the stream", read(&c.updates_received)),
        (
            "solkv_updates_malformed",
            "Updates that nothing can be made of; each ends its connection and is a gap until it comes well formed",
            read(&c.updates_malformed),
        ),
        (
            "solkv_updates_duplicate",
            "Account updates dropped because their slot is whole already, as a replay sends them",
            read(&c.updates_duplicate),
        ),
        ("solkv_connects", "Connections made to the stream's server", read(&c.connects)),
        ("solkv_events_applied", "Events applied to the store", read(&c.events_applied)),
        ("solkv_events_written", "Events that set a value", read(&c.events_written)),
        ("solkv_events_deleted", "Events that removed a key", read(&c.events_deleted)),
        ("solkv_slots_applied", "Slots applied as a whole", read(&c.slots_applied)),
        ("solkv_slots_dead", "Slots dropped because they are not on the chain", read(&c.slots_dead)),
        ("solkv_slots_duplicate", "Slots dropped because they were applied before", read(&c.slots_duplicate)),
        ("solkv_commits", "Commits of the ingest path", read(&c.commits)),
        ("solkv_lookups", "Keys looked up", read(&c.lookups)),
        ("solkv_lookups_refused", "Lookup requests refused because too many waited", read(&c.lookups_refused)),
    ]
}

#[derive(Debug)]
struct Families {
    engine: &'static str,
    shared: Arc<Shared>,
    feed: Option<Arc<Feed>>,
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, help, value) in counters(&self.shared.counters) {
            let value = ConstCounter::new(value);
            value.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        for (name, help, value) in gauges(&self.shared) {
            gauge(&mut encoder, name, help, value)?;
        }
        if let Some(feed) = &self.feed {
            feed_families(&mut encoder, feed)?;
        }
        overlay(&mut encoder, &self.shared.overlay)?;
        let lag_s = lag_seconds(&self.shared);
        if let Some(lag_s) = lag_s {
            let help = "Time from the creation of the newest applied slot's block meta to its commit";
            let metric = encoder.encode_descriptor("solkv_lag_seconds", help, None, MetricType::Gauge)?;
            ConstGauge::new(lag_s).encode(metric)?;
        }
        let stats = self.shared.stats.load();
        engine_stats(&mut encoder, &stats)?;
        network_edge(&mut encoder, &self.shared.net)?;
        let help = "Constant 1; its labels say which version runs on which engine";
        let mut info = encoder.encode_descriptor("solkv_build_info", help, None, MetricType::Gauge)?;
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("engine", self.engine)];
        ConstGauge::new(1i64).encode(info.encode_family(&labels)?)
    }
}

/// The gauges that have a value now. Absent rather than 0 where 0 would be read as a slot or a lag.
fn gauges(shared: &Shared) -> Vec<(&'static str, &'static str, u64)> {
    // ORDERING: Relaxed: statistics, nothing is inferred from them.
    let newest = shared.newest_slot.load(Ordering::Relaxed);
    let queued = shared.queue_batches.load(Ordering::Relaxed);
    let readiness = shared.readiness.load();
    let ready = u64::from(**readiness == Readiness::Ready);
    let connected = u64::from(shared.connected.load(Ordering::Relaxed));
    let mut all = vec![
        ("solkv_ready", "1 when lookups stand for the live chain, else 0", ready),
        ("solkv_connected", "1 when connected to the stream, else 0", connected),
        ("solkv_queue_batches", "Batches of updates received and not yet taken in; at most 256", queued),
        ("solkv_checkpoint_seq", "Seq of the newest committed change", shared.checkpoint.load().seq),
    ];
    let sessions = shared.shm_sessions.load(Ordering::Relaxed);
    all.push(("solkv_shm_sessions", "Clients on shared memory; at most 64", sessions));
    if let Some(slot) = shared.checkpoint.load().slot {
        all.push(("solkv_checkpoint_slot", "Last slot applied as a whole", slot));
    }
    if newest > 0 {
        all.push(("solkv_newest_slot", "Newest slot heard of from the stream", newest));
        if let Some(lag) = shared.lag_slots() {
            all.push(("solkv_lag_slots", "Slots between the newest heard of and the newest applied", lag));
        }
    }
    if let Readiness::Gap(gap) = &**readiness {
        all.push(("solkv_gap_first_slot", "First missing slot; absent without a gap", gap.first_slot));
        all.push(("solkv_gap_last_slot", "Last missing slot; absent without a gap", gap.last_slot));
    }
    all
}

fn feed_families(encoder: &mut DescriptorEncoder<'_>, feed: &Feed) -> Result<(), fmt::Error> {
    let all = feed.subscribed();
    let newest_seq = feed.head().borrow().seq;
    let behind = all.iter().map(|subscriber| subscriber.lag_seq).max().unwrap_or(0);
    for (name, help, value) in [
        ("solkv_feed_seq", "The newest published change", newest_seq),
        ("solkv_feed_oldest_seq", "The oldest change that is kept", feed.oldest_seq()),
        ("solkv_feed_log_bytes", "Bytes of the feed's log on disk", feed.log_bytes()),
        ("solkv_feed_subscribers", "Subscribers of the feed", all.len() as u64),
        ("solkv_feed_subscriber_lag", "Changes that the subscriber furthest behind was not sent yet", behind),
    ] {
        gauge(encoder, name, help, value)?;
    }
    // ORDERING: Relaxed: statistics, nothing is inferred from them.
    let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let subscribers = feed.subscribers();
    for (name, help, value) in [
        ("solkv_feed_changes_sent", "Changes sent to subscribers", read(&subscribers.changes_sent)),
        ("solkv_feed_cut_off", "Subscribers cut off because they did not read", read(&subscribers.cut_off)),
    ] {
        ConstCounter::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
    }
    Ok(())
}

fn lag_seconds(shared: &Shared) -> Option<f64> {
    // ORDERING: Relaxed: statistics, nothing is inferred from them.
    let applied = shared.counters.slots_applied.load(Ordering::Relaxed) > 0;
    applied.then(|| shared.lag_ms.load(Ordering::Relaxed) as f64 / 1e3)
}

fn engine_stats(encoder: &mut DescriptorEncoder<'_>, stats: &Stats) -> Result<(), fmt::Error> {
    let pairs = "Pairs in the store; exact for lmdb and redb, an estimate for rocksdb and strata";
    gauge(encoder, "solkv_engine_pairs", pairs, stats.pairs_estimate)?;
    gauge(encoder, "solkv_engine_disk_bytes", "Bytes the store occupies on disk", stats.disk_bytes)?;
    if stats.details.is_empty() {
        return Ok(());
    }
    let help = "Figures of the engine's own, each in the unit at the end of its name";
    let mut family = encoder.encode_descriptor("solkv_engine_detail", help, None, MetricType::Gauge)?;
    for (name, value) in &stats.details {
        ConstGauge::new(*value as f64).encode(family.encode_family(&[("name", *name)])?)?;
    }
    Ok(())
}

fn network_edge(encoder: &mut DescriptorEncoder<'_>, net: &Figures) -> Result<(), fmt::Error> {
    // ORDERING: Relaxed: statistics, nothing is inferred from them.
    let read = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
    let open = encoder.encode_descriptor("solkv_connections", "Connections open now", None, MetricType::Gauge)?;
    by_listener(open, |listener| ConstGauge::new(read(&net.of(listener).open)))?;
    let help = "Connections accepted, refused ones not among them";
    let accepted = encoder.encode_descriptor("solkv_connections_accepted", help, None, MetricType::Counter)?;
    by_listener(accepted, |listener| ConstCounter::new(read(&net.of(listener).accepted)))?;
    let help = "Connections closed at once because as many as allowed were open";
    let refused = encoder.encode_descriptor("solkv_connections_refused", help, None, MetricType::Counter)?;
    by_listener(refused, |listener| ConstCounter::new(read(&net.of(listener).refused)))?;
    let help = "Connections ended by the service: nothing came in time, or answers were not read";
    let cut = encoder.encode_descriptor("solkv_connections_cut", help, None, MetricType::Counter)?;
    by_listener(cut, |listener| ConstCounter::new(read(&net.of(listener).cut)))?;
    for (name, help, value) in [
        ("solkv_tls_handshakes_failed", "TLS handshakes that failed or took too long", &net.handshakes_failed),
        ("solkv_requests_unauthenticated", "Requests without a bearer token that is accepted", &net.unauthenticated),
        ("solkv_wire_refused", "Requests and answers refused: no room for their bytes", &net.bytes_refused),
    ] {
        ConstCounter::new(read(value)).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
    }
    let help = "Bytes of large requests and of answers not yet read; at most 64 MiB";
    gauge(encoder, "solkv_wire_bytes", help, read(&net.bytes_held))
}

fn by_listener<M: EncodeMetric>(
    mut family: MetricEncoder<'_>,
    metric: impl Fn(Listener) -> M,
) -> Result<(), fmt::Error> {
    for listener in Listener::ALL {
        metric(listener).encode(family.encode_family(&[("listener", listener.name())])?)?;
    }
    Ok(())
}

fn overlay(encoder: &mut DescriptorEncoder<'_>, overlay: &Overlay) -> Result<(), fmt::Error> {
    // ORDERING: Relaxed: statistics, nothing is inferred from them.
    let read = |figure: &std::sync::atomic::AtomicU64| figure.load(Ordering::Relaxed);
    if let Some(slot) = overlay.slot(Commitment::Finalized) {
        gauge(encoder, "solkv_finalized_slot", "Newest finalized slot that can be read", slot)?;
    }
    if let Some(undo) = overlay.undo() {
        let help = "Changes after the finalized slot, whose old values are kept in memory";
        gauge(encoder, "solkv_undo_changes", help, undo.changes() as u64)?;
    }
    let Some(processed) = overlay.processed() else { return Ok(()) };
    if let Some(slot) = overlay.slot(Commitment::Processed) {
        gauge(encoder, "solkv_processed_slot", "Newest slot on the processed fork", slot)?;
    }
    let figures = &processed.figures;
    let connected = u64::from(figures.connected.load(Ordering::Relaxed));
    gauge(encoder, "solkv_overlay_connected", "1 when connected to the processed stream, else 0", connected)?;
    gauge(encoder, "solkv_overlay_banks", "Banks held that are not committed yet; at most 256", read(&figures.banks))?;
    gauge(encoder, "solkv_overlay_bytes", "Bytes that these banks take; at most 256 MiB", read(&figures.bytes))?;
    let help = "1 while processed lookups are refused because there were too many banks or bytes, else 0";
    gauge(encoder, "solkv_overlay_overflowed", help, u64::from(processed.view().overflowed))?;
    let help = "Updates received from the processed stream";
    let updates = encoder.encode_descriptor("solkv_overlay_updates_received", help, None, MetricType::Counter)?;
    ConstCounter::new(read(&figures.updates)).encode(updates)?;
    let help = "Banks dropped, by reason: only committed, dead and abandoned are the chain's own";
    let mut family = encoder.encode_descriptor("solkv_overlay_banks_dropped", help, None, MetricType::Counter)?;
    for (reason, dropped) in figures.dropped.load().by_reason() {
        ConstCounter::new(dropped).encode(family.encode_family(&[("reason", reason)])?)?;
    }
    Ok(())
}

/// Slots and byte counts are below 2^53, where a double is exact.
fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> Result<(), fmt::Error> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(encoder.encode_descriptor(
        name,
        help,
        None,
        MetricType::Gauge,
    )?)
}

/// From OpenMetrics to the classic text format that the latency families are in: there a counter's family has
/// the name of its samples, with `_total`.
fn classic(text: &str, out: &mut String) {
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let counter = |line: &str| line.starts_with("# TYPE ") && line.ends_with(" counter");
        if counter(line) || (line.starts_with("# HELP ") && lines.peek().is_some_and(|next| counter(next))) {
            let mut words = line.splitn(4, ' ');
            let mut word = || words.next().unwrap_or_default();
            let (hash, keyword, name, rest) = (word(), word(), word(), word());
            out.push_str(&format!("{hash} {keyword} {name}_total {rest}\n"));
        } else {
            out.push_str(line);
            out.push('\n');
        }
    }
}
