//! A run's process: started under its cap, with its memory sampled until it ends.
//!
//! Owns: the child and its cgroup. Must not: interpret the figures. Runs on the main thread.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use probe::Cap;

use super::convert;
use super::engine;
use super::run::Run;
use super::work::{Kind, name_of};
use crate::live::sibling;
use crate::result::{Memory, Record};

const SAMPLE_EVERY: Duration = Duration::from_millis(200);

/// Time for which a writer writes before it is killed.
const WRITE_BEFORE_KILL: Duration = Duration::from_secs(2);

/// Outcome of a run's process.
pub(crate) struct Measured {
    /// The figures of the run, or a description of how the process was killed.
    pub(crate) figures: Result<Record, String>,
    pub(crate) cap_by: String,
    pub(crate) memory: Vec<Memory>,
    /// Largest number of bytes charged to the cgroup. `None` without a cap.
    pub(crate) peak_bytes: Option<u64>,
}

/// Measures one run on the store in `dir`.
pub(crate) fn measure(run: &Run, dir: &Path, work: &Path) -> Result<Measured> {
    let cap = match run.cap_bytes {
        Some(bytes) => Cap::create(bytes),
        None => Cap::None("not asked for".to_owned()),
    };
    let (answer, errors) = (work.join("answer.json"), work.join("errors.txt"));
    let mut command = command(run, dir, &cap, &answer)?;
    let own_answer = matches!(run.cell.workload, Kind::Bootstrap | Kind::Live);
    command.stdin(Stdio::null()).stderr(create(&errors)?);
    command.stdout(if own_answer { Stdio::null() } else { create(&answer)?.into() });
    let device = probe::device_counts(dir);
    let mut child = command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    let started = Instant::now();
    let (status, memory) = sample(&mut child, &cap, started)?;
    let peak_bytes = cap.charged().map(|charged| charged.peak_bytes);
    let cap_by = cap.describe();
    if !status.success() {
        let text = fs::read_to_string(&errors).unwrap_or_default();
        // The cap of a live run is on its service, and `loadgen live` reports how the service ended.
        let killed =
            status.signal() == Some(libc::SIGKILL) || (run.cell.workload == Kind::Live && text.contains("SIGKILL"));
        if killed && run.cap_bytes.is_some() {
            return Ok(Measured {
                figures: Err("killed: out of memory under the cap".to_owned()),
                cap_by,
                memory,
                peak_bytes,
            });
        }
        bail!("the run failed: status={status}\n{}", text.trim());
    }
    let text = fs::read_to_string(&answer).with_context(|| format!("no answer: file={}", answer.display()))?;
    let mut figures = match run.cell.workload {
        Kind::Bootstrap => convert::bootstrap(run, &text)?,
        Kind::Live => convert::live(run, &text)?,
        _ => serde_json::from_str(&text).context("the run's answer cannot be read")?,
    };
    if own_answer {
        // Pages that the run has left dirty in the page cache count as its writes, too.
        probe::sync_file_system(dir)?;
        let device = probe::device_counts(dir).zip(device).map(|(now, before)| now.since(before));
        figures.io.device_write_bytes = device.map(|device| device.written_bytes);
    }
    Ok(Measured { figures: Ok(figures), cap_by, memory, peak_bytes })
}

fn command(run: &Run, dir: &Path, cap: &Cap, answer: &Path) -> Result<Command> {
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    let mut command = match run.cell.workload {
        Kind::Bootstrap => {
            let mut command = cap.command(&sibling("bootstrap")?)?;
            command.args(run.source_args()).args(["--order", &run.cell.order]).arg("--dir").arg(dir);
            // A sorted load has chunks of its own size, and flushes each.
            if run.cell.order != "sorted" {
                command.args(["--batch", &run.cell.batch.to_string()]);
                if run.cell.durability == "synced" {
                    command.arg("--synced");
                }
            }
            if run.cell.settle {
                command.arg("--settle");
            }
            command.arg("--report").arg(answer);
            command
        }
        Kind::Live => {
            let mut command = Command::new(own);
            command.arg("live").arg("--dir").arg(dir).args(["--pairs", &run.pairs.to_string()]);
            command.args(["--seed", &run.seed.to_string(), "--events", &run.cell.events.to_string(), "--verify"]);
            command.args(["--rate", &run.cell.rate.map_or("max".to_owned(), |rate| rate.to_string())]);
            command.args(["--state", &name_of(run.cell.state)]);
            if let Some(cap) = run.cap_bytes {
                command.args(["--cap", &cap.to_string()]);
            }
            command.args(["--skew", &run.keys]).arg("--report").arg(answer);
            command
        }
        _ => {
            let mut command = cap.command(&own)?;
            command.arg("bench-run").arg(serde_json::to_string(run)?).arg(dir);
            return Ok(command);
        }
    };
    engine::args(&mut command, &run.engine);
    if let Some(memory) = run.engine.memory {
        command.args(["--memory", &memory.as_u64().to_string()]);
    }
    // Last, because these are the service's own options.
    if let Some(depth) = run.ingest_depth {
        command.args(["--", "--ingest-depth", &depth.to_string()]);
    }
    Ok(command)
}

fn sample(child: &mut Child, cap: &Cap, started: Instant) -> Result<(ExitStatus, Vec<Memory>)> {
    let mut memory = Vec::new();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, memory));
        }
        let charged = cap.charged();
        memory.push(Memory {
            at_s: started.elapsed().as_secs_f64(),
            rss_bytes: probe::rss_bytes(child.id()),
            page_cache_bytes: charged.map(|charged| charged.page_cache_bytes),
            charged_bytes: charged.map(|charged| charged.now_bytes),
        });
        std::thread::sleep(SAMPLE_EVERY);
    }
}

/// Runs the process that makes the updates of an aged store.
pub(crate) fn age(run: &Run, dir: &Path) -> Result<()> {
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    let output = Command::new(own).arg("bench-age").arg(serde_json::to_string(run)?).arg(dir).output();
    let output = output.context("cannot start the process that ages a store")?;
    ensure!(output.status.success(), "cannot age the store: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// Runs a writer on the store and kills it.
pub(crate) fn kill_a_writer(run: &Run, dir: &Path) -> Result<()> {
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    let mut command = Command::new(own);
    command.arg("bench-write").arg(serde_json::to_string(run)?).arg(dir).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start the writer")?;
    // The writer prints `writing` when it begins, and `written` after `run.cell.events` puts, if that number is not zero.
    let mut said = BufReader::new(child.stdout.take().context("the writer has no output")?).lines();
    let mut hears = |word: &str| said.next().is_some_and(|line| line.is_ok_and(|line| line == word));
    let wrote = if run.cell.events > 0 {
        hears("writing") && hears("written")
    } else {
        let writing = hears("writing");
        std::thread::sleep(WRITE_BEFORE_KILL);
        writing
    };
    let early = child.try_wait()?;
    child.kill().ok();
    child.wait()?;
    let status = early.map_or_else(|| "killed, and it wrote nothing".to_owned(), |status| status.to_string());
    ensure!(early.is_none() && wrote, "the writer ended before it was killed: status={status}");
    Ok(())
}

fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot write file={}", path.display()))
}
