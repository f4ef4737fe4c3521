//! What a report says, before it is HTML or markdown.
//!
//! Owns: the blocks both are made of. Must not: escape; every text here is plain.

use serde::Serialize;

use super::cells::{Sample, Spread};
use super::figures::Better;
use super::format;
use super::judge::{Family, Verdict};

/// A whole report.
#[derive(Debug)]
pub(crate) struct Document {
    /// Title of the page.
    pub(crate) title: String,
    /// What was measured, in one line.
    pub(crate) lead: String,
    /// Engines in the order of their colours.
    pub(crate) engines: Vec<String>,
    /// From the machine to how to reproduce.
    pub(crate) sections: Vec<Section>,
}

/// A part with a link to it.
#[derive(Debug)]
pub(crate) struct Section {
    /// Unique on the page.
    pub(crate) id: String,
    /// Heading.
    pub(crate) title: String,
    /// In order.
    pub(crate) blocks: Vec<Block>,
}

/// One piece of a section.
#[derive(Debug)]
pub(crate) enum Block {
    /// A paragraph.
    Text(String),
    /// Several of the same kind.
    List(Vec<String>),
    /// Several of the same kind behind one line that says what they are.
    Folded(String, Vec<String>),
    /// Blocks of any kind behind one line that says what they are.
    Fold(String, Vec<Block>),
    /// Text to be copied as it is.
    Code(String),
    /// Figures.
    Table(Table),
    /// Lengths beside each other.
    Bars(Bars),
    /// Lines, several charts side by side. The page draws them; markdown has only the tables.
    Charts(Vec<Chart>),
}

/// Figures with engines as columns.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// Says what and in which unit.
    pub(crate) caption: String,
    /// The first is the column of row names.
    pub(crate) head: Vec<String>,
    /// In order.
    pub(crate) rows: Vec<Row>,
    /// The cells are words to read, not figures to compare.
    pub(crate) words: bool,
}

/// One row of a table.
#[derive(Debug)]
pub(crate) enum Row {
    /// A heading across the rows that follow.
    Title(String),
    /// A name and one figure a column.
    Figures(String, Vec<Figures>),
}

/// What one cell of a table says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    /// The median, or whatever the cell is about.
    pub(crate) main: String,
    /// Spread and ratio.
    pub(crate) detail: String,
    /// Another engine of its row is behind it, and none is ahead of it.
    pub(crate) best: bool,
}

/// Horizontal bars from zero.
#[derive(Debug)]
pub(crate) struct Bars {
    /// With unit and what is better.
    pub(crate) title: String,
    /// Names of the parts of a bar, where it has several.
    pub(crate) parts: Vec<&'static str>,
    /// Bars with one scale, under a heading.
    pub(crate) groups: Vec<BarGroup>,
}

/// Bars that share a scale.
#[derive(Debug)]
pub(crate) struct BarGroup {
    /// Such as the cap.
    pub(crate) title: String,
    /// A line across all bars, with its name: the cap.
    pub(crate) limit: Option<f64>,
    /// One a engine.
    pub(crate) bars: Vec<Bar>,
}

/// One bar.
#[derive(Debug)]
pub(crate) struct Bar {
    /// Index of the engine.
    pub(crate) engine: usize,
    /// Its label.
    pub(crate) name: String,
    /// Lengths put one behind the other.
    pub(crate) parts: Vec<f64>,
    /// A mark beside the stack, such as the RSS.
    pub(crate) mark: Option<f64>,
    /// From the smallest to the largest repeat.
    pub(crate) range: Option<(f64, f64)>,
    /// The figures in words.
    pub(crate) text: Figures,
}

/// Lines of one operation, one an engine, as the page's script reads them.
#[derive(Debug, Serialize)]
pub(crate) struct Chart {
    /// Unique on the page.
    pub(crate) id: String,
    /// `time`, `size`, `nines` or `caps`: how the x axis is drawn.
    pub(crate) kind: &'static str,
    /// What and under which cap.
    pub(crate) title: String,
    /// Of the x axis, with unit.
    pub(crate) x: &'static str,
    /// Charts with the same key share their y axis.
    pub(crate) share: String,
    /// Names of the x positions of `caps`.
    pub(crate) ticks: Vec<String>,
    /// What the device does alone, in µs.
    pub(crate) device_us: Option<f64>,
    /// One an engine.
    pub(crate) lines: Vec<Line>,
}

/// By the name of the figure, one value for each x.
pub(crate) type Named<T> = Vec<(&'static str, Vec<Option<T>>)>;

/// One engine's line.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    /// Index of the engine.
    pub(crate) engine: usize,
    /// Ascending, no value twice.
    pub(crate) x: Vec<f64>,
    /// Latencies in µs by the name of the figure, `null` where there is none.
    pub(crate) y: Named<f64>,
    /// The smallest and the largest repeat of each, where the line is of medians.
    pub(crate) ranges: Named<(f64, f64)>,
}

impl Figures {
    /// Words alone.
    pub(crate) fn plain(main: impl Into<String>) -> Self {
        Self { main: main.into(), ..Self::default() }
    }

    /// A median with its spread; a dash for nothing.
    pub(crate) fn of(spread: Option<Spread>, text: fn(f64) -> String) -> Self {
        spread.map_or_else(
            || Self::plain(format::MISSING),
            |spread| Self { main: text(spread.median), detail: format::spread(&spread, text), best: false },
        )
    }
}

/// A row before it is judged: one figure of each engine.
#[derive(Debug)]
pub(crate) struct Compared {
    /// In the order of the engines; `None` where there is none.
    pub(crate) samples: Vec<Option<Sample>>,
    /// `None` for a figure that has no better: nothing is compared.
    pub(crate) better: Option<Better>,
    /// The figure with its unit.
    pub(crate) text: fn(f64) -> String,
}

impl Compared {
    /// The best median; `None` with less than two, and where there is no better.
    fn best(&self) -> Option<f64> {
        let medians = || self.samples.iter().flatten().map(|sample| sample.spread().median);
        match self.better? {
            _ if medians().count() < 2 => None,
            Better::Higher => medians().max_by(f64::total_cmp),
            Better::Lower => medians().min_by(f64::total_cmp),
        }
    }

    /// The cells, each with what was decided of its engine.
    fn cells(&self, decided: &[Decided]) -> Vec<Figures> {
        let best = self.best();
        let cell = |(sample, decided): (&Option<Sample>, &Decided)| {
            let spread = sample.as_ref().map(Sample::spread);
            let mut cell = Figures::of(spread, self.text);
            cell.best = decided.ahead && !decided.behind;
            if let (Some(spread), Some(best)) = (spread, best.filter(|best| *best > 0.0))
                && spread.median != best
            {
                cell.detail.push_str(&format!(", {}", format::ratio(spread.median / best)));
            }
            cell
        };
        self.samples.iter().zip(decided).map(cell).collect()
    }
}

/// Of an engine in a row.
#[derive(Clone, Copy, Debug, Default)]
struct Decided {
    /// Of one other engine at least.
    ahead: bool,
    /// The same.
    behind: bool,
}

/// The cells of the rows of one table, which are judged together: each with its ratio to the best of its row, and marked
/// where another engine is behind it and none ahead of it.
pub(crate) fn compared(rows: &[&Compared]) -> Vec<Vec<Figures>> {
    let (mut family, mut pairs) = (Family::default(), Vec::new());
    for (at, row) in rows.iter().enumerate() {
        let Some(better) = row.better else { continue };
        let known: Vec<(usize, &Sample)> =
            row.samples.iter().enumerate().filter_map(|(engine, sample)| Some((engine, sample.as_ref()?))).collect();
        for (index, (one, sample)) in known.iter().enumerate() {
            for (other, beside) in &known[index + 1..] {
                family.add_paired(sample, beside, better);
                pairs.push((at, *one, *other));
            }
        }
    }
    let mut decided: Vec<_> = rows.iter().map(|row| vec![Decided::default(); row.samples.len()]).collect();
    for ((at, one, other), judged) in pairs.into_iter().zip(family.judge()) {
        let (ahead, behind) = match judged.verdict {
            Verdict::Ahead => (one, other),
            Verdict::Behind => (other, one),
            Verdict::Level | Verdict::NotDecided => continue,
        };
        decided[at][ahead].ahead = true;
        decided[at][behind].behind = true;
    }
    rows.iter().zip(&decided).map(|(row, decided)| row.cells(decided)).collect()
}
