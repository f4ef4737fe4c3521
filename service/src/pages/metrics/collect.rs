//! The values of a scrape: the service's figures under the names of the catalogue.
//!
//! Owns: the mapping of figures to families, and the choice of families without a value at present. Must not: name a
//! family itself, or touch the engine; ingest-apply publishes the engine's figures. Threads: the blocking pool.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::Resources;
use super::catalogue::{self as c, Kind, Metric};
use crate::base::chain::{Commitment, Phase};
use crate::base::figure::unix_ms;
use crate::base::slow::Transport;
use crate::feed::Feed;
use crate::ingest::providers::Condition;
use crate::net::figures::{Connections, Ending, Listener, Place, Scope};
use crate::overlay::Overlay;
use crate::pages::handles::Handles;
use crate::status::Status;
use crate::warmth;

/// All families of a scrape except the latencies.
#[derive(Debug)]
pub(super) struct Families {
    handles: Handles,
    resources: Resources,
}

impl Families {
    pub(super) fn new(handles: Handles, resources: Resources) -> Self {
        Self { handles, resources }
    }
}

impl Collector for Families {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out { encoder };
        for (metric, value) in super::counters(&self.handles) {
            out.one(metric, value as f64)?;
        }
        self.health(&mut out)?;
        self.lag(&mut out)?;
        self.providers(&mut out)?;
        self.loading(&mut out)?;
        self.memory(&mut out)?;
        self.engine(&mut out)?;
        self.edge(&mut out)?;
        if let Some(feed) = &self.handles.feed {
            self.feed(&mut out, feed)?;
        }
        self.views(&mut out)?;
        self.overlay(&mut out, &self.handles.lookups.overlay)?;
        self.snapshots(&mut out)
    }
}

impl Families {
    fn health(&self, out: &mut Out<'_>) -> fmt::Result {
        let Status { engine, readiness, ingest, .. } = &self.handles.status;
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("engine", *engine)];
        sample(&c::BUILD_INFO, 1.0, out.family(&c::BUILD_INFO)?.encode_family(&labels)?)?;
        out.one(&c::START_TIME, self.handles.start_unix_ms as f64 / 1e3)?;
        let verdict = readiness.verdict();
        out.one(&c::READY, flag(verdict.is_ready()))?;
        let gap = verdict.gap;
        out.one(&c::GAP_OPEN, flag(gap.is_some()))?;
        out.maybe(&c::GAP_FIRST_SLOT, gap.as_ref().map(|gap| gap.first_slot as f64))?;
        out.maybe(&c::GAP_LAST_SLOT, gap.as_ref().map(|gap| gap.last_slot as f64))?;
        let since = Some(read(&ingest.busy_since_unix_ms)).filter(|since| *since > 0);
        out.one(&c::INGEST_BUSY, since.map_or(0.0, |since| unix_ms().saturating_sub(since) as f64 / 1e3))
    }

    /// Writes the lag. A value that is unknown is absent rather than 0, because 0 would be read as a slot, a lag or a
    /// time.
    fn lag(&self, out: &mut Out<'_>) -> fmt::Result {
        let Status { published, readiness, ingest, .. } = &self.handles.status;
        let checkpoint = published.checkpoint();
        out.one(&c::CONNECTED, flag(ingest.is_connected()))?;
        out.one(&c::QUEUE_BATCHES, read(&ingest.queue_batches) as f64)?;
        out.one(&c::CHECKPOINT_SEQ, checkpoint.seq as f64)?;
        out.maybe(&c::CHECKPOINT_SLOT, checkpoint.slot.map(|slot| slot as f64))?;
        out.maybe(&c::NEWEST_SLOT, readiness.newest_slot().map(|slot| slot as f64))?;
        out.maybe(&c::LAG_SLOTS, readiness.lag_slots().map(|lag| lag as f64))?;
        out.maybe(&c::LAG, readiness.verdict().lag_ms.map(|lag_ms| lag_ms as f64 / 1e3))?;
        out.maybe(&c::LAST_UPDATE_TIME, time(&ingest.last_update_unix_ms))?;
        out.maybe(&c::LAST_COMMIT_TIME, time(&ingest.last_commit_unix_ms))
    }

    fn providers(&self, out: &mut Out<'_>) -> fmt::Result {
        let providers = &self.handles.status.providers;
        let reports = providers.reports();
        let mut conditions = out.family(&c::PROVIDER_CONDITION)?;
        for (report, condition) in reports.iter().flat_map(|report| Condition::ALL.map(|condition| (report, condition)))
        {
            let labels = [("provider", report.name.as_str()), ("condition", condition.name())];
            let value = flag(report.condition == condition);
            sample(&c::PROVIDER_CONDITION, value, conditions.encode_family(&labels)?)?;
        }
        let lags = reports.iter().filter_map(|report| Some((report.name.as_str(), report.lag_slots?)));
        let lags: Vec<_> = lags.collect();
        if !lags.is_empty() {
            out.by(&c::PROVIDER_LAG_SLOTS, "provider", lags)?;
        }
        let errors = reports.iter().map(|report| (report.name.as_str(), report.errors));
        out.by(&c::PROVIDER_ERRORS, "provider", errors)?;
        let firsts = reports.iter().map(|report| (report.name.as_str(), report.slots_first));
        out.by(&c::PROVIDER_SLOTS_FIRST, "provider", firsts)?;
        let differing = reports.iter().map(|report| (report.name.as_str(), report.slots_differing));
        out.by(&c::PROVIDER_SLOTS_DIFFERING, "provider", differing)?;
        out.one(&c::PROVIDER_TAKEOVERS, providers.takeovers() as f64)
    }

    fn loading(&self, out: &mut Out<'_>) -> fmt::Result {
        let Handles { load, warmth: figures, spool, healing, status, .. } = &self.handles;
        out.one(&c::LOADING, flag(matches!(status.readiness.phase(), Phase::Loading(_))))?;
        out.one(&c::LOAD_READ, load.read_bytes() as f64)?;
        out.one(&c::LOAD_ARCHIVE, load.archive_bytes().unwrap_or(0) as f64)?;
        out.one(&c::LOAD_PAIRS, load.pairs() as f64)?;
        let warmth::Progress { state, warmed } = figures.now();
        out.one(&c::WARMING, flag(state == warmth::State::UnderWay))?;
        out.one(&c::WARM_UP_MISSING, warmed.missing_bytes as f64)?;
        out.one(&c::WARM_UP_LEFT, warmed.left_bytes as f64)?;
        out.one(&c::WARM_UP_READ, warmed.read_bytes as f64)?;
        let is_open = is(&spool.open);
        out.one(&c::SPOOL, is_open * spool.flushed_bytes() as f64)?;
        out.one(&c::SPOOL_SLOTS, is_open * read(&spool.slots) as f64)?;
        out.one(&c::SPOOL_STOPPED, flag(spool.stopped().is_some()))?;
        out.one(&c::HEALING, flag(matches!(status.readiness.phase(), Phase::Healing(_))))?;
        out.one(&c::HEAL_DIFFERENCES, read(&healing.differences) as f64)?;
        out.one(&c::HEAL_APPLIED, read(&healing.applied) as f64)?;
        out.one(&c::HEALS, read(&healing.healed) as f64)?;
        out.one(&c::HEAL_FAILURES, read(&healing.failed) as f64)?;
        out.one(&c::HEAL_SOURCES_FAILING, read(&healing.sources_failing) as f64)?;
        out.maybe(&c::HEAL_NEWEST_ARCHIVE_SLOT, healing.newest_archive_slot().map(|slot| slot as f64))
    }

    fn memory(&self, out: &mut Out<'_>) -> fmt::Result {
        let resources = &self.resources;
        // The values are unknown before the sampler's first sample.
        out.maybe(&c::MEMORY_CAP, Some(resources.cap_bytes as f64).filter(|bytes| *bytes > 0.0))?;
        if let Some(group) = resources.group {
            let kinds =
                [("charged", group.charged_bytes), ("anon", group.anon_bytes), ("page_cache", group.page_cache_bytes)];
            out.by(&c::MEMORY, "kind", kinds)?;
        }
        if let Some(rss) = resources.rss {
            out.by(&c::RESIDENT, "kind", [("anon", rss.anon_bytes), ("file", rss.file_bytes)])?;
        }
        out.maybe(&c::DISK_FREE, resources.space.map(|space| space.free_bytes as f64))?;
        out.maybe(&c::DISK_SIZE, resources.space.map(|space| space.total_bytes as f64))
    }

    fn engine(&self, out: &mut Out<'_>) -> fmt::Result {
        let stats = self.handles.status.ingest.stats.load();
        out.one(&c::ENGINE_PAIRS, stats.pairs_estimate as f64)?;
        out.one(&c::ENGINE_DISK, stats.disk_bytes as f64)?;
        out.by(&c::ENGINE_DETAIL, "name", stats.details.iter().copied())
    }

    fn edge(&self, out: &mut Out<'_>) -> fmt::Result {
        let Handles { net, shm_sessions, lookups, .. } = &self.handles;
        let by_listener = |figure: fn(&Connections) -> &AtomicU64| {
            Listener::ALL.map(|listener| (listener.name(), read(figure(net.of(listener)))))
        };
        out.by(&c::CONNECTIONS, "listener", by_listener(|of| &of.open))?;
        out.by(&c::CONNECTIONS_ACCEPTED, "listener", by_listener(|of| &of.accepted))?;
        out.by(&c::CONNECTIONS_REFUSED, "listener", by_listener(|of| &of.refused))?;
        out.by(&c::CONNECTIONS_CUT, "listener", by_listener(|of| &of.cut))?;
        out.by(&c::CONNECTIONS_ENDED, "rule", Ending::ALL.map(|ending| (ending.name(), net.endings(ending))))?;
        let mut refused = out.family(&c::PLACES_REFUSED)?;
        for (place, scope) in Place::ALL.into_iter().flat_map(|place| Scope::ALL.map(|scope| (place, scope))) {
            let labels = [("place", place.name()), ("scope", scope.name())];
            let value = net.refused_places(place, scope) as f64;
            sample(&c::PLACES_REFUSED, value, refused.encode_family(&labels)?)?;
        }
        out.one(&c::FOREIGN_HOSTS, read(&net.foreign_hosts) as f64)?;
        out.one(&c::SHM_SESSIONS, read(shm_sessions) as f64)?;
        out.one(&c::TLS_FAILED, read(&net.handshakes_failed) as f64)?;
        out.one(&c::UNAUTHENTICATED, read(&net.unauthenticated) as f64)?;
        let no_room = Scope::ALL.map(|scope| net.refused_places(Place::Bytes, scope)).iter().sum::<u64>();
        out.one(&c::WIRE_REFUSED, no_room as f64)?;
        out.one(&c::WIRE, read(&net.bytes_held) as f64)?;
        let slow = Transport::ALL.map(|transport| (transport.name(), lookups.slow.count(transport)));
        out.by(&c::SLOW_REQUESTS, "transport", slow)
    }

    fn feed(&self, out: &mut Out<'_>, feed: &Feed) -> fmt::Result {
        let subscribed = feed.subscribed();
        let behind = subscribed.iter().map(|subscriber| subscriber.lag_seq).max().unwrap_or(0);
        let subscribers = feed.subscribers();
        out.one(&c::FEED_SEQ, feed.head().borrow().seq as f64)?;
        out.one(&c::FEED_OLDEST_SEQ, feed.oldest_seq() as f64)?;
        out.one(&c::FEED_LOG, feed.log_bytes() as f64)?;
        out.one(&c::FEED_SUBSCRIBERS, subscribed.len() as f64)?;
        out.one(&c::FEED_SUBSCRIBER_LAG, behind as f64)?;
        out.one(&c::FEED_CHANGES_SENT, read(&subscribers.changes_sent) as f64)?;
        out.one(&c::FEED_CUT_OFF, read(&subscribers.cut_off) as f64)?;
        out.one(&c::FEED_DUMPS, subscribers.dumps() as f64)
    }

    fn views(&self, out: &mut Out<'_>) -> fmt::Result {
        let (count, oldest) = self.handles.views.held();
        out.one(&c::VIEWS, count as f64)?;
        out.one(&c::VIEW_AGE, oldest.as_secs_f64())
    }

    fn overlay(&self, out: &mut Out<'_>, overlay: &Overlay) -> fmt::Result {
        out.maybe(&c::FINALIZED_SLOT, overlay.slot(Commitment::Finalized).map(|slot| slot as f64))?;
        out.maybe(&c::UNDO_CHANGES, overlay.undo().map(|undo| undo.changes() as f64))?;
        let Some(processed) = overlay.processed() else { return Ok(()) };
        let figures = &processed.figures;
        out.maybe(&c::PROCESSED_SLOT, overlay.slot(Commitment::Processed).map(|slot| slot as f64))?;
        out.one(&c::OVERLAY_CONNECTED, is(&figures.connected))?;
        out.one(&c::OVERLAY_BANKS, read(&figures.banks) as f64)?;
        out.one(&c::OVERLAY, read(&figures.bytes) as f64)?;
        out.one(&c::OVERLAY_OVERFLOWED, flag(processed.view().overflowed))?;
        out.one(&c::OVERLAY_UPDATES, read(&figures.updates) as f64)?;
        out.by(&c::OVERLAY_DROPPED, "reason", figures.dropped.load().by_reason())
    }

    fn snapshots(&self, out: &mut Out<'_>) -> fmt::Result {
        let figures = &self.handles.snapshots;
        out.by(&c::SNAPSHOTS, "result", [("made", read(&figures.made)), ("failed", read(&figures.failed))])?;
        out.one(&c::SNAPSHOT_RUNNING, is(&figures.running))?;
        let last = time(&figures.last_unix_ms);
        out.maybe(&c::SNAPSHOT_LAST_TIME, last)?;
        out.maybe(&c::SNAPSHOT_LAST_TOOK, last.map(|_| read(&figures.last_took_ms) as f64 / 1e3))
    }
}

/// Writer of the catalogue's families. Slots, counts and bytes are below 2^53, so that a double holds them exactly.
struct Out<'e> {
    encoder: DescriptorEncoder<'e>,
}

impl Out<'_> {
    fn one(&mut self, metric: &Metric, value: f64) -> fmt::Result {
        let family = self.family(metric)?;
        sample(metric, value, family)
    }

    fn maybe(&mut self, metric: &Metric, value: Option<f64>) -> fmt::Result {
        value.map_or(Ok(()), |value| self.one(metric, value))
    }

    /// Writes one sample for each value of a label.
    fn by<'l>(
        &mut self,
        metric: &Metric,
        label: &'static str,
        values: impl IntoIterator<Item = (&'l str, u64)>,
    ) -> fmt::Result {
        let mut family = self.family(metric)?;
        values
            .into_iter()
            .try_for_each(|(name, value)| sample(metric, value as f64, family.encode_family(&[(label, name)])?))
    }

    fn family(&mut self, metric: &Metric) -> Result<MetricEncoder<'_>, fmt::Error> {
        let kind = if metric.kind == Kind::Counter { MetricType::Counter } else { MetricType::Gauge };
        self.encoder.encode_descriptor(metric.name.trim_end_matches("_total"), metric.help, None, kind)
    }
}

fn sample(metric: &Metric, value: f64, encoder: MetricEncoder<'_>) -> fmt::Result {
    // Whole numbers are written without a fraction, because a slot with one would be odd to read.
    let whole = value.fract() == 0.0;
    match metric.kind {
        Kind::Counter if whole => ConstCounter::new(value as u64).encode(encoder),
        Kind::Counter => ConstCounter::new(value).encode(encoder),
        Kind::Gauge | Kind::Histogram if whole => ConstGauge::new(value as i64).encode(encoder),
        Kind::Gauge | Kind::Histogram => ConstGauge::new(value).encode(encoder),
    }
}

// ORDERING: Relaxed: statistics, nothing is inferred from them.
fn read(figure: &AtomicU64) -> u64 {
    figure.load(Ordering::Relaxed)
}

fn is(figure: &AtomicBool) -> f64 {
    flag(figure.load(Ordering::Relaxed))
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

/// Converts a time from ms to seconds since the Unix epoch; `None` for 0, which stands for never.
fn time(unix_ms: &AtomicU64) -> Option<f64> {
    Some(read(unix_ms)).filter(|time| *time > 0).map(|time| time as f64 / 1e3)
}
