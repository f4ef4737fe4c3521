//! The live-stream validation: runs a service on a bootstrapped directory and a stream, and reports the latencies.
//!
//! Owns: the order of a run and its report. Must not: link the service, or open a store. Runs on the main thread. The
//! stream has threads of its own, and the service runs in its own process.

pub(crate) mod process;
mod stand;
pub(crate) mod start;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytesize::ByteSize;
use engine_latency::export::Report;
use engine_latency::table::{grouped, live_table};
use engines::{EngineArgs, EngineKind};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use program::{say, tell};
use serde_json::{Value, json};

use crate::result::{Opening, check_folder};
use crate::stream::{Delivery, Final, Stand, Stream, Workload};
use probe::{Cap, Charged};
use process::{Service, Usage, free_address, get, service_log};
use start::{Asked, Start};

/// Text after the options in `loadgen live --help`.
pub const EXAMPLES: &str = "\
Options after `--` are passed on to the service. A store that has already followed a stream with the same options \
continues from its slot, so the command can be repeated.

Examples:
  solkv-bootstrap --engine rocksdb --bloom 20 --dir DIR --pairs 2000000 --seed 1
  solkv-loadgen live --dir DIR --pairs 2000000 --seed 1 --events 1000000 --verify
  solkv-loadgen live --dir DIR --pairs 2000000 --cap 1GiB --report live.json -- --commit-every 1000";

/// Time between two requests for the service's progress.
const POLL_PERIOD: Duration = Duration::from_millis(100);
/// The same before the first event, because an opening may take milliseconds.
const OPENING_POLL_PERIOD: Duration = Duration::from_millis(2);
/// Longest wait for a service that makes no progress. Opening a large engine counts as no progress.
const STALL_BOUND: Duration = Duration::from_secs(300);
/// Time for which a service may be not ready for one reason before the reason is printed.
const REASON_AFTER: Duration = Duration::from_secs(5);
/// Longest wait for a clean end, which includes a last commit and closing the engine.
const STOP_BOUND: Duration = Duration::from_secs(120);

#[derive(clap::Args, Clone, Debug)]
pub struct LiveArgs {
    /// Engine of the directory, and the options that the service opens it with.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// The bootstrapped directory; it is changed by the run
    #[arg(long, required_unless_present = "service_metrics")]
    pub dir: Option<PathBuf>,
    /// Content of the slots, which follows from a seed.
    #[command(flatten)]
    pub workload: Workload,
    /// Pace and faults of the slots' delivery.
    #[command(flatten)]
    pub delivery: Delivery,
    /// Where the stream listens; a service that is already running must be pointed at it
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    pub stream_listen: String,
    /// Run the service inside a cgroup with this much memory, page cache included. The store's pages are dropped from
    /// the page cache first, because pages that another process has read are charged to that process
    #[arg(long, value_name = "SIZE", value_parser = engines::size)]
    pub cap: Option<ByteSize>,
    /// State of the store at the start. Without it the store is cold under a cap and otherwise as it is found; the
    /// report names the state that was seen
    #[arg(long, value_enum, value_name = "STATE", conflicts_with_all = ["service_metrics", "no_wait"])]
    pub state: Option<Asked>,
    /// The service program [default: the one next to loadgen]
    #[arg(long, value_name = "PATH")]
    pub service_bin: Option<PathBuf>,
    /// Measure a service that is already running instead of starting one: HOST:PORT of its metrics
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["dir", "cap", "verify"])]
    pub service_metrics: Option<String>,
    /// At the end compare the directory's digest with the stream's, using `solkv-bootstrap info --digest`
    #[arg(long)]
    pub verify: bool,
    /// Write the run as JSON
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write the histograms as an HdrHistogram interval log
    #[arg(long, value_name = "FILE")]
    pub hlog: Option<PathBuf>,
    /// File for the service's log [default: next to the directory]
    #[arg(long, value_name = "FILE")]
    pub service_log: Option<PathBuf>,
    /// Options that are passed on to the service unchanged
    #[arg(last = true)]
    pub service_args: Vec<String>,
}

/// Figures and status at the end of a run.
struct Outcome {
    end: Final,
    latency: Report,
    /// Time from the first event sent to the last slot applied.
    seconds: f64,
    /// From the service's start to the first event sent. `None` if it was not started here, or began with a warm-up.
    opening: Option<Opening>,
    usage: Option<Usage>,
    charged: Option<Charged>,
    status: Value,
}

/// Runs `loadgen live`, from the start of the service to the report.
pub fn run(args: LiveArgs) -> Result<()> {
    let stop = crate::commands::stop_flag()?;
    args.check_state()?;
    // A directory without a store is refused here, before a service is started on it and leaves its log there.
    let engine = args.dir.as_deref().map(engine_of).transpose()?;
    let stand = stand_of(&args)?;
    let stream = Stream::start_at(args.workload.clone(), &args.delivery, &args.stream_listen, stand.as_ref())?;
    if let Some(Stand { slot, .. }) = &stand {
        tell!("the store is at slot={slot}: the stream continues from there");
    }
    let cap = args.cap.map_or_else(|| Cap::None("not asked for".to_owned()), |cap| Cap::create(cap.as_u64()));
    if let (Some(_), Cap::None(why)) = (args.cap, &cap) {
        tell!("WARNING: the memory cap is NOT in force: {why}");
    }
    let mut start = args.dir.as_deref().map(|dir| Start::prepare(dir, engine, &args)).transpose()?;
    let (mut service, metrics) = match &args.service_metrics {
        Some(metrics) => {
            tell!("stream at http://{}; waiting for the service to subscribe", stream.address());
            (None, metrics.clone())
        }
        None => {
            let metrics = free_address()?.to_string();
            if args.state == Some(Asked::Warm) {
                stream.hold();
            }
            (Some(start_service(&args, &cap, &stream, &metrics)?), metrics)
        }
    };
    if let (Some(dir), Some(start), Some(service), Some(Asked::Warm)) =
        (&args.dir, start.as_mut(), service.as_mut(), args.state)
    {
        start.await_warm_up(dir, service, &metrics, &stop)?;
        stream.release();
    }
    let outcome = follow(&args, &stream, service.as_mut(), &metrics, &cap, &stop)?;
    if let Some(path) = &args.hlog {
        let hlog = get(&metrics, "/histograms.hlog")?;
        std::fs::write(path, hlog).with_context(|| format!("cannot write: file={}", path.display()))?;
    }
    if let Some(service) = service {
        service.stop(STOP_BOUND)?;
    }
    stream.stop()?;
    print_outcome(&args, &outcome, &cap, start.as_ref(), &metrics);
    let verified = args.verify.then(|| verify(&args, &outcome.end)).transpose();
    if let Some(path) = &args.report {
        let text = serde_json::to_string_pretty(&report(
            &args,
            engine,
            &outcome,
            (&cap, start.as_ref()),
            verified.as_ref().ok().cloned().flatten(),
        ))?;
        std::fs::write(path, text).with_context(|| format!("cannot write report: file={}", path.display()))?;
    }
    if let Some(digest) = verified? {
        say!("verified: the directory holds digest={digest}, the same as the stream");
    }
    Ok(())
}

impl LiveArgs {
    /// Refuses options that do not make a stream, and results that could not be written.
    ///
    /// # Errors
    /// The option.
    pub fn check(&self) -> Result<()> {
        for (option, file) in [("report", &self.report), ("hlog", &self.hlog), ("service-log", &self.service_log)] {
            check_folder(option, file.as_deref())?;
        }
        self.workload.check()?;
        self.delivery.check()
    }

    /// Refuses a warm start that could not be one.
    fn check_state(&self) -> Result<()> {
        let warm = self.state == Some(Asked::Warm);
        ensure!(
            !warm || self.cap.is_none(),
            "--state warm is for a run without --cap: pages that this program has read are not charged to the service"
        );
        ensure!(
            !warm || !self.service_args.iter().any(|arg| arg.starts_with("--warm-up")),
            "--state warm needs the service's own warm-up: leave out --warm-up"
        );
        Ok(())
    }
}

fn start_service(args: &LiveArgs, cap: &Cap, stream: &Stream, metrics: &str) -> Result<Service> {
    let dir = args.dir.as_deref().context("no directory: give --dir, or --service-metrics of a running service")?;
    let program = args.service_bin.clone().map_or_else(|| sibling("service"), Ok)?;
    let mut command = cap.command(&program)?;
    command.arg("--dir").arg(dir);
    engine_args(&mut command, &args.engine, dir)?;
    command.arg("--geyser").arg(format!("http://{}", stream.address()));
    command.arg("--extract").arg(extract_name(args)?);
    command.args(["--metrics", metrics, "--listen", &free_address()?.to_string()]);
    if let Some(token) = &args.delivery.x_token_file {
        command.arg("--x-token-file").arg(token);
    }
    command.args(&args.service_args);
    let log = args.service_log.clone().unwrap_or_else(|| service_log(dir));
    tell!("service metrics at http://{metrics}/metrics, log in {}", log.display());
    Service::start(command, &log)
}

/// Returns the store's position before the run. A store that has followed a stream is beyond the first slot. A stream
/// that began at the first slot again would wait for the store forever.
fn stand_of(args: &LiveArgs) -> Result<Option<Stand>> {
    match (&args.dir, &args.service_metrics) {
        (Some(dir), _) => {
            let bootstrap = bootstrap(args)?;
            let stand = stand::of_directory(&bootstrap, dir, args.verify)?;
            match stand {
                Some(found) if found.digest.is_none() && found.needs_digest(args.workload.start_slot) => {
                    stand::of_directory(&bootstrap, dir, true)
                }
                stand => Ok(stand),
            }
        }
        (None, Some(metrics)) => stand::of_service(metrics),
        (None, None) => Ok(None),
    }
}

/// Returns the path of the `bootstrap` program next to the service's program.
fn bootstrap(args: &LiveArgs) -> Result<PathBuf> {
    match &args.service_bin {
        Some(service) => Ok(program::sibling_program(service, "bootstrap")),
        None => sibling("bootstrap"),
    }
}

/// Adds the engine of the store in `dir` with the options that were given for it.
pub(crate) fn engine_args(command: &mut Command, given: &EngineArgs, dir: &Path) -> Result<()> {
    let engine = given.engine.map_or_else(|| engine_of(dir), Ok)?;
    command.arg("--engine").args(given.for_engine(engine).line().split_whitespace());
    Ok(())
}

/// Returns the engine of the store in `dir`.
pub(crate) fn engine_of(dir: &Path) -> Result<EngineKind> {
    let known = engines::inspect(dir)?;
    let known = known.with_context(|| format!("there is no store: dir={}: load one with bootstrap", dir.display()))?;
    Ok(known.engine)
}

fn extract_name(args: &LiveArgs) -> Result<String> {
    let name = serde_json::to_value(args.workload.extract)?;
    Ok(name.as_str().context("an extractor serializes as its name")?.to_owned())
}

/// Returns the path of a program next to this one, which has to exist.
pub(crate) fn sibling(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    let path = program::sibling_program(&own, name);
    ensure!(path.is_file(), "no {name} program: file={}; build it, or name it with --service-bin", path.display());
    Ok(path)
}

/// Waits until the service has applied the last slot, and collects its figures.
fn follow(
    args: &LiveArgs,
    stream: &Stream,
    mut service: Option<&mut Service>,
    metrics: &str,
    cap: &Cap,
    stop: &AtomicBool,
) -> Result<Outcome> {
    let bar = ProgressBar::new(args.workload.events);
    let style = "{msg} {wide_bar} {human_pos}/{human_len} events {rate}/s {eta}";
    let rate = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        // A formatting error is the bar's own; the bar is not drawn then.
        write!(out, "{}", grouped(state.per_sec() as u64)).ok();
    };
    bar.set_style(ProgressStyle::with_template(style).context("a fixed template")?.with_key("rate", rate));
    bar.set_message("live");
    let (mut started, mut opening) = (None, None);
    let mut reasons = Reasons { said: String::new(), since: Instant::now() };
    let (mut last, mut moved) = ((0, None), Instant::now());
    loop {
        // ORDERING: Relaxed: the flag carries no other data.
        ensure!(!stop.load(Ordering::Relaxed), "stopped by a signal before the last slot");
        if let Some(service) = service.as_deref_mut() {
            service.check_running()?;
        }
        let sent = stream.sent_events();
        if sent > 0 && started.is_none() {
            started = Some(Instant::now());
            opening = service.as_deref().filter(|_| args.state != Some(Asked::Warm)).map(Service::opening);
        }
        bar.set_position(sent.min(args.workload.events));
        let end = stream.outcome()?;
        // The service does not answer before it has opened its engine.
        let status: Option<Value> =
            get(metrics, "/status.json").ok().and_then(|body| serde_json::from_slice(&body).ok());
        let slot = status.as_ref().and_then(applied_slot);
        if let Some(reason) = status.as_ref().and_then(|status| reasons.due(status)) {
            bar.suspend(|| tell!("the service is not ready: {reason}"));
        }
        if last != (sent, slot) {
            (last, moved) = ((sent, slot), Instant::now());
        }
        if let (Some(end), Some(slot), Some(status)) = (end, slot, &status)
            && slot >= end.slot
        {
            bar.finish();
            // The stream tells its end only after it has computed the digest of all pairs, which takes seconds for
            // large maps and is none of the service's time.
            let seconds = started.map_or(0.0, |started| moved.duration_since(started).as_secs_f64());
            let latency = serde_json::from_slice(&get(metrics, "/histograms.json")?)
                .context("the service's /histograms.json is not a latency report")?;
            let usage = service.map(|service| service.usage()).transpose()?;
            return Ok(Outcome {
                end: end.clone(),
                latency,
                seconds,
                opening,
                usage,
                charged: cap.charged(),
                status: status.clone(),
            });
        }
        if moved.elapsed() > STALL_BOUND {
            let (stall_s, slot) =
                (STALL_BOUND.as_secs(), slot.map_or_else(|| "none".to_owned(), |slot| slot.to_string()));
            bail!("no progress: stall_s={stall_s} sent_events={sent} applied_slot={slot} reason={:?}", reasons.said);
        }
        std::thread::sleep(if started.is_some() { POLL_PERIOD } else { OPENING_POLL_PERIOD });
    }
}

/// Reasons why the service is not ready. Each that lasts is printed once.
struct Reasons {
    said: String,
    since: Instant,
}

impl Reasons {
    /// Returns the reason to print now, if any.
    fn due(&mut self, status: &Value) -> Option<String> {
        let ready = status.get("ready").and_then(Value::as_bool).unwrap_or(false);
        let reason = status.get("not_ready_reason").and_then(Value::as_str).unwrap_or_default();
        if ready || reason.is_empty() {
            (self.since, self.said) = (Instant::now(), String::new());
        } else if reason != self.said && self.since.elapsed() >= REASON_AFTER {
            (self.since, self.said) = (Instant::now(), reason.to_owned());
            return Some(self.said.clone());
        }
        None
    }
}

/// Returns the last whole slot in the service's checkpoint.
fn applied_slot(status: &Value) -> Option<u64> {
    stand::slot(status.get("checkpoint")?)
}

fn print_outcome(args: &LiveArgs, outcome: &Outcome, cap: &Cap, start: Option<&Start>, metrics: &str) {
    let mut column = outcome.latency.engine.clone();
    if let Some(size) = args.cap {
        column = format!("{column} {size}");
    }
    say!("Latencies while {} events of a live stream were applied:", grouped(outcome.end.events));
    say!("{}", live_table(&[(column, &outcome.latency)]));
    let rate = outcome.end.events as f64 / outcome.seconds.max(1e-9);
    if let Some(Opening { elapsed_s, device_read_bytes }) = outcome.opening {
        let read = device_read_bytes.map_or_else(|| "bytes not known".to_owned(), |bytes| ByteSize(bytes).to_string());
        say!("from the service's start to the first event: {elapsed_s:.3} s, {read} read from the device");
    }
    say!("events/s: {rate:.0} over {:.2} s, {} slots", outcome.seconds, outcome.end.slots);
    if let Some(usage) = outcome.usage {
        say!("service CPU: user {:.2} s, system {:.2} s", usage.io.user_s, usage.io.system_s);
        say!("service peak RSS: {}", ByteSize(usage.peak_rss_bytes));
    }
    if let Some(charged) = outcome.charged {
        let (peak, cache) = (ByteSize(charged.peak_bytes), ByteSize(charged.page_cache_bytes));
        say!("cgroup: peak charged {peak}, page cache now {cache}");
    }
    say!("memory cap: {}", cap.describe());
    if let Some(start) = start {
        let Start { page_cache_bytes: held, cacheable_bytes: size, .. } = *start;
        let (held, size) = (ByteSize(held.min(size)), ByteSize(size));
        say!("state at the start: {}, page cache {held} of {size}", start.state());
    }
    if let Some(warm_up) = outcome.status.get("warm_up") {
        let bytes = |name: &str| ByteSize(warm_up[name].as_u64().unwrap_or(0));
        let state = warm_up["state"].as_str().unwrap_or("not known");
        say!("warm-up: {state}, {} read, {} left", bytes("read_bytes"), bytes("left_bytes"));
    }
    say!("the stream says: last slot {}, digest={}", outcome.end.slot, outcome.end.digest);
    say!("metrics were at http://{metrics}/metrics, /histograms.json and /histograms.hlog");
    if let Some(dir) = &args.dir {
        say!("the store: dir={} slot={}", dir.display(), outcome.end.slot);
        if !args.verify {
            say!("next, to compare its digest: {} info --digest --dir {}", program("bootstrap"), dir.display());
        }
    }
}

/// Returns the name by which the program `name` is called, if it is installed like this one.
fn program(name: &str) -> String {
    let own = std::env::current_exe().unwrap_or_default();
    program::sibling_program(&own, name).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the directory's digest. Fails if it differs from the stream's.
fn verify(args: &LiveArgs, end: &Final) -> Result<String> {
    let dir = args.dir.as_deref().context("--verify needs --dir")?;
    let digest = stand::of_directory(&bootstrap(args)?, dir, true)?.and_then(|stand| stand.digest);
    let digest = digest.context("bootstrap info gave no digest")?;
    ensure!(
        digest == end.digest,
        "the map differs from the stream: dir={} has digest={digest} expected={} at slot={}",
        dir.display(),
        end.digest,
        end.slot
    );
    Ok(digest)
}

fn report(
    args: &LiveArgs,
    engine: Option<EngineKind>,
    outcome: &Outcome,
    (cap, start): (&Cap, Option<&Start>),
    verified: Option<String>,
) -> Value {
    json!({
        "program": crate::result::program(),
        "machine": probe::machine(args.dir.as_deref().unwrap_or(Path::new("/"))),
        "engine": args.engine.engine.or(engine).map(|kind| args.engine.for_engine(kind).line()),
        "service_args": args.service_args,
        "workload": args.workload,
        "delivery": args.delivery,
        "cap_bytes": args.cap.map(|cap| cap.as_u64()),
        "cap": cap.describe(),
        "state_asked": args.state,
        "state": start.map(Start::state),
        "start": start,
        "final": outcome.end,
        "seconds": outcome.seconds,
        "opening": outcome.opening,
        "events_per_s": outcome.end.events as f64 / outcome.seconds.max(1e-9),
        "usage": outcome.usage,
        "charged": outcome.charged,
        "service_status": outcome.status,
        "verified_digest": verified,
        "latency": outcome.latency,
    })
}
