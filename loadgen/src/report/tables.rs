//! Tables with engines as columns: latencies, figures of loads, and costs.
//!
//! Owns: the rows of a table. Must not: render, or judge a row by itself, because the rows of a table are judged
//! together.

use std::cmp::Ordering;

use engine_latency::table::grouped;

use super::cells::{Cell, Group, Sample, distinct};
use super::document::{Compared, Figures, Row, Table, compared};
use super::figures::{Better, Figure, STATS, THROUGHPUT};
use super::{format, notes};
use crate::result::{Curve, Workload};

/// A row of a table before its figures are judged.
enum Draft {
    Title(String),
    /// Name and figures, and for each engine whether its repeats have notes.
    Compared(String, Compared, Vec<bool>),
    Plain(String, Vec<Figures>),
}

/// Builds the latency tables of a workload. With one operation it is one table, with the caps below each other. With
/// several it is a table for each cap, with the operations below each other.
pub(crate) fn latencies(group: &Group<'_>, engines: &[&str], title: &str) -> Vec<Table> {
    let (caps, ops) = (group.caps(), group.ops());
    let tables: Vec<Table> = if let [op] = ops[..] {
        let rows = caps.iter().flat_map(|cap| latency_rows(group, engines, op, *cap, format::cap(*cap)));
        vec![table(format!("{title}: {}, latency", format::op(op)), engines, rows.collect())]
    } else {
        let of_cap = |cap: &Option<u64>| {
            let rows = ops.iter().flat_map(|op| latency_rows(group, engines, op, *cap, format::op(op)));
            table(format!("{title}: latency, {}", format::cap(*cap)), engines, rows.collect())
        };
        caps.iter().map(of_cap).collect()
    };
    tables.into_iter().filter(|table| !table.rows.is_empty()).collect()
}

/// Builds a table of whole runs' figures, one row each under every cap. Rows that no engine has are left out.
pub(crate) fn figures(group: &Group<'_>, engines: &[&str], caption: &str, rows: &[Figure]) -> Table {
    let caps = group.caps();
    let mut out = Vec::new();
    for cap in &caps {
        if caps.len() > 1 || cap.is_some() {
            out.push(Draft::Title(format::cap(*cap)));
        }
        for figure in rows {
            let samples: Vec<_> =
                engines.iter().map(|engine| group.cell(engine, *cap).and_then(|cell| cell.sample(figure.of))).collect();
            if samples.iter().any(Option::is_some) {
                let row = Compared { samples, better: figure.better, text: figure.text };
                out.push(Draft::Compared(figure.name.to_owned(), row, noted(group, engines, *cap)));
            }
        }
    }
    table(caption.to_owned(), engines, out)
}

/// Builds tables of the achieved rate, p50 and p99 by the asked rate, for open loops that differ in nothing else. The
/// rate at which latency begins to rise is an engine's limit.
pub(crate) fn rates(groups: &[Group<'_>], engines: &[&str]) -> Vec<Table> {
    let base = |group: &Group<'_>| Workload { target_rate: None, ..group.workload.clone() };
    let open: Vec<&Group<'_>> = groups.iter().filter(|group| group.workload.target_rate.is_some()).collect();
    let mut tables = Vec::new();
    for family in distinct(open.iter().map(|group| base(group))) {
        let mut members: Vec<&Group<'_>> = open.iter().copied().filter(|group| base(group) == family).collect();
        members.sort_by(|a, b| a.workload.target_rate.partial_cmp(&b.workload.target_rate).unwrap_or(Ordering::Equal));
        if members.len() < 2 {
            continue;
        }
        let mut rows = Vec::new();
        for group in members {
            for cap in group.caps() {
                rows.push(Draft::Title(format!("{}, {}", format::arrival(group.workload), format::cap(cap))));
                let mut add = |name: String, better, text, of: &dyn Fn(&Cell<'_>) -> Option<Sample>| {
                    let samples = engines.iter().map(|engine| of(group.cell(engine, cap)?)).collect();
                    rows.push(Draft::Compared(name, Compared { samples, better, text }, noted(group, engines, cap)));
                };
                add("achieved".to_owned(), None, format::per_second, &|cell| cell.sample(THROUGHPUT.of));
                for op in group.ops() {
                    for stat in STATS.iter().filter(|stat| ["p50", "p99"].contains(&stat.name)) {
                        let name = format!("{} {}", format::op(op), stat.name);
                        add(name, Some(Better::Lower), format::nanos, &|cell| cell.latency(op, stat.of));
                    }
                }
            }
        }
        tables.push(table(format!("{}: latency by the rate asked for", format::op(&family.name)), engines, rows));
    }
    tables
}

/// Builds tables of operations a second by threads, one for each family of workloads that differ in nothing else.
pub(crate) fn scaling(groups: &[Group<'_>], engines: &[&str]) -> Vec<Table> {
    let base = |group: &Group<'_>| Workload { threads: 0, target_rate: None, ..group.workload.clone() };
    let mut tables = Vec::new();
    for family in distinct(groups.iter().map(base)) {
        let mut members: Vec<&Group<'_>> = groups.iter().filter(|group| base(group) == family).collect();
        members.sort_by_key(|group| group.workload.threads);
        if distinct(members.iter().map(|group| group.workload.threads)).len() < 2 {
            continue;
        }
        let mut caps: Vec<Option<u64>> = members.iter().flat_map(|group| group.caps()).collect();
        caps.sort_by_key(|cap| cap.unwrap_or(u64::MAX));
        caps.dedup();
        let mut rows = Vec::new();
        for cap in caps {
            rows.push(Draft::Title(format::cap(cap)));
            for group in &members {
                let sample = |engine: &&str| group.cell(engine, cap).and_then(|cell| cell.sample(THROUGHPUT.of));
                let samples = engines.iter().map(sample).collect();
                rows.push(Draft::Compared(
                    format!("threads {}, {}", group.workload.threads, format::arrival(group.workload)),
                    Compared { samples, better: THROUGHPUT.better, text: THROUGHPUT.text },
                    noted(group, engines, cap),
                ));
            }
        }
        tables.push(table(format!("{}: throughput by threads", format::op(&family.name)), engines, rows));
    }
    tables
}

fn latency_rows(group: &Group<'_>, engines: &[&str], op: &str, cap: Option<u64>, title: String) -> Vec<Draft> {
    let samples = |of: &dyn Fn(&Curve) -> Option<f64>| -> Vec<_> {
        engines.iter().map(|engine| group.cell(engine, cap).and_then(|cell| cell.latency(op, of))).collect()
    };
    let counts = samples(&|curve| Some(curve.count as f64));
    if counts.iter().all(Option::is_none) {
        return Vec::new();
    }
    let mut rows = vec![Draft::Title(title)];
    for stat in STATS {
        let row = Compared { samples: samples(&stat.of), better: Some(Better::Lower), text: format::nanos };
        rows.push(Draft::Compared(stat.name.to_owned(), row, noted(group, engines, cap)));
    }
    let counts = counts.into_iter().map(|count| {
        let count = count.map(|count| grouped(count.spread().median.round() as u64));
        Figures::plain(count.unwrap_or_else(|| format::MISSING.to_owned()))
    });
    rows.push(Draft::Plain("count".to_owned(), counts.collect()));
    rows
}

/// Returns for each engine whether its repeats have notes.
fn noted(group: &Group<'_>, engines: &[&str], cap: Option<u64>) -> Vec<bool> {
    let noted = |engine: &&str| group.cell(engine, cap).is_some_and(|cell| notes::special(group, cell));
    engines.iter().map(noted).collect()
}

fn table(caption: String, engines: &[&str], drafts: Vec<Draft>) -> Table {
    let judged = compared(
        &drafts
            .iter()
            .filter_map(|draft| if let Draft::Compared(_, row, _) = draft { Some(row) } else { None })
            .collect::<Vec<_>>(),
    );
    let mut judged = judged.into_iter();
    let row = |draft: Draft| match draft {
        Draft::Title(title) => Row::Title(title),
        Draft::Plain(name, cells) => Row::Figures(name, cells),
        Draft::Compared(name, _, noted) => {
            let mut cells = judged.next().unwrap_or_default();
            let marked = cells.iter_mut().zip(noted).filter(|(_, noted)| *noted);
            marked.for_each(|(figures, _)| figures.main.push_str(" †"));
            Row::Figures(name, cells)
        }
    };
    let rows = drafts.into_iter().map(row).collect();
    let head = std::iter::once(String::new()).chain(engines.iter().map(|engine| (*engine).to_owned())).collect();
    Table { caption, head, rows, words: false }
}
