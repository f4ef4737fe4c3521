//! Latencies as text for people: the live-stream table, and nanoseconds with a sensible number of digits.
//!
//! Owns: rows, units and rounding. Must not: print.

use std::fmt::Write as _;

use crate::Op;
use crate::export::{Report, ReportSeries};

/// Source that the table shows if a report has several: the stream's own path.
const PREFERRED_SOURCE: &str = "ingest";

const GROUPS: [(&str, Op); 6] = [
    ("Negative read", Op::ReadNegative),
    ("Positive read", Op::ReadPositive),
    ("Write", Op::Write),
    ("Commit", Op::Commit),
    ("Commit / item", Op::CommitPerItem),
    ("get_many", Op::GetMany),
];

type Cell = fn(&ReportSeries) -> String;

const ROWS: [(&str, Cell); 6] = [
    ("avg", |series| micros(series.mean_ns)),
    ("p90", |series| known(series, 10, series.p90_ns)),
    ("p99", |series| known(series, 100, series.p99_ns)),
    ("p99.9", |series| known(series, 1_000, series.p999_ns)),
    ("max", |series| micros(series.max_ns as f64)),
    ("count", |series| grouped(series.count)),
];

/// Explains `Commit / item`, the one group that is a quotient.
const ITEM_NOTE: &str = "Commit / item: the time of a commit divided by the events of its batch.\n";

/// Returns a table of the performance on a live gRPC stream, with one column per engine. Its rows are avg, p90, p99,
/// p99.9 and max of negative reads, positive reads, writes, commits, commits per item and calls of get_many, each with
/// the number of recorded values. A cell is `-` if nothing was recorded, or too few values for a percentile. A group that
/// no column has is left out. A sentence after the table explains commits per item, if there are any.
pub fn live_table(columns: &[(String, &Report)]) -> String {
    let mut rows: Vec<Vec<String>> =
        vec![std::iter::once(String::new()).chain(columns.iter().map(|(name, _)| name.clone())).collect()];
    let recorded = |op| columns.iter().any(|(_, report)| series_of(report, op).is_some());
    for (title, op) in GROUPS.into_iter().filter(|(_, op)| recorded(*op)) {
        rows.push(vec![title.to_owned()]);
        for (name, cell) in ROWS {
            let values = columns.iter().map(|(_, report)| series_of(report, op).map_or_else(|| "-".to_owned(), cell));
            rows.push(std::iter::once(format!("  {name}")).chain(values).collect());
        }
    }
    aligned(&rows) + if recorded(Op::CommitPerItem) { ITEM_NOTE } else { "" }
}

/// Formats rows as aligned text: the first column to the left, the others to the right, with two spaces between
/// columns.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let written = match column {
                0 => write!(line, "{cell:<width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
            written.expect("a string takes every write");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Formats nanoseconds as microseconds with three digits: `0.31 µs`, `3.41 µs`, `94.6 µs`, `1,630 µs`.
pub fn micros(nanos: f64) -> String {
    let micros = nanos / 1000.0;
    if micros < 9.995 {
        format!("{micros:.2} µs")
    } else if micros < 99.95 {
        format!("{micros:.1} µs")
    } else {
        format!("{} µs", grouped(micros.round() as u64))
    }
}

/// Formats a count with commas between thousands: `1,000,000`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a percentile that one in `one_in` values exceeds. With fewer values it would only be their maximum again.
fn known(series: &ReportSeries, one_in: u64, nanos: u64) -> String {
    if series.count < one_in { "-".to_owned() } else { micros(nanos as f64) }
}

fn series_of(report: &Report, op: Op) -> Option<&ReportSeries> {
    report.get(PREFERRED_SOURCE, op).or_else(|| report.series.iter().find(|series| series.op == op))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Latency, export};

    #[test]
    fn digits_follow_the_size() {
        let cases = [(310.0, "0.31 µs"), (3_412.0, "3.41 µs"), (9_996.0, "10.0 µs"), (94_600.0, "94.6 µs")];
        for (nanos, text) in cases {
            assert_eq!(micros(nanos), text);
        }
        assert_eq!(micros(99_960.0), "100 µs");
        assert_eq!(micros(1_630_400.0), "1,630 µs");
        assert_eq!(
            (grouped(7), grouped(1_234), grouped(12_345_678)),
            ("7".into(), "1,234".into(), "12,345,678".into())
        );
    }

    #[test]
    fn the_live_table_prefers_the_stream_and_marks_what_is_missing() {
        let latency = Latency::new("redb");
        latency.recorder("bootstrap").record(Op::ReadPositive, 9_000);
        latency.recorder("ingest").record(Op::ReadPositive, 1_500);
        let report = export::report(&latency.snapshot());
        let batched = Latency::new("strata");
        batched.recorder("ingest").record(Op::GetMany, 500_000);
        batched.recorder("ingest").record(Op::CommitPerItem, 310);
        let batched = export::report(&batched.snapshot());
        let text = live_table(&[("redb".to_owned(), &report), ("strata".to_owned(), &batched)]);
        assert!(text.contains("Positive read\n  avg          1.50 µs        -\n"), "{text}");
        assert!(text.contains("get_many\n  avg                -   500 µs\n"), "{text}");
        assert!(!text.contains("Negative read") && text.matches("Positive read").count() == 1, "{text}");
        assert!(text.ends_with(ITEM_NOTE));
        assert!(!live_table(&[("redb".to_owned(), &report)]).contains("item"));
    }
}
