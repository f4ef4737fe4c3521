//! What was done, by engine, and the table of it.
//!
//! Does no I/O.

use std::collections::BTreeMap;
use std::fmt;

use crate::column::Column;
use crate::disk::FaultKind;

/// What was done to one engine.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Stores that were begun.
    pub lives: u64,
    /// Agents that were killed, by what they were doing.
    pub kills: BTreeMap<&'static str, u64>,
    /// Losses of power, by what the agent was doing.
    pub power_losses: BTreeMap<&'static str, u64>,
    /// Operations of the disk that a fault has hit.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Batches and chunks that were acknowledged.
    pub commits: u64,
    /// Gets, puts and deletes.
    pub operations: u64,
    /// Openings after which everything was there.
    pub reopenings: u64,
    /// Acknowledged buffered batches that a loss of power has taken, as it may.
    pub lost_batches: u64,
    /// Times that writing went on by itself after it had been refused.
    pub recovered_itself: u64,
    /// Times that it went on after opening again.
    pub recovered_reopened: u64,
    /// Processes that a read error of a mapping has ended by SIGBUS.
    pub bus_errors: u64,
    /// Stores that RocksDB refuses after a load whose manifest could not be flushed; see RELIABILITY.md.
    pub lost_loads: u64,
}

impl Totals {
    /// Adds what was done elsewhere.
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
        self.lost_loads += other.lost_loads;
    }
}

/// All engines' totals as a table, a column an engine.
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
        row(f, "lost by a failed load", &|totals| totals.lost_loads)
    }
}
