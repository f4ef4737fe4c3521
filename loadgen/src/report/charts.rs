//! Lines of a workload: against size, time, cap and percentile.
//!
//! Owns: the choice of the repeat that a line shows, and the thinning of long series. Must not: draw.

use super::cells::{Cell, Group, Spread};
use super::document::{Chart, Distribution, Line, Named};
use super::figures::STATS;
use super::format;
use crate::result::{Sample, Series};

/// Largest number of samples in a line. Neighbours of longer series are merged.
const SAMPLES_MAX: usize = 240;

/// Picks one figure of a sample.
type OfSample = fn(&Sample) -> f64;

/// The figures of a [`Sample`] that lines over time or size show.
const OVER: [(&str, OfSample); 4] = [
    ("avg", |sample| sample.mean_ns),
    ("p50", |sample| sample.p50_ns as f64),
    ("p99", |sample| sample.p99_ns as f64),
    ("max", |sample| sample.max_ns as f64),
];

/// Context of a workload's charts on the page.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    /// Engines in the order of their colours.
    pub(crate) engines: &'a [&'a str],
    /// Latency of one random read of the device.
    pub(crate) device_ns: Option<f64>,
}

impl Place<'_> {
    fn chart(&self, kind: &'static str, x: &'static str, op: &str, title: String) -> Chart {
        let device_ns = self.device_ns.filter(|_| op.contains("read"));
        Chart { kind, title, x, ticks: Vec::new(), device_ns, lines: Vec::new(), curves: Vec::new() }
    }
}

/// Charts latency against `over`: `pairs` (Figure 1 of the reference) or `elapsed_s` (its Figure 2), one chart for each
/// operation and cap.
pub(crate) fn over(group: &Group<'_>, place: &Place<'_>, over: &str) -> Vec<Chart> {
    let (kind, x) = if over == "pairs" { ("size", "pairs in the store") } else { ("time", "elapsed") };
    let line = |engine, cell: &Cell<'_>, op: &str| {
        let samples = thinned(cell.middle_series(op, over)?);
        let values = |of: OfSample| samples.iter().map(|s| (s.count > 0).then(|| tenths(of(s)))).collect();
        let y = OVER.into_iter().map(|(name, of)| (name, values(of))).collect();
        Some(Line { engine, x: samples.iter().map(|sample| sample.at).collect(), y, ranges: Named::new() })
    };
    per_op_and_cap(group, place, &group.series_ops(over), |op, title, cells| {
        let lines = cells.filter_map(|(engine, cell)| line(engine, cell, op)).collect();
        Chart { lines, ..place.chart(kind, x, op, title) }
    })
}

/// Charts percentile curves by nines.
pub(crate) fn nines(group: &Group<'_>, place: &Place<'_>) -> Vec<Chart> {
    let curve = |engine, cell: &Cell<'_>, op: &str| {
        let curve = cell.middle_curve(op)?;
        let (count, mean_ns, max_ns) = (curve.count, tenths(curve.mean_ns), curve.quantiles_ns.max);
        Some(Distribution { engine, count, mean_ns, max_ns, curve: curve.curve.clone() })
    };
    per_op_and_cap(group, place, &group.ops(), |op, title, cells| {
        let curves = cells.filter_map(|(engine, cell)| curve(engine, cell, op)).collect();
        Chart { curves, ..place.chart("nines", "percentile", op, title) }
    })
}

/// Charts medians over the repeats against the cap, one chart for each operation. Empty with only one cap.
pub(crate) fn caps(group: &Group<'_>, place: &Place<'_>) -> Vec<Chart> {
    let caps = group.caps();
    if caps.len() < 2 {
        return Vec::new();
    }
    let line = |(engine, name): (usize, &&str), op: &str| {
        let x = (0..caps.len()).map(|at| at as f64).collect();
        let mut line = Line { engine, x, y: Named::new(), ranges: Named::new() };
        for stat in STATS.iter().filter(|stat| OVER.iter().any(|(name, _)| *name == stat.name)) {
            let at = |cap: &Option<u64>| Some(group.cell(name, *cap)?.latency(op, stat.of)?.spread());
            let spreads: Vec<Option<Spread>> = caps.iter().map(at).collect();
            let range = |spread: Spread| (spread.runs > 1).then_some((spread.min, spread.max));
            line.y.insert(stat.name, spreads.iter().map(|spread| spread.map(|s| tenths(s.median))).collect());
            line.ranges.insert(stat.name, spreads.into_iter().map(|spread| range(spread?)).collect());
        }
        line.y.values().flatten().any(Option::is_some).then_some(line)
    };
    let chart = |op: &&str| {
        let title = format!("{} by memory cap, median and range of the repeats", format::op(op));
        let ticks = caps.iter().map(|cap| cap.map_or("none".to_owned(), |cap| format::bytes(cap as f64))).collect();
        let lines = place.engines.iter().enumerate().filter_map(|engine| line(engine, op)).collect();
        Chart { ticks, lines, ..place.chart("caps", "memory cap", op, title) }
    };
    group.ops().iter().map(chart).collect()
}

/// Makes a chart for each operation under each cap, from the cells of its engines. Leaves out charts without a line.
fn per_op_and_cap<'g>(
    group: &'g Group<'_>,
    place: &Place<'_>,
    ops: &[&str],
    chart: impl Fn(&str, String, &mut dyn Iterator<Item = (usize, &'g Cell<'g>)>) -> Chart,
) -> Vec<Chart> {
    let caps = group.caps();
    let of = ops.iter().flat_map(|op| caps.iter().map(move |cap| (*op, *cap)));
    let charts = of.map(|(op, cap)| {
        let engines = place.engines.iter().enumerate();
        let mut cells = engines.filter_map(|(engine, name)| Some((engine, group.cell(name, cap)?)));
        chart(op, format!("{}, {}", format::op(op), format::cap(cap)), &mut cells)
    });
    charts.filter(|chart| !chart.lines.is_empty() || !chart.curves.is_empty()).collect()
}

/// Merges neighbours until few enough are left: means by their counts, the middle median, the largest p99 and max.
fn thinned(series: &Series) -> Vec<Sample> {
    let together = series.samples.len().div_ceil(SAMPLES_MAX).max(1);
    series.samples.chunks(together).filter_map(merged).collect()
}

fn merged(samples: &[Sample]) -> Option<Sample> {
    let last = samples.last()?;
    let count = samples.iter().map(|sample| sample.count).sum();
    let total: f64 = samples.iter().map(|sample| sample.mean_ns * sample.count as f64).sum();
    let mut medians: Vec<u64> = samples.iter().filter(|sample| sample.count > 0).map(|sample| sample.p50_ns).collect();
    medians.sort_unstable();
    Some(Sample {
        at: last.at,
        count,
        mean_ns: if count > 0 { total / count as f64 } else { 0.0 },
        p50_ns: medians.get(medians.len() / 2).copied().unwrap_or(0),
        p99_ns: samples.iter().map(|sample| sample.p99_ns).max()?,
        max_ns: samples.iter().map(|sample| sample.max_ns).max()?,
    })
}

/// Rounds to a tenth. The page shows three digits.
fn tenths(nanos: f64) -> f64 {
    (nanos * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_samples_keep_the_worst() {
        let sample = |at: f64, count, mean_ns| Sample { at, count, mean_ns, p50_ns: 5, p99_ns: at as u64, max_ns: 7 };
        let whole = merged(&[sample(1.0, 1, 10.0), sample(2.0, 3, 20.0)]).unwrap();
        assert_eq!((whole.at, whole.count, whole.mean_ns, whole.p99_ns), (2.0, 4, 17.5, 2));
    }
}
