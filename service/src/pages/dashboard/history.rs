//! The dashboard's samples of the last fifteen minutes, one a second, and the figures read with the newest.
//!
//! Owns: the bounds and the ring. Must not: read a figure; the sampler does. Threads: written by `sample`, read by the
//! blocking pool, under one lock that is held only to push or to clone pointers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine_latency::Op;

use crate::base::lock;
use crate::pages::metrics::Resources;

pub(crate) const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Number of samples kept: 15 minutes.
pub(crate) const HISTORY_SAMPLES: usize = 900;

/// Maximum number of latency series followed: one for each source and operation, enough for three sources with every
/// operation.
pub(crate) const SERIES_MAX: usize = 3 * Op::ALL.len();

/// Upper bound on the history's memory, in bytes: 1.3 MB. About half of that with two sources, because neither uses
/// every operation.
pub(crate) const HISTORY_BYTES_MAX: usize =
    HISTORY_SAMPLES * (size_of::<Sample>() + SERIES_MAX * size_of::<SeriesSample>());

const _: () = assert!(HISTORY_BYTES_MAX < 1_400_000);

/// Names of a sample's figures, in their order; each name ends with its unit. A rate is over the second before.
pub(crate) const COLUMNS: [&str; 19] = [
    "updates_per_s",
    "events_per_s",
    "writes_per_s",
    "deletes_per_s",
    "commits_per_s",
    "lookups_per_s",
    "lookups_refused_per_s",
    "lag_slots",
    "lag_ms",
    "queue_batches",
    "ready",
    "connected",
    "rss_anon_bytes",
    "anon_bytes",
    "page_cache_bytes",
    "charged_bytes",
    "cap_bytes",
    "store_bytes",
    "free_bytes",
];

/// The figures of one second.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// Number of the sample, counted from 1.
    pub(crate) seq: u64,
    /// Time of the sample by the system's clock, in ms since the Unix epoch.
    pub(crate) unix_ms: u64,
    /// One figure for each of [`COLUMNS`]; NaN if there is none.
    pub(crate) figures: [f64; COLUMNS.len()],
    /// Latencies of the second before, only of series that recorded any.
    pub(crate) latencies: Vec<SeriesSample>,
}

/// Latencies that one series recorded in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeriesSample {
    pub(crate) series: usize,
    pub(crate) count: u64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) p999_ns: u64,
    pub(crate) max_ns: u64,
}

/// Figures that are shown without a history.
#[derive(Clone, Debug, Default)]
pub(crate) struct Newest {
    pub(crate) start_unix_ms: u64,
    /// Time of the last change between connected and not connected to the stream.
    pub(crate) connected_since_unix_ms: u64,
    /// Time at which the last applied slot last advanced; `None` before the first time.
    pub(crate) applied_unix_ms: Option<u64>,
    pub(crate) resources: Resources,
    /// Origin of the memory cap: the cgroup file, or `machine`.
    pub(crate) cap_from: String,
    pub(crate) details: Vec<Detail>,
    /// Latency series in the order in which they first recorded a value; an index is never reused.
    pub(crate) series: Vec<SeriesNow>,
    /// Start and end of the newest latency window, in ms since the Unix epoch.
    pub(crate) window_unix_ms: Option<(u64, u64)>,
}

/// A figure that the engine itself reports.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Detail {
    pub(crate) name: &'static str,
    pub(crate) value: u64,
    /// Change a second, over about the last ten seconds; `None` without an earlier value.
    pub(crate) per_s: Option<f64>,
}

/// Latencies of one operation as one source sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SeriesNow {
    pub(crate) source: String,
    pub(crate) op: Op,
    /// The distribution since the start.
    pub(crate) total: Curve,
    /// The distribution of the last complete window; `None` if nothing was recorded in it.
    pub(crate) window: Option<Curve>,
}

/// A distribution: its values in ns at the quantiles of `sample::QUANTILES`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Curve {
    pub(crate) count: u64,
    pub(crate) mean_ns: f64,
    pub(crate) max_ns: u64,
    pub(crate) values_ns: Vec<u64>,
}

/// The ring of samples, and the figures read with the newest.
#[derive(Debug, Default)]
pub(crate) struct History {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    samples: VecDeque<Arc<Sample>>,
    newest: Arc<Newest>,
}

impl History {
    /// Adds a sample, and drops the oldest once there are [`HISTORY_SAMPLES`].
    pub(crate) fn push(&self, sample: Sample, newest: Newest) {
        let (sample, newest) = (Arc::new(sample), Arc::new(newest));
        let mut inner = lock(&self.inner);
        if inner.samples.len() == HISTORY_SAMPLES {
            inner.samples.pop_front();
        }
        inner.samples.push_back(sample);
        inner.newest = newest;
    }

    /// Returns the samples after `seq`, oldest first, and the figures read with the newest. A `seq` that this process
    /// never gave out returns all samples.
    pub(crate) fn since(&self, seq: u64) -> (Vec<Arc<Sample>>, Arc<Newest>) {
        let inner = lock(&self.inner);
        let known = inner.samples.back().is_some_and(|newest| seq <= newest.seq);
        let from = if known { inner.samples.partition_point(|sample| sample.seq <= seq) } else { 0 };
        (inner.samples.range(from..).cloned().collect(), Arc::clone(&inner.newest))
    }

    /// Returns the memory and disk read with the newest sample; empty ones before the first.
    pub(crate) fn resources(&self) -> Resources {
        lock(&self.inner).newest.resources.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_the_newest_and_gives_what_came_after() {
        let history = History::default();
        assert!(history.since(0).0.is_empty());
        let samples = HISTORY_SAMPLES as u64 + 5;
        for seq in 1..=samples {
            history.push(Sample { seq, ..Sample::default() }, Newest { start_unix_ms: seq, ..Newest::default() });
        }
        let seqs = |since| history.since(since).0.iter().map(|sample| sample.seq).collect::<Vec<_>>();
        assert_eq!(seqs(0), (6..=samples).collect::<Vec<_>>());
        assert_eq!(seqs(samples - 2), [samples - 1, samples]);
        assert!(seqs(samples).is_empty());
        assert_eq!(seqs(samples + 1).len(), HISTORY_SAMPLES, "a page that outlived the process begins anew");
        assert_eq!(history.since(0).1.start_unix_ms, samples);
    }
}
