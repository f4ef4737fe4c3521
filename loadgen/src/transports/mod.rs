//! `loadgen transports`: the same lookups over shared memory, gRPC and the Redis protocol, side by side on one service.
//!
//! Owns: the arguments, the order of the runs, the table, the records. Must not: link the service. Runs on the main
//! thread, which is the only client of the lookups (see `drive`); see `feed` for the followers' threads.

mod drive;
mod feed;
mod redis;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use engine_latency::table::{aligned, grouped, micros};
use engines::EngineArgs;

use crate::access::Access;
use crate::bench::child::curves;
use crate::live::process::{Service, free_address, service_log};
use crate::live::{engine_args, sibling};
use crate::result::{Record, Workload};
use drive::{Driven, Load, Transport};
use redis::Redis;
use workload::Pairs;

/// Text after the options in `loadgen transports --help`.
pub const EXAMPLES: &str = "\
One client sends lookups in a closed loop: one key at a time for the round trip, then batches for keys a second. \
Transports take turns within each repeat, so that drift of the machine affects all of them alike; figures are medians over \
the repeats. Every value is checked. With --dir a second service, on an empty store, then follows a short stream; the time \
from a commit to its arrival at a follower is measured over shared memory and gRPC.

Examples:
  solkv-bootstrap --dir DIR --pairs 1000000 --seed 1
  solkv-loadgen transports --dir DIR --pairs 1000000 --seed 1 --out transports.jsonl
  solkv-loadgen transports --address unix:///run/solkv/kv.sock --address http://127.0.0.1:7400 --pairs 1000000";

/// Longest wait for the started service to answer. It includes opening the store.
const START_BOUND: Duration = Duration::from_secs(120);
/// Longest wait for the service's clean end.
const STOP_BOUND: Duration = Duration::from_secs(60);
/// Time between two attempts to reach the service.
const POLL_PERIOD: Duration = Duration::from_millis(50);

#[derive(clap::Args, Clone, Debug)]
pub struct TransportsArgs {
    /// A bootstrapped directory: a service is started on it, with every transport
    #[arg(long, required_unless_present = "address", conflicts_with = "address")]
    dir: Option<PathBuf>,
    /// Engine of the directory, and the options that the service opens it with.
    #[command(flatten)]
    engine: EngineArgs,
    /// The service program [default: the one next to loadgen]
    #[arg(long, value_name = "PATH")]
    service_bin: Option<PathBuf>,
    /// Address of a running service, instead of starting one: shm:///PATH, unix:///PATH, HOST:PORT, http://HOST:PORT,
    /// https://HOST:PORT, redis://HOST:PORT or redis+unix:///PATH; may be given several times
    #[arg(long, value_name = "URL")]
    address: Vec<String>,
    /// A redis-server to measure beside, as redis://HOST:PORT or redis+unix:///PATH: the pairs are stored in it first
    #[arg(long, value_name = "URL")]
    redis_server: Option<String>,
    /// Token and certificates, if the service demands them. Each transport is given those that it can use.
    #[command(flatten)]
    access: Access,
    /// Pairs in the store, as `solkv-bootstrap --pairs N --seed S` loaded them
    #[arg(long, value_name = "N", value_parser = workload::count_within(1..=u64::MAX))]
    pairs: u64,
    /// Seed of the synthetic pairs in the store
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Number of keys in a batch
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = workload::count_within(2..=10_000u32))]
    batch: u32,
    /// Time for which each run measures
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "2s")]
    time: Duration,
    /// Number of times that every transport is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = workload::count_within(1..=100u32))]
    repeats: u32,
    /// Append the measurements to a result file for `solkv-loadgen report`
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// A service that this program has started, and the folder of its sockets and of a new store.
struct Own {
    service: Service,
    dir: PathBuf,
}

/// Runs `loadgen transports`.
///
/// # Errors
/// A service that cannot be started or reached; any wrong answer; a result file that cannot be written.
pub fn run(args: &TransportsArgs) -> Result<()> {
    let (mut own, addresses) = match &args.dir {
        Some(dir) => {
            // No stream runs at this address, so only lookups are measured.
            let (own, addresses) = serve(args, Some(dir), &format!("http://{}", free_address()?))?;
            (Some(own), addresses)
        }
        None => (None, args.address.clone()),
    };
    let outcome = measure(args, own.as_mut(), &addresses);
    if let Some(own) = own {
        own.stop(STOP_BOUND)?;
    }
    let measured = outcome?;
    program::print(format_args!("{}", table(args, &measured)));
    if args.dir.is_some() {
        program::print(format_args!("\n{}", feed::run(args)?));
    }
    Ok(())
}

impl TransportsArgs {
    /// Refuses addresses of no known form.
    ///
    /// # Errors
    /// Such an address, which the error names.
    pub fn check(&self) -> Result<()> {
        crate::result::check_folder("out", self.out.as_deref())?;
        let others = self.address.iter().filter(|address| Redis::target(address).is_none());
        others.into_iter().try_for_each(|address| self.access.builder(address).map(drop))?;
        let wrong = self.redis_server.iter().find(|address| Redis::target(address).is_none());
        wrong.map_or(Ok(()), |address| bail!("give redis://HOST:PORT or redis+unix:///PATH: redis_server={address}"))
    }
}

/// Every repeat of every transport in the order of measurement: `(transport, load, driven)`.
type Measured = Vec<(Transport, Load, Driven)>;

fn measure(args: &TransportsArgs, mut own: Option<&mut Own>, addresses: &[String]) -> Result<Measured> {
    let mut transports: Vec<Transport> =
        addresses.iter().flat_map(|address| Transport::of(address, &args.access)).collect();
    let first = transports.first().context("no transport: give --dir or --address")?;
    let engine = reach(first, own.as_deref_mut())?;
    if let Some(address) = &args.redis_server {
        Redis::connect(address)?.fill(&Pairs::new(args.seed), args.pairs)?;
        transports.push(Transport::of_redis_server(address));
    }
    let mut measured = Vec::new();
    for repeat in 0..args.repeats {
        for batch in [1, args.batch as usize] {
            for transport in &transports {
                let load = Load { pairs: args.pairs, seed: args.seed, batch, time: args.time, repeat };
                let dir = args.dir.as_deref().unwrap_or(Path::new("/"));
                let begun = Record::of_service("transports", &engine, load.pairs, load.seed, dir);
                let usage = |own: &Option<&mut Own>| own.as_ref().map(|own| own.service.usage()).transpose();
                let before = usage(&own)?;
                let mut driven = drive::drive(transport, &load)
                    .with_context(|| format!("transport={} batch={batch}", transport.name))?;
                if let (Some(before), Some(after)) = (before, usage(&own)?) {
                    driven.service_cpu_s =
                        Some(after.io.user_s + after.io.system_s - before.io.user_s - before.io.system_s);
                }
                if let Some(path) = &args.out {
                    crate::result::append(path, &record(transport, &load, &driven, begun))?;
                }
                measured.push((transport.clone(), load, driven));
            }
        }
    }
    Ok(measured)
}

impl Own {
    fn stop(self, bound: Duration) -> Result<()> {
        self.service.stop(bound)?;
        std::fs::remove_dir_all(&self.dir).with_context(|| format!("cannot remove: dir={}", self.dir.display()))
    }
}

/// Starts a service that follows `geyser`, with every transport, on `dir` or a new store. Returns its addresses: shared
/// memory, Unix socket, TCP.
fn serve(args: &TransportsArgs, dir: Option<&Path>, geyser: &str) -> Result<(Own, Vec<String>)> {
    let program = args.service_bin.clone().map_or_else(|| sibling("service"), Ok)?;
    // A short path, because a socket's path may have at most 107 bytes.
    let sockets = std::env::temp_dir().join(format!("solkv-transports-{}", std::process::id()));
    std::fs::create_dir(&sockets).with_context(|| format!("cannot make: dir={}", sockets.display()))?;
    let [shm, uds, redis_uds] = ["shm.sock", "kv.sock", "redis.sock"].map(|name| sockets.join(name));
    let (listen, metrics, redis) = (free_address()?, free_address()?, free_address()?);
    let own = sockets.join("store");
    let mut command = Command::new(&program);
    // The same engine for the new store, so that lookups and feed are measured on one engine.
    if let Some(loaded) = &args.dir {
        engine_args(&mut command, &args.engine, loaded)?;
    }
    if dir.is_none() {
        command.arg("--create-empty");
    }
    let dir = dir.unwrap_or(&own);
    if engines::inspect(dir)?.is_none_or(|known| known.holds.extract.is_none()) {
        command.args(["--extract", "account-owner"]);
    }
    command.arg("--dir").arg(dir);
    command.args(["--geyser", geyser]);
    command.args(["--listen", &listen.to_string(), "--metrics", &metrics.to_string()]);
    command.arg("--shm").arg(&shm).arg("--uds").arg(&uds);
    command.args(["--redis", &redis.to_string()]).arg("--redis-uds").arg(&redis_uds);
    let service = Service::start(command, &service_log(dir))?;
    let addresses = vec![
        format!("shm://{}", shm.display()),
        format!("unix://{}", uds.display()),
        format!("http://{listen}"),
        format!("redis+unix://{}", redis_uds.display()),
        format!("redis://{redis}"),
    ];
    Ok((Own { service, dir: sockets }, addresses))
}

/// Waits until the service answers, and returns its engine's label.
fn reach(transport: &Transport, mut own: Option<&mut Own>) -> Result<String> {
    let started = Instant::now();
    loop {
        if let Some(own) = own.as_deref_mut() {
            own.service.check_running()?;
        }
        match transport.connect().and_then(|mut client| client.engine()) {
            Ok(engine) => return Ok(engine),
            Err(error) if own.is_none() => return Err(error),
            Err(error) if started.elapsed() > START_BOUND => bail!("the service does not answer: {error:#}"),
            Err(_) => std::thread::sleep(POLL_PERIOD),
        }
    }
}

fn table(args: &TransportsArgs, measured: &Measured) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (transport, ..) in measured {
        if !names.contains(&transport.name) {
            names.push(transport.name);
        }
    }
    let repeats = args.repeats;
    let mut text = String::new();
    for (batch, unit, what) in [
        (1, "get", format!("get, one key at a time, us (median of {repeats} repeats; spread of p50 over them)")),
        (args.batch as usize, "key", format!("\nget_many of {} keys, us a batch", args.batch)),
    ] {
        let (rate, cpu) = (format!("{unit}s/s"), format!("service CPU/{unit}"));
        let header = ["transport", &rate, "avg", "p50", "p50 spread", "p99", "p99.9", "max", &cpu];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        rows.extend(names.iter().map(|name| row(name, &of(measured, name, batch))));
        text.push_str(&format!("{what}\n{}", aligned(&rows)));
    }
    text
}

fn of<'m>(measured: &'m Measured, name: &str, batch: usize) -> Vec<&'m Driven> {
    let wanted = |(transport, load, _): &&(Transport, Load, Driven)| transport.name == name && load.batch == batch;
    measured.iter().filter(wanted).map(|(_, _, driven)| driven).collect()
}

fn row(name: &str, repeats: &[&Driven]) -> Vec<String> {
    let median = |figure: &dyn Fn(&Driven) -> f64| {
        let mut all: Vec<f64> = repeats.iter().map(|driven| figure(driven)).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or_default()
    };
    let at = |quantile: f64| move |driven: &Driven| driven.at(quantile);
    let p50 = repeats.iter().map(|driven| driven.at(0.5));
    let (low, high) = p50.fold((f64::MAX, 0.0), |(low, high): (f64, f64), p50| (low.min(p50), high.max(p50)));
    let cpu = median(&|driven| driven.service_cpu_s.map_or(f64::NAN, |cpu| cpu * 1e9 / driven.keys as f64));
    let cpu = if cpu.is_nan() { "-".to_owned() } else { micros(cpu) };
    vec![
        name.to_owned(),
        grouped(median(&|driven| driven.keys as f64 / driven.elapsed.as_secs_f64()) as u64),
        micros(median(&Driven::mean_ns)),
        micros(median(&at(0.5))),
        format!("{} to {}", micros(low), micros(high)),
        micros(median(&at(0.99))),
        micros(median(&at(0.999))),
        micros(median(&at(1.0))),
        cpu,
    ]
}

/// Completes the record of lookups that have `begun`.
fn record(transport: &Transport, load: &Load, driven: &Driven, begun: Record) -> Record {
    let mut notes = vec!["latencies are from outside the service, one client, source=client".to_owned()];
    if let Some(cpu_s) = driven.service_cpu_s {
        notes.push(format!("service_cpu_s={cpu_s:.3}"));
    }
    let more = BTreeMap::from([
        ("transport".to_owned(), transport.name.to_owned()),
        ("batch".to_owned(), load.batch.to_string()),
    ]);
    Record {
        repeat: load.repeat,
        workload: Workload { more, ..begun.workload },
        elapsed_s: driven.elapsed.as_secs_f64(),
        ops: driven.keys,
        curves: curves(&driven.total),
        notes,
        ..begun
    }
}
