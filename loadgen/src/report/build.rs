//! Turns records into a [`Document`]: the summary, the scenarios, notes, the machine, how to reproduce.
//!
//! Owns: the order of the page. Must not: render.

use super::cells::{Scenario, distinct, engines, scenarios};
use super::document::{Block, Document, Figures, Row, Section, Table};
use super::{device, format, judge, notes, scenario, summary};
use crate::result::Record;

const READING: [&str; 8] = [
    "A figure is the median over the repeats of its cell, followed by the smallest and the largest repeat; “1 run” \
     says that there is no spread to judge it by.",
    "× is the ratio to the best median of the row. An engine is marked as best if it is ahead of all others of the row that have enough repeats.",
    judge::RULE,
    "† marks a cell of which a repeat has a note (listed under “What to know”) that not every run of the workload has.",
    "A line over time, size or percentile is one real run: the repeat whose mean is the median of the repeats. Of \
     series longer than 240 samples neighbours are merged: means by their counts, the middle p50, the largest p99 and \
     max. Lines against the cap are medians over the repeats.",
    "– means that a figure was not taken. It also replaces p90, p99 and p99.9 of fewer than 200, 2,000 and 20,000 values: with fewer \
     than 20 values beyond it a quantile depends on a few slow operations.",
    "Closed loop: the next operation starts when the last one ended, so a stall delays the operations behind it \
     invisibly, and tails look better than for a client at a fixed rate. Open loop: latency is counted from the \
     intended start, and operations that were due and not begun at the end count with the time that they had waited.",
    "RSS contains files mapped into memory and no files read by pread. The cap limits everything that is charged, \
     page cache included.",
];

/// Builds the report on `records`.
pub(crate) fn document(title: &str, records: &[Record]) -> Document {
    let engines = engines(records);
    let scenarios = scenarios(records);
    let mut sections = vec![summary::section(&scenarios, &engines)];
    sections.extend(scenarios.iter().enumerate().map(|(at, scenario)| scenario::section(scenario, at, &engines)));
    sections.extend([notes::section(&scenarios, records), device::section(records)]);
    sections.push(Section {
        id: "reading".to_owned(),
        title: "How to read this".to_owned(),
        blocks: vec![Block::List(READING.iter().map(|&line| line.to_owned()).collect())],
    });
    sections.push(reproduce(records, &engines, &scenarios));
    Document {
        title: title.to_owned(),
        lead: lead(records, &engines),
        engines: engines.into_iter().map(str::to_owned).collect(),
        sections,
    }
}

fn lead(records: &[Record], engines: &[&str]) -> String {
    let times = || records.iter().map(|record| record.start_unix_ms);
    let (first, last) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
    let programs = distinct(records.iter().map(|record| record.program.as_str()));
    format!(
        "{} runs of {}, from {} to {} UTC, loadgen {}.",
        records.len(),
        engines.join(", "),
        format::utc(first),
        format::utc(last),
        programs.join(" and ")
    )
}

fn reproduce(records: &[Record], engines: &[&str], scenarios: &[Scenario<'_>]) -> Section {
    let mut blocks = Vec::new();
    let commands = distinct(records.iter().filter_map(|record| record.command.as_deref()));
    let programs = distinct(records.iter().map(|record| record.program.as_str()));
    blocks.push(Block::Text(format!("Program: loadgen {}.", programs.join(", loadgen "))));
    blocks.push(if commands.is_empty() {
        Block::Text("Command: – (the runs do not say).".to_owned())
    } else {
        Block::Code(commands.join("\n"))
    });
    blocks.push(Block::Table(workloads(scenarios)));
    blocks.push(Block::Table(options(records, engines)));
    let caps = distinct(records.iter().filter(|r| r.cap_bytes.is_some()).map(|r| format!("Caps: {}.", r.cap_by)));
    blocks.extend(caps.into_iter().map(Block::Text));
    Section { id: "reproduce".to_owned(), title: "How to reproduce".to_owned(), blocks }
}

fn workloads(scenarios: &[Scenario<'_>]) -> Table {
    let head = ["", "loop", "workload", "seed"].map(str::to_owned).to_vec();
    let mut rows = Vec::new();
    for (scenario, group) in scenarios.iter().flat_map(|s| s.groups.iter().map(move |group| (s, group))) {
        let facts = format::facts(group.workload).into_iter().filter(|(name, _)| name != "seed");
        let facts: Vec<String> = facts.map(|(name, value)| format!("{name} {value}")).collect();
        let cells = [format::arrival(group.workload), facts.join(", "), group.workload.seed.to_string()];
        rows.push(Row::Figures(format!("{} {}", scenario.name, group.workload.name), cells.map(Figures::plain).into()));
    }
    Table { caption: "Workloads".to_owned(), head, rows, words: true }
}

/// Lists every set of options that an engine ran with.
fn options(records: &[Record], engines: &[&str]) -> Table {
    let mut rows = Vec::new();
    for engine in engines {
        let sets = distinct(records.iter().filter(|r| r.engine == **engine).map(|record| &record.engine_options));
        for set in sets {
            let text: Vec<String> = set.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let text = if text.is_empty() { format::MISSING.to_owned() } else { text.join(" ") };
            rows.push(Row::Figures((*engine).to_owned(), vec![Figures::plain(text)]));
        }
    }
    let head = vec!["engine".to_owned(), "options in effect".to_owned()];
    Table { caption: "Engines, with every set of options that ran".to_owned(), head, rows, words: true }
}
