//! `loadgen best`: one engine against the others, cell by cell, ahead or behind.
//!
//! Owns: which engine is the best of a cell, and the reason why a cell has no figure. Must not: leave a cell out. Runs
//! on the main thread.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::cells::{Cell, Group, Sample, Scenario, Spread, curve, distinct, engines, scenarios};
use super::figures::{
    BOOTSTRAP, BYTES_PER_LOADED, Better, COMMIT_PER_PUT, FIRST_READ, Figure, LOAD_TIME, OPENING, PEAK_RSS,
    READS_PER_OP, STATS, Stat, THROUGHPUT, THROUGHPUT_OF_DEVICE, WRITE_AMPLIFICATION,
};
use super::judge::{self, Family, Judged, RULE, Test, Verdict};
use super::notes::{dates, mixed};
use super::{format, input, targets};
use crate::result::{Quantiles, Record};

/// Text after the options in `loadgen best --help`.
pub const EXAMPLES: &str = "\
Each row is a cell and a figure: the median of the engine's repeats, the best median among the other engines, and how many times better \
the engine is (below 1: worse). That factor is the geometric mean of the ratios, repeat by repeat, with its 95 % interval. The verdict \
compares the engine with all others: `ahead` of each, `behind` one of them, `level`, or `not decided`. It needs three repeats. The same engine \
with other options is not compared. Engines without a figure, or with too few repeats, are listed next to the verdict and are not part of \
it. A figure without a better direction is `not judged`.

If the device was measured right before a run, latency is also given as a multiple of the device's own 4 KiB random read. If all engines \
wait for the device, a verdict needs a difference in these multiples as well. The rule, and every cell without a figure, follow below the table.

Examples:
  solkv-loadgen best results.jsonl --engine strata > best.md
  solkv-loadgen best results.jsonl --targets loadgen/targets.toml";

#[derive(clap::Args, Clone, Debug)]
pub struct BestArgs {
    /// Result files, one JSON record a line; .zst files are compressed with zstd
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The engine, as the report names it: by its label, or, if several share the label, by all its options
    #[arg(long, value_name = "ENGINE", default_value = "strata")]
    pub engine: String,
    /// Judge the targets of this file instead: bounds of figures, of multiples of the device's own, and of ratios
    #[arg(long, value_name = "FILE")]
    pub targets: Option<PathBuf>,
}

/// Runs `loadgen best`.
///
/// # Errors
/// A file that is not a result file, or is no file of targets; an engine without a run.
pub fn run(args: &BestArgs) -> Result<()> {
    let records = input::read_all(&args.files)?;
    let known = distinct(records.iter().map(|record| record.engine.as_str()));
    ensure!(
        known.contains(&args.engine.as_str()),
        "no run of this engine: engine={} known={}",
        args.engine,
        known.join(",")
    );
    let text = match &args.targets {
        Some(file) => targets::table(file, &records, &args.engine)?,
        None => table(&records, &args.engine),
    };
    program::print(format_args!("{text}"));
    Ok(())
}

/// Renders the table as markdown, the rule of its verdicts, and the cells without a figure.
pub fn table(records: &[Record], engine: &str) -> String {
    let (scenarios, known) = (scenarios(records), rivals(records, engine));
    let (mut rows, mut without) = (Vec::new(), Vec::new());
    for scenario in &scenarios {
        let others: Vec<_> = scenario.groups.iter().map(|group| group.workload).collect();
        let of_scenario = engines_of(scenario);
        for group in &scenario.groups {
            let title = format!("{}: {}", scenario.name, format::workload(group.workload, &others));
            for cap in group.caps() {
                let at = format!("| {title} | {} |", format::cap(cap));
                let beside = Beside { group, cap, engine, known: &known, of_scenario: &of_scenario };
                rows.extend(beside.rows().into_iter().map(|row| (at.clone(), row)));
                without.extend(absences(scenario, &title, group, cap, engine));
            }
        }
    }
    let judged = judged(&rows);
    let mut out = format!(
        "| workload | cap | figure | {engine} | best of the others | which | times better (95 %) | verdict |\n\
         |---|---|---|---|---|---|---|---|\n"
    );
    for ((at, row), judged) in rows.iter().zip(&judged) {
        out.push_str(&format!("{at} {} |\n", row.text(judged.as_ref())));
    }
    out.push_str(&format!("\n{COLUMNS}\n\n{RULE}\n"));
    for (figure, note) in NOTES {
        if rows.iter().any(|(_, row)| row.name == figure.name) {
            out.push_str(&format!("\n{note}\n"));
        }
    }
    let runs: Vec<String> = scenarios.iter().map(about).collect();
    out.push_str(&format!("\nThe runs, and what all workloads of a scenario have in common:\n\n{}", runs.concat()));
    for warning in mixed(records) {
        out.push_str(&format!("\nWARNING: {warning}\n"));
    }
    if !without.is_empty() {
        out.push_str(&format!("\nWithout a figure, in all repeats or in some:\n\n{}", without.concat()));
    }
    out
}

/// Judges the rows of a table; `None` for a row without anything to judge. A latency that waits for the device is told apart
/// only if it is as well as a multiple of the device's own, because the device may have been slower when one side had it.
fn judged(rows: &[(String, Row)]) -> Vec<Option<Judged>> {
    let mut family = Family::default();
    let claims: Vec<Option<judge::Row>> = rows.iter().map(|(_, row)| row.claim()).collect();
    let is_judged: Vec<bool> = claims.iter().map(Option::is_some).collect();
    claims.into_iter().flatten().for_each(|claim| family.add(claim));
    let mut verdicts = family.judge().into_iter();
    let mut judged = Vec::new();
    for ((_, row), is_judged) in rows.iter().zip(is_judged) {
        let own = if is_judged { verdicts.next() } else { None };
        let of_device = row.of_device.as_ref().and_then(|row| row.claim()).map(|claim| claim.alone());
        judged.push(own.map(|own| match of_device {
            Some(of_device) if own.verdict.is_apart() && own.verdict != of_device.verdict => {
                Judged { verdict: Verdict::NotDecided, ..own }
            }
            _ => own,
        }));
    }
    judged
}

/// Says when a scenario was run, and lists the settings that its workloads share, in one line.
fn about(scenario: &Scenario<'_>) -> String {
    let mut common = scenario.groups.first().map(|group| format::facts(group.workload)).unwrap_or_default();
    common.retain(|fact| scenario.groups.iter().all(|group| format::facts(group.workload).contains(fact)));
    let common: Vec<String> = common.into_iter().map(|(name, value)| format!("{name} {value}")).collect();
    format!("- {}; {}\n", dates(scenario), common.join(", "))
}

const COLUMNS: &str = "\
A figure is the median of the repeats, with the lowest and the highest. Times better is the geometric mean of the ratios, repeat by \
repeat, with its 95 % interval. It need not be the ratio of the two medians.";

/// Notes below the table about figures that cannot be read without them.
const NOTES: [(Figure, &str); 2] = [(PEAK_RSS, RSS), (LOAD_TIME, LOAD)];

const RSS: &str = "\
Peak RSS has files mapped into memory in it, which is how LMDB reads, and not the page cache, through which RocksDB and redb do.";

const LOAD: &str = "\
The time of a load ends when all pairs are durable. Work that an engine puts off until later, as strata and RocksDB do with merges, \
is not in it.";

/// One figure of a cell: the engine's value, and the values of the others.
struct Row {
    name: String,
    /// `None` for a figure that is neither better nor worse: it is shown and not judged.
    better: Option<Better>,
    text: fn(f64) -> String,
    /// The same as multiples of the device's own median latency, if all engines wait for the device.
    of_device: Option<Box<Row>>,
    /// The engine's figure, or the reason why there is none.
    own: Result<Sample, String>,
    others: Vec<(String, Sample)>,
    /// The others that ran and have no figure, and the reason of each.
    without: Vec<(String, String)>,
    /// Reasons why none of the others has the figure, if none has.
    why_not: String,
}

/// One cell of the engine, with the other engines' cells of the same workload and cap.
struct Beside<'a> {
    group: &'a Group<'a>,
    cap: Option<u64>,
    engine: &'a str,
    /// The engines that are compared.
    known: &'a [&'a str],
    /// Those of them that the scenario measures in any cell.
    of_scenario: &'a [&'a str],
}

impl Beside<'_> {
    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        // The single get of a `recover` is part of its time to the first correct read.
        let latencies = if self.group.workload.name == "recover" { Vec::new() } else { self.group.ops() };
        for op in &latencies {
            for stat in STATS.iter().filter(|stat| ["avg", "p50", "p99", "p99.9"].contains(&stat.name)) {
                let of = |cell: &Cell<'_>| cell.latency(op, stat.of);
                let name = format!("{} {}", format::op(op), stat.name);
                let row = self.row(name, Some(Better::Lower), format::nanos, Some(op), of);
                rows.extend(row.map(|row| Row { of_device: self.of_device(op, stat), ..row }));
            }
        }
        for figure in figures(self.group) {
            let of = |cell: &Cell<'_>| cell.sample(figure.of);
            rows.extend(self.row(figure.name.to_owned(), figure.better, figure.text, None, of));
        }
        for op in latencies {
            for (name, device) in DEVICE {
                let Some(stat) = STATS.iter().find(|stat| stat.name == name) else { continue };
                let of = |cell: &Cell<'_>| cell.sample(|run| times_the_device(run, op, stat, device));
                let name = format!("{} {name} / the device's", format::op(op));
                rows.extend(self.row(name, Some(Better::Lower), format::digits, None, of));
            }
        }
        rows
    }

    /// Returns a latency as multiples of the device's own median. `None` if an engine has no read of the device in it: then a
    /// slower device does not explain a slower engine.
    fn of_device(&self, op: &str, stat: &Stat) -> Option<Box<Row>> {
        let of = |cell: &Cell<'_>| cell.sample(|run| times_the_device(run, op, stat, DEVICE[0].1));
        let row = self.row(String::new(), Some(Better::Lower), format::digits, None, of)?;
        let waits = |sample: &Sample| sample.spread().median >= DEVICE_PART;
        let all_wait = row.own.as_ref().is_ok_and(waits) && row.others.iter().all(|(_, other)| waits(other));
        all_wait.then(|| Box::new(row))
    }

    /// Builds a row, if any engine has the figure.
    fn row(
        &self,
        name: String,
        better: Option<Better>,
        text: fn(f64) -> String,
        op: Option<&str>,
        of: impl Fn(&Cell<'_>) -> Option<Sample>,
    ) -> Option<Row> {
        // Every engine is asked for as many repeats as the one with the most.
        let repeats = self.group.cells.iter().filter(|cell| cell.cap == self.cap).map(|cell| cell.runs.len()).max();
        let figure = |engine: &str| {
            let cell = self.group.cell(engine, self.cap);
            let mut sample: Sample = cell.and_then(&of).ok_or_else(|| why_not(cell, op))?;
            sample.expect(repeats.unwrap_or(0));
            Ok::<_, String>(sample)
        };
        let own = figure(self.engine);
        let (mut others, mut without, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
        for other in self.known.iter().filter(|other| **other != self.engine) {
            match figure(other) {
                Ok(sample) => others.push(((*other).to_owned(), sample)),
                Err(reason) => {
                    if self.of_scenario.contains(other) {
                        without.push(((*other).to_owned(), reason.clone()));
                    }
                    reasons.push(reason);
                }
            }
        }
        if own.is_err() && others.is_empty() {
            return None;
        }
        Some(Row { name, better, text, of_device: None, own, others, without, why_not: distinct(reasons).join("; ") })
    }
}

/// Returns the engine and those that are not the same one with other options, or all if there are no others.
fn rivals<'a>(records: &'a [Record], engine: &str) -> Vec<&'a str> {
    let kind = |record: &Record| Some(record.engine_line.as_ref()?.split(' ').next()?.to_owned());
    let kind_of = |name: &str| records.iter().filter(|record| record.engine == name).find_map(kind);
    let own = kind_of(engine);
    let is_rival = |name: &&str| *name == engine || own.is_none() || kind_of(name) != own;
    let all = engines(records);
    let rivals: Vec<&str> = all.iter().copied().filter(is_rival).collect();
    if rivals.len() > 1 { rivals } else { all }
}

/// Returns the engines that a scenario measures in any of its cells.
fn engines_of<'a>(scenario: &Scenario<'a>) -> Vec<&'a str> {
    distinct(scenario.groups.iter().flat_map(|group| group.cells.iter().map(|cell| cell.engine)))
}

/// Part of the device's median latency that an operation exceeds if it has to wait for a read.
const DEVICE_PART: f64 = 0.5;

/// Picks one quantile of the device's latencies.
type OfDevice = fn(&Quantiles) -> u64;

/// Quantiles that are also given as multiples of the device's.
const DEVICE: [(&str, OfDevice); 2] = [("p50", |device| device.p50), ("p99", |device| device.p99)];

/// Returns a latency as a multiple of the device's own, measured on the same store right before or in between.
fn times_the_device(run: &Record, op: &str, stat: &Stat, device: OfDevice) -> Option<f64> {
    let device = device(run.device_read_ns.as_ref()?);
    Some((stat.of)(curve(run, op)?)? / device.max(1) as f64)
}

/// Returns the figures that are compared in addition to latencies.
fn figures(group: &Group<'_>) -> Vec<Figure> {
    let from_cold = ["cold", "steady"].contains(&group.workload.state.as_str());
    match group.workload.name.as_str() {
        "bootstrap" => {
            let rows = [LOAD_TIME.name, "Bytes / pair", PEAK_RSS.name, WRITE_AMPLIFICATION.name];
            BOOTSTRAP.iter().filter(|figure| rows.contains(&figure.name)).copied().collect()
        }
        "recover" => [FIRST_READ].into_iter().chain(OPENING).collect(),
        "read_positive" | "read_negative" | "get_many" | "get_many_absent" if from_cold => {
            [READS_PER_OP].into_iter().chain(OPENING).collect()
        }
        "live" | "query" => vec![THROUGHPUT, THROUGHPUT_OF_DEVICE],
        _ => vec![THROUGHPUT, COMMIT_PER_PUT, WRITE_AMPLIFICATION, PEAK_RSS, BYTES_PER_LOADED],
    }
}

/// Returns the reason why a cell has no figure.
fn why_not(cell: Option<&Cell<'_>>, op: Option<&str>) -> String {
    let Some(cell) = cell else { return "not measured".to_owned() };
    if let Some(note) = cell.killed().first().filter(|_| cell.killed().len() == cell.runs.len()) {
        return (*note).to_owned();
    }
    if let Some(state) = cell.other_states().first().filter(|_| cell.other_states().len() == cell.runs.len()) {
        return format!("{state} at the start");
    }
    let counted = |run: &&Record| op.is_some_and(|op| curve(run, op).is_some());
    if cell.runs.iter().any(counted) { "too few values" } else { "not recorded" }.to_owned()
}

/// Lists the engines of a scenario that have no figure in a repeat of a cell, one line each.
fn absences(scenario: &Scenario<'_>, title: &str, group: &Group<'_>, cap: Option<u64>, engine: &str) -> Vec<String> {
    let of_scenario = engines_of(scenario);
    let alone = of_scenario == [engine];
    let line = |who: &str, why: &str| format!("- {title}, {}: {who}: {why}\n", format::cap(cap));
    let mut lines: Vec<String> = of_scenario
        .iter()
        .filter_map(|engine| match group.cell(engine, cap) {
            None => Some(line(engine, "not measured")),
            Some(cell) => {
                let (killed, others, runs) = (cell.killed(), cell.other_states(), cell.runs.len());
                let killed = killed.first().map(|note| format!("{note} in {} of {runs} repeats", killed.len()));
                let other = others.first().map(|state| format!("{state} at the start of {} of {runs}", others.len()));
                killed.or(other).map(|why| line(engine, &why))
            }
        })
        .collect();
    if alone {
        lines.push(line("all others", "not measured"));
    }
    lines
}

impl Row {
    /// Returns the row as it is judged; `None` if there is nothing to judge.
    fn claim(&self) -> Option<judge::Row> {
        let (Some(better), Ok(own), false) = (self.better, &self.own, self.others.is_empty()) else { return None };
        let mut row = judge::Row::of(own);
        for (_, other) in &self.others {
            let test = Test::of(own, other, better);
            let (one, two) = (own.spread().median, other.spread().median);
            if test.is_none() && if better == Better::Higher { two > one } else { two < one } {
                // Too few repeats to say that it is better, but enough not to claim that it is worse.
                row.forbid_lead();
            }
            row.add(test);
        }
        Some(row)
    }

    /// Renders the row's columns, with its judgement, if there was something to judge.
    fn text(&self, judged: Option<&Judged>) -> String {
        let text = |spread: &Spread| format!("{} ({})", (self.text)(spread.median), format::spread(spread, self.text));
        let by_median = |a: &Spread, b: &Spread| {
            let order = a.median.total_cmp(&b.median);
            if self.better == Some(Better::Higher) { order.reverse() } else { order }
        };
        let spreads = self.others.iter().map(|(engine, other)| (engine, other.spread()));
        let best = spreads.min_by(|a, b| by_median(&a.1, &b.1));
        let own = match &self.own {
            Ok(own) => own.spread(),
            Err(reason) => {
                let (engine, best) = best.map_or((format::MISSING, String::new()), |(e, best)| (e, text(&best)));
                return format!("{} | {reason} | {best} | {engine} | {reason} | no figure", self.name);
            }
        };
        let Some((engine, best)) = best else {
            let why = &self.why_not;
            return format!("{} | {} | {why} | none | nothing beside it | not decided", self.name, text(&own));
        };
        let figures = format!("{} | {} | {} | {engine}", self.name, text(&own), text(&best));
        let Some(judged) = judged else {
            return format!("{figures} | {} | not judged", format::MISSING);
        };
        let of_best = self.others.iter().position(|(other, _)| other == engine).and_then(|at| judged.beside[at]);
        // The interval's own middle, where there is one: the ratio of medians can lie outside of it.
        let times = match of_best {
            // A ratio with zero says nothing.
            _ if own.min == 0.0 || best.min == 0.0 => "one is 0".to_owned(),
            Some(beside) => format!("{:.2} ({:.2}–{:.2})", beside.times, beside.interval.0, beside.interval.1),
            None if self.better == Some(Better::Higher) => format!("{:.2}", own.median / best.median),
            None => format!("{:.2}", best.median / own.median),
        };
        format!("{figures} | {times} | {}{}", judged.verdict.as_str(), self.not_judged(judged))
    }

    /// Names those that the verdict is not about, with the reason; empty if it is about all.
    fn not_judged(&self, judged: &Judged) -> String {
        let missing = self.own.as_ref().map_or(0, Sample::missing);
        let own = (missing > 0).then(|| format!("; {missing} of its own repeats have no figure"));
        let few = self.others.iter().zip(&judged.beside).filter(|(_, beside)| beside.is_none());
        let few = few.map(|((engine, other), _)| match other.spread().runs {
            1 => format!("{engine} (1 run)"),
            runs => format!("{engine} ({runs} runs)"),
        });
        let named: Vec<String> =
            few.chain(self.without.iter().map(|(engine, reason)| format!("{engine} ({reason})"))).collect();
        let others = (!named.is_empty()).then(|| format!("; not about {}", named.join(", ")));
        own.into_iter().chain(others).collect()
    }
}
