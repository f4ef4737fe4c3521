//! Counts by engine of everything that the torture did, and their table.
//!
//! Does no I/O.

use std::collections::BTreeMap;
use std::fmt;

use crate::column::Column;
use crate::disk::FaultKind;

/// Counts for one engine, over all of its lives.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Number of stores that were begun.
    pub lives: u64,
    /// Agents that were killed, by their activity at that time.
    pub kills: BTreeMap<&'static str, u64>,
    /// Power losses, by the agent's activity at that time.
    pub power_losses: BTreeMap<&'static str, u64>,
    /// Operations of the disk that a fault has hit, by kind of fault.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Number of acknowledged batches and chunks.
    pub commits: u64,
    /// Number of gets, puts and deletes.
    pub operations: u64,
    /// Number of openings after which the store matched the model. The first opening of a store is not counted.
    pub reopenings: u64,
    /// Acknowledged buffered batches that a power loss has taken, as it may.
    pub lost_batches: u64,
    /// Number of times that writing went on by itself after a refusal.
    pub recovered_itself: u64,
    /// Number of times that writing went on after the store was opened again.
    pub recovered_reopened: u64,
    /// Processes that a read error of a mapping has ended by SIGBUS.
    pub bus_errors: u64,
    /// Number of times that settling a store merged several groups of segments.
    pub groups: u64,
    /// Stores that RocksDB refuses after a load whose manifest could not be flushed: see RELIABILITY.md.
    pub lost_loads: u64,
}

impl Totals {
    /// Adds the counts of another life.
    pub fn add(&mut self, other: &Self) {
        self.lives += other.lives;
        other.kills.iter().for_each(|(what, count)| *self.kills.entry(what).or_default() += count);
        other.power_losses.iter().for_each(|(what, count)| *self.power_losses.entry(what).or_default() += count);
        other.faults.iter().for_each(|(kind, count)| *self.faults.entry(*kind).or_default() += count);
        self.commits += other.commits;
        self.operations += other.operations;
        self.reopenings += other.reopenings;
        self.lost_batches += other.lost_batches;
        self.recovered_itself += other.recovered_itself;
        self.recovered_reopened += other.recovered_reopened;
        self.bus_errors += other.bus_errors;
        self.groups += other.groups;
        self.lost_loads += other.lost_loads;
    }
}

/// Table of all engines' counts, with one column per engine.
pub struct Table<'a>(pub &'a BTreeMap<Column, Totals>);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:24}", "")?;
        self.0.keys().try_for_each(|column| write!(f, "{column:>14}"))?;
        let row = |f: &mut fmt::Formatter<'_>, name: &str, figure: &dyn Fn(&Totals) -> u64| {
            write!(f, "\n{name:24}")?;
            self.0.values().try_for_each(|totals| write!(f, "{:>14}", figure(totals)))
        };
        row(f, "stores", &|totals| totals.lives)?;
        row(f, "killed", &|totals| totals.kills.values().sum())?;
        let places: std::collections::BTreeSet<&str> =
            self.0.values().flat_map(|totals| totals.kills.keys().chain(totals.power_losses.keys())).copied().collect();
        for place in &places {
            row(f, &format!("  {place}"), &|totals| totals.kills.get(place).copied().unwrap_or(0))?;
        }
        row(f, "power lost", &|totals| totals.power_losses.values().sum())?;
        for place in &places {
            row(f, &format!("  {place}"), &|totals| totals.power_losses.get(place).copied().unwrap_or(0))?;
        }
        for kind in FaultKind::ALL {
            row(f, &format!("fault {}", kind.as_str()), &|totals| totals.faults.get(&kind).copied().unwrap_or(0))?;
        }
        row(f, "commits acknowledged", &|totals| totals.commits)?;
        row(f, "operations", &|totals| totals.operations)?;
        row(f, "reopenings survived", &|totals| totals.reopenings)?;
        row(f, "buffered commits lost", &|totals| totals.lost_batches)?;
        row(f, "went on by itself", &|totals| totals.recovered_itself)?;
        row(f, "went on when reopened", &|totals| totals.recovered_reopened)?;
        row(f, "ended by SIGBUS", &|totals| totals.bus_errors)?;
        row(f, "settled in groups", &|totals| totals.groups)?;
        row(f, "lost by a failed load", &|totals| totals.lost_loads)
    }
}
