//! Sorts records into comparable groups: scenario, workload, cap, engine, and the repeats of that cell.
//!
//! Owns: which runs are repeats of each other, and the median with its spread. Must not: format.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::result::{Curve, Record, Series, Workload};

/// The repeats of one engine under one cap.
#[derive(Debug)]
pub(crate) struct Cell<'a> {
    pub(crate) engine: &'a str,
    /// Memory cap in bytes. `None`: not capped.
    pub(crate) cap: Option<u64>,
    /// State of the store that the group is about. A run that began in another one has no figures.
    pub(crate) state: &'a str,
    /// The repeats, at least one.
    pub(crate) runs: Vec<&'a Record>,
}

/// One workload, with every engine and cap that it ran with.
#[derive(Debug)]
pub(crate) struct Group<'a> {
    pub(crate) workload: &'a Workload,
    /// Whether the runs began in the state that was asked for.
    is_as_asked: bool,
    /// Cells in order of cap, then of first appearance.
    pub(crate) cells: Vec<Cell<'a>>,
}

/// The workloads of one scenario.
#[derive(Debug)]
pub(crate) struct Scenario<'a> {
    pub(crate) name: &'a str,
    /// Groups in order of first appearance.
    pub(crate) groups: Vec<Group<'a>>,
}

/// Median and range of a figure over the repeats of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Middle value; of an even number, the mean of the middle two.
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// Number of repeats that have the figure.
    pub runs: usize,
}

/// Largest step of a processor's clock: AMD's counter moves every 10 ns.
const CLOCK_STEP_NS: f64 = 10.0;

/// A figure of each repeat of a cell that has it, at least one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    /// Number of the repeat, and the figure.
    pub(crate) values: Vec<(u32, f64)>,
    /// Number of the cell's runs, with or without the figure.
    runs: usize,
    /// Smallest difference between two values; 0 if they have no steps.
    pub(crate) step: f64,
}

impl Sample {
    pub(crate) fn new(values: Vec<(u32, f64)>, runs: usize) -> Self {
        Self { values, runs, step: 0.0 }
    }

    /// Returns the figure of one repeat; `None` if it has none.
    pub(crate) fn of_repeat(&self, repeat: u32) -> Option<f64> {
        self.values.iter().find(|(known, _)| *known == repeat).map(|(_, value)| *value)
    }

    /// Whether each value has a number of its own.
    pub(crate) fn has_numbers(&self) -> bool {
        distinct(self.values.iter().map(|(repeat, _)| *repeat)).len() == self.values.len()
    }

    /// Counts repeats that the other cells have as some that lack the figure.
    pub(crate) fn expect(&mut self, runs: usize) {
        self.runs = self.runs.max(runs);
    }

    /// Returns the number of the cell's runs that lack the figure, as one lacks it that was killed.
    pub(crate) fn missing(&self) -> usize {
        self.runs - self.values.len()
    }

    /// Computes median and range of the values.
    pub(crate) fn spread(&self) -> Spread {
        spread(self.values.iter().map(|(_, value)| *value).collect())
    }
}

impl Spread {
    /// Computes the spread of the values that are present and finite; `None` without any.
    pub(crate) fn of(values: impl IntoIterator<Item = Option<f64>>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().flatten().filter(|value| value.is_finite()).collect();
        (!values.is_empty()).then(|| spread(values))
    }
}

/// Computes median and range of at least one value.
fn spread(mut values: Vec<f64>) -> Spread {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let median =
        if values.len().is_multiple_of(2) { f64::midpoint(values[middle - 1], values[middle]) } else { values[middle] };
    Spread { median, min: values[0], max: values[values.len() - 1], runs: values.len() }
}

impl<'a> Cell<'a> {
    /// Collects a figure from each repeat; `None` if no repeat has it.
    pub(crate) fn sample(&self, of: impl Fn(&Record) -> Option<f64>) -> Option<Sample> {
        let figure = |run: &&Record| Some((run.repeat, of(run).filter(|value| value.is_finite())?));
        let as_asked = self.runs.iter().filter(|run| run.workload.state == self.state);
        let values: Vec<(u32, f64)> = as_asked.filter_map(figure).collect();
        (!values.is_empty()).then(|| Sample::new(values, self.runs.len()))
    }

    /// Collects a figure of one operation's latencies from each repeat. `None` if a repeat has too few values for it: a
    /// repeat that stalled has few, and without it the figure would be that of the lucky ones.
    pub(crate) fn latency(&self, op: &str, of: impl Fn(&Curve) -> Option<f64>) -> Option<Sample> {
        let has_too_few = |run: &&Record| curve(run, op).is_some_and(|curve| of(curve).is_none());
        if self.runs.iter().any(has_too_few) {
            return None;
        }
        let sample = self.sample(|run| curve(run, op).and_then(&of))?;
        // Quantiles are readings of the clock, in whole nanoseconds, and means are not.
        let is_whole = sample.values.iter().all(|(_, value)| value.fract() == 0.0);
        Some(Sample { step: if is_whole { CLOCK_STEP_NS } else { 0.0 }, ..sample })
    }

    /// Returns the notes of the runs that were killed, one a run.
    pub(crate) fn killed(&self) -> Vec<&'a str> {
        self.runs.iter().filter_map(|run| run.killed()).collect()
    }

    /// Returns the distinct options of the runs. A run that was killed has none.
    pub(crate) fn options(&self) -> Vec<&'a BTreeMap<String, String>> {
        distinct(self.runs.iter().map(|run| &run.engine_options).filter(|options| !options.is_empty()))
    }

    /// Returns the states of the runs that began in another one than the group's.
    pub(crate) fn other_states(&self) -> Vec<&'a str> {
        let states = self.runs.iter().map(|run| run.workload.state.as_str());
        states.filter(|state| *state != self.state).collect()
    }

    /// Returns the curve of the repeat in the middle, whose mean is the median of the means; the lower of two.
    pub(crate) fn middle_curve(&self, op: &str) -> Option<&'a Curve> {
        let mut curves: Vec<&'a Curve> = self.runs.iter().filter_map(|run| curve(run, op)).collect();
        curves.sort_by(|a, b| a.mean_ns.total_cmp(&b.mean_ns));
        curves.get(curves.len().checked_sub(1)? / 2).copied()
    }

    /// Returns the series of the repeat in the middle, by the mean of all its operations.
    pub(crate) fn middle_series(&self, op: &str, over: &str) -> Option<&'a Series> {
        let mut series: Vec<&'a Series> = self.runs.iter().filter_map(|run| series_of(run, op, over)).collect();
        series.sort_by(|a, b| mean(a).total_cmp(&mean(b)));
        series.get(series.len().checked_sub(1)? / 2).copied()
    }
}

impl<'a> Group<'a> {
    /// Returns the caps from small to large, with no cap last.
    pub(crate) fn caps(&self) -> Vec<Option<u64>> {
        let mut caps: Vec<Option<u64>> = self.cells.iter().map(|cell| cell.cap).collect();
        caps.sort_by_key(|cap| cap.unwrap_or(u64::MAX));
        caps.dedup();
        caps
    }

    /// Returns the cell of an engine under a cap.
    pub(crate) fn cell(&self, engine: &str, cap: Option<u64>) -> Option<&Cell<'a>> {
        self.cells.iter().find(|cell| cell.engine == engine && cell.cap == cap)
    }

    /// Iterates over the runs of all cells.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &'a Record> + '_ {
        self.cells.iter().flat_map(|cell| cell.runs.iter().copied())
    }

    /// Returns the operations with a curve, in order of first appearance.
    pub(crate) fn ops(&self) -> Vec<&'a str> {
        distinct(self.runs().flat_map(|run| run.curves.iter().map(|curve| curve.op.as_str())))
    }

    /// Returns the operations with a series over time or size.
    pub(crate) fn series_ops(&self, over: &str) -> Vec<&'a str> {
        let of = |run: &'a Record| run.series.iter().filter(|series| series.over == over);
        distinct(self.runs().flat_map(of).map(|series| series.op.as_str()))
    }
}

/// Returns the engines in order of first appearance. The order decides their columns, and their colours on the whole
/// page.
pub(crate) fn engines(records: &[Record]) -> Vec<&str> {
    distinct(records.iter().map(|record| record.engine.as_str()))
}

/// Groups the records by scenario, workload, cap and engine. A run that began in another state than the one asked for is a
/// repeat of the cell that asked for it, if another run of the workload began in that state. Otherwise such runs are a group of
/// their own.
pub(crate) fn scenarios(records: &[Record]) -> Vec<Scenario<'_>> {
    let mut scenarios: Vec<Scenario<'_>> = Vec::new();
    let (as_asked, otherwise): (Vec<_>, Vec<_>) = records.iter().partition(|record| record.state_asked.is_none());
    for record in as_asked.into_iter().chain(otherwise) {
        let at = position(
            &mut scenarios,
            |known| known.name == record.scenario,
            || Scenario { name: &record.scenario, groups: Vec::new() },
        );
        let groups = &mut scenarios[at].groups;
        let asked =
            record.state_asked.as_ref().map(|state| Workload { state: state.clone(), ..record.workload.clone() });
        let found = groups.iter().position(|known| known.is_as_asked && Some(known.workload) == asked.as_ref());
        let is_as_asked = asked.is_none();
        let at = found.unwrap_or_else(|| {
            position(
                groups,
                |known| known.is_as_asked == is_as_asked && *known.workload == record.workload,
                || Group { workload: &record.workload, is_as_asked, cells: Vec::new() },
            )
        });
        let Group { workload, cells, .. } = &mut groups[at];
        let state = workload.state.as_str();
        let same = |known: &Cell<'_>| known.engine == record.engine && known.cap == record.cap_bytes;
        let at =
            position(cells, same, || Cell { engine: &record.engine, cap: record.cap_bytes, state, runs: Vec::new() });
        cells[at].runs.push(record);
    }
    for group in scenarios.iter_mut().flat_map(|scenario| &mut scenario.groups) {
        group.cells.sort_by_key(|cell| cell.cap.unwrap_or(u64::MAX));
    }
    scenarios
}

/// Returns the distinct values in order of first appearance.
pub(crate) fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut out = Vec::new();
    for value in values {
        if !out.contains(&value) {
            out.push(value);
        }
    }
    out
}

/// Returns the curve of an operation, if it has values.
pub(crate) fn curve<'a>(run: &'a Record, op: &str) -> Option<&'a Curve> {
    run.curves.iter().find(|curve| curve.op == op && curve.count > 0)
}

fn series_of<'a>(run: &'a Record, op: &str, over: &str) -> Option<&'a Series> {
    run.series.iter().find(|series| series.op == op && series.over == over && !series.samples.is_empty())
}

fn mean(series: &Series) -> f64 {
    let count: f64 = series.samples.iter().map(|sample| sample.count as f64).sum();
    let total: f64 = series.samples.iter().map(|sample| sample.mean_ns * sample.count as f64).sum();
    total / count.max(1.0)
}

fn position<T>(known: &mut Vec<T>, same: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> usize {
    known.iter().position(same).unwrap_or_else(|| {
        known.push(new());
        known.len() - 1
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_what_is_there() {
        let spread = Spread::of([Some(3.0), None, Some(1.0), Some(8.0)]).unwrap();
        assert_eq!(spread, Spread { median: 3.0, min: 1.0, max: 8.0, runs: 3 });
        assert_eq!(Spread::of([Some(1.0), Some(2.0)]).unwrap().median, 1.5);
        assert_eq!(Spread::of([None, Some(f64::NAN)]), None);
    }
}
