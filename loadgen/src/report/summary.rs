//! The summary before the figures: which engine is best at which work.
//!
//! Owns: the figure that represents a workload, and how often an engine is the best. Must not: leave out a comparison,
//! or judge by another rule than the tables.

use super::cells::{Cell, Group, Sample, Scenario, Spread, distinct};
use super::document::{Block, Compared, Figures, Row, Section, Table, compared};
use super::figures::{Better, Figure, LOAD_TIME, STATS, Stat};
use super::format;
use super::judge::RUNS_MIN;
use crate::result::Workload;

/// Figure of a workload's latencies that is shown where no other is named. It shows the slow operations.
const SHOWN: &str = "p99";

/// One workload under one cap, with the figure that represents it.
struct Comparison<'a> {
    scenario: &'a str,
    group: &'a Group<'a>,
    title: String,
    cap: Option<u64>,
    row: Compared,
}

impl Comparison<'_> {
    fn spreads(&self) -> impl Iterator<Item = Spread> + '_ {
        self.row.samples.iter().flatten().map(Sample::spread)
    }
}

/// Builds the section: verdicts, and every comparison folded under a line.
pub(crate) fn section(scenarios: &[Scenario<'_>], engines: &[&str]) -> Section {
    let comparisons: Vec<Comparison<'_>> = scenarios.iter().flat_map(|scenario| of(scenario, engines)).collect();
    // All comparisons are judged together, as one table.
    let cells = compared(&comparisons.iter().map(|one| &one.row).collect::<Vec<_>>());
    let judged: Vec<(&Comparison<'_>, &Vec<Figures>)> = comparisons.iter().zip(&cells).collect();
    let contested = |(one, _): &&(&Comparison<'_>, &Vec<Figures>)| one.spreads().count() > 1;
    let works = distinct(comparisons.iter().map(|one| one.group.workload.name.as_str()));
    let verdicts: Vec<String> = works
        .into_iter()
        .filter_map(|work| {
            let of_work = judged.iter().filter(|(one, _)| one.group.workload.name == work);
            verdict(work, &of_work.filter(contested).copied().collect::<Vec<_>>(), engines)
        })
        .collect();
    let mut blocks = vec![if verdicts.is_empty() {
        Block::Text("One engine ran, so nothing is compared.".to_owned())
    } else {
        Block::List(verdicts)
    }];
    blocks.push(Block::Fold("Every comparison".to_owned(), vec![Block::Table(all(&judged, engines))]));
    Section { id: "summary".to_owned(), title: "Summary".to_owned(), blocks }
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
        Comparison { scenario: scenario.name, group, title, cap, row }
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

/// Says how often each engine is the best at one kind of work, and by how much.
fn verdict(work: &str, judged: &[(&Comparison<'_>, &Vec<Figures>)], engines: &[&str]) -> Option<String> {
    let (first, _) = judged.first()?;
    // How many times better than the next one each engine was, where it is ahead of all.
    let mut wins: Vec<Vec<f64>> = engines.iter().map(|_| Vec::new()).collect();
    let mut undecided = 0;
    for (_, cells) in judged {
        match cells.iter().enumerate().find_map(|(at, cell)| Some((at, cell.ahead?))) {
            Some((best, times)) => wins[best].push(times),
            None => undecided += 1,
        }
    }
    let mut order: Vec<usize> = (0..engines.len()).filter(|at| !wins[*at].is_empty()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(wins[*at].len()));
    let of = judged.len();
    let mut parts: Vec<String> = order
        .into_iter()
        .map(|at| {
            let times = &wins[at];
            let (low, high) = times.iter().fold((f64::MAX, 0.0f64), |(low, high), t| (low.min(*t), high.max(*t)));
            let (low, high) = (format::digits(low), format::digits(high));
            let ahead = if low == high { format!("{low} times") } else { format!("{low} to {high} times") };
            format!("{} is best in {} of {of} ({ahead} ahead of the next)", engines[at], times.len())
        })
        .collect();
    // Fewer repeats than a verdict needs say nothing, not even that the engines are alike.
    let repeats = judged.iter().flat_map(|(one, _)| one.spreads()).map(|spread| spread.runs).max().unwrap_or(0);
    if repeats < RUNS_MIN {
        parts.push(format!("not decided: {repeats} of the {RUNS_MIN} repeats that a verdict needs"));
    } else if undecided > 0 {
        parts.push(format!("in {undecided} of {of} none is ahead of all others"));
    }
    let figure = match time(first.group.workload) {
        // A load that postpones work is not faster than one that has done it.
        Some(_) => "time to the end of the load, work put off until later not in it".to_owned(),
        None => format!("{SHOWN} of {}", format::op(operation(first.group)?).to_lowercase()),
    };
    Some(format!("{}, {figure}: {}.", format::op(work), parts.join("; ")))
}

fn all(judged: &[(&Comparison<'_>, &Vec<Figures>)], engines: &[&str]) -> Table {
    let mut rows = Vec::new();
    let mut last = "";
    for (one, cells) in judged {
        if one.scenario != last {
            rows.push(Row::Title(one.scenario.to_owned()));
            last = one.scenario;
        }
        let name = format!("{}, {}", one.title, format::cap(one.cap));
        rows.push(Row::Figures(name, (*cells).clone()));
    }
    let head = std::iter::once(String::new()).chain(engines.iter().map(|engine| (*engine).to_owned())).collect();
    Table {
        caption: format!("Time to the end of loads, {SHOWN} of everything else; lower is better"),
        head,
        rows,
        words: false,
    }
}
