//! Checks the measurements of `loadgen bench`. By turns, a stand-alone program without our code and `loadgen bench`
//! time each engine's operations, on copies of the same store. `make bench TOPIC=instrument` runs it. The exit code is 1 if
//! the two differ by more than 10%, and by more than the clock's error.
//!
//! Owns: the turns, the comparison. Must not: publish a figure. Runs on the main thread; strata's merges have their own.
//!
//! It compares means of gets, of batches of gets and of puts, and the median of flushed commits. A mean of commits
//! would depend on the few that wait for the device.

#![allow(clippy::print_stdout, reason = "an example for developers")]

mod plain;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use plain::{Figures, Op};

const PAIRS: u64 = 1_000_000;
const TURNS: usize = 7;
const CACHE_BYTES: usize = 1 << 30;
/// Time for which both sides measure, in seconds. They warm up for a tenth of it.
const SECONDS: f64 = 2.0;
/// Keys of a batch of gets.
const MANY: usize = 100;
/// Number of puts in one commit.
const BATCH: usize = 1000;
/// Largest difference that is accepted, as a share.
const TOLERANCE: f64 = 0.1;
/// Largest difference that is accepted in any case. The two sides read different clocks, and one reading of either
/// takes about 20 ns, so a put of 65 ns consists mostly of clock readings.
const CLOCK_NS: f64 = 8.0;

const ENGINES: [&str; 4] = ["rocksdb", "lmdb", "redb", "strata"];
/// Makes this program one run of a stand-alone program: `PLAIN ENGINE DATA OP TURN`.
const PLAIN: &str = "--plain";

fn main() -> Result<()> {
    let mut args = std::env::args_os().skip(1);
    if let Some([flag, engine, data, op, turn]) = std::env::args().skip(1).collect::<Vec<_>>().as_slice().first_chunk()
        && flag == PLAIN
    {
        let figures = plain::measure(engine, Path::new(data), serde_json::from_str(op)?, turn.parse()?)?;
        println!("{}", serde_json::to_string(&figures)?);
        return Ok(());
    }
    let bin = args.next().map(PathBuf::from).context("usage: instrument FOLDER-OF-THE-BINARIES [ENGINE...]")?;
    let asked: Vec<String> = args.map(|engine| engine.to_string_lossy().into_owned()).collect();
    for engine in &asked {
        ensure!(ENGINES.contains(&engine.as_str()), "no such engine: {engine}: choose from {}", ENGINES.join(", "));
    }
    let work = tempfile::tempdir().context("cannot make a temporary folder")?;
    let mut wrong = 0;
    println!("{:8} {:14} {:>12} {:>12} {:>7}", "engine", "op", "stand-alone", "loadgen", "ratio");
    for engine in ENGINES.into_iter().filter(|engine| asked.is_empty() || asked.iter().any(|asked| asked == engine)) {
        // One copy for each side. Both are read and written for equal times, by turns.
        let (ours, theirs) = (work.path().join(engine), work.path().join(format!("{engine}-plain")));
        load(&bin, engine, &ours)?;
        copy(&ours, &theirs)?;
        for ops in [&[Op::ReadPositive][..], &[Op::ReadNegative], &[Op::GetMany], &[Op::Put, Op::Commit]] {
            wrong += compare(&bin, engine, &ours, &theirs.join("data"), ops)?;
        }
    }
    ensure!(wrong == 0, "{wrong} of the figures differ by more than {:.0}%", TOLERANCE * 100.0);
    Ok(())
}

/// Measures some operations by turns, and returns the number of them that differ.
fn compare(bin: &Path, engine: &str, store: &Path, data: &Path, ops: &[Op]) -> Result<usize> {
    let (mut alone, mut bench) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        alone.push(by_itself(engine, data, ops[0], turn)?);
        bench.push(by_loadgen(bin, engine, store, ops, turn)?);
    }
    let mut wrong = 0;
    for op in ops {
        let of = |runs: &[Figures]| runs.iter().filter_map(|figures| figures.get(op).copied()).collect::<Vec<f64>>();
        let (alone, bench) = (of(&alone), of(&bench));
        // By turns, because the machine's speed drifts by more than the differences to be found.
        let ratios = alone.iter().zip(&bench).map(|(alone, bench)| bench / alone).collect();
        let (Some(alone), Some(bench), Some(ratio)) = (median(alone), median(bench), median(ratios)) else { continue };
        let differs = (ratio - 1.0).abs() > TOLERANCE && (bench - alone).abs() > CLOCK_NS;
        let mark = if differs { "  DIFFERS" } else { "" };
        println!("{engine:8} {:14} {alone:9.0} ns {bench:9.0} ns {ratio:7.3}{mark}", op.name());
        wrong += usize::from(differs);
    }
    Ok(wrong)
}

fn load(bin: &Path, engine: &str, store: &Path) -> Result<()> {
    let mut command = Command::new(bin.join("bootstrap"));
    command.args(["--engine", engine, "--order", "sorted", "--settle", "--pairs", &PAIRS.to_string()]);
    let output = command.arg("--dir").arg(store).output().context("cannot run bootstrap")?;
    ensure!(output.status.success(), "bootstrap failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").args(["-r", "--sparse=always"]).arg(from).arg(to).status();
    ensure!(status.context("cannot run cp")?.success(), "cannot copy dir={}", from.display());
    Ok(())
}

/// Returns the figures of a stand-alone program. Each call starts a new process, because a process that has measured
/// before has another memory layout.
fn by_itself(engine: &str, data: &Path, op: Op, turn: usize) -> Result<Figures> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([PLAIN, engine]).arg(data).args([serde_json::to_string(&op)?, turn.to_string()]);
    let output = command.output()?;
    ensure!(output.status.success(), "the stand-alone program failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The figures of one run, by its answer.
fn by_loadgen(bin: &Path, engine: &str, store: &Path, ops: &[Op], turn: usize) -> Result<Figures> {
    let (kind, batch) = match ops[0] {
        Op::ReadPositive => ("read_positive", 1),
        Op::ReadNegative => ("read_negative", 1),
        Op::GetMany => ("get_many", MANY),
        Op::Put | Op::Commit => ("write", BATCH),
    };
    let run = serde_json::json!({
        "scenario": "instrument", "engine": {"engine": engine, "memory": CACHE_BYTES.to_string()}, "kind": kind,
        "keys": "uniform", "pairs": PAIRS, "seed": 1, "load": "sorted", "cap_bytes": null, "threads": 1,
        "state": "warm", "seconds": SECONDS, "rate": null, "write_share": 0.0, "delete_share": 0.0,
        "double_index": false, "batch": batch, "durability": "synced", "events": 0, "repeat": turn,
    });
    let output = Command::new(bin.join("loadgen")).arg("bench-run").arg(run.to_string()).arg(store).output()?;
    ensure!(output.status.success(), "loadgen failed: {}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    let curves = answer.get("curves").and_then(Value::as_array).context("no curves in the answer")?;
    let figure = |op: &Op| {
        let curve = curves.iter().find(|curve| curve.get("op").and_then(Value::as_str) == Some(op.name()))?;
        let at = if *op == Op::Commit { "/quantiles_ns/p50" } else { "/mean_ns" };
        Some((*op, curve.pointer(at)?.as_f64()?))
    };
    let figures: Figures = ops.iter().filter_map(figure).collect();
    ensure!(figures.len() == ops.len(), "the answer lacks an operation: {ops:?}");
    Ok(figures)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
