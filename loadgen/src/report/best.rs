//! `loadgen best`: one engine against the best of the others, cell by cell, won or lost.
//!
//! Owns: who is the best of a cell. Must not: leave a cell out. Main thread.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::cells::{Cell, Group, Spread, curve, distinct, scenarios};
use super::figures::{BOOTSTRAP, Better, Figure, READS_PER_OP, STATS, THROUGHPUT};
use super::{format, input};
use crate::result::{Quantiles, Record};

/// Shown under `loadgen best --help`.
pub const EXAMPLES: &str = "\
For each cell and figure: the median of the engine's repeats, the best median among the other engines of that very \
cell, and how many times better the engine is (below 1: it is beaten). Where the device was measured right before \
a run, the engine's latency is also given as a multiple of the device's own 4 KiB random read.

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

/// The table as markdown.
pub fn table(records: &[Record], engine: &str) -> String {
    let mut out = format!(
        "| workload | cap | figure | {engine} | best of the others | which | times better |\n|---|---|---|---|---|---|---|\n"
    );
    for scenario in &scenarios(records) {
        let others: Vec<_> = scenario.groups.iter().map(|group| group.workload).collect();
        for group in &scenario.groups {
            let title = format!("{}: {}", scenario.name, format::workload(group.workload, &others));
            for cap in group.caps() {
                let Some(own) = group.cell(engine, cap) else { continue };
                let at = format!("| {title} | {} |", format::cap(cap));
                rows(group, own).iter().for_each(|row| out.push_str(&format!("{at} {row} |\n")));
            }
        }
    }
    out
}

/// What is compared: a name, whether more is better, how it is written, and how it is taken from a cell.
struct Compared<'a> {
    name: String,
    better: Better,
    text: fn(f64) -> String,
    of: Box<Of<'a>>,
}

type Of<'a> = dyn Fn(&Cell<'_>) -> Option<Spread> + 'a;

fn rows(group: &Group<'_>, own: &Cell<'_>) -> Vec<String> {
    let mut compared = Vec::new();
    for op in group.ops() {
        for stat in STATS.iter().filter(|stat| ["avg", "p50", "p99"].contains(&stat.name)) {
            compared.push(Compared {
                name: format!("{} {}", format::op(op), stat.name),
                better: Better::Lower,
                text: format::nanos,
                of: Box::new(move |cell| cell.latency(op, stat.of)),
            });
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
    compared.extend(figures.into_iter().filter_map(|figure| {
        let of = Box::new(move |cell: &Cell<'_>| cell.spread(figure.of));
        Some(Compared { name: figure.name.to_owned(), better: figure.better?, text: figure.text, of })
    }));
    let mut rows: Vec<String> = compared.iter().filter_map(|compared| row(group, own, compared)).collect();
    if !loads {
        rows.extend(group.ops().into_iter().flat_map(|op| against_device(own, op)));
    }
    rows
}

fn row(group: &Group<'_>, own: &Cell<'_>, compared: &Compared<'_>) -> Option<String> {
    let ours = (compared.of)(own)?;
    let others = group.cells.iter().filter(|cell| cell.cap == own.cap && cell.engine != own.engine);
    let mut best: Option<(&str, Spread)> = None;
    for (engine, spread) in others.filter_map(|cell| Some((cell.engine, (compared.of)(cell)?))) {
        let wins = |known: &Spread| match compared.better {
            Better::Lower => spread.median < known.median,
            Better::Higher => spread.median > known.median,
        };
        if best.as_ref().is_none_or(|(_, known)| wins(known)) {
            best = Some((engine, spread));
        }
    }
    let text =
        |spread: &Spread| format!("{} ({})", (compared.text)(spread.median), format::spread(spread, compared.text));
    let Some((engine, other)) = best else {
        return Some(format!("{} | {} | – | – | –", compared.name, text(&ours)));
    };
    let times = match compared.better {
        Better::Lower => other.median / ours.median,
        Better::Higher => ours.median / other.median,
    };
    Some(format!("{} | {} | {} | {engine} | {times:.2}", compared.name, text(&ours), text(&other)))
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
            "{} {name} / the device's | {} ({}) | – | – | –",
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
