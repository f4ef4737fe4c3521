//! `loadgen best`: one engine against the others, cell by cell, ahead or behind.
//!
//! Owns: who is the best of a cell. Must not: leave a cell out. Main thread.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::cells::{Cell, Group, Sample, Spread, curve, distinct, scenarios};
use super::figures::{BOOTSTRAP, Better, Figure, READS_PER_OP, STATS, THROUGHPUT};
use super::judge::{Family, Judged, RULE, Verdict};
use super::{format, input};
use crate::result::{Quantiles, Record};

/// Shown under `loadgen best --help`.
pub const EXAMPLES: &str = "\
For each cell and figure: the median of the engine's repeats, the best median among the other engines of that very \
cell, how many times better the engine is than that one (below 1: it is beaten) with the 95 % interval, and the verdict \
beside all others: `ahead` of each of them, `behind` one of them, `level`, or `not decided`. Where the device was \
measured right before a run, the engine's latency is also given as a multiple of the device's own 4 KiB random read. \
Below the table stands the rule.

Examples:
  solkv-loadgen best results.jsonl --engine strata > best.md";

/// Arguments of `loadgen best`.
#[derive(clap::Args, Clone, Debug)]
pub struct BestArgs {
    /// Result files
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The engine, by its label
    #[arg(long, value_name = "ENGINE", default_value = "strata")]
    pub engine: String,
}

/// Runs `loadgen best`.
///
/// # Errors
/// A file that is no result file, an engine without a run.
pub fn run(args: &BestArgs) -> Result<()> {
    let records = input::read_all(&args.files)?;
    let known = distinct(records.iter().map(|record| record.engine.as_str()));
    ensure!(
        known.contains(&args.engine.as_str()),
        "no run of this engine: engine={} known={}",
        args.engine,
        known.join(",")
    );
    std::io::stdout().write_all(table(&records, &args.engine).as_bytes()).context("cannot write to stdout")
}

/// The table as markdown, and the rule of its verdicts.
pub fn table(records: &[Record], engine: &str) -> String {
    let mut rows = Vec::new();
    for scenario in &scenarios(records) {
        let others: Vec<_> = scenario.groups.iter().map(|group| group.workload).collect();
        for group in &scenario.groups {
            let title = format!("{}: {}", scenario.name, format::workload(group.workload, &others));
            for cap in group.caps() {
                let Some(own) = group.cell(engine, cap) else { continue };
                let at = format!("| {title} | {} |", format::cap(cap));
                rows.extend(rows_of(group, own).into_iter().map(|row| (at.clone(), row)));
            }
        }
    }
    let mut family = Family::default();
    for (_, row) in &rows {
        if let Row::Compared { own, others, compared } = row {
            others.iter().for_each(|(_, other)| family.add_paired(own, other, compared.better));
        }
    }
    let mut judged = family.judge().into_iter();
    let mut out = format!(
        "| workload | cap | figure | {engine} | best of the others | which | times better (95 %) | verdict |\n\
         |---|---|---|---|---|---|---|---|\n"
    );
    rows.iter().for_each(|(at, row)| out.push_str(&format!("{at} {} |\n", row.text(&mut judged))));
    out + "\n" + RULE + "\n"
}

/// What is compared: a name, whether more is better, and how it is written.
struct Compared {
    name: String,
    better: Better,
    text: fn(f64) -> String,
}

enum Row {
    /// The engine's figure and those of the others.
    Compared { own: Sample, others: Vec<(String, Sample)>, compared: Compared },
    /// What nobody else has a part in.
    Alone(String),
}

fn rows_of(group: &Group<'_>, own: &Cell<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |compared: Compared, of: &dyn Fn(&Cell<'_>) -> Option<Sample>| {
        let others = group.cells.iter().filter(|cell| cell.cap == own.cap && cell.engine != own.engine);
        let others = others.filter_map(|cell| Some((cell.engine.to_owned(), of(cell)?))).collect();
        rows.extend(of(own).map(|own| Row::Compared { own, others, compared }));
    };
    for op in group.ops() {
        for stat in STATS.iter().filter(|stat| ["avg", "p50", "p99"].contains(&stat.name)) {
            let name = format!("{} {}", format::op(op), stat.name);
            add(Compared { name, better: Better::Lower, text: format::nanos }, &|cell| cell.latency(op, stat.of));
        }
    }
    let loads = group.workload.name == "bootstrap";
    let figures: Vec<Figure> = match group.workload.name.as_str() {
        "bootstrap" => {
            BOOTSTRAP.iter().filter(|figure| ["Time", "Bytes / pair"].contains(&figure.name)).copied().collect()
        }
        "read_positive" | "read_negative" if group.workload.state == "cold" => vec![READS_PER_OP],
        _ => vec![THROUGHPUT],
    };
    for figure in figures {
        let Some(better) = figure.better else { continue };
        add(Compared { name: figure.name.to_owned(), better, text: figure.text }, &|cell| cell.sample(figure.of));
    }
    if !loads {
        rows.extend(group.ops().into_iter().flat_map(|op| against_device(own, op)).map(Row::Alone));
    }
    rows
}

impl Row {
    /// The cells of the row; takes a judgement for each of the others.
    fn text(&self, judged: &mut impl Iterator<Item = Judged>) -> String {
        let (own, others, compared) = match self {
            Self::Alone(text) => return text.clone(),
            Self::Compared { own, others, compared } => (own, others, compared),
        };
        let text =
            |spread: &Spread| format!("{} ({})", (compared.text)(spread.median), format::spread(spread, compared.text));
        let own = own.spread();
        let beside: Vec<(&str, Spread, Judged)> = others
            .iter()
            .zip(judged)
            .map(|((engine, other), judged)| (engine.as_str(), other.spread(), judged))
            .collect();
        let by_median = |a: &&(&str, Spread, Judged), b: &&(&str, Spread, Judged)| {
            let order = a.1.median.total_cmp(&b.1.median);
            if compared.better == Better::Lower { order } else { order.reverse() }
        };
        let Some((engine, best, judged)) = beside.iter().min_by(by_median) else {
            return format!("{} | {} | – | – | – | –", compared.name, text(&own));
        };
        let times = match compared.better {
            Better::Lower => best.median / own.median,
            Better::Higher => own.median / best.median,
        };
        let interval = judged.interval.map_or_else(String::new, |(low, high)| format!(" ({low:.2}–{high:.2})"));
        let verdicts: Vec<Verdict> = beside.iter().map(|(_, _, judged)| judged.verdict).collect();
        let verdict = Verdict::beside_all(&verdicts).as_str();
        format!("{} | {} | {} | {engine} | {times:.2}{interval} | {verdict}", compared.name, text(&own), text(best))
    }
}

/// The latency as a multiple of the device's own, at p50 and p99.
fn against_device(own: &Cell<'_>, op: &str) -> Vec<String> {
    let multiple = |name: &str, at: fn(&Quantiles) -> u64| {
        let of = |run: &Record| {
            let device = at(run.device_read_ns.as_ref()?);
            Some(at(&curve(run, op)?.quantiles_ns) as f64 / device.max(1) as f64)
        };
        let spread = own.spread(of)?;
        let text = |value: f64| format!("{value:.2}");
        Some(format!(
            "{} {name} / the device's | {} ({}) | – | – | – | –",
            format::op(op),
            text(spread.median),
            format::spread(&spread, text)
        ))
    };
    [multiple("p50", |quantiles| quantiles.p50), multiple("p99", |quantiles| quantiles.p99)]
        .into_iter()
        .flatten()
        .collect()
}
