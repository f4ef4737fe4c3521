//! `loadgen compare`: two sides, cell by cell, and whether they differ by more than their repeats do.
//!
//! Owns: the rule of what is noise, and the exit code. Must not: look at what the figures mean. Main thread.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use engine_latency::table::aligned;
use serde::Serialize;

use super::cells::{Cell, Scenario, Spread, distinct, engines as engines_of, scenarios};
use super::figures::{Better, STATS, THROUGHPUT};
use super::{device, format, input};
use crate::result::{Machine, Record, Workload};

/// Shown under `loadgen compare --help`.
pub const EXAMPLES: &str = "\
Compared are the medians of cells with the same scenario, workload (seed and size included), engine and memory cap.

The rule: a difference is beyond noise when both sides have at least 3 repeats, their ranges from smallest to largest \
have no value in common, and the medians differ by at least 1 %. By chance alone ranges come apart in 1 of 10 \
comparisons of 3 repeats a side, in 1 of 126 of 5: before believing a small difference, repeat more. With fewer \
repeats the verdict is `unknown`, and never a failure.

Exit codes: 0 done; 1 with --fail-above, something got worse beyond noise and by more than that, or an error.

Examples:
  solkv-loadgen compare before.jsonl after.jsonl
  solkv-loadgen compare before.jsonl after.jsonl --fail-above 5
  solkv-loadgen compare results.jsonl --engines lmdb,redb --changed
  solkv-loadgen compare before.jsonl after.jsonl --json | jq '.rows[] | select(.verdict == \"worse\")'";

/// Repeats a side that a verdict takes.
const RUNS_MIN: usize = 3;
/// Medians that are closer than this share are the same: a histogram has 3 digits.
const DIFFERENCE_MIN: f64 = 0.01;
/// A device that changed by more than this between the sides is said.
const DEVICE_DRIFT: f64 = 0.1;
const RULE: &str =
    "beyond noise: at least 3 repeats a side, no value common to their ranges, medians at least 1 % apart";

/// Arguments of `loadgen compare`.
#[derive(clap::Args, Clone, Debug)]
pub struct CompareArgs {
    /// Result file of the first side, the one compared against
    #[arg(value_name = "A")]
    pub a: PathBuf,
    /// Result file of the second side; without it --engines compares inside A
    #[arg(value_name = "B", required_unless_present = "engines")]
    pub b: Option<PathBuf>,
    /// Compare two engines: X of the first file against Y of the second, or of the same file without one
    #[arg(long, value_name = "X,Y", value_parser = engine_pair)]
    pub engines: Option<(String, String)>,
    /// Leave out of the table what is noise
    #[arg(long, conflicts_with = "json")]
    pub changed: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Exit with 1 when a figure got worse beyond noise and by more than this
    #[arg(long, value_name = "PERCENT", value_parser = percentage)]
    pub fail_above: Option<f64>,
}

/// What the repeats say about a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Beyond noise.
    Better,
    /// Beyond noise.
    Worse,
    /// The ranges of the repeats overlap.
    Noise,
    /// Too few repeats to tell.
    Unknown,
}

/// One figure of one cell on both sides.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// Name of the scenario.
    pub scenario: String,
    /// The workload in words.
    pub workload: String,
    /// Label, or two with ` : ` between.
    pub engine: String,
    /// Memory cap.
    pub cap_bytes: Option<u64>,
    /// The operation; `None` for the whole run.
    pub op: Option<String>,
    /// `throughput`, `avg`, `p50` or `p99`.
    pub figure: &'static str,
    /// `ns` or `ops_per_s`.
    pub unit: &'static str,
    /// The first side.
    pub a: Spread,
    /// The second side.
    pub b: Spread,
    /// Median of the second by median of the first.
    pub ratio: f64,
    /// By how many percent the second is worse; negative for better.
    pub worse_percent: f64,
    /// By the rule.
    pub verdict: Verdict,
}

/// Everything that two sides say of each other.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// What is called beyond noise.
    pub rule: &'static str,
    /// Why the sides may differ for other reasons.
    pub warnings: Vec<String>,
    /// One a figure.
    pub rows: Vec<Difference>,
    /// Cells without their counterpart.
    pub unmatched: Vec<String>,
}

/// Runs `loadgen compare`.
pub fn run(args: &CompareArgs) -> Result<()> {
    let first = input::read_all(std::slice::from_ref(&args.a))?;
    let second = args.b.as_ref().map(|file| input::read_all(std::slice::from_ref(file))).transpose()?;
    let second = second.as_deref().unwrap_or(&first);
    let engines = args.engines.as_ref().map(|(x, y)| (x.as_str(), y.as_str()));
    if let Some((x, y)) = engines {
        known(x, &first, &args.a)?;
        known(y, second, args.b.as_ref().unwrap_or(&args.a))?;
    }
    let comparison = compare(&first, second, engines);
    ensure!(
        !comparison.rows.is_empty(),
        "nothing to compare: no cell is on both sides: {}",
        comparison.unmatched.join("; ")
    );
    let text =
        if args.json { serde_json::to_string_pretty(&comparison)? + "\n" } else { text(&comparison, args.changed) };
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to stdout")?;
    if let Some(limit) = args.fail_above {
        let failed = comparison.rows.iter().filter(|row| row.verdict == Verdict::Worse && row.worse_percent > limit);
        match failed.count() {
            0 => {}
            count => bail!("worse beyond noise and by more than {limit} %: figures={count}"),
        }
    }
    Ok(())
}

/// Refuses an engine that no record is of.
fn known(engine: &str, records: &[Record], file: &Path) -> Result<()> {
    let engines = engines_of(records);
    ensure!(engines.contains(&engine), "no engine {engine}: file={} has {}", file.display(), engines.join(", "));
    Ok(())
}

/// Compares cells of `a` with the same cells of `b`, or one engine with another.
pub fn compare(a: &[Record], b: &[Record], engines: Option<(&str, &str)>) -> Comparison {
    let (first, second) = (scenarios(a), scenarios(b));
    let mut first = flat(&first);
    let mut second = flat(&second);
    if let Some((x, y)) = engines {
        first.retain(|cell| cell.cell.engine == x);
        second.retain(|cell| cell.cell.engine == y);
    }
    let same = |a: &Placed<'_>, b: &Placed<'_>| {
        let engine = engines.is_some() || a.cell.engine == b.cell.engine;
        engine && a.scenario == b.scenario && a.workload == b.workload && a.cell.cap == b.cell.cap
    };
    let (mut rows, mut unmatched) = (Vec::new(), Vec::new());
    for one in &first {
        match second.iter().find(|other| same(one, other)) {
            Some(other) => rows.extend(differences(one, other)),
            None => unmatched.push(format!("only in A: {}", one.name())),
        }
    }
    let only = second.iter().filter(|other| !first.iter().any(|one| same(one, other)));
    unmatched.extend(only.map(|other| format!("only in B: {}", other.name())));
    Comparison { rule: RULE, warnings: warnings(a, b), rows, unmatched }
}

/// A cell and where it is.
struct Placed<'a> {
    scenario: &'a str,
    workload: &'a Workload,
    title: String,
    cell: &'a Cell<'a>,
}

impl Placed<'_> {
    fn name(&self) -> String {
        format!("{}, {}, {}, {}", self.scenario, self.title, self.cell.engine, format::cap(self.cell.cap))
    }
}

fn flat<'a>(scenarios: &'a [Scenario<'a>]) -> Vec<Placed<'a>> {
    let mut out = Vec::new();
    for scenario in scenarios {
        let others: Vec<&Workload> = scenario.groups.iter().map(|group| group.workload).collect();
        for group in &scenario.groups {
            let title = format::workload(group.workload, &others);
            out.extend(group.cells.iter().map(|cell| Placed {
                scenario: scenario.name,
                workload: group.workload,
                title: title.clone(),
                cell,
            }));
        }
    }
    out
}

fn differences(one: &Placed<'_>, other: &Placed<'_>) -> Vec<Difference> {
    let mut rows = Vec::new();
    let mut add = |op: Option<&str>, figure, unit, better, a: Option<Spread>, b: Option<Spread>| {
        let (Some(a), Some(b)) = (a, b) else { return };
        if a.median <= 0.0 || b.median <= 0.0 {
            return;
        }
        let ratio = b.median / a.median;
        // How many times the cost: a rate halved is a cost doubled.
        let cost = if better == Better::Higher { 1.0 / ratio } else { ratio };
        let engine = distinct([one.cell.engine, other.cell.engine]).join(" : ");
        rows.push(Difference {
            scenario: one.scenario.to_owned(),
            workload: one.title.clone(),
            engine,
            cap_bytes: one.cell.cap,
            op: op.map(str::to_owned),
            figure,
            unit,
            a,
            b,
            ratio,
            worse_percent: (cost - 1.0) * 100.0,
            verdict: verdict(&a, &b, cost),
        });
    };
    let rate = |cell: &Cell<'_>| cell.spread(THROUGHPUT.of);
    add(None, "throughput", "ops_per_s", Better::Higher, rate(one.cell), rate(other.cell));
    let ops = distinct(one.cell.runs.iter().flat_map(|run| run.curves.iter().map(|curve| curve.op.as_str())));
    for op in ops {
        for stat in STATS.iter().filter(|stat| ["avg", "p50", "p99"].contains(&stat.name)) {
            let of = |cell: &Cell<'_>| cell.latency(op, stat.of);
            add(Some(op), stat.name, "ns", Better::Lower, of(one.cell), of(other.cell));
        }
    }
    rows
}

fn verdict(a: &Spread, b: &Spread, cost: f64) -> Verdict {
    if a.runs.min(b.runs) < RUNS_MIN {
        Verdict::Unknown
    } else if a.overlaps(b) || (cost - 1.0).abs() < DIFFERENCE_MIN {
        Verdict::Noise
    } else if cost > 1.0 {
        Verdict::Worse
    } else {
        Verdict::Better
    }
}

/// What else differs between the sides.
fn warnings(a: &[Record], b: &[Record]) -> Vec<String> {
    let mut warnings = Vec::new();
    let machines = |records: &[Record]| {
        distinct(records.iter().map(|record| Machine { loadavg: String::new(), ..record.machine.clone() }))
    };
    if machines(a) != machines(b) {
        warnings.push("the sides ran on different machines or settings of one".to_owned());
    }
    let device = |records: &[Record]| device::random_read_us(&records.iter().collect::<Vec<_>>());
    match (device(a), device(b)) {
        (Some(a), Some(b)) if (b / a - 1.0).abs() > DEVICE_DRIFT => warnings.push(format!(
            "the device itself differs: its 4 KiB random read took {} (A) and {} (B)",
            format::nanos(a * 1000.0),
            format::nanos(b * 1000.0)
        )),
        (Some(_), Some(_)) => {}
        _ => warnings.push("no device baseline on both sides: the device may have changed".to_owned()),
    }
    // Two engines of one file: both sides are the same runs.
    let other = if std::ptr::eq(a, b) { &[] } else { b };
    let noted = a.iter().chain(other).filter(|record| !record.notes.is_empty()).count();
    if noted > 0 {
        warnings.push(format!("runs with notes, such as noise or a cap exceeded: {noted}"));
    }
    warnings
}

/// As a table for people, the reasons for doubt below it; `changed` leaves out what is noise.
fn text(comparison: &Comparison, changed: bool) -> String {
    let mut out = String::new();
    let shown: Vec<&Difference> =
        comparison.rows.iter().filter(|row| !changed || row.verdict != Verdict::Noise).collect();
    for at in distinct(shown.iter().map(|row| place(row))) {
        out.push_str(&format!("{at}\n"));
        let head = ["", "A", "A range", "B", "B range", "B / A", "verdict"].map(str::to_owned).to_vec();
        let rows = shown.iter().filter(|each| place(each) == at).map(|each| row(each));
        out.push_str(&aligned(&std::iter::once(head).chain(rows).collect::<Vec<_>>()));
        out.push('\n');
    }
    let count = |verdict| comparison.rows.iter().filter(|row| row.verdict == verdict).count();
    out.push_str(&format!(
        "worse: {}, better: {}, noise: {}, unknown: {} ({})\n",
        count(Verdict::Worse),
        count(Verdict::Better),
        count(Verdict::Noise),
        count(Verdict::Unknown),
        comparison.rule
    ));
    for line in comparison.warnings.iter().map(|line| format!("warning: {line}")).chain(comparison.unmatched.clone()) {
        out.push_str(&format!("{line}\n"));
    }
    out
}

fn place(row: &Difference) -> String {
    format!("{}: {}, {}", row.scenario, row.workload, format::cap(row.cap_bytes))
}

fn row(row: &Difference) -> Vec<String> {
    let text = if row.unit == "ns" { format::nanos } else { format::per_second };
    let range = |side: Spread| format::spread(&side, text);
    let what = row.op.as_deref().map_or_else(String::new, |op| format!("{} ", format::op(op)));
    let verdict = match row.verdict {
        Verdict::Better => "better",
        Verdict::Worse => "WORSE",
        Verdict::Noise => "noise",
        Verdict::Unknown => "unknown",
    };
    vec![
        format!("  {} {what}{}", row.engine, row.figure),
        text(row.a.median),
        range(row.a),
        text(row.b.median),
        range(row.b),
        format!("{:.3}", row.ratio),
        verdict.to_owned(),
    ]
}

fn engine_pair(text: &str) -> Result<(String, String), String> {
    match text.split(',').map(str::trim).collect::<Vec<_>>()[..] {
        [x, y] if !x.is_empty() && !y.is_empty() => Ok((x.to_owned(), y.to_owned())),
        _ => Err("two engines with a comma between, such as lmdb,redb".to_owned()),
    }
}

fn percentage(text: &str) -> Result<f64, String> {
    let value: f64 = text.trim_end_matches('%').parse().map_err(|error| format!("{error}"))?;
    if value.is_finite() && value >= 0.0 { Ok(value) } else { Err("a percentage from 0 up".to_owned()) }
}
