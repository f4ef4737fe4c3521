//! The time series while loading: what reads, writes and commits cost at this size of the store.
//!
//! Owns: when a sample is taken and what is in it. Reads here are of absent keys only, never mixed with others.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use engine_api::Reader as _;
use engine_latency::{Measured, Op, Snapshot};
use serde::Serialize;
use workload::Pairs;

/// Negative reads per sample: enough for a p99 of ten values.
const READS: u64 = 1000;
/// Seed of the absent keys: a stream of its own, so that no source's pairs are met.
const ABSENT_SEED: u64 = 0x7061_6972_6c65_7373;

/// Average and percentiles of one operation over an interval, in ns.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Latency {
    pub(crate) count: u64,
    pub(crate) avg_ns: f64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
}

/// One point of the curve.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) pairs: u64,
    pub(crate) elapsed_ms: u64,
    pub(crate) read_negative: Option<Latency>,
    /// None in the last sample, when there was no write after the one before.
    pub(crate) write: Option<Latency>,
    pub(crate) commit: Option<Latency>,
    pub(crate) disk_bytes: u64,
    pub(crate) rss_bytes: u64,
    pub(crate) page_cache_bytes: u64,
}

/// Takes a sample every so many pairs.
pub(crate) struct Sampler<'e> {
    engine: &'e Measured,
    dir: &'e Path,
    every: u64,
    next: u64,
    reads: u64,
    started: Instant,
    last: Snapshot,
    pub(crate) samples: Vec<Sample>,
}

impl<'e> Sampler<'e> {
    pub(crate) fn new(engine: &'e Measured, dir: &'e Path, every: u64, from: u64) -> Self {
        let last = engine.latency().snapshot();
        let next = (from / every + 1) * every;
        Self { engine, dir, every, next, reads: 0, started: Instant::now(), last, samples: Vec::new() }
    }

    /// Takes a sample when `pairs` has reached the next point.
    pub(crate) fn at(&mut self, pairs: u64) -> Result<()> {
        if pairs < self.next {
            return Ok(());
        }
        self.next = (pairs / self.every + 1) * self.every;
        self.take(pairs)
    }

    /// Takes a sample now.
    pub(crate) fn take(&mut self, pairs: u64) -> Result<()> {
        // A reader of its own, dropped at once: an open one would keep old pages from being reused.
        let mut reader = self.engine.reader_for("bootstrap").context("cannot sample reads")?;
        for _ in 0..READS {
            let found = reader.get(&Pairs::new(ABSENT_SEED).key(self.reads)).context("cannot sample reads")?;
            anyhow::ensure!(found.is_none(), "a key that was never loaded has a value: the store is damaged");
            self.reads += 1;
        }
        drop(reader);
        let now = self.engine.latency().snapshot();
        let interval = now.since(&self.last);
        self.last = now;
        self.samples.push(Sample {
            pairs,
            elapsed_ms: self.started.elapsed().as_millis() as u64,
            read_negative: latency(&interval, Op::ReadNegative),
            write: latency(&interval, Op::Write),
            commit: latency(&interval, Op::Commit),
            disk_bytes: probe::disk_bytes(self.dir),
            rss_bytes: probe::rss_bytes(std::process::id()),
            page_cache_bytes: probe::page_cache_bytes(self.dir),
        });
        Ok(())
    }
}

fn latency(interval: &Snapshot, op: Op) -> Option<Latency> {
    let series = interval.series.iter().find(|series| series.op == op)?;
    Some(Latency {
        count: series.histogram.len(),
        avg_ns: series.mean_ns(),
        p50_ns: series.histogram.value_at_quantile(0.5),
        p99_ns: series.histogram.value_at_quantile(0.99),
    })
}
