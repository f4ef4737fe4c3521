//! `loadgen best --targets`: a table of targets, each met, missed or not measured.
//!
//! Owns: the form of the file of targets, and when one is met. Must not: know a target. Runs on the main thread.
//!
//! A target is about one cell. It bounds a figure, the same as a multiple of something else that was measured in that run,
//! or its ratio to another cell or to the best other engine. Ratios are those of runs of one repeat. The median counts.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::cells::{Sample, Scenario, curve, distinct, scenarios};
use super::figures::{
    BYTES_PER_LOADED, Better, Figure, LOAD_TIME, PEAK_CHARGED, READS_PER_OP, STATS, THROUGHPUT, WRITE_AMPLIFICATION,
};
use super::format;
use super::notes::dates;
use crate::result::{Quantiles, Record};

/// The name of the best other engine in a target.
const OTHERS: &str = "others";

/// A file with a list of targets, in TOML.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Targets {
    target: Vec<Target>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    /// The measured thing in words, for the first column of the table.
    row: String,
    scenario: String,
    workload: String,
    state: Option<String>,
    /// Memory cap as a share of the pairs' bytes.
    cap: Option<f64>,
    /// Further facts of the workload; one that is empty has to be absent.
    #[serde(default)]
    more: BTreeMap<String, String>,
    /// `read_positive p50`, `engine NAME` for a statistic of the engine, or the name of a figure in the tables of `best`.
    figure: String,
    per: Option<Per>,
    beside: Option<Beside>,
    most: Option<f64>,
    least: Option<f64>,
}

/// Unit of a figure that is shown as a multiple: a measurement of the same run, or its cap.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Per {
    /// The same quantile of the device's reads.
    Device,
    /// The same quantile of misses in memory.
    Memory,
    Cap,
}

/// The cell that a figure is divided by: the target's own, with these differences.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Beside {
    /// `others`: the best of the other engines.
    engine: Option<String>,
    scenario: Option<String>,
    workload: Option<String>,
    #[serde(default)]
    more: BTreeMap<String, String>,
}

/// Where a figure is looked up.
struct Place<'a> {
    scenario: &'a str,
    workload: &'a str,
    target: &'a Target,
    more: &'a BTreeMap<String, String>,
}

/// Renders the table of the targets in `file`.
///
/// # Errors
/// A file that cannot be read or is no file of targets.
pub(super) fn table(file: &Path, records: &[Record], engine: &str) -> Result<String> {
    let at = || format!("file={}", file.display());
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", at()))?;
    let Targets { target } = toml::from_str(&text).with_context(|| format!("not a file of targets: {}", at()))?;
    let mut out = format!("| {engine} | target | measured | |\n|---|---|---|---|\n");
    for target in &target {
        out.push_str(&target.row(records, engine).with_context(at)?);
    }
    out.push_str("\nA figure is the median of the repeats, with the lowest and the highest. A run that was killed misses its targets.\n\n");
    for scenario in scenarios(records) {
        out.push_str(&about(&scenario));
    }
    Ok(out)
}

impl Target {
    fn row(&self, records: &[Record], engine: &str) -> Result<String> {
        let figure = self.figure()?;
        let (bound, is_least) = match (self.most, self.least) {
            (Some(most), None) => (most, false),
            (None, Some(least)) => (least, true),
            _ => bail!("a target has either `most` or `least`: row={:?}", self.row),
        };
        let text = |value: f64| if value.is_finite() { figure.text(self, value) } else { "killed".to_owned() };
        let target = format!("{} {}", if is_least { "at least" } else { "at most" }, text(bound));
        let (which, sample) = self.sample(&figure, records, engine);
        let row = which.map_or_else(|| self.row.clone(), |which| format!("{}: {which}", self.row));
        let Some(sample) = sample else { return Ok(format!("| {row} | {target} | | not measured |\n")) };
        let spread = sample.spread();
        let is_met = if is_least { spread.median >= bound } else { spread.median <= bound };
        let range = match spread.runs {
            1 => "1 run".to_owned(),
            runs => format!("{}–{}, {runs} runs", text(spread.min), text(spread.max)),
        };
        let verdict = if is_met { "met" } else { "**missed**" };
        Ok(format!("| {row} | {target} | {} ({range}) | {verdict} |\n", text(spread.median)))
    }

    /// Returns the other engine that the target is about, if it is about one, and the figure of each repeat.
    fn sample(&self, figure: &Wanted, records: &[Record], engine: &str) -> (Option<String>, Option<Sample>) {
        let own = Place { scenario: &self.scenario, workload: &self.workload, target: self, more: &self.more };
        let of_own = own.sample(figure, records, engine, true);
        let Some(beside) = &self.beside else { return (None, of_own) };
        let mut more = self.more.clone();
        more.extend(beside.more.clone());
        let other = Place {
            scenario: beside.scenario.as_ref().unwrap_or(&self.scenario),
            workload: beside.workload.as_ref().unwrap_or(&self.workload),
            target: self,
            more: &more,
        };
        let (which, of_other) = if beside.engine.as_deref() == Some(OTHERS) {
            other.best(figure, records, engine).map_or((None, None), |(name, sample)| (Some(name), Some(sample)))
        } else {
            (None, other.sample(figure, records, engine, false))
        };
        (which, of_own.zip(of_other).and_then(|(own, other)| ratio(&own, &other)))
    }

    fn figure(&self) -> Result<Wanted> {
        let names = [THROUGHPUT, READS_PER_OP, WRITE_AMPLIFICATION, LOAD_TIME, BYTES_PER_LOADED, PEAK_CHARGED];
        if let Some(figure) = names.iter().find(|figure| figure.name == self.figure) {
            return Ok(Wanted::Figure(*figure));
        }
        let (op, stat) = self.figure.rsplit_once(' ').unwrap_or_default();
        if op == "engine" {
            return Ok(Wanted::OfEngine(stat.to_owned()));
        }
        let stat = STATS.iter().position(|known| known.name == stat);
        let known = names.map(|figure| format!("{:?}", figure.name)).join(", ");
        let stat = stat.with_context(|| {
            format!("no such figure: {:?}: `read_positive p50`, `engine NAME`, or one of {known}", self.figure)
        })?;
        Ok(Wanted::Latency(op.to_owned(), stat))
    }
}

/// A figure that a target asks for.
enum Wanted {
    Figure(Figure),
    OfEngine(String),
    /// Operation, and place of the quantile in [`STATS`].
    Latency(String, usize),
}

impl Wanted {
    fn of(&self, run: &Record, per: Option<Per>) -> Option<f64> {
        let value = match self {
            Self::Figure(figure) => (figure.of)(run)?,
            Self::OfEngine(name) => *run.engine_stats.get(name)? as f64,
            Self::Latency(op, stat) => (STATS[*stat].of)(curve(run, op)?)?,
        };
        let quantile = |of: Option<&Quantiles>| match self {
            Self::Latency(_, stat) => match STATS[*stat].name {
                "p50" => Some(of?.p50 as f64),
                "p99" => Some(of?.p99 as f64),
                _ => None,
            },
            _ => None,
        };
        let unit = match per {
            None => 1.0,
            Some(Per::Device) => quantile(run.device_read_ns.as_ref())?,
            Some(Per::Memory) => quantile(run.memory_read_ns.as_ref())?,
            Some(Per::Cap) => run.cap_bytes? as f64,
        };
        Some(value / unit)
    }

    fn better(&self) -> Better {
        match self {
            Self::Figure(figure) => figure.better.unwrap_or(Better::Lower),
            _ => Better::Lower,
        }
    }

    fn text(&self, target: &Target, value: f64) -> String {
        match self {
            _ if target.per.is_some() || target.beside.is_some() => format!("{value:.3}"),
            Self::Figure(figure) => (figure.text)(value),
            Self::OfEngine(_) => format::digits(value),
            Self::Latency(..) => format::nanos(value),
        }
    }
}

impl Place<'_> {
    /// Returns the figure of each repeat of an engine. A run that was killed is infinitely bad if `counts_killed`, and else has
    /// no figure.
    fn sample(&self, figure: &Wanted, records: &[Record], engine: &str, counts_killed: bool) -> Option<Sample> {
        let runs: Vec<&Record> = records.iter().filter(|run| run.engine == engine && self.has(run)).collect();
        let worst = if figure.better() == Better::Higher { 0.0 } else { f64::INFINITY };
        let value = |run: &&Record| match run.killed() {
            Some(_) => counts_killed.then_some(worst),
            None => figure.of(run, self.target.per),
        };
        let values: Vec<(u32, f64)> = runs.iter().filter_map(|run| Some((run.repeat, value(run)?))).collect();
        (!values.is_empty()).then(|| Sample::new(values, runs.len()))
    }

    fn best(&self, figure: &Wanted, records: &[Record], engine: &str) -> Option<(String, Sample)> {
        let others = distinct(records.iter().map(|run| run.engine.as_str()).filter(|other| *other != engine));
        let samples = others
            .into_iter()
            .filter_map(|other| Some((other.to_owned(), self.sample(figure, records, other, false)?)));
        let median = |sample: &Sample| sample.spread().median;
        samples.min_by(|(_, a), (_, b)| match figure.better() {
            Better::Higher => median(b).total_cmp(&median(a)),
            Better::Lower => median(a).total_cmp(&median(b)),
        })
    }

    fn has(&self, run: &Record) -> bool {
        let share = |cap: u64| cap as f64 / (run.workload.pairs as f64 * 64.0);
        let is_near = |wanted: f64| run.cap_bytes.is_some_and(|cap| (share(cap) / wanted - 1.0).abs() < 0.1);
        let state = run.state_asked.as_ref().unwrap_or(&run.workload.state);
        let fact = |name: &str| run.workload.more.get(name).map_or("", String::as_str);
        run.scenario == self.scenario
            && run.workload.name == self.workload
            && self.target.state.as_ref().is_none_or(|wanted| wanted == state && *state == run.workload.state)
            && self.target.cap.is_none_or(is_near)
            && self.more.iter().all(|(name, value)| fact(name) == value)
    }
}

/// Divides one by the other, repeat by repeat.
fn ratio(one: &Sample, other: &Sample) -> Option<Sample> {
    let of =
        |(repeat, value): &(u32, f64)| Some((*repeat, value / other.of_repeat(*repeat).filter(|other| *other > 0.0)?));
    let values: Vec<(u32, f64)> = one.values.iter().filter_map(of).filter(|(_, value)| !value.is_nan()).collect();
    (!values.is_empty()).then(|| Sample::new(values, one.values.len()))
}

/// Lists the dates and builds of a scenario's runs, and those that were killed.
fn about(scenario: &Scenario<'_>) -> String {
    let (runs, name) = (|| scenario.groups.iter().flat_map(|group| group.runs()), scenario.name);
    let programs = distinct(runs().map(|run| run.program.as_str())).join(", ");
    let mut out = format!("- {}, {programs}\n", dates(scenario));
    for run in runs() {
        if let Some(note) = run.killed() {
            out.push_str(&format!("- {name}: {}, {}, repeat {}: {note}\n", run.engine, run.workload.name, run.repeat));
        }
    }
    out
}
