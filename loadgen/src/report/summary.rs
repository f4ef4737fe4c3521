//! The summary before the figures: which engine is best at which work.
//!
//! Owns: the figure that represents a workload. Must not: leave out a comparison, or judge by another rule than the tables.

use super::cells::{Cell, Group, Sample, Scenario};
use super::document::{Block, Compared, Row, Section, Table, compared};
use super::figures::{Better, Figure, LOAD_TIME, STATS, Stat};
use super::format;
use super::judge::RUNS_MIN;
use crate::result::Workload;

/// Figure of a workload's latencies that is shown where no other is named. It shows the slow operations.
const SHOWN: &str = "p99";

/// One workload under one cap, with the figure that represents it.
struct Comparison<'a> {
    scenario: &'a str,
    title: String,
    cap: Option<u64>,
    row: Compared,
}

/// Builds the section: a table of all comparisons.
pub(crate) fn section(scenarios: &[Scenario<'_>], engines: &[&str]) -> Section {
    let comparisons: Vec<Comparison<'_>> = scenarios.iter().flat_map(|scenario| of(scenario, engines)).collect();
    // All comparisons are judged together, as one table.
    let cells = compared(&comparisons.iter().map(|one| &one.row).collect::<Vec<_>>());
    // Fewer repeats than a verdict needs say nothing, not even that the engines are alike.
    let samples = comparisons.iter().flat_map(|one| one.row.samples.iter().flatten());
    let repeats = samples.map(|sample| sample.values.len()).max().unwrap_or(0);
    let few = format!("; no engine is marked as best: {repeats} of the {RUNS_MIN} repeats that a verdict needs");
    let few = if repeats < RUNS_MIN { &few } else { "" };
    let (mut rows, mut last) = (Vec::new(), "");
    for (one, cells) in comparisons.iter().zip(cells) {
        if one.scenario != last {
            rows.push(Row::Title(one.scenario.to_owned()));
            last = one.scenario;
        }
        rows.push(Row::Figures(format!("{}, {}", one.title, format::cap(one.cap)), cells));
    }
    let caption = format!(
        "Time to the end of loads, without work put off until later; {SHOWN} of everything else; lower is better{few}"
    );
    let head = std::iter::once("").chain(engines.iter().copied()).map(str::to_owned).collect();
    let table = Table { caption, head, rows, words: false };
    Section { id: "summary".to_owned(), title: "Summary".to_owned(), blocks: vec![Block::Table(table)] }
}

fn of<'a>(scenario: &'a Scenario<'a>, engines: &[&str]) -> Vec<Comparison<'a>> {
    let workloads: Vec<&Workload> = scenario.groups.iter().map(|group| group.workload).collect();
    let of_group = |group: &'a Group<'a>| {
        let title = format::workload(group.workload, &workloads);
        group.caps().into_iter().map(move |cap| (group, title.clone(), cap))
    };
    let all = scenario.groups.iter().flat_map(of_group);
    all.map(|(group, title, cap)| {
        let sample = |engine: &&str| group.cell(engine, cap).and_then(|cell| headline(group, cell));
        let samples = engines.iter().map(sample).collect();
        let row = Compared { samples, better: Some(Better::Lower), text: text(group) };
        Comparison { scenario: scenario.name, title, cap, row }
    })
    .collect()
}

/// Returns the figure that represents a workload: the time of a load, otherwise the p99 of its own operation.
fn headline(group: &Group<'_>, cell: &Cell<'_>) -> Option<Sample> {
    match time(group.workload) {
        Some(figure) => cell.sample(figure.of),
        None => cell.latency(operation(group)?, stat().of),
    }
}

fn time(workload: &Workload) -> Option<Figure> {
    (workload.name == "bootstrap").then_some(LOAD_TIME)
}

fn stat() -> &'static Stat {
    STATS.iter().find(|stat| stat.name == SHOWN).unwrap_or(&STATS[0])
}

/// Returns the operation that the workload is named after, or else its first.
fn operation<'a>(group: &Group<'a>) -> Option<&'a str> {
    let ops = group.ops();
    ops.iter().find(|op| **op == group.workload.name).or(ops.first()).copied()
}

fn text(group: &Group<'_>) -> fn(f64) -> String {
    time(group.workload).map_or(format::nanos as fn(f64) -> String, |figure| figure.text)
}
