//! The section of one scenario: its workloads, each with tables and lines.
//!
//! Owns: the order within a section. Must not: render.

use super::cells::{Group, Scenario};
use super::charts::{self, Place};
use super::document::{Block, Section};
use super::figures::{BOOTSTRAP, COSTS};
use super::{device, format, tables};
use crate::result::Workload;

/// Builds the section of `scenario`, the `at`-th of the page.
pub(crate) fn section(scenario: &Scenario<'_>, at: usize, engines: &[&str]) -> Section {
    let id = format!("scenario-{}", at + 1);
    let workloads: Vec<&Workload> = scenario.groups.iter().map(|group| group.workload).collect();
    let mut blocks = Vec::new();
    let runs: Vec<_> = scenario.groups.iter().flat_map(Group::runs).collect();
    let notes: usize = runs.iter().filter(|run| !run.notes.is_empty()).count();
    let noisy = if notes == 0 {
        String::new()
    } else {
        format!(" {notes} of them with notes, listed under “What to know”.")
    };
    blocks.push(Block::Text(format!(
        "{} {}.{noisy} {}",
        runs.len(),
        if runs.len() == 1 { "run" } else { "runs" },
        device::line(&runs)
    )));
    let all = ran(&scenario.groups, engines);
    blocks.extend(tables::scaling(&scenario.groups, &all).into_iter().map(Block::Table));
    blocks.extend(tables::rates(&scenario.groups, &all).into_iter().map(Block::Table));
    let place = Place { engines, device_ns: device::random_read_ns(&runs) };
    for group in &scenario.groups {
        // Engines that did not run this workload get no column.
        let ran = ran(std::slice::from_ref(group), engines);
        let title = format::workload(group.workload, &workloads);
        let inside = workload(group, &ran, &place, &title);
        blocks.push(Block::Fold(title, inside));
    }
    Section { id, title: scenario.name.to_owned(), blocks }
}

fn ran<'a>(groups: &[Group<'_>], engines: &[&'a str]) -> Vec<&'a str> {
    let in_it = |engine: &&&str| groups.iter().flat_map(|group| &group.cells).any(|cell| cell.engine == **engine);
    engines.iter().filter(in_it).copied().collect()
}

fn workload(group: &Group<'_>, ran: &[&str], place: &Place<'_>, title: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let facts: Vec<String> =
        format::facts(group.workload).into_iter().map(|(name, value)| format!("{name} {value}")).collect();
    blocks.push(Block::Text(format!("{}.", facts.join(", "))));

    let name = group.workload.name.as_str();
    if name == "bootstrap" {
        blocks.push(Block::Table(tables::figures(group, ran, "What the load took", &BOOTSTRAP)));
    }
    let by_cap = charts::caps(group, place);
    if !by_cap.is_empty() {
        blocks.push(Block::Charts(by_cap));
    }
    blocks.extend(tables::latencies(group, ran, title).into_iter().map(Block::Table));

    let lines =
        [charts::over(group, place, "pairs"), charts::over(group, place, "elapsed_s"), charts::nines(group, place)];
    blocks.extend(lines.into_iter().filter(|charts| !charts.is_empty()).map(Block::Charts));

    blocks.push(Block::Table(tables::figures(group, ran, &format!("{title}: what an operation costs"), &COSTS)));
    blocks
}
