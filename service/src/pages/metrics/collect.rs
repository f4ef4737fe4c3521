//! The values of a scrape: the service's figures under the names of the catalogue.
//!
//! Owns: the mapping of figures to families, and the choice of families without a value at present. Must not: name a
//! family itself, or touch the engine; ingest-apply publishes the engine's figures. Threads: the blocking pool.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Resources;
use super::catalogue::{self as c, Metric};
use crate::base::chain::{Commitment, Phase};
use crate::base::figure::unix_ms;
use crate::base::slow::Transport;
use crate::feed::Feed;
use crate::ingest::providers::Condition;
use crate::net::figures::{Connections, Ending, Listener, Place, Scope};
use crate::overlay::Overlay;
use crate::overlay::banks::Reason;
use crate::pages::handles::Handles;
use crate::status::Status;
use crate::warmth;

/// Writes all families of a scrape except the latencies, in the Prometheus text format.
pub(super) fn write(handles: &Handles, resources: Resources, text: &mut String) {
    let (families, mut out) = (Families { handles, resources }, Out { text });
    for (metric, value) in super::counters(handles) {
        out.one(metric, value as f64);
    }
    families.health(&mut out);
    families.lag(&mut out);
    families.providers(&mut out);
    families.loading(&mut out);
    families.memory(&mut out);
    families.engine(&mut out);
    families.edge(&mut out);
    if let Some(feed) = &handles.feed {
        families.feed(&mut out, feed);
    }
    let lags = handles.derived.lags();
    if !lags.is_empty() {
        out.by(&c::DERIVED_LAG, "store", lags.iter().filter_map(|(name, lag)| Some((*name, (*lag)?))));
        out.by(&c::DERIVED_BROKEN, "store", lags.iter().map(|(name, lag)| (*name, lag.is_none().into())));
    }
    out.one(&c::VIEW_AGE, handles.views.oldest().as_secs_f64());
    families.overlay(&mut out, &handles.lookups.overlay);
    families.snapshots(&mut out);
}

struct Families<'h> {
    handles: &'h Handles,
    resources: Resources,
}

impl Families<'_> {
    fn health(&self, out: &mut Out<'_>) {
        let Status { engine, ingest } = &self.handles.status;
        out.head(&c::BUILD_INFO);
        out.sample(&c::BUILD_INFO, &[("version", env!("CARGO_PKG_VERSION")), ("engine", engine)], 1.0);
        out.one(&c::START_TIME, self.handles.start_unix_ms as f64 / 1e3);
        let verdict = ingest.verdict();
        out.one(&c::READY, flag(verdict.is_ready()));
        let gap = verdict.gap;
        out.one(&c::GAP_OPEN, flag(gap.is_some()));
        out.maybe(&c::GAP_FIRST_SLOT, gap.as_ref().map(|gap| gap.first_slot as f64));
        out.maybe(&c::GAP_LAST_SLOT, gap.as_ref().map(|gap| gap.last_slot as f64));
        let since = Some(read(&ingest.figures.busy_since_unix_ms)).filter(|since| *since > 0);
        out.one(&c::INGEST_BUSY, since.map_or(0.0, |since| unix_ms().saturating_sub(since) as f64 / 1e3));
    }

    /// Writes the lag. A value that is unknown is absent rather than 0, because 0 would be read as a slot, a lag or a
    /// time.
    fn lag(&self, out: &mut Out<'_>) {
        let ingest = &self.handles.status.ingest;
        let (checkpoint, figures) = (ingest.published.checkpoint(), &ingest.figures);
        out.one(&c::CONNECTED, flag(figures.is_connected()));
        out.one(&c::QUEUE_BATCHES, read(&figures.queue_batches) as f64);
        out.one(&c::CHECKPOINT_SEQ, checkpoint.seq as f64);
        out.maybe(&c::CHECKPOINT_SLOT, checkpoint.slot.map(|slot| slot as f64));
        out.maybe(&c::NEWEST_SLOT, ingest.newest_slot().map(|slot| slot as f64));
        out.maybe(&c::LAG_SLOTS, ingest.lag_slots().map(|lag| lag as f64));
        out.maybe(&c::LAG, ingest.verdict().lag_ms.map(|lag_ms| lag_ms as f64 / 1e3));
        out.maybe(&c::LAST_UPDATE_TIME, time(&figures.last_update_unix_ms));
    }

    fn providers(&self, out: &mut Out<'_>) {
        let providers = &self.handles.status.ingest.providers;
        let reports = providers.reports();
        out.head(&c::PROVIDER_CONDITION);
        for (report, condition) in reports.iter().flat_map(|report| Condition::ALL.map(|condition| (report, condition)))
        {
            let labels = [("provider", report.name.as_str()), ("condition", condition.name())];
            out.sample(&c::PROVIDER_CONDITION, &labels, flag(report.condition == condition));
        }
        let firsts = reports.iter().map(|report| (report.name.as_str(), report.slots_first));
        out.by(&c::PROVIDER_SLOTS_FIRST, "provider", firsts);
        let differing = reports.iter().map(|report| (report.name.as_str(), report.slots_differing));
        out.by(&c::PROVIDER_SLOTS_DIFFERING, "provider", differing);
        out.one(&c::PROVIDER_TAKEOVERS, providers.takeovers() as f64);
    }

    fn loading(&self, out: &mut Out<'_>) {
        let Handles { warmth: figures, spool, status, .. } = &self.handles;
        let (phase, healing) = (status.ingest.progress.phase(), &status.ingest.healing);
        out.one(&c::LOADING, flag(matches!(phase, Phase::Loading(_))));
        let warmth::Progress { state, warmed } = figures.now();
        out.one(&c::WARMING, flag(state == warmth::State::UnderWay));
        out.one(&c::WARM_UP_MISSING, warmed.missing_bytes as f64);
        out.one(&c::WARM_UP_LEFT, warmed.left_bytes as f64);
        out.one(&c::WARM_UP_READ, warmed.read_bytes as f64);
        let is_open = is(&spool.open);
        out.one(&c::SPOOL, is_open * spool.flushed_bytes() as f64);
        out.one(&c::SPOOL_SLOTS, is_open * read(&spool.slots) as f64);
        out.one(&c::SPOOL_STOPPED, flag(spool.stopped().is_some()));
        out.one(&c::HEALING, flag(matches!(phase, Phase::Healing(_))));
        out.one(&c::HEAL_DIFFERENCES, read(&healing.differences) as f64);
        out.one(&c::HEAL_APPLIED, read(&healing.applied) as f64);
        out.one(&c::HEALS, read(&healing.healed) as f64);
        out.one(&c::HEAL_FAILURES, read(&healing.failed) as f64);
        out.one(&c::HEAL_SOURCES_FAILING, read(&healing.sources_failing) as f64);
        out.maybe(&c::HEAL_NEWEST_ARCHIVE_SLOT, healing.newest_archive_slot().map(|slot| slot as f64));
    }

    fn memory(&self, out: &mut Out<'_>) {
        let resources = &self.resources;
        // The values are unknown before the sampler's first sample.
        out.maybe(&c::MEMORY_CAP, Some(resources.cap_bytes as f64).filter(|bytes| *bytes > 0.0));
        if let Some(group) = resources.group {
            let kinds =
                [("charged", group.charged_bytes), ("anon", group.anon_bytes), ("page_cache", group.page_cache_bytes)];
            out.by(&c::MEMORY, "kind", kinds);
        }
        if let Some(rss) = resources.rss {
            out.by(&c::RESIDENT, "kind", [("anon", rss.anon_bytes), ("file", rss.file_bytes)]);
        }
        out.maybe(&c::DISK_FREE, resources.space.map(|space| space.free_bytes as f64));
        out.maybe(&c::DISK_SIZE, resources.space.map(|space| space.total_bytes as f64));
    }

    fn engine(&self, out: &mut Out<'_>) {
        let stats = self.handles.status.ingest.figures.stats.load();
        out.one(&c::ENGINE_PAIRS, stats.pairs_estimate as f64);
        out.one(&c::ENGINE_DISK, stats.disk_bytes as f64);
        out.by(&c::ENGINE_DETAIL, "name", stats.details.iter().copied());
    }

    fn edge(&self, out: &mut Out<'_>) {
        let Handles { net, shm_sessions, lookups, .. } = &self.handles;
        let by_listener = |figure: fn(&Connections) -> &AtomicU64| {
            Listener::ALL.map(|listener| (listener.name(), read(figure(net.of(listener)))))
        };
        out.by(&c::CONNECTIONS, "listener", by_listener(|of| &of.open));
        out.by(&c::CONNECTIONS_REFUSED, "listener", by_listener(|of| &of.refused));
        out.by(&c::CONNECTIONS_CUT, "listener", by_listener(|of| &of.cut));
        out.by(&c::CONNECTIONS_ENDED, "rule", Ending::ALL.map(|ending| (ending.name(), net.endings(ending))));
        out.head(&c::PLACES_REFUSED);
        for (place, scope) in Place::ALL.into_iter().flat_map(|place| Scope::ALL.map(|scope| (place, scope))) {
            let labels = [("place", place.name()), ("scope", scope.name())];
            out.sample(&c::PLACES_REFUSED, &labels, net.refused_places(place, scope) as f64);
        }
        out.one(&c::SHM_SESSIONS, read(shm_sessions) as f64);
        out.one(&c::TLS_FAILED, read(&net.handshakes_failed) as f64);
        out.one(&c::UNAUTHENTICATED, read(&net.unauthenticated) as f64);
        let no_room = Scope::ALL.map(|scope| net.refused_places(Place::Bytes, scope)).iter().sum::<u64>();
        out.one(&c::WIRE_REFUSED, no_room as f64);
        out.one(&c::WIRE, read(net.held(Place::Bytes)) as f64);
        let slow = Transport::ALL.map(|transport| (transport.name(), lookups.slow.count(transport)));
        out.by(&c::SLOW_REQUESTS, "transport", slow);
    }

    fn feed(&self, out: &mut Out<'_>, feed: &Feed) {
        let subscribed = feed.subscribed();
        let behind = subscribed.iter().map(|subscriber| subscriber.lag_seq).max().unwrap_or(0);
        let subscribers = feed.subscribers();
        out.one(&c::FEED_SEQ, feed.head().borrow().seq as f64);
        out.one(&c::FEED_OLDEST_SEQ, feed.oldest_seq() as f64);
        out.one(&c::FEED_LOG, feed.log_bytes() as f64);
        out.one(&c::FEED_SUBSCRIBERS, subscribed.len() as f64);
        out.one(&c::FEED_SUBSCRIBER_LAG, behind as f64);
        out.one(&c::FEED_CUT_OFF, read(&subscribers.cut_off) as f64);
        out.one(&c::FEED_DUMPS, read(self.handles.net.held(Place::Dumps)) as f64);
    }

    fn overlay(&self, out: &mut Out<'_>, overlay: &Overlay) {
        out.maybe(&c::FINALIZED_SLOT, overlay.slot(Commitment::Finalized).map(|slot| slot as f64));
        out.maybe(&c::UNDO_CHANGES, overlay.undo().map(|undo| undo.changes() as f64));
        let Some(processed) = overlay.processed() else { return };
        let figures = &processed.figures;
        out.maybe(&c::PROCESSED_SLOT, overlay.slot(Commitment::Processed).map(|slot| slot as f64));
        out.one(&c::OVERLAY, read(&figures.bytes) as f64);
        out.one(&c::OVERLAY_OVERFLOWED, flag(processed.view().overflowed));
        let dropped = figures.dropped.load();
        out.by(&c::OVERLAY_DROPPED, "reason", Reason::ALL.map(|reason| (reason.name(), dropped[reason as usize])));
    }

    fn snapshots(&self, out: &mut Out<'_>) {
        let figures = &self.handles.snapshots;
        out.by(&c::SNAPSHOTS, "result", [("made", read(&figures.made)), ("failed", read(&figures.failed))]);
        out.one(&c::SNAPSHOT_RUNNING, is(&figures.running));
    }
}

/// Writer of the catalogue's families. Slots, counts and bytes are below 2^53, so that a double holds them exactly.
struct Out<'t> {
    text: &'t mut String,
}

impl Out<'_> {
    fn one(&mut self, metric: &Metric, value: f64) {
        self.head(metric);
        self.sample(metric, &[], value);
    }

    fn maybe(&mut self, metric: &Metric, value: Option<f64>) {
        if let Some(value) = value {
            self.one(metric, value);
        }
    }

    /// Writes one sample for each value of a label.
    fn by<'l>(&mut self, metric: &Metric, label: &str, values: impl IntoIterator<Item = (&'l str, u64)>) {
        self.head(metric);
        values.into_iter().for_each(|(name, value)| self.sample(metric, &[(label, name)], value as f64));
    }

    fn head(&mut self, metric: &Metric) {
        let (name, kind, help) = (metric.name, metric.kind.name(), metric.help);
        write!(self.text, "# HELP {name} {help}.\n# TYPE {name} {kind}\n").expect("a string takes every write");
    }

    /// Writes a sample of the family whose head was written last.
    fn sample(&mut self, metric: &Metric, labels: &[(&str, &str)], value: f64) {
        let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        writeln!(self.text, "{}{labels} {value}", metric.name).expect("a string takes every write");
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
