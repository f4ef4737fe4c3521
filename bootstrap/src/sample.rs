//! The time series of a load: latencies of reads, writes and commits at each size of the store.
//!
//! Owns: when a sample is taken and its fields. Must not: read keys that are present, because reads of absent and
//! present keys are never mixed.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use engine_api::Reader as _;
use engine_latency::export::{self, ReportSeries};
use engine_latency::{Measured, Op, Snapshot};
use serde::Serialize;
use workload::Pairs;

/// Reads of absent keys per sample: enough that ten values lie above the p99.
const READS: u64 = 1000;
/// Seed of the absent keys. They have a seed of their own, so that no loaded key is read.
const ABSENT_SEED: u64 = 0x7061_6972_6c65_7373;

/// One sample: the sizes at a number of pairs, and the latencies since the sample before.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) pairs: u64,
    pub(crate) elapsed_ms: u64,
    pub(crate) read_negative: Option<ReportSeries>,
    /// `None` in the last sample if no write has followed the sample before.
    pub(crate) write: Option<ReportSeries>,
    pub(crate) commit: Option<ReportSeries>,
    pub(crate) disk_bytes: u64,
    pub(crate) rss_bytes: u64,
    pub(crate) page_cache_bytes: u64,
}

/// Takes a sample each time that `every` more pairs are loaded.
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

    pub(crate) fn take(&mut self, pairs: u64) -> Result<()> {
        // A reader of its own, dropped at once, because an open one would keep old pages from being reused.
        let mut reader = self.engine.reader_for("bootstrap").context("cannot sample reads")?;
        for _ in 0..READS {
            let found = reader.get(&Pairs::new(ABSENT_SEED).key(self.reads)).context("cannot sample reads")?;
            anyhow::ensure!(found.is_none(), "a key that was never loaded has a value: the store is damaged");
            self.reads += 1;
        }
        drop(reader);
        let now = self.engine.latency().snapshot();
        let series = export::report(&now.since(&self.last)).series;
        self.last = now;
        let latency = |op| series.iter().find(|series| series.op == op).cloned();
        self.samples.push(Sample {
            pairs,
            elapsed_ms: self.started.elapsed().as_millis() as u64,
            read_negative: latency(Op::ReadNegative),
            write: latency(Op::Write),
            commit: latency(Op::Commit),
            disk_bytes: probe::disk_bytes(self.dir),
            rss_bytes: probe::rss_bytes(std::process::id()),
            page_cache_bytes: probe::page_cache_bytes(self.dir),
        });
        Ok(())
    }
}
