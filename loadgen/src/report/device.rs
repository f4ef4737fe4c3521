//! The machine and its device without any engine, for comparison with every figure.
//!
//! Owns: the section about the machine and its device, and the line about them in every scenario. Must not: compare
//! engines.

use super::cells::{Spread, distinct};
use super::document::{Block, Figures, Row, Section, Table};
use super::format;
use crate::result::{Baseline, Machine, Quantiles, Record};

/// Builds the section about machine and device.
pub(crate) fn section(records: &[Record]) -> Section {
    let machines = distinct(records.iter().map(|record| Machine { loadavg: String::new(), ..record.machine.clone() }));
    let mut blocks = Vec::new();
    if machines.len() > 1 {
        let text =
            format!("{} machines or settings of one: figures of different ones are not comparable.", machines.len());
        blocks.push(Block::Text(text));
    }
    blocks.push(Block::Table(machine_table(&machines, records)));
    let runs: Vec<&Record> = records.iter().collect();
    blocks.push(match baselines(&runs)[..] {
        [] => Block::Text("No device baseline was recorded: these figures say nothing about the device.".to_owned()),
        ref known => Block::Table(baseline_table(known)),
    });
    Section { id: "machine".to_owned(), title: "Machine and device".to_owned(), blocks }
}

/// Describes the device's baseline in one line.
pub(crate) fn line(runs: &[&Record]) -> String {
    let known = baselines(runs);
    let of = |value: fn(&Baseline) -> f64| Spread::of(known.iter().map(|b| Some(value(b))));
    let read = of(|baseline| baseline.random_read_ns.p50 as f64);
    let sync = of(|baseline| baseline.fdatasync_ns.p50 as f64);
    let (Some(read), Some(sync)) = (read, sync) else {
        return "Device baseline: –.".to_owned();
    };
    let direct = if known.iter().all(|baseline| baseline.direct) { "" } else { ", read through the page cache" };
    format!(
        "Device alone: 4 KiB random read p50 {}{direct}, fdatasync of 64 KiB p50 {}.",
        format::nanos(read.median),
        format::nanos(sync.median)
    )
}

/// Returns the latency of one random read, if it was measured past the page cache.
pub(crate) fn random_read_ns(runs: &[&Record]) -> Option<f64> {
    let known = baselines(runs).into_iter().filter(|baseline| baseline.direct);
    Spread::of(known.map(|baseline| Some(baseline.random_read_ns.p50 as f64))).map(|spread| spread.median)
}

fn baselines(runs: &[&Record]) -> Vec<Baseline> {
    distinct(runs.iter().filter_map(|run| run.baseline))
}

fn machine_table(machines: &[Machine], records: &[Record]) -> Table {
    let head = std::iter::once(String::new());
    let head = head.chain((1..=machines.len()).map(|at| match machines.len() {
        1 => "Machine".to_owned(),
        _ => format!("Machine {at}"),
    }));
    let row = |name: &str, of: &dyn Fn(&Machine) -> String| {
        let text = |machine: &Machine| Some(of(machine)).filter(|text| !text.is_empty());
        let cells = machines.iter().map(|m| Figures::plain(text(m).unwrap_or_else(|| format::MISSING.to_owned())));
        Row::Figures(name.to_owned(), cells.collect())
    };
    let load = |machine: &Machine| {
        let same = |record: &&Record| Machine { loadavg: String::new(), ..record.machine.clone() } == *machine;
        let first = |record: &Record| record.machine.loadavg.split_whitespace().next()?.parse::<f64>().ok();
        Spread::of(records.iter().filter(same).map(first)).map_or_else(String::new, |load| {
            let (low, high) = (format::digits(load.min), format::digits(load.max));
            if low == high { low } else { format!("{low} to {high}") }
        })
    };
    let rows = vec![
        row("CPU", &|machine| machine.cpu.clone()),
        row("Cores", &|machine| machine.cores.to_string()),
        row("Memory", &|machine| format::bytes(machine.memory_bytes as f64)),
        row("Kernel", &|machine| machine.kernel.clone()),
        row("File system", &|machine| machine.filesystem.clone()),
        row("Device", &|machine| machine.device.clone()),
        row("Read-ahead", &|machine| machine.readahead_bytes.map_or_else(String::new, |b| format::bytes(b as f64))),
        row("Load average (1 min) before runs", &load),
    ];
    Table { caption: "Where it was measured".to_owned(), head: head.collect(), rows, words: true }
}

fn baseline_table(known: &[Baseline]) -> Table {
    let quantile = |name: &str, of: fn(&Baseline) -> Quantiles| {
        let one = |pick: fn(&Quantiles) -> u64| {
            over_sessions(Spread::of(known.iter().map(|b| Some(pick(&of(b)) as f64))), format::nanos)
        };
        Row::Figures(name.to_owned(), vec![one(|q| q.p50), one(|q| q.p99), one(|q| q.max), Figures::plain("")])
    };
    let rate = |name: &str, of: fn(&Baseline) -> f64| {
        let rate = over_sessions(Spread::of(known.iter().map(|b| Some(of(b)))), format::bytes_per_second);
        let empty = Figures::plain("");
        Row::Figures(name.to_owned(), vec![empty.clone(), empty.clone(), empty, rate])
    };
    let direct = if known.iter().all(|baseline| baseline.direct) {
        "past the page cache"
    } else {
        "NOT always past the page cache: O_DIRECT was refused"
    };
    let rows = vec![
        quantile("4 KiB random read, one at a time", |baseline| baseline.random_read_ns),
        quantile("fdatasync of 64 KiB overwritten", |baseline| baseline.fdatasync_ns),
        rate("Sequential read", |baseline| baseline.sequential_read_bytes_per_s),
        rate("Sequential write, one flush at the end", |baseline| baseline.sequential_write_bytes_per_s),
    ];
    let head = ["", "p50", "p99", "max", "rate"].map(str::to_owned).to_vec();
    let sessions = if known.len() == 1 { "1 session".to_owned() } else { format!("{} sessions", known.len()) };
    Table { caption: format!("The device without any engine, {direct}; {sessions}"), head, rows, words: false }
}

/// Formats a baseline over the sessions. A single session has no spread, and the caption gives their number.
fn over_sessions(spread: Option<Spread>, text: fn(f64) -> String) -> Figures {
    let figures = Figures::of(spread, text);
    let single = spread.is_some_and(|spread| spread.runs == 1);
    Figures { detail: if single { String::new() } else { figures.detail }, ..figures }
}
