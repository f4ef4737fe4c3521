//! `loadgen bench`: scenarios of runs, each in a process of its own under a memory cap of its own.
//!
//! Owns: the order of work: the device's baseline, the stores, dropped caches, one run after the other. It appends a
//! line to the result file after each run, so that an interrupted session can continue. Must not: time anything itself.
//! Runs on the main thread.
//!
//! Runs go cell by cell, every engine in turn, repeat after repeat, so that drift of the machine affects all alike. For
//! each run the parent loads or copies a store and drops its pages. It reads the store at random for half a second to
//! measure the device, makes a cgroup, and starts the run's process in it. The result names the state that was seen:
//! `partly cached` if more than a hundredth of a cold store is in the page cache. Only runs without a cap can be warm.
//! A cell with `floor` makes the least that a get could cost after each get, and its time and reads are taken out of
//! the figures. `make bench TOPIC=instrument` compares all of this with short programs without our code.

pub mod age;
pub mod child;
mod convert;
mod drive;
mod engine;
pub(crate) mod pace;
mod run;
mod scan;
mod scenario;
mod spawn;
mod store;
mod update;
mod versions;
mod work;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytesize::ByteSize;
use probe::{Baseline, Quantiles};
use program::{say, tell};

use crate::commands::stop_flag;
use crate::live::start::cached;
use crate::result::{self, Record, SCHEMA_VERSION};
use run::Run;
use scenario::Scenario;
use spawn::Measured;
use store::Stores;
use work::{Kind, State, name_of};

/// Number of reads at once with which a device is compared that the service keeps busy.
const DEVICE_DEPTH: u32 = 64;
/// Time for which the device alone is measured before each run from a cold start.
const DEVICE_READS_TIME: Duration = Duration::from_millis(500);

/// Says why a bench ended that a signal has stopped.
const STOPPED: &str = "stopped by a signal; the same command continues";

/// Text after the options in `loadgen bench --help`.
pub const EXAMPLES: &str = "\
A scenario is a TOML file; loadgen/scenarios holds the reviewed ones. Each run is one line of JSON in the result \
file. Running the same command again makes only the missing runs. Memory caps need root or a writable cgroup. `best`, \
`compare` and the report tell engines apart from three repeats on.

Examples:
  solkv-loadgen bench loadgen/scenarios/read-under-cap.toml --out results/reads.jsonl
  solkv-loadgen bench loadgen/scenarios/*.toml --pairs 1000000 --repeats 1 --seconds 2 --out small.jsonl
  solkv-loadgen report small.jsonl --html small.html";

#[derive(clap::Args, Clone, Debug)]
pub struct BenchArgs {
    /// TOML files with the scenarios to run
    #[arg(required = true, value_name = "FILE")]
    scenarios: Vec<PathBuf>,
    /// Result file; runs that it already has are not repeated
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Folder for the stores, on the device to be measured [default: the result file's name with .work]
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Pairs, instead of the scenarios' own
    #[arg(long, value_name = "N", value_parser = workload::count::<u64>)]
    pairs: Option<u64>,
    /// Repeats, instead of the scenarios' own
    #[arg(long, value_name = "N")]
    repeats: Option<u64>,
    /// Seconds for which each run is measured, instead of the scenarios' own
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Leave out runs under a smaller cap than this, because with a small store no process fits into such a cap
    #[arg(long, value_name = "SIZE", value_parser = engines::size)]
    min_cap: Option<ByteSize>,
    /// Only this engine, as the scenarios name it; may be given several times
    #[arg(long, value_name = "ENGINE")]
    engine: Vec<String>,
    /// Measure this store in place, and load none: one that `solkv-bootstrap` has loaded with the scenarios' pairs and seed in
    /// sorted order. Runs that write change it
    #[arg(long, value_name = "DIR", conflicts_with = "keep")]
    store: Option<PathBuf>,
    /// Keep the loaded stores for later runs
    #[arg(long)]
    keep: bool,
    /// Print the runs without making them
    #[arg(long)]
    list: bool,
}

/// Runs `loadgen bench`.
///
/// # Errors
/// An invalid scenario; a run that failed; a result file that cannot be read or written; a signal to stop.
pub fn run(args: &BenchArgs) -> Result<()> {
    let stop = stop_flag()?;
    let runs = runs(args)?;
    let done = if args.out.exists() { crate::result::read(&args.out)? } else { Vec::new() };
    let done: HashSet<String> = done.iter().map(Record::run_key).collect();
    let missing: Vec<&Run> = runs.iter().filter(|run| !done.contains(&run.key())).collect();
    tell!("{} runs, {} of them done before: file={}", runs.len(), runs.len() - missing.len(), args.out.display());
    if args.list {
        missing.iter().for_each(|run| say!("{}", title(run)));
        return Ok(());
    }
    let mut work = args.out.clone().into_os_string();
    work.push(".work");
    let work = args.work.clone().unwrap_or_else(|| PathBuf::from(work));
    fs::create_dir_all(&work).with_context(|| format!("cannot make dir={}", work.display()))?;
    let baseline = if missing.is_empty() {
        None
    } else {
        tell!("measuring the device under {}", work.display());
        Some(probe::baseline(&work)?)
    };
    let mut stores = Stores::new(&work, args.store.as_deref(), &missing)?;
    // ORDERING: Relaxed: the flag carries no other data.
    let is_stopped = || stop.load(std::sync::atomic::Ordering::Relaxed);
    for (n, run) in missing.iter().enumerate() {
        ensure!(!is_stopped(), "{STOPPED}");
        tell!("[{}/{}] {}", n + 1, missing.len(), title(run));
        let record = one(run, &mut stores, &work, baseline);
        // A signal ends the run's own process as well, whose error says less.
        ensure!(record.is_ok() || !is_stopped(), "{STOPPED}");
        let record = record?;
        tell!("        {}", summary(&record));
        crate::result::append(&args.out, &record)?;
    }
    if !args.keep {
        fs::remove_dir_all(&work).with_context(|| format!("cannot remove dir={}", work.display()))?;
    }
    Ok(())
}

fn runs(args: &BenchArgs) -> Result<Vec<Run>> {
    let (mut all, mut known) = (Vec::new(), Vec::new());
    for path in &args.scenarios {
        let mut scenario = Scenario::read(path)?;
        tell!("{}: {}", scenario.name, scenario.about);
        scenario.pairs = args.pairs.unwrap_or(scenario.pairs);
        scenario.repeats = args.repeats.unwrap_or(scenario.repeats);
        if !args.engine.is_empty() {
            known.append(&mut scenario.engines.clone());
            scenario.engines.retain(|engine| args.engine.contains(engine));
        }
        if scenario.engines.is_empty() {
            continue;
        }
        for cell in &mut scenario.cells {
            if let Some(seconds) = args.seconds {
                // A steady state's unmeasured part shrinks or grows with the measured one.
                cell.before_seconds *= seconds / cell.seconds;
                cell.seconds = seconds;
            }
            if cell.workload == Kind::Live && args.pairs.is_some() {
                cell.events = cell.events.min(scenario.pairs / 4);
            }
        }
        let large = |run: &Run| match (run.cap_bytes, args.min_cap) {
            (Some(cap), Some(min)) => cap >= min.as_u64(),
            _ => true,
        };
        all.extend(scenario.runs()?.into_iter().filter(large));
    }
    let unknown = args.engine.iter().find(|engine| !known.contains(*engine));
    if let Some(engine) = unknown {
        known.sort();
        known.dedup();
        bail!("no such engine in the scenarios: engine={engine} known={}", known.join(", "));
    }
    ensure!(!all.is_empty(), "nothing to run: every run of the scenarios was left out: {}", args.left_out());
    Ok(all)
}

impl BenchArgs {
    /// Refuses a result file that cannot be made.
    ///
    /// # Errors
    /// The folder of the file is missing.
    pub fn check(&self) -> Result<()> {
        result::check_folder("out", Some(&self.out))
    }

    /// Names the options that leave runs out.
    fn left_out(&self) -> String {
        let repeats = self.repeats.map(|repeats| format!("repeats={repeats}"));
        let min_cap = self.min_cap.map(|cap| format!("min_cap={cap}"));
        let given: Vec<String> = repeats.into_iter().chain(min_cap).collect();
        if given.is_empty() { "no option does that, so they have no cell".to_owned() } else { given.join(" ") }
    }
}

/// Makes one run from a clean start, and returns its record.
fn one(run: &Run, stores: &mut Stores, work: &Path, baseline: Option<Baseline>) -> Result<Record> {
    let mut notes = Vec::new();
    let dir = stores.prepare(run)?;
    if run.cell.workload == Kind::Recover {
        spawn::kill_a_writer(run, &dir)?;
    }
    // A load or a copy that is still being written to the device would be measured as well.
    probe::sync_file_system(work)?;
    // Also before warm runs under a cap, because pages that another process has read are charged to that one's cgroup.
    let is_cold = run.cell.state != State::Warm;
    if is_cold || run.cap_bytes.is_some() {
        probe::drop_page_cache(&dir)?;
    }
    // `loadgen live` brings the state about itself, and has looked at it when the service was started.
    let is_looked_at = is_cold && !matches!(run.cell.workload, Kind::Bootstrap | Kind::Live);
    let state = if is_looked_at { looked_at(run, &dir, &mut notes) } else { name_of(run.cell.state) };
    let machine = probe::machine(&dir);
    let busy: f64 = machine.loadavg.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0);
    if busy > f64::from(machine.cores) {
        notes.push(format!("the machine was busy: load average {busy} on {} cores", machine.cores));
    }
    let (device_read_ns, device_reads_per_s) = if is_cold { device(run, &dir)? } else { (None, None) };
    let start_unix_ms = result::unix_ms();
    let Measured { figures, cap_by, memory, peak_bytes } = spawn::measure(run, &dir, work)?;
    if let (Some(cap), Some(peak)) = (run.cap_bytes, peak_bytes) {
        if peak > cap {
            notes.push(format!("the cap was exceeded: charged {} of {}", ByteSize::b(peak), ByteSize::b(cap)));
        }
    } else if run.cap_bytes.is_some() {
        notes.push(format!("NOT CAPPED: {cap_by}"));
    }
    let mut figures = figures.unwrap_or_else(|killed| {
        let engine = run.engine.label().to_owned();
        Record { engine, pairs: run.pairs, notes: vec![killed], ..Record::default() }
    });
    notes.append(&mut figures.notes);
    let seen = std::mem::take(&mut figures.workload.state);
    let (state, asked) = (if seen.is_empty() { state } else { seen }, name_of(run.cell.state));
    if state != asked {
        notes.push(format!("{state} at the start, and not {asked}"));
    }
    let record = Record {
        schema: SCHEMA_VERSION,
        program: crate::result::program(),
        command: Some(crate::result::command()),
        scenario: run.scenario.clone(),
        repeat: run.repeat,
        engine_line: Some(run.engine_line.clone()),
        workload: result::Workload { state: state.clone(), ..run.workload() },
        state_asked: (state != asked).then_some(asked),
        cap_bytes: run.cap_bytes,
        cap_by,
        start_unix_ms,
        memory,
        disk_bytes: probe::disk_bytes(&dir),
        baseline,
        device_read_ns: figures.device_read_ns.or(device_read_ns),
        device_reads_per_s,
        machine,
        notes,
        ..figures
    };
    stores.release(run, &dir)?;
    Ok(record)
}

/// Returns the state of the store before a run from a cold start: the one that was asked for if its pages are not in the
/// page cache. Adds a note.
fn looked_at(run: &Run, dir: &Path, notes: &mut Vec<String>) -> String {
    let (held, size) = (probe::page_cache_bytes(dir), probe::cacheable_bytes(dir));
    let state = cached(held, size);
    notes.push(format!("{state} at the start: {} of {} in the page cache", ByteSize::b(held), ByteSize::b(size)));
    if state == "cold" { name_of(run.cell.state) } else { state.to_owned() }
}

/// Measures the device on the store: one read at a time where the run reads, and as many at once as the service keeps in
/// flight where it runs.
fn device(run: &Run, dir: &Path) -> Result<(Option<Quantiles>, Option<f64>)> {
    let is_live = run.cell.workload == Kind::Live;
    let reads = is_live || run.cell.workload.is_read() || run.cell.workload == Kind::Beside;
    let one = if reads { probe::random_reads(dir, 1, DEVICE_READS_TIME)? } else { None };
    let many = if is_live { probe::random_reads(dir, DEVICE_DEPTH, DEVICE_READS_TIME)? } else { None };
    Ok((one.map(|(latencies, _)| latencies), many.map(|(_, per_second)| per_second)))
}

fn title(run: &Run) -> String {
    let workload = run.workload();
    let cap = run.cap_bytes.map_or("no cap".to_owned(), |cap| format!("cap {}", ByteSize::b(cap)));
    let rate = run.cell.rate.map_or_else(String::new, |rate| format!(" at {rate}/s"));
    let more: Vec<String> = workload.more.iter().map(|(name, value)| format!("{name} {value}")).collect();
    format!(
        "{} {}: {}{rate} {} {} pairs, {} threads, {}, {}, {cap}, repeat {}",
        run.scenario,
        run.engine_line,
        workload.name,
        workload.keys,
        run.pairs,
        run.threads,
        workload.state,
        more.join(", "),
        run.repeat
    )
}

fn summary(record: &Record) -> String {
    if let Some(killed) = record.killed() {
        return killed.to_owned();
    }
    let rate = record.ops as f64 / record.elapsed_s.max(1e-9);
    let mut line = format!("{} ops in {:.1} s, {rate:.0}/s", record.ops, record.elapsed_s);
    for curve in &record.curves {
        let quantiles = &curve.quantiles_ns;
        line.push_str(&format!("; {} p50 {} ns p99 {} ns", curve.op, quantiles.p50, quantiles.p99));
    }
    line
}
