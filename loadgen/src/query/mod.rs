//! `loadgen query`: lookups against a running service over gRPC, at given rates, with each answer verified.
//!
//! Owns: the arguments, the sequence of rates, the knee, the records. Must not: link the service. Runs on the main
//! thread; see `drive` for the others.

mod drive;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use client::Address;
use engine_latency::table::{aligned, grouped, micros};
use engine_latency::{Latency, Op};
use program::say;

use crate::access::Access;
use crate::bench::child::curves;
use crate::bench::pace::note_of_overdue;
use crate::result::{Record, Workload};
use crate::stream::{Rate, SkewArg};
use drive::{ANSWER_TIMEOUT, Driven, Load, SOURCE, Target};

/// Text after the options in `loadgen query --help`.
pub const EXAMPLES: &str = "\
Latency runs from the moment a request was due, whether or not an earlier one was still under way, so that a stall of \
the service counts for everything it delays. `--rate max` keeps --in-flight requests under way instead (closed loop).

The knee is the highest rate of a sweep that was kept (99% of it or more) with a p99 of at most ten times the lowest \
rate's.

Examples:
  solkv-loadgen query --target 127.0.0.1:7400 --pairs 2000000 --seed 1 --rate 5000
  solkv-loadgen query --uds /run/solkv/kv.sock --pairs 2000000 --rate 1000,5000,10000,20000 --negative-share 0.5
  solkv-loadgen query --target 127.0.0.1:7400 --pairs 2000000 --batch 1000 --rate max --in-flight 4 --out query.jsonl
  solkv-loadgen query --target https://kv.example:7400 --tls-ca ca.pem --bearer-token-file token --pairs 2000000";

/// A rate is past the knee if its p99 is more than this many times the p99 of the lowest rate.
const KNEE_FACTOR: u64 = 10;
/// A rate is past the knee if less than this share of it is reached.
const KNEE_KEPT: f64 = 0.99;

#[derive(clap::Args, Clone, Debug)]
pub struct QueryArgs {
    /// The service's gRPC address: HOST:PORT, http://HOST:PORT, unix:///PATH, or https://HOST:PORT for a service with TLS
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "uds", conflicts_with = "uds")]
    target: Option<String>,
    /// Path of the service's Unix socket
    #[arg(long, value_name = "PATH")]
    uds: Option<PathBuf>,
    /// Token and certificates, if the service demands them.
    #[command(flatten)]
    access: Access,
    /// Pairs in the store, as `solkv-bootstrap --pairs N --seed S` loaded them
    #[arg(long, value_name = "N", value_parser = workload::count::<u64>)]
    pairs: u64,
    /// Seed of the synthetic pairs in the store
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Requests a second, one or several separated by commas, or max
    #[arg(long, value_name = "R|max", value_delimiter = ',', default_value = "1000")]
    rate: Vec<Rate>,
    /// Time for which each rate is measured
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "10s")]
    time: Duration,
    /// Share of requests for absent keys; their latency is reported separately
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    negative_share: f64,
    /// How requests spread over the keys: uniform or zipfian:EXPONENT
    #[arg(long, value_name = "SKEW", default_value = "uniform")]
    skew: SkewArg,
    /// Keys per request: 1 uses Get, more use GetMany
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = workload::count_within(1..=10_000u32))]
    batch: u32,
    /// Connections that share the rate
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = workload::count_within(1..=1000u32))]
    connections: u32,
    /// Requests under way on one connection: with --rate max exactly this many, otherwise at most
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = workload::count_within(1..=100_000u32))]
    in_flight: u32,
    /// The store follows a stream: values may have changed since the load and are checked for their length only
    #[arg(long)]
    changed: bool,
    /// Append the measurements to a result file for `solkv-loadgen report`
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Runs `loadgen query`.
///
/// # Errors
/// A service that cannot be reached or refuses a request; any wrong answer; a result file that cannot be written.
pub fn run(args: &QueryArgs) -> Result<()> {
    let target = args.target()?;
    // One worker, because the client must leave the machine to the service it measures.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("query")
        .enable_all()
        .build()
        .context("cannot start the network thread")?;
    let engine = runtime.block_on(drive::engine(&target))?;
    let header = ["rate asked", "rate", "op", "count", "avg", "p50", "p99", "p99.9", "p99.99", "max"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let (shared, mut measured) = (Arc::new(args.clone()), Vec::new());
    for rate in &args.rate {
        let rate = if let Rate::PerSecond(rate) = rate { Some(*rate) } else { None };
        let load = Load { args: Arc::clone(&shared), rate };
        let latency = Latency::new("query");
        let begun = Record::of_service("query", &engine, args.pairs, args.seed, Path::new("/"));
        let driven = drive::drive(&runtime, &target, &load, &latency)?;
        rows.extend(table_rows(&load, &driven));
        let record = record(args, &target, &load, &driven, begun);
        if let Some(path) = &args.out {
            crate::result::append(path, &record)?;
        }
        measured.push((load, driven));
    }
    program::print(format_args!("{}", aligned(&rows)));
    say!("{}", knee(&measured));
    Ok(())
}

impl QueryArgs {
    /// Refuses arguments that can never work.
    ///
    /// # Errors
    /// A share outside 0 to 1, no pairs, or an address of no known form. The error names the option.
    pub fn check(&self) -> Result<()> {
        ensure!((0.0..=1.0).contains(&self.negative_share), "negative-share={}: give 0 to 1", self.negative_share);
        ensure!(self.pairs > 0, "pairs=0: give the number of pairs that the store was loaded with");
        crate::result::check_folder("out", self.out.as_deref())?;
        self.target().map(drop)
    }

    fn target(&self) -> Result<Target> {
        let address = match (&self.target, &self.uds) {
            (Some(address), _) => address.clone(),
            (None, Some(path)) => format!("unix://{}", std::path::absolute(path)?.display()),
            (None, None) => bail!("no service: give --target HOST:PORT or --uds PATH"),
        };
        let transport = match address.parse()? {
            Address::Tcp { tls: true, .. } => "grpc-tls",
            Address::Tcp { tls: false, .. } => "grpc-tcp",
            Address::Unix(_) => "grpc-uds",
            Address::Shm(_) => bail!("query asks over gRPC: target={address}: give HOST:PORT or unix:///PATH"),
        };
        Ok(Target { transport, builder: self.access.builder(&address)?.deadline(ANSWER_TIMEOUT) })
    }
}

fn table_rows(load: &Load, driven: &Driven) -> Vec<Vec<String>> {
    let asked = load.rate.map_or_else(|| "max (closed loop)".to_owned(), |rate| grouped(rate as u64));
    let rate = grouped((driven.requests as f64 / driven.elapsed.as_secs_f64()) as u64);
    let row = |series: &engine_latency::Series| {
        let at = |quantile| micros(series.histogram.value_at_quantile(quantile) as f64);
        vec![
            asked.clone(),
            rate.clone(),
            series.op.as_str().to_owned(),
            grouped(series.histogram.len()),
            micros(series.mean_ns()),
            at(0.5),
            at(0.99),
            at(0.999),
            at(0.9999),
            micros(series.histogram.max() as f64),
        ]
    };
    driven.total.series.iter().map(row).collect()
}

/// Describes the knee. The rule is in the help.
fn knee(measured: &[(Load, Driven)]) -> String {
    let p99 = |driven: &Driven| {
        let worst = driven.total.series.iter().map(|series| series.histogram.value_at_quantile(0.99));
        worst.max().unwrap_or(0)
    };
    let mut open: Vec<_> = measured.iter().filter_map(|(load, driven)| Some((load.rate?, driven))).collect();
    open.sort_by(|a, b| a.0.total_cmp(&b.0));
    let Some((_, lowest)) = open.first() else { return "no knee: a closed loop has no rate to keep".to_owned() };
    let bound = p99(lowest) * KNEE_FACTOR;
    let holds = |rate: f64, driven: &Driven| {
        driven.requests as f64 / driven.elapsed.as_secs_f64() >= rate * KNEE_KEPT && p99(driven) <= bound
    };
    let kept = open.iter().take_while(|(rate, driven)| holds(*rate, driven)).last();
    match kept {
        None => format!("no knee: the lowest rate, {}/s, was not kept", grouped(open[0].0 as u64)),
        Some((rate, _)) if *rate == open[open.len() - 1].0 => {
            format!("no knee up to {} requests/s: every rate was kept", grouped(*rate as u64))
        }
        Some((rate, _)) => format!("knee: {} requests/s", grouped(*rate as u64)),
    }
}

/// Completes the record of lookups that have `begun`.
fn record(args: &QueryArgs, target: &Target, load: &Load, driven: &Driven, begun: Record) -> Record {
    let more = BTreeMap::from([
        ("transport".to_owned(), target.transport.to_owned()),
        ("batch".to_owned(), args.batch.to_string()),
        ("negative_share".to_owned(), args.negative_share.to_string()),
        ("in_flight".to_owned(), args.in_flight.to_string()),
    ]);
    let skew = serde_json::to_value(args.skew).ok();
    Record {
        workload: Workload {
            arrival: if load.rate.is_some() { "open" } else { "closed" }.to_owned(),
            target_rate: load.rate,
            keys: skew.and_then(|skew| skew.as_str().map(str::to_owned)).unwrap_or_default(),
            threads: args.connections,
            more,
            ..begun.workload
        },
        elapsed_s: driven.elapsed.as_secs_f64(),
        ops: driven.requests * u64::from(args.batch),
        curves: curves(&driven.total),
        series: driven.series.clone(),
        notes: driven.notes(load),
        ..begun
    }
}

impl Driven {
    fn notes(&self, load: &Load) -> Vec<String> {
        let kept = load.rate.is_none_or(|rate| self.requests as f64 / self.elapsed.as_secs_f64() >= rate * KNEE_KEPT);
        let mut notes = vec![format!("latencies are from outside the service, source={SOURCE}")];
        if !kept {
            notes.push("the asked rate was not kept".to_owned());
        }
        notes.extend(note_of_overdue(self.overdue, self.requests));
        notes
    }
}

/// Returns the operation under which a request of this many keys is recorded.
fn op_of(batch: u32, negative: bool) -> Op {
    match (batch, negative) {
        (1, true) => Op::ReadNegative,
        (1, false) => Op::ReadPositive,
        _ => Op::GetMany,
    }
}
