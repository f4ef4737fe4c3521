//! `loadgen compare`: two sides, cell by cell, and whether they differ by more than their repeats do.
//!
//! Owns: which cells belong together, and the exit code. Must not: interpret the figures. Runs on the main thread.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use engine_latency::table::aligned;
use serde::Serialize;

use super::cells::{Cell, Sample, Scenario, Spread, distinct, engines as engines_of, scenarios};
use super::figures::{Better, OPENING, STATS, THROUGHPUT};
use super::judge::{Family, RULE, RUNS_MIN, Row, Test, Verdict};
use super::notes::mixed;
use super::{device, format, input};
use crate::result::{Machine, Record, Workload};

/// Text after the options in `loadgen compare --help`.
pub const EXAMPLES: &str = "\
Compares cells with the same scenario, workload (with its seed and size), engine and memory cap.

The verdict says how B compares with A: `ahead`, `level`, `behind` or `not decided`. The table prints the rule. Five repeats a side find \
smaller differences than three. The first repeat of A is compared with the first of B, and so on, so let the two sides take turns.

Exit codes: 0: done. 1: an error; or with --fail-above, B is behind by more than PERCENT, has too few repeats to rule that out, lacks a \
cell or a figure of A, or had more runs killed.

Examples:
  solkv-loadgen compare before.jsonl after.jsonl
  solkv-loadgen compare before.jsonl after.jsonl --fail-above 5
  solkv-loadgen compare results.jsonl --engines lmdb,redb --changed
  solkv-loadgen compare before.jsonl after.jsonl --json | jq '.rows[] | select(.verdict == \"behind\")'";

/// Words before a cell or a figure that the second side lacks.
const ONLY_IN_A: &str = "only in A";

/// Number of cells that are named if none is on both sides.
const NAMED_MAX: usize = 4;

/// Change of the device between the sides, as a share, above which a warning is printed.
const DEVICE_DRIFT: f64 = 0.1;

#[derive(clap::Args, Clone, Debug)]
pub struct CompareArgs {
    /// Result file of the first side, the one compared against
    #[arg(value_name = "A")]
    pub a: PathBuf,
    /// Result file of the second side; without it --engines compares inside A
    #[arg(value_name = "B", required_unless_present = "engines")]
    pub b: Option<PathBuf>,
    /// Compare two engines, as the report names them: X of the first file against Y of the second file, or of the
    /// first if there is no second
    #[arg(long, value_name = "X,Y", value_parser = engine_pair)]
    pub engines: Option<(String, String)>,
    /// Leave out rows that are level or not decided
    #[arg(long, conflicts_with = "json")]
    pub changed: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Exit with 1 if B is behind in a figure by more than this or has too few repeats to rule that out, lacks a cell or a
    /// figure of A, or had more runs killed
    #[arg(long, value_name = "PERCENT", value_parser = percentage)]
    pub fail_above: Option<f64>,
}

/// One figure of one cell on both sides.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    pub scenario: String,
    /// Description of the workload, as tables show it.
    pub workload: String,
    /// Label of the engine, or both labels with ` : ` between them.
    pub engine: String,
    /// Memory cap in bytes. `None`: not capped.
    pub cap_bytes: Option<u64>,
    /// Operation of the figure; `None` for a figure of the whole run.
    pub op: Option<String>,
    /// Name of the figure: `throughput`, `avg`, `p50`, `p99`, `opening` or `opening_reads`.
    pub figure: &'static str,
    /// Unit of the figure: `ns`, `ops_per_s`, `s` or `bytes`.
    pub unit: &'static str,
    /// Median and range of the first side.
    pub a: Spread,
    /// Median and range of the second side.
    pub b: Spread,
    #[serde(skip)]
    pub(crate) better: Better,
    /// The second side divided by the first: the geometric mean over the repeats, or with too few of them the ratio of
    /// the medians. `None` if one of them is 0.
    pub ratio: Option<f64>,
    /// 95 % interval of the ratio; `None` with too few repeats.
    pub ratio_interval: Option<(f64, f64)>,
    /// Percentage by which the second side is worse; negative if it is better.
    pub worse_percent: f64,
    /// Verdict about the second side, by the rule.
    pub verdict: Verdict,
}

/// Result of comparing two sides.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// The rule of the verdicts, in words.
    pub rule: &'static str,
    /// Other reasons for which the sides may differ.
    pub warnings: Vec<String>,
    /// One row for each figure of each cell.
    pub rows: Vec<Difference>,
    /// Descriptions of the cells and of the figures that only one side has.
    pub unmatched: Vec<String>,
    /// Descriptions of the cells of which more repeats were killed on the second side than on the first.
    pub killed: Vec<String>,
}

/// Runs `loadgen compare` and prints the comparison.
pub fn run(args: &CompareArgs) -> Result<()> {
    let mut first = input::read_one(&args.a)?;
    let mut second = args.b.as_ref().map(|file| input::read_one(file)).transpose()?;
    input::name_engines(&mut first.iter_mut().chain(second.iter_mut().flatten()).collect::<Vec<_>>());
    let second = second.as_deref().unwrap_or(&first);
    let engines = args.engines.as_ref().map(|(x, y)| (x.as_str(), y.as_str()));
    if let Some((x, y)) = engines {
        known(x, &first, &args.a)?;
        known(y, second, args.b.as_ref().unwrap_or(&args.a))?;
    }
    let comparison = compare(&first, second, engines);
    ensure!(
        !comparison.rows.is_empty() || !comparison.killed.is_empty(),
        "nothing to compare: no cell is on both sides, of {} cells: {}",
        comparison.unmatched.len(),
        comparison.unmatched.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join("; ")
    );
    let text =
        if args.json { serde_json::to_string_pretty(&comparison)? + "\n" } else { text(&comparison, args.changed) };
    program::print(format_args!("{text}"));
    if let Some(limit) = args.fail_above {
        let has_few = |row: &Difference| row.a.runs.min(row.b.runs) < RUNS_MIN;
        let is_behind = |row: &&Difference| row.verdict == Verdict::Behind || has_few(row);
        let failed = comparison.rows.iter().filter(is_behind).filter(|row| row.worse_percent > limit).count();
        let missing = comparison.unmatched.iter().filter(|line| line.starts_with(ONLY_IN_A)).count();
        let killed = comparison.killed.len();
        if failed + missing + killed > 0 {
            bail!("behind by more than {limit} %: figures={failed} missing={missing} cells_killed={killed}");
        }
    }
    Ok(())
}

/// Refuses an engine without any record.
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
    let (mut rows, mut unmatched, mut killed) = (Vec::new(), Vec::new(), Vec::new());
    let mut family = Family::default();
    let mut add = |a: &Sample, b: &Sample, better| {
        let mut row = Row::of(b);
        row.add(Test::of(b, a, better));
        family.add(row);
    };
    for one in &first {
        let Some(other) = second.iter().find(|other| same(one, other)) else {
            unmatched.push(format!("{ONLY_IN_A}: {}", one.name()));
            continue;
        };
        rows.extend(differences(one, other, &mut add, &mut unmatched));
        let (before, now) = (one.cell.killed().len(), other.cell.killed().len());
        if now * one.cell.runs.len() > before * other.cell.runs.len() {
            killed.push(format!("killed: {now} runs of B and {before} of A: {}", other.name()));
        }
    }
    let only = second.iter().filter(|other| !first.iter().any(|one| same(one, other)));
    unmatched.extend(only.map(|other| format!("only in B: {}", other.name())));
    for (row, judged) in rows.iter_mut().zip(family.judge()) {
        row.verdict = judged.verdict;
        let Some(beside) = judged.beside.first().copied().flatten() else { continue };
        row.worse_percent = (1.0 / beside.times - 1.0) * 100.0;
        // The rule gives how many times better B is, and the ratio is B / A. A ratio with zero says nothing.
        let ratio = |times: f64| if row.better == Better::Higher { times } else { 1.0 / times };
        if row.ratio.is_some() {
            let (low, high) = (ratio(beside.interval.0), ratio(beside.interval.1));
            (row.ratio, row.ratio_interval) = (Some(ratio(beside.times)), Some((low.min(high), low.max(high))));
        }
    }
    Comparison { rule: RULE, warnings: warnings(a, b), rows, unmatched, killed }
}

/// A cell with its scenario and workload.
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

/// Builds the rows of a cell without their verdicts. `test` is called with the two samples of each row. Figures that only one side
/// has are described in `unmatched`.
fn differences(
    one: &Placed<'_>,
    other: &Placed<'_>,
    mut test: impl FnMut(&Sample, &Sample, Better),
    unmatched: &mut Vec<String>,
) -> Vec<Difference> {
    let mut rows = Vec::new();
    let mut add = |op: Option<&str>, figure, unit, better, a: Option<Sample>, b: Option<Sample>| {
        let (one_sample, other_sample) = match (a, b) {
            (Some(a), Some(b)) => (a, b),
            (None, None) => return,
            (a, _) => {
                let (whose, place) = if a.is_some() { (ONLY_IN_A, one) } else { ("only in B", other) };
                let what = op.map_or_else(String::new, |op| format!("{} ", format::op(op)));
                return unmatched.push(format!("{whose}: {what}{figure}: {}", place.name()));
            }
        };
        let (a, b) = (one_sample.spread(), other_sample.spread());
        test(&one_sample, &other_sample, better);
        let ratio = (a.median > 0.0 && b.median > 0.0).then(|| b.median / a.median);
        // Ratio of the costs: half the rate is twice the cost.
        let cost = ratio.map_or(1.0, |ratio| if better == Better::Higher { 1.0 / ratio } else { ratio });
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
            better,
            ratio_interval: None,
            worse_percent: (cost - 1.0) * 100.0,
            verdict: Verdict::NotDecided,
        });
    };
    let rate = |cell: &Cell<'_>| cell.sample(THROUGHPUT.of);
    add(None, "throughput", "ops_per_s", Better::Higher, rate(one.cell), rate(other.cell));
    let runs = one.cell.runs.iter().chain(&other.cell.runs);
    let ops = distinct(runs.flat_map(|run| run.curves.iter().map(|curve| curve.op.as_str())));
    for op in ops {
        for stat in STATS.iter().filter(|stat| ["avg", "p50", "p99", "p99.9"].contains(&stat.name)) {
            let of = |cell: &Cell<'_>| cell.latency(op, stat.of);
            add(Some(op), stat.name, "ns", Better::Lower, of(one.cell), of(other.cell));
        }
    }
    for (figure, name, unit) in [(OPENING[0], "opening", "s"), (OPENING[1], "opening_reads", "bytes")] {
        let of = |cell: &Cell<'_>| cell.sample(figure.of);
        add(None, name, unit, Better::Lower, of(one.cell), of(other.cell));
    }
    rows
}

/// Lists other differences between the sides.
fn warnings(a: &[Record], b: &[Record]) -> Vec<String> {
    let mut warnings = mixed(a);
    if !std::ptr::eq(a, b) {
        warnings.extend(mixed(b));
    }
    let machines = |records: &[Record]| {
        distinct(records.iter().map(|record| Machine { loadavg: String::new(), ..record.machine.clone() }))
    };
    if machines(a) != machines(b) {
        warnings.push("the sides ran on different machines or settings of one".to_owned());
    }
    let device = |records: &[Record]| device::random_read_ns(&records.iter().collect::<Vec<_>>());
    match (device(a), device(b)) {
        (Some(a), Some(b)) if (b / a - 1.0).abs() > DEVICE_DRIFT => warnings.push(format!(
            "the device itself differs: its 4 KiB random read took {} (A) and {} (B)",
            format::nanos(a),
            format::nanos(b)
        )),
        (Some(_), Some(_)) => {}
        _ => warnings.push("no device baseline on both sides: the device may have changed".to_owned()),
    }
    // With two engines of one file, both sides are the same runs: count them once.
    let other = if std::ptr::eq(a, b) { &[] } else { b };
    let noted = a.iter().chain(other).filter(|record| !record.notes.is_empty()).count();
    if noted > 0 {
        warnings.push(format!("runs with notes, such as noise or a cap exceeded: {noted}"));
    }
    warnings
}

/// Renders the comparison as tables, with the warnings below. `changed` leaves out rows that are level or not decided.
fn text(comparison: &Comparison, changed: bool) -> String {
    let mut out = String::new();
    let shown: Vec<&Difference> = comparison.rows.iter().filter(|row| !changed || row.verdict.is_apart()).collect();
    for at in distinct(shown.iter().map(|row| place(row))) {
        out.push_str(&format!("{at}\n"));
        let head = ["", "A", "A range", "B", "B range", "B / A", "95 %", "B is"].map(str::to_owned).to_vec();
        let rows = shown.iter().filter(|each| place(each) == at).map(|each| row(each));
        out.push_str(&aligned(&std::iter::once(head).chain(rows).collect::<Vec<_>>()));
        out.push('\n');
    }
    let count = |verdict: Verdict| {
        let count = comparison.rows.iter().filter(|row| row.verdict == verdict).count();
        format!("{}: {count}", verdict.as_str())
    };
    let counts = [Verdict::Behind, Verdict::Ahead, Verdict::Level, Verdict::NotDecided].map(count);
    out.push_str(&format!("B is {}\n{}\n", counts.join(", "), comparison.rule));
    let warnings = comparison.warnings.iter().map(|line| format!("warning: {line}"));
    for line in warnings.chain(comparison.unmatched.clone()).chain(comparison.killed.clone()) {
        out.push_str(&format!("{line}\n"));
    }
    out
}

fn place(row: &Difference) -> String {
    format!("{}: {}, {}", row.scenario, row.workload, format::cap(row.cap_bytes))
}

fn row(row: &Difference) -> Vec<String> {
    let text = match row.unit {
        "ns" => format::nanos,
        "s" => format::short_seconds,
        "bytes" => format::bytes,
        _ => format::per_second,
    };
    let range = |side: Spread| format::spread(&side, text);
    let what = row.op.as_deref().map_or_else(String::new, |op| format!("{} ", format::op(op)));
    let verdict = row.verdict.as_str();
    let interval = row.ratio_interval.map_or_else(String::new, |(low, high)| format!("{low:.3}–{high:.3}"));
    vec![
        format!("  {} {what}{}", row.engine, row.figure),
        text(row.a.median),
        range(row.a),
        text(row.b.median),
        range(row.b),
        row.ratio.map_or_else(|| "one is 0".to_owned(), |ratio| format!("{ratio:.3}")),
        interval,
        if row.verdict == Verdict::Behind { verdict.to_uppercase() } else { verdict.to_owned() },
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
