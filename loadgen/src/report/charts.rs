//! Lines and bars of a workload: against size, time, cap and percentile, and memory against the cap.
//!
//! Owns: the choice of the repeat that a line shows, and the thinning of long series. Must not: draw.

use super::cells::{Cell, Group, Spread};
use super::document::{Bar, BarGroup, Bars, Chart, Figures, Line, Named};
use super::figures::{Figure, STATS};
use super::format;
use crate::result::{Curve, Memory, Sample, Series};

/// Largest number of samples in a line. Neighbours of longer series are merged.
const SAMPLES_MAX: usize = 240;

/// Names of the figures of a [`Sample`], as lines over time or size show them.
const OVER: [&str; 4] = ["avg", "p50", "p99", "max"];

/// Context of a workload's charts on the page.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    /// Prefix of the charts' ids.
    pub(crate) id: String,
    /// Engines in the order of their colours.
    pub(crate) engines: &'a [&'a str],
    /// Latency of one random read of the device, in µs.
    pub(crate) device_us: Option<f64>,
}

/// Charts latency against `over`: `pairs` (Figure 1 of the reference) or `elapsed_s` (its Figure 2), one chart for each
/// operation and cap.
pub(crate) fn over(group: &Group<'_>, place: &Place<'_>, over: &str) -> Vec<Chart> {
    let (kind, x) = if over == "pairs" { ("size", "pairs in the store") } else { ("time", "elapsed, s") };
    per_op_and_cap(group, place, kind, x, &group.series_ops(over), |cell, op| {
        let samples = thinned(cell.middle_series(op, over)?);
        let value = |of: fn(&Sample) -> f64| samples.iter().map(|s| (s.count > 0).then(|| micros(of(s)))).collect();
        let y = [
            value(|sample| sample.mean_ns),
            value(|sample| sample.p50_ns as f64),
            value(|sample| sample.p99_ns as f64),
            value(|sample| sample.max_ns as f64),
        ];
        Some((samples.iter().map(|sample| sample.at).collect(), OVER.into_iter().zip(y).collect()))
    })
}

/// Charts percentile curves by nines.
pub(crate) fn nines(group: &Group<'_>, place: &Place<'_>) -> Vec<Chart> {
    per_op_and_cap(group, place, "nines", "percentile", &group.ops(), |cell, op| {
        let (x, y) = by_nines(cell.middle_curve(op)?);
        Some((x, vec![("latency", y)]))
    })
}

/// Charts medians over the repeats against the cap, one chart for each operation. Empty with only one cap.
pub(crate) fn caps(group: &Group<'_>, place: &Place<'_>) -> Vec<Chart> {
    let caps = group.caps();
    if caps.len() < 2 {
        return Vec::new();
    }
    let line = |engine: usize, op: &str| {
        let mut line = Line { engine, x: (0..caps.len()).map(|at| at as f64).collect(), y: vec![], ranges: vec![] };
        for stat in STATS.iter().filter(|stat| OVER.contains(&stat.name)) {
            let at =
                |cap: &Option<u64>| Some(group.cell(place.engines.get(engine)?, *cap)?.latency(op, stat.of)?.spread());
            let spreads: Vec<Option<Spread>> = caps.iter().map(at).collect();
            let range = |spread: Spread| (spread.runs > 1).then(|| (micros(spread.min), micros(spread.max)));
            line.y.push((stat.name, spreads.iter().map(|spread| spread.map(|s| micros(s.median))).collect()));
            line.ranges.push((stat.name, spreads.into_iter().map(|spread| range(spread?)).collect()));
        }
        line
    };
    let chart = |(at, op): (usize, &&str)| {
        let lines = (0..place.engines.len()).map(|engine| line(engine, op));
        Chart {
            id: format!("{}-caps-{at}", place.id),
            kind: "caps",
            title: format!("{} by memory cap, median and range of the repeats", format::op(op)),
            x: "memory cap",
            share: format!("{}-caps-{at}", place.id),
            ticks: caps.iter().map(|cap| cap.map_or("none".to_owned(), |cap| format::bytes(cap as f64))).collect(),
            device_us: place.device_us.filter(|_| op.contains("read")),
            lines: lines.filter(|line| line.y.iter().any(|(_, y)| y.iter().any(Option::is_some))).collect(),
        }
    };
    group.ops().iter().enumerate().map(chart).collect()
}

/// Shows a figure as bars, under every cap; `None` if no engine has it.
pub(crate) fn bars(group: &Group<'_>, place: &Place<'_>, figure: &Figure, title: &str) -> Option<Bars> {
    let of_cap = |cap: Option<u64>| {
        let bar = |(engine, name): (usize, &&str)| {
            let spread = group.cell(name, cap)?.spread(figure.of)?;
            let text = Figures::of(Some(spread), figure.text);
            let range = (spread.runs > 1).then_some((spread.min, spread.max));
            Some(Bar { engine, name: (*name).to_owned(), parts: vec![spread.median], mark: None, range, text })
        };
        let bars = place.engines.iter().enumerate().filter_map(bar).collect();
        BarGroup { title: format::cap(cap), limit: None, bars }
    };
    filled(Bars { title: title.to_owned(), parts: Vec::new(), groups: group.caps().into_iter().map(of_cap).collect() })
}

/// Shows memory at the moment when most of it was in use, against the cap.
pub(crate) fn memory(group: &Group<'_>, place: &Place<'_>) -> Option<Bars> {
    let of_cap = |cap: Option<u64>| {
        let bars =
            place.engines.iter().enumerate().filter_map(|(engine, name)| memory_bar(group.cell(name, cap)?, engine));
        BarGroup { title: format::cap(cap), limit: cap.map(|cap| cap as f64), bars: bars.collect() }
    };
    filled(Bars {
        title: "Memory when most was charged: page cache, everything else charged, and RSS as a mark".to_owned(),
        parts: vec!["page cache", "other charged memory"],
        groups: group.caps().into_iter().map(of_cap).collect(),
    })
}

/// Shows the memory of the repeat with the median peak.
fn memory_bar(cell: &Cell<'_>, engine: usize) -> Option<Bar> {
    let most = |at: &&Memory| at.charged_bytes.unwrap_or(at.rss_bytes);
    let mut peaks: Vec<&Memory> = cell.runs.iter().filter_map(|run| run.memory.iter().max_by_key(most)).collect();
    peaks.sort_by_key(most);
    let at = *peaks.get(peaks.len().checked_sub(1)? / 2)?;
    let (low, high) = (most(peaks.first()?), most(peaks.last()?));
    let rss = format!("RSS {}", format::bytes(at.rss_bytes as f64));
    let (parts, mut text) = match (at.page_cache_bytes, at.charged_bytes) {
        (Some(cache), Some(charged)) => {
            let text = format!("page cache {}, {rss}", format::bytes(cache as f64));
            let parts = vec![cache.min(charged) as f64, charged.saturating_sub(cache) as f64];
            (parts, Figures { main: format::bytes(charged as f64), detail: text, ahead: None })
        }
        (_, Some(charged)) => {
            let main = format::bytes(charged as f64);
            (
                vec![0.0, charged as f64],
                Figures { main, detail: format!("page cache {}, {rss}", format::MISSING), ahead: None },
            )
        }
        _ => {
            (Vec::new(), Figures { main: format::MISSING.to_owned(), detail: format!("{rss}, charged –"), ahead: None })
        }
    };
    if peaks.len() == 1 {
        text.detail.push_str(", 1 run");
    }
    let range = (peaks.len() > 1 && !parts.is_empty()).then_some((low as f64, high as f64));
    Some(Bar { engine, name: cell.engine.to_owned(), parts, mark: Some(at.rss_bytes as f64), range, text })
}

fn filled(mut bars: Bars) -> Option<Bars> {
    bars.groups.retain(|group| !group.bars.is_empty());
    (!bars.groups.is_empty()).then_some(bars)
}

/// The x and the named y values of a line.
type Points = (Vec<f64>, Named<f64>);

fn per_op_and_cap<'a>(
    group: &Group<'a>,
    place: &Place<'_>,
    kind: &'static str,
    x: &'static str,
    ops: &[&str],
    points: impl Fn(&Cell<'a>, &str) -> Option<Points>,
) -> Vec<Chart> {
    let mut charts = Vec::new();
    for (at, op) in ops.iter().enumerate() {
        for cap in group.caps() {
            let line = |(engine, name): (usize, &&str)| {
                let (x, y) = points(group.cell(name, cap)?, op)?;
                Some(Line { engine, x, y, ranges: Vec::new() })
            };
            let lines: Vec<Line> = place.engines.iter().enumerate().filter_map(line).collect();
            if lines.is_empty() {
                continue;
            }
            charts.push(Chart {
                id: format!("{}-{kind}-{}", place.id, charts.len()),
                kind,
                title: format!("{}, {}", format::op(op), format::cap(cap)),
                x,
                share: format!("{}-{kind}-{at}", place.id),
                ticks: Vec::new(),
                device_us: place.device_us.filter(|_| op.contains("read")),
                lines,
            });
        }
    }
    charts
}

/// Returns a percentile curve with `x` as the number of nines: 0 for 0 %, 1 for 90 %, 2 for 99 %. The maximum of n
/// values stands at 1 - 1/n.
fn by_nines(curve: &Curve) -> (Vec<f64>, Vec<Option<f64>>) {
    let end = (curve.count.max(1) as f64).log10();
    let mut points: Vec<(f64, u64)> = Vec::with_capacity(curve.curve.len());
    for (share, nanos) in &curve.curve {
        let nines = if *share < 1.0 { -(1.0 - share.max(0.0)).log10() } else { f64::INFINITY };
        let x = rounded(nines.min(end));
        match points.last_mut() {
            Some(last) if last.0 >= x => last.1 = last.1.max(*nanos),
            _ => points.push((x, *nanos)),
        }
    }
    points.into_iter().map(|(x, nanos)| (x, (nanos > 0).then(|| micros(nanos as f64)))).unzip()
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

/// Converts nanoseconds to microseconds with the digits that a line needs.
fn micros(nanos: f64) -> f64 {
    rounded(nanos / 1000.0)
}

/// Rounds to six significant digits. The page shows three, and rounding twice must not give others than the tables do.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Quantiles;

    #[test]
    fn the_maximum_of_n_values_stands_at_one_in_n() {
        let quantiles_ns = Quantiles { min: 1, p50: 1, p90: 1, p99: 1, p999: 1, p9999: 1, max: 9_000 };
        let curve = vec![(0.0, 1_000), (0.9, 2_000), (0.99, 3_000), (0.9999, 8_000), (1.0, 9_000)];
        let curve = Curve { op: "write".into(), count: 1_000, mean_ns: 1.0, quantiles_ns, curve };
        let (x, y) = by_nines(&curve);
        assert_eq!(x, [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(y, [Some(1.0), Some(2.0), Some(3.0), Some(9.0)]);
    }

    #[test]
    fn merged_samples_keep_the_worst() {
        let sample = |at: f64, count, mean_ns| Sample { at, count, mean_ns, p50_ns: 5, p99_ns: at as u64, max_ns: 7 };
        let whole = merged(&[sample(1.0, 1, 10.0), sample(2.0, 3, 20.0)]).unwrap();
        assert_eq!((whole.at, whole.count, whole.mean_ns, whole.p99_ns), (2.0, 4, 17.5, 2));
    }
}
