//! The contents of a report, before they become a page or markdown.
//!
//! Owns: the blocks of which both are made. Must not: escape, because every text here is plain.

use std::collections::BTreeMap;

use serde::Serialize;

use super::cells::{Sample, Spread};
use super::figures::Better;
use super::format;
use super::judge::{self, Beside, Family, Test, Verdict};

#[derive(Debug, Serialize)]
pub(crate) struct Document {
    pub(crate) title: String,
    /// Summary of the runs in one line.
    pub(crate) lead: String,
    /// Engines in the order of their colours.
    pub(crate) engines: Vec<String>,
    /// Sections in order, from the summary to how to reproduce.
    pub(crate) sections: Vec<Section>,
}

/// A section, to which the page can link.
#[derive(Debug, Serialize)]
pub(crate) struct Section {
    /// Id of the section, unique on the page.
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) blocks: Vec<Block>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Block {
    Text(String),
    /// Several texts of the same kind.
    List(Vec<String>),
    /// Several texts of the same kind, folded under one line that describes them.
    Folded(String, Vec<String>),
    /// Blocks of any kind, folded under one line that describes them.
    Fold(String, Vec<Block>),
    /// Text to be copied as it is.
    Code(String),
    Table(Table),
    /// Lines in several charts side by side. The page draws them; markdown has only the tables.
    Charts(Vec<Chart>),
}

/// Figures, with engines as columns.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    /// Description of the figures, with their unit.
    pub(crate) caption: String,
    /// Heads of the columns. The first is the column of row names.
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Row>,
    /// Whether the cells are words to read, and not figures to compare.
    pub(crate) words: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Row {
    /// A heading across the rows that follow.
    Title(String),
    /// A name, and one figure for each column.
    Figures(String, Vec<Figures>),
}

/// Text of one cell of a table.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Figures {
    /// Median, or the cell's only text.
    pub(crate) main: String,
    /// Spread of the repeats, and ratio to the best.
    pub(crate) detail: String,
    /// How many times better than the next one the engine is, if it is ahead of all others of the row.
    pub(crate) ahead: Option<f64>,
}

/// Latencies of one operation, one line for each engine.
#[derive(Debug, Serialize)]
pub(crate) struct Chart {
    /// Kind of the x axis: `time`, `size`, `nines` or `caps`.
    pub(crate) kind: &'static str,
    /// Operation and cap, as the title.
    pub(crate) title: String,
    /// Label of the x axis, with its unit.
    pub(crate) x: &'static str,
    /// Names of the x positions of `caps`.
    pub(crate) ticks: Vec<String>,
    /// Latency of the device's random read, for comparison.
    pub(crate) device_ns: Option<f64>,
    /// Lines of all kinds but `nines`.
    pub(crate) lines: Vec<Line>,
    /// Percentile curves of `nines`.
    pub(crate) curves: Vec<Distribution>,
}

/// Values by the name of the figure, one for each x.
pub(crate) type Named<T> = BTreeMap<&'static str, Vec<Option<T>>>;

#[derive(Debug, Serialize)]
pub(crate) struct Line {
    /// Index of the engine, which decides the colour.
    pub(crate) engine: usize,
    /// Positions on the x axis, ascending and distinct.
    pub(crate) x: Vec<f64>,
    /// Latencies in ns by the name of the figure, `null` where there is none.
    pub(crate) y: Named<f64>,
    /// Smallest and largest repeat for each value, if the line shows medians.
    pub(crate) ranges: Named<(f64, f64)>,
}

/// A percentile curve.
#[derive(Debug, Serialize)]
pub(crate) struct Distribution {
    /// Index of the engine, which decides the colour.
    pub(crate) engine: usize,
    pub(crate) count: u64,
    pub(crate) mean_ns: f64,
    pub(crate) max_ns: u64,
    /// Shares of the values, ascending, and the latency of each.
    pub(crate) curve: Vec<(f64, u64)>,
}

impl Figures {
    /// Makes a cell of words alone.
    pub(crate) fn plain(main: impl Into<String>) -> Self {
        Self { main: main.into(), ..Self::default() }
    }

    /// Makes a cell of a median with its spread, or a dash if there is none.
    pub(crate) fn of(spread: Option<Spread>, text: fn(f64) -> String) -> Self {
        spread.map_or_else(
            || Self::plain(format::MISSING),
            |spread| Self { main: text(spread.median), detail: format::spread(&spread, text), ahead: None },
        )
    }
}

/// A row before it is judged: one figure of each engine.
#[derive(Debug)]
pub(crate) struct Compared {
    /// Samples in the order of the engines; `None` where an engine has none.
    pub(crate) samples: Vec<Option<Sample>>,
    /// `None` for a figure that is neither better nor worse: it is not compared.
    pub(crate) better: Option<Better>,
    /// Formats the figure with its unit.
    pub(crate) text: fn(f64) -> String,
}

impl Compared {
    /// Returns the best median; `None` with fewer than two medians, and for a figure that is not compared.
    fn best(&self) -> Option<f64> {
        let medians = || self.samples.iter().flatten().map(|sample| sample.spread().median);
        match self.better? {
            _ if medians().count() < 2 => None,
            Better::Higher => medians().max_by(f64::total_cmp),
            Better::Lower => medians().min_by(f64::total_cmp),
        }
    }

    /// Builds the row of the engine that is better than all others, be it by chance, and its place. Without such an engine the row
    /// claims nothing.
    fn leader(&self) -> Option<(usize, judge::Row)> {
        let better = self.better?;
        self.samples.iter().enumerate().find_map(|(at, sample)| {
            let own = sample.as_ref()?;
            let mut row = judge::Row::of(own);
            let others = self.samples.iter().enumerate().filter(|(other, _)| *other != at);
            others.filter_map(|(_, other)| other.as_ref()).for_each(|other| row.add(Test::of(own, other, better)));
            row.leads().then_some((at, row))
        })
    }

    /// Builds the cells. `ahead`: place of the engine that is ahead of all others, and how many times better than the next it is.
    fn cells(&self, ahead: Option<(usize, f64)>) -> Vec<Figures> {
        let best = self.best();
        let cell = |(at, sample): (usize, &Option<Sample>)| {
            let spread = sample.as_ref().map(Sample::spread);
            let mut cell = Figures::of(spread, self.text);
            cell.ahead = ahead.filter(|(leader, _)| *leader == at).map(|(_, times)| times);
            if let (Some(spread), Some(best)) = (spread, best.filter(|best| *best > 0.0))
                && spread.median != best
            {
                cell.detail.push_str(&format!(", {}", format::ratio(spread.median / best)));
            }
            cell
        };
        self.samples.iter().enumerate().map(cell).collect()
    }
}

/// Builds the cells of one table's rows, which are judged together. Each cell has its ratio to the best of its row. It
/// is marked if its engine is ahead of all others.
pub(crate) fn compared(rows: &[&Compared]) -> Vec<Vec<Figures>> {
    let mut family = Family::default();
    let mut leader_of = |row: &Compared| {
        let (leader, judged) = row.leader().map_or((None, judge::Row::without_claim()), |(at, row)| (Some(at), row));
        family.add(judged);
        leader
    };
    let leaders: Vec<Option<usize>> =
        rows.iter().filter(|row| row.best().is_some()).map(|row| leader_of(row)).collect();
    let mut judged = leaders.into_iter().zip(family.judge());
    let mut ahead = || {
        let (leader, judged) = judged.next()?;
        let next = judged.beside.iter().flatten().map(|beside: &Beside| beside.times).min_by(f64::total_cmp);
        leader.filter(|_| judged.verdict == Verdict::Ahead).zip(next)
    };
    rows.iter().map(|row| row.cells(row.best().and_then(|_| ahead()))).collect()
}
