//! Reads every figure of the dashboard once a second.
//!
//! Owns: the thread `sample`, rates, windows, and the earlier values that rates and windows compare with. Must not:
//! touch the engine (ingest-apply publishes its figures), or hold the history's lock while reading. Threads: all of it
//! on `sample`, because merging histograms takes milliseconds, too long for the network's threads.
//!
//! With seven series a sample takes 1.2 ms of CPU. It keeps two snapshots of the histograms for comparison, at 216 KiB
//! for each series. That is 3 MB, and twice as much while a sample is taken.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use engine_api::Stats;
use engine_latency::{Latency, Series, Snapshot};

use super::history::{
    COLUMNS, Curve, Detail, History, Newest, SAMPLE_EVERY, SERIES_MAX, Sample, SeriesNow, SeriesSample,
};
use crate::base::stop;
use crate::pages::handles::Handles;
use crate::pages::metrics::Resources;

/// Quantiles at which a distribution is read: powers of ten of the tail, with points between them for a smooth curve.
pub(crate) const QUANTILES: [f64; 15] =
    [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999, 0.99999, 0.999999];

/// Quantiles of each second's sample.
const SECOND_QUANTILES: [f64; 4] = [0.5, 0.99, 0.999, 1.0];

/// Number of samples in a window, because one second holds too few commits for a distribution.
const WINDOW_SAMPLES: u64 = 10;

/// Time over which the rate of an engine's figure is taken. The engine's statistics are renewed about once a second,
/// too irregularly for a rate over one second.
const RATE_OVER: Duration = Duration::from_secs(10);

/// The running sampler. Dropping it tells the thread to end; [`Sampler::join`] also waits for it.
#[derive(Debug)]
pub(crate) struct Sampler {
    /// The thread waits on this channel, and its closing is the signal to end.
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Sampler {
    /// Starts the thread `sample`. `dir` is the store's directory, whose file system's free space is sampled.
    ///
    /// # Errors
    /// The operating system cannot start a thread.
    pub(crate) fn start(latency: Arc<Latency>, handles: Handles, dir: PathBuf) -> io::Result<(Self, Arc<History>)> {
        let history = Arc::new(History::default());
        let into = Arc::clone(&history);
        let (stop, stopped) = bounded(0);
        let thread = std::thread::Builder::new().name("sample".to_owned()).spawn(move || {
            let mut reading = Reading::new(latency, handles, dir);
            follow(&stopped, || {
                let (sample, newest) = reading.sample();
                into.push(sample, newest);
            });
        })?;
        Ok((Self { stop, thread }, history))
    }

    /// Ends the thread and waits for it until `deadline`.
    ///
    /// # Errors
    /// The thread has not ended by then.
    pub(crate) fn join(self, deadline: Instant) -> Result<(), stop::Stuck> {
        drop(self.stop);
        stop::join_all([self.thread], deadline)
    }
}

/// Calls `sample` at once and then every second, until the sender is gone. Seconds missed during a sleep are skipped.
fn follow(stopped: &Receiver<()>, mut sample: impl FnMut()) {
    let mut due = Instant::now();
    loop {
        sample();
        due = (due + SAMPLE_EVERY).max(Instant::now());
        if stopped.recv_deadline(due) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// State kept from one sample to the next.
struct Reading {
    latency: Arc<Latency>,
    handles: Handles,
    dir: PathBuf,
    seq: u64,
    /// Time, counters and histograms of the last sample.
    last: (Instant, Totals, Snapshot),
    /// Histograms at the beginning of the current window.
    window_base: Snapshot,
    window_unix_ms: Option<(u64, u64)>,
    series: Vec<SeriesNow>,
    connected: bool,
    connected_since_unix_ms: u64,
    applied: Option<u64>,
    applied_unix_ms: Option<u64>,
    /// Engine statistics with the time of each; never empty once filled. All but the first are younger than
    /// [`RATE_OVER`].
    stats: VecDeque<(Instant, Arc<Stats>)>,
}

/// Counters from which rates are computed, in the order of their [`COLUMNS`].
type Totals = [u64; 7];

impl Reading {
    fn new(latency: Arc<Latency>, handles: Handles, dir: PathBuf) -> Self {
        let snapshot = latency.snapshot();
        Self {
            seq: 0,
            last: (Instant::now(), totals(&handles), snapshot.clone()),
            window_base: snapshot,
            window_unix_ms: None,
            series: Vec::new(),
            connected: false,
            connected_since_unix_ms: unix_ms(SystemTime::now()),
            applied: handles.status.ingest.published.slot(),
            applied_unix_ms: None,
            stats: VecDeque::new(),
            latency,
            handles,
            dir,
        }
    }

    fn sample(&mut self) -> (Sample, Newest) {
        let (now, time_unix_ms) = (Instant::now(), unix_ms(SystemTime::now()));
        self.seq += 1;
        self.watch(time_unix_ms);
        let newest = Newest { details: self.details(now), ..self.newest() };
        let mut figures = [f64::NAN; COLUMNS.len()];
        let mut set = |name: &str, value: Option<f64>| {
            if let (Some(at), Some(value)) = (COLUMNS.iter().position(|column| *column == name), value) {
                figures[at] = value;
            }
        };
        let totals = totals(&self.handles);
        let elapsed_s = now.duration_since(self.last.0).as_secs_f64();
        for ((name, total), before) in COLUMNS.iter().zip(totals).zip(self.last.1) {
            set(name, (elapsed_s > 0.0).then(|| total.saturating_sub(before) as f64 / elapsed_s));
        }
        let some = |value: u64| Some(value as f64);
        let ingest = &self.handles.status.ingest;
        let verdict = ingest.verdict();
        set("lag_slots", ingest.lag_slots().map(|slots| slots as f64));
        set("lag_ms", verdict.lag_ms.map(|lag_ms| lag_ms as f64));
        set("queue_batches", some(load(&ingest.figures.queue_batches)));
        set("ready", some(u64::from(verdict.is_ready())));
        set("connected", some(u64::from(self.connected)));
        set("rss_anon_bytes", newest.resources.rss.map(|rss| rss.anon_bytes as f64));
        set("anon_bytes", newest.resources.group.map(|group| group.anon_bytes as f64));
        set("page_cache_bytes", newest.resources.group.map(|group| group.page_cache_bytes as f64));
        set("charged_bytes", newest.resources.group.map(|group| group.charged_bytes as f64));
        set("cap_bytes", some(newest.resources.cap_bytes));
        set("store_bytes", some(ingest.figures.stats.load().disk_bytes));
        set("free_bytes", newest.resources.space.map(|space| space.free_bytes as f64));
        let latencies = self.latencies(now, totals, time_unix_ms);
        let newest = Newest { series: self.series.clone(), window_unix_ms: self.window_unix_ms, ..newest };
        (Sample { seq: self.seq, unix_ms: time_unix_ms, figures, latencies }, newest)
    }

    /// Records the time if the connection or the applied slot has changed.
    fn watch(&mut self, time_unix_ms: u64) {
        // ORDERING: Relaxed: a statistic, nothing is inferred from it.
        let connected = self.handles.status.ingest.figures.is_connected();
        if connected != self.connected {
            (self.connected, self.connected_since_unix_ms) = (connected, time_unix_ms);
        }
        let applied = self.handles.status.ingest.published.slot();
        if applied != self.applied {
            (self.applied, self.applied_unix_ms) = (applied, Some(time_unix_ms));
        }
    }

    fn newest(&self) -> Newest {
        let limit = probe::memory_limit();
        let capped = limit.cgroup_file.as_deref().and_then(|file| file.parent()).map(ToOwned::to_owned);
        let group = capped.or_else(probe::own_group).and_then(|dir| probe::group_memory(&dir));
        Newest {
            start_unix_ms: unix_ms(self.last.2.start),
            connected_since_unix_ms: self.connected_since_unix_ms,
            applied_unix_ms: self.applied_unix_ms,
            resources: Resources {
                rss: probe::own_rss(),
                group,
                cap_bytes: limit.bytes,
                space: probe::space(&self.dir).ok(),
            },
            cap_from: limit.cgroup_file.map_or("machine".to_owned(), |file| file.display().to_string()),
            ..Newest::default()
        }
    }

    fn details(&mut self, now: Instant) -> Vec<Detail> {
        let stats = self.handles.status.ingest.figures.stats.load_full();
        // ingest-apply has not asked the engine yet.
        if stats.details.is_empty() {
            return Vec::new();
        }
        if self.stats.back().is_none_or(|(_, last)| !Arc::ptr_eq(last, &stats)) {
            self.stats.push_back((now, Arc::clone(&stats)));
        }
        while self.stats.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= RATE_OVER) {
            self.stats.pop_front();
        }
        let (since, before) = &self.stats[0];
        let elapsed_s = now.duration_since(*since).as_secs_f64();
        let of = |name| before.details.iter().find(|(before, _)| *before == name).map(|(_, value)| *value);
        let details = stats.details.iter().map(|&(name, value)| {
            let rate = |before: u64| (value as f64 - before as f64) / elapsed_s;
            Detail { name, value, per_s: of(name).filter(|_| elapsed_s > 0.0).map(rate) }
        });
        details.collect()
    }

    /// Returns the last second of every series, and begins a new window if the current one is full.
    fn latencies(&mut self, now: Instant, totals: Totals, time_unix_ms: u64) -> Vec<SeriesSample> {
        let snapshot = self.latency.snapshot();
        let second = snapshot.since(&self.last.2);
        for series in &snapshot.series {
            if let Some(at) = self.place(series) {
                self.series[at].total = curve(series);
            }
        }
        if self.seq.is_multiple_of(WINDOW_SAMPLES) {
            let window = snapshot.since(&self.window_base);
            for now in &mut self.series {
                let found = window.series.iter().find(|series| (&series.source, series.op) == (&now.source, now.op));
                now.window = found.map(curve);
            }
            self.window_unix_ms = Some((unix_ms(window.start), time_unix_ms));
            self.window_base = snapshot.clone();
        }
        self.last = (now, totals, snapshot);
        let samples = second.series.iter().filter_map(|series| {
            let values = series.quantiles(&SECOND_QUANTILES);
            let [p50_ns, p99_ns, p999_ns, max_ns] = values.try_into().ok()?;
            let count = series.histogram.len();
            Some(SeriesSample { series: self.place(series)?, count, p50_ns, p99_ns, p999_ns, max_ns })
        });
        samples.collect()
    }
}

impl Reading {
    /// Returns the index of a series in [`Newest::series`], which it gets when it is first seen; `None` if all indexes
    /// are taken.
    fn place(&mut self, series: &Series) -> Option<usize> {
        let found = self.series.iter().position(|now| (&now.source, now.op) == (&series.source, series.op));
        found.or_else(|| {
            let (source, op) = (series.source.clone(), series.op);
            let now = SeriesNow { source, op, total: Curve::default(), window: None };
            (self.series.len() < SERIES_MAX).then(|| self.series.push(now)).map(|()| self.series.len() - 1)
        })
    }
}

fn curve(series: &Series) -> Curve {
    Curve {
        count: series.histogram.len(),
        mean_ns: series.mean_ns(),
        max_ns: series.histogram.max(),
        values_ns: series.quantiles(&QUANTILES),
    }
}

fn totals(handles: &Handles) -> Totals {
    let (c, lookups) = (&handles.status.ingest.figures, &handles.lookups.figures);
    [
        load(&c.updates_received),
        load(&c.events_applied),
        load(&c.events_written),
        load(&c.events_deleted),
        load(&c.commits),
        load(&lookups.lookups),
        load(&lookups.refused),
    ]
}

fn load(figure: &AtomicU64) -> u64 {
    // ORDERING: Relaxed: a statistic, nothing is inferred from it.
    figure.load(Ordering::Relaxed)
}

fn unix_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use engine_latency::Op;
    use solana::ChainCheckpoint;

    use super::*;
    use crate::ingest;

    fn handles() -> Handles {
        Handles::new("test", &ingest::State::at(ChainCheckpoint::default()))
    }

    fn figure(sample: &Sample, name: &str) -> f64 {
        sample.figures[COLUMNS.iter().position(|column| *column == name).unwrap()]
    }

    #[test]
    fn rates_latencies_and_windows_are_of_what_came_between() {
        let (latency, handles) = (Latency::new("test"), handles());
        let (mut ingest, mut rpc) = (latency.recorder("ingest"), latency.recorder("rpc"));
        ingest.record(Op::Write, 1);
        let dir = tempfile::tempdir().unwrap();
        let mut reading = Reading::new(Arc::clone(&latency), handles.clone(), dir.path().to_owned());
        let (first, newest) = reading.sample();
        assert_eq!((first.seq, first.latencies.len()), (1, 0), "what was before the first sample is in the totals");
        assert_eq!(newest.series[0].total.count, 1);
        assert!(figure(&first, "lag_slots").is_nan() && figure(&first, "lag_ms").is_nan());
        assert!(newest.resources.cap_bytes > 0 && newest.resources.space.is_some() && newest.resources.rss.is_some());

        crate::base::figure::count(&handles.status.ingest.figures.events_applied, 10);
        ingest.record(Op::Write, 1000);
        rpc.record(Op::ReadPositive, 5);
        let (second, newest) = reading.sample();
        assert!(figure(&second, "events_per_s") > 0.0 && figure(&second, "lookups_per_s") == 0.0);
        let (write, read) = (second.latencies[0], second.latencies[1]);
        assert_eq!((write.series, write.count, write.p50_ns, write.max_ns), (0, 1, 1000, 1000));
        assert_eq!((read.series, newest.series[read.series].source.as_str()), (1, "rpc"));
        assert_eq!(newest.series[0].total.count, 2);
        assert_eq!(newest.window_unix_ms, None);

        let last = (3..=WINDOW_SAMPLES).map(|_| reading.sample()).last().unwrap();
        assert!(last.0.latencies.is_empty());
        assert!(last.1.window_unix_ms.is_some());
        let window = last.1.series[0].window.as_ref().unwrap();
        assert_eq!((window.count, window.max_ns, window.values_ns.len()), (1, 1000, QUANTILES.len()));
    }

    #[test]
    fn the_change_of_an_engines_figure_is_over_the_time_between_its_statistics() {
        let (latency, handles) = (Latency::new("test"), handles());
        let dir = tempfile::tempdir().unwrap();
        let mut reading = Reading::new(latency, handles.clone(), dir.path().to_owned());
        let start = Instant::now();
        let mut at = |second: u64, value: Option<u64>| {
            if let Some(value) = value {
                let stats = Stats { pairs_estimate: 0, disk_bytes: 0, details: vec![("merges", value)] };
                handles.status.ingest.figures.stats.store(Arc::new(stats));
            }
            reading.details(start + Duration::from_secs(second)).first().map(|detail| (detail.value, detail.per_s))
        };
        assert_eq!(at(0, None), None);
        assert_eq!(at(1, Some(100)), Some((100, None)));
        assert_eq!(at(20, None), Some((100, Some(0.0))));
        assert_eq!(at(22, Some(160)), Some((160, Some(60.0 / 21.0))));
        assert_eq!(at(40, None), Some((160, Some(0.0))), "nothing is new for long");
    }

    #[test]
    fn the_thread_samples_and_ends_when_told() {
        let dir = tempfile::tempdir().unwrap();
        let handles = handles();
        let (sampler, history) = Sampler::start(Latency::new("test"), handles.clone(), dir.path().to_owned()).unwrap();
        while history.since(0).0.is_empty() {
            std::thread::yield_now();
        }
        sampler.join(Instant::now() + Duration::from_secs(100)).unwrap();
        assert_eq!(Arc::strong_count(&handles.views), 1, "its hold on the figures is gone with the thread");
    }
}
