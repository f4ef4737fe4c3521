//! The last fifteen minutes, one sample a second, and what was read with the newest.
//!
//! Owns: the bounds and the ring. Must not: read a figure; the sampler does. Threads: written by `sample`, read by the
//! blocking pool, under one lock that is held to push or to clone pointers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine_latency::Op;
use probe::{GroupMemory, OwnRss, Space};

/// Time between two samples.
pub(crate) const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Samples kept: 15 minutes.
pub(crate) const HISTORY_SAMPLES: usize = 900;

/// Series of latencies followed: one for each source and operation, so three sources with every operation.
pub(crate) const SERIES_MAX: usize = 3 * Op::ALL.len();

/// The most that the history takes, in bytes: 1.1 MB. Half of that with two sources.
pub(crate) const HISTORY_BYTES_MAX: usize =
    HISTORY_SAMPLES * (size_of::<Sample>() + SERIES_MAX * size_of::<SeriesSample>());

const _: () = assert!(HISTORY_BYTES_MAX < 1_200_000);

/// The figures of a sample, in their order; the unit is at the end of the name. A rate is over the second before.
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

/// One second.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// Counts samples from 1.
    pub(crate) seq: u64,
    /// When it was taken, by the system's clock.
    pub(crate) unix_ms: u64,
    /// See [`COLUMNS`]; NaN where there is no figure.
    pub(crate) figures: [f64; COLUMNS.len()],
    /// Latencies of the second before, of the series that recorded any.
    pub(crate) latencies: Vec<SeriesSample>,
}

/// What one series recorded in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeriesSample {
    /// Index in [`Newest::series`].
    pub(crate) series: usize,
    pub(crate) count: u64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) p999_ns: u64,
    pub(crate) max_ns: u64,
}

/// What is shown as it is now, without a history.
#[derive(Clone, Debug, Default)]
pub(crate) struct Newest {
    /// When the service started.
    pub(crate) start_unix_ms: u64,
    /// Since when the stream is connected, or is not.
    pub(crate) connected_since_unix_ms: u64,
    /// When the last applied slot moved on; `None` before the first time.
    pub(crate) applied_unix_ms: Option<u64>,
    /// `None` where the kernel does not give it.
    pub(crate) rss: Option<OwnRss>,
    /// The cgroup that has the cap, or the process's own; `None` without one.
    pub(crate) group: Option<GroupMemory>,
    /// The memory this process may use.
    pub(crate) cap_bytes: u64,
    /// Where that limit comes from.
    pub(crate) cap_from: String,
    /// Of the file system of the store.
    pub(crate) space: Option<Space>,
    /// The engine's own figures.
    pub(crate) details: Vec<Detail>,
    /// In the order in which they first recorded anything; a place is never given to another.
    pub(crate) series: Vec<SeriesNow>,
    /// What the windows of the series cover, both ends in ms since the Unix epoch.
    pub(crate) window_unix_ms: Option<(u64, u64)>,
}

/// A figure of the engine's own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Detail {
    pub(crate) name: &'static str,
    pub(crate) value: u64,
    /// Its change over about the last ten seconds; `None` while there is nothing to compare with.
    pub(crate) per_s: Option<f64>,
}

/// The latencies of one operation of one source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SeriesNow {
    pub(crate) source: String,
    pub(crate) op: Op,
    /// Since the start.
    pub(crate) total: Curve,
    /// In the last whole window; `None` when nothing was recorded in it.
    pub(crate) window: Option<Curve>,
}

/// A distribution: values in ns at the quantiles of `sample::QUANTILES`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Curve {
    pub(crate) count: u64,
    pub(crate) mean_ns: f64,
    pub(crate) max_ns: u64,
    pub(crate) values_ns: Vec<u64>,
}

/// The ring, and what was read with the newest sample.
#[derive(Debug, Default)]
pub struct History {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    samples: VecDeque<Arc<Sample>>,
    newest: Arc<Newest>,
}

impl History {
    /// Takes a sample in; the oldest goes when there are [`HISTORY_SAMPLES`].
    pub(crate) fn push(&self, sample: Sample, newest: Newest) {
        let (sample, newest) = (Arc::new(sample), Arc::new(newest));
        let mut inner = self.lock();
        if inner.samples.len() == HISTORY_SAMPLES {
            inner.samples.pop_front();
        }
        inner.samples.push_back(sample);
        inner.newest = newest;
    }

    /// The samples after `seq`, oldest first, and what was read with the newest. A `seq` that was never given (another
    /// process's) gets all of them.
    pub(crate) fn since(&self, seq: u64) -> (Vec<Arc<Sample>>, Arc<Newest>) {
        let inner = self.lock();
        let known = inner.samples.back().is_some_and(|newest| seq <= newest.seq);
        let from = if known { inner.samples.partition_point(|sample| sample.seq <= seq) } else { 0 };
        (inner.samples.range(from..).cloned().collect(), Arc::clone(&inner.newest))
    }

    /// What was read with the newest sample; nothing before the first.
    pub(crate) fn newest(&self) -> Arc<Newest> {
        Arc::clone(&self.lock().newest)
    }

    /// A poisoned lock is taken over: each statement leaves the ring whole.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
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
            history.push(Sample { seq, ..Sample::default() }, Newest { cap_bytes: seq, ..Newest::default() });
        }
        let seqs = |since| history.since(since).0.iter().map(|sample| sample.seq).collect::<Vec<_>>();
        assert_eq!(seqs(0), (6..=samples).collect::<Vec<_>>());
        assert_eq!(seqs(samples - 2), [samples - 1, samples]);
        assert!(seqs(samples).is_empty());
        assert_eq!(seqs(samples + 1).len(), HISTORY_SAMPLES, "a page that outlived the process begins anew");
        assert_eq!(history.since(0).1.cap_bytes, samples);
    }
}
