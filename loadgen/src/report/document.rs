//! What a report says, before it is HTML or markdown.
//!
//! Owns: the blocks both are made of. Must not: escape; every text here is plain.

use serde::Serialize;

use super::cells::Spread;
use super::figures::Better;
use super::format;

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
    /// The best of its row, or not told apart from it by the repeats.
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

/// The cells of a row, each against the best.
pub(crate) fn compared(spreads: &[Option<Spread>], better: Option<Better>, text: fn(f64) -> String) -> Vec<Figures> {
    let known = || spreads.iter().flatten();
    let best = match better {
        _ if known().count() < 2 => None,
        Some(Better::Higher) => known().max_by(|a, b| a.median.total_cmp(&b.median)),
        Some(Better::Lower) => known().min_by(|a, b| a.median.total_cmp(&b.median)),
        None => None,
    };
    let cell = |spread: &Option<Spread>| {
        let mut cell = Figures::of(*spread, text);
        if let (Some(spread), Some(best)) = (spread, best) {
            let repeated = spread.runs > 1 && best.runs > 1;
            cell.best = spread.median == best.median || (repeated && spread.overlaps(best));
            if best.median > 0.0 && spread.median != best.median {
                cell.detail.push_str(&format!(", {}", format::ratio(spread.median / best.median)));
            }
        }
        cell
    };
    let mut cells: Vec<Figures> = spreads.iter().map(cell).collect();
    // A best that nobody falls behind tells nothing.
    if cells.iter().filter(|cell| cell.best).count() == known().count() {
        cells.iter_mut().for_each(|cell| cell.best = false);
    }
    cells
}
