//! Notes that a reader needs before the figures: those of the runs, and others that follow from the records.
//!
//! Owns: which notes are of one kind, and which cells are marked. Must not: judge by the words of a note.

use std::collections::BTreeMap;

use super::cells::{Cell, Group, Scenario, Spread, distinct, scenarios};
use super::document::{Block, Section};
use super::figures::{THROUGHPUT, peak};
use super::format;
use crate::result::{Machine, Record};

/// Share of the asked rate below which an open loop has fallen behind.
const KEPT_UP: f64 = 0.98;
/// Largest number of notes of one kind in the list itself; more are folded.
const SHOWN_MAX: usize = 3;

/// Lists every note of every run, and the findings that no run has noted.
pub(crate) fn section(scenarios: &[Scenario<'_>], records: &[Record]) -> Section {
    let mut kinds: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut seen = mixed(records);
    for scenario in scenarios {
        for group in &scenario.groups {
            for run in group.runs() {
                for note in &run.notes {
                    let cap = format::cap(run.cap_bytes);
                    let workload = &group.workload.name;
                    let whose = format!("{} {workload}, {}, {cap}, repeat {}", scenario.name, run.engine, run.repeat);
                    kinds.entry(kind(note)).or_default().push(format!("{} ({whose})", words(note)));
                }
            }
            seen.extend(found(scenario, group));
        }
    }
    for line in &seen {
        kinds.entry(kind(line)).or_default().push(line.clone());
    }
    let (mut lines, mut folded) = (Vec::new(), Vec::new());
    for (kind, notes) in kinds {
        if notes.len() <= SHOWN_MAX {
            lines.extend(notes);
        } else {
            folded.push(Block::Folded(format!("{kind}: {} times", notes.len()), notes));
        }
    }
    let mut blocks = Vec::new();
    if lines.is_empty() && folded.is_empty() {
        blocks.push(Block::Text("Nothing: no run was noted as noisy, above its cap or otherwise special.".to_owned()));
    }
    if !lines.is_empty() {
        blocks.push(Block::List(distinct(lines)));
    }
    blocks.extend(folded);
    Section { id: "notes".to_owned(), title: "What to know".to_owned(), blocks }
}

/// Describes the runs of a scenario by their number and their dates, in one line.
pub(crate) fn dates(scenario: &Scenario<'_>) -> String {
    let starts = || scenario.groups.iter().flat_map(Group::runs).map(|run| run.start_unix_ms);
    let day = |of: Option<u64>| format::utc(of.unwrap_or_default());
    let (first, last) = (day(starts().min()), day(starts().max()));
    format!("{}: {} runs, {first} to {last} UTC", scenario.name, starts().count())
}

/// Says for which reasons runs of one side may not be comparable with each other.
pub(crate) fn mixed(records: &[Record]) -> Vec<String> {
    let machines = distinct(records.iter().map(|record| Machine { loadavg: String::new(), ..record.machine.clone() }));
    let mut lines = Vec::new();
    if machines.len() > 1 {
        lines.push(format!("the runs are of {} machines or settings of one", machines.len()));
    }
    for scenario in scenarios(records) {
        let groups = || scenario.groups.iter();
        let programs = distinct(groups().flat_map(Group::runs).map(|run| run.program.as_str()));
        if programs.len() > 1 {
            lines.push(format!("{}: the runs are of several programs: {}", scenario.name, programs.join(", ")));
        }
        for cell in groups().flat_map(|group| &group.cells) {
            if cell.options().len() > 1 {
                lines.push(format!("{}: repeats of {} had different options", scenario.name, cell.engine));
            }
        }
    }
    distinct(lines)
}

/// Whether a repeat of the cell has a note that not every run of the workload has.
pub(crate) fn special(group: &Group<'_>, cell: &Cell<'_>) -> bool {
    let has = |run: &Record, of: &str| run.notes.iter().any(|note| kind(note) == of);
    let mut notes = cell.runs.iter().flat_map(|run| run.notes.iter());
    notes.any(|note| !group.runs().all(|run| has(run, kind(note))))
}

/// Returns the words before the figures of a note: `killed: …`, `rss_peak_bytes=…`.
fn kind(note: &str) -> &str {
    note.split_once([':', '=']).map_or(note, |(kind, _)| kind)
}

/// Formats a note for people: bytes get their unit.
fn words(note: &str) -> String {
    let bytes = note.split_once("_bytes=").and_then(|(name, bytes)| Some((name, bytes.parse::<u64>().ok()?)));
    bytes.map_or_else(
        || note.to_owned(),
        |(name, bytes)| format!("{} {}", name.replace('_', " "), format::bytes(bytes as f64)),
    )
}

/// Lists findings that follow from the records and that no run has noted.
fn found(scenario: &Scenario<'_>, group: &Group<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    let mut say = |what: &str, engine: &str, cap| {
        let (kind, more) = what.split_once(": ").unwrap_or((what, ""));
        let whose = format!("{} {}, {engine}, {}", scenario.name, group.workload.name, format::cap(cap));
        lines.push(format!("{kind}: {more}{}{whose}", if more.is_empty() { "" } else { ", " }));
    };
    for cell in &group.cells {
        let over = |run: &&Record| {
            let charged = peak(run, |at| at.charged_bytes);
            charged.zip(run.cap_bytes).is_some_and(|(charged, cap)| charged > cap as f64)
        };
        if cell.runs.iter().any(over) {
            say("more memory was charged than the cap allows", cell.engine, cell.cap);
        }
        let rates = cell.runs.iter().filter_map(|run| Some((THROUGHPUT.of)(run)? / run.workload.target_rate?));
        if let Some(share) = Spread::of(rates.map(Some)).filter(|share| share.min < KEPT_UP) {
            let percent = format::digits(share.min * 100.0);
            say(&format!("fell behind the rate asked for: {percent} % of it at worst"), cell.engine, cell.cap);
        }
    }
    let caps = group.caps();
    for cap in caps {
        let single: Vec<&str> =
            group.cells.iter().filter(|c| c.cap == cap && c.runs.len() == 1).map(|c| c.engine).collect();
        if !single.is_empty() {
            say("1 run, so nothing says how far another would differ", &single.join(", "), cap);
        }
    }
    lines
}
