//! [`Snapshot`]: the values that were recorded over a span of time, merged over threads.
//!
//! Owns: merging and subtracting. A plain value that belongs to its caller.

use std::time::SystemTime;

use hdrhistogram::Histogram;

use crate::Op;
use crate::buckets::empty_histogram;

/// All series of one engine between two moments.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Value of the `engine` label, which the engine's `label` returns.
    pub engine: String,
    /// Time when the recording of these values began.
    pub start: SystemTime,
    /// Time when the snapshot was taken.
    pub end: SystemTime,
    /// Series ordered by source and then by operation. An operation without a recorded value has no series.
    pub series: Vec<Series>,
}

/// Values of one operation of one source.
#[derive(Clone, Debug)]
pub struct Series {
    /// Part of the program that recorded the values: `ingest`, `rpc` or `bootstrap`, for example.
    pub source: String,
    /// Operation that the values are durations of.
    pub op: Op,
    /// Durations in nanoseconds, from 1 ns to 60 s at 3 significant digits.
    pub histogram: Histogram<u64>,
    /// Exact sum of the values in ns, so that the mean does not depend on the widths of the buckets.
    pub sum_ns: u64,
}

impl Snapshot {
    /// Returns the values that were recorded after `earlier` and up to `self`. Both must come from one
    /// [`crate::Latency`].
    pub fn since(&self, earlier: &Self) -> Self {
        let series = self.series.iter().map(|now| {
            let before = earlier.series.iter().find(|series| (&series.source, series.op) == (&now.source, now.op));
            before.map_or_else(|| now.clone(), |before| now.minus(before))
        });
        let series = series.filter(|series| !series.histogram.is_empty()).collect();
        Self { engine: self.engine.clone(), start: earlier.end, end: self.end, series }
    }

    /// Returns the histogram of one operation of one source, or `None` if nothing was recorded.
    pub fn get(&self, source: &str, op: Op) -> Option<&Histogram<u64>> {
        self.series.iter().find(|series| series.source == source && series.op == op).map(|series| &series.histogram)
    }

    /// Returns the histogram of one operation over all sources; empty if nothing was recorded.
    pub fn merged(&self, op: Op) -> Histogram<u64> {
        let mut merged = empty_histogram();
        for series in self.series.iter().filter(|series| series.op == op) {
            merged.add(&series.histogram).expect("all series have the same bounds");
        }
        merged
    }
}

impl Series {
    /// Returns the exact mean in ns; 0 if the series is empty.
    pub fn mean_ns(&self) -> f64 {
        if self.histogram.is_empty() { 0.0 } else { self.sum_ns as f64 / self.histogram.len() as f64 }
    }

    /// Returns the values at ascending `quantiles` (0 to 1), each equal to [`Histogram::value_at_quantile`], in one
    /// pass for all of them. Each value is 0 if the series is empty.
    pub fn quantiles(&self, quantiles: &[f64]) -> Vec<u64> {
        let total = self.histogram.len();
        let mut found = Vec::with_capacity(quantiles.len());
        let mut below = 0;
        for bucket in self.histogram.iter_recorded() {
            below += bucket.count_at_value();
            let reached = |quantile: &f64| below >= ((quantile * total as f64).ceil() as u64).clamp(1, total);
            while quantiles.get(found.len()).is_some_and(reached) {
                found.push(self.histogram.highest_equivalent(bucket.value_iterated_to()));
            }
        }
        found.resize(quantiles.len(), 0);
        found
    }

    /// Subtracts the counts of `before`. Counters only grow, so the subtraction saturates only if the snapshots are of
    /// two engines.
    fn minus(&self, before: &Self) -> Self {
        let mut histogram = empty_histogram();
        for bucket in self.histogram.iter_recorded() {
            let value = bucket.value_iterated_to();
            let count = bucket.count_at_value().saturating_sub(before.histogram.count_at(value));
            if count > 0 {
                histogram.saturating_record_n(self.histogram.lowest_equivalent(value), count);
            }
        }
        let sum_ns = self.sum_ns.saturating_sub(before.sum_ns);
        Self { source: self.source.clone(), op: self.op, histogram, sum_ns }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Latency, Op};

    #[test]
    fn an_interval_is_what_came_after() {
        let latency = Latency::new("test");
        let mut recorder = latency.recorder("unit");
        (1..=100).for_each(|value| recorder.record(Op::Write, value * 10));
        let first = latency.snapshot();
        recorder.record(Op::Write, 5_000_000);
        recorder.record(Op::Write, 10);
        recorder.record(Op::Commit, 7);
        let interval = latency.snapshot().since(&first);
        assert_eq!(interval.start, first.end);
        let write = interval.get("unit", Op::Write).unwrap();
        assert_eq!((write.len(), write.min(), interval.series[0].sum_ns), (2, 10, 5_000_010));
        assert_eq!(write.max(), write.highest_equivalent(5_000_000));
        assert_eq!(interval.get("unit", Op::Commit).unwrap().len(), 1);
        let now = latency.snapshot();
        assert!(now.since(&now).series.is_empty());
    }

    #[test]
    fn quantiles_are_those_of_the_crate() {
        let latency = Latency::new("test");
        let mut recorder = latency.recorder("unit");
        (1..=2500).for_each(|value| recorder.record(Op::Write, value * value));
        let asked = [0.001, 0.5, 0.5, 0.99, 0.9999, 1.0];
        let snapshot = latency.snapshot();
        let write = snapshot.get("unit", Op::Write).unwrap();
        assert_eq!(snapshot.series[0].quantiles(&asked), asked.map(|quantile| write.value_at_quantile(quantile)));
        recorder.record(Op::Commit, 9);
        let one = latency.snapshot().since(&snapshot);
        assert_eq!(one.series[0].quantiles(&[0.0, 0.5, 1.0]), [9, 9, 9]);
    }

    #[test]
    fn merged_is_over_sources() {
        let latency = Latency::new("test");
        let (mut one, mut two) = (latency.recorder("one"), latency.recorder("two"));
        one.record(Op::ReadPositive, 1);
        two.record(Op::ReadPositive, 3);
        let snapshot = latency.snapshot();
        assert_eq!(snapshot.merged(Op::ReadPositive).len(), 2);
        assert!(snapshot.merged(Op::Scan).is_empty());
        assert!(snapshot.get("one", Op::Scan).is_none());
    }
}
