//! Figures and names as text, and text made safe for markdown.
//!
//! Owns: units, rounding, and the dash for a missing figure. Must not: know a figure's meaning.

use engine_latency::table::{grouped, micros};

use super::cells::Spread;
use crate::result::Workload;

/// Text in place of a figure that could not be measured.
pub(crate) const MISSING: &str = "–";

/// Formats nanoseconds as microseconds, with the unit.
pub(crate) fn nanos(value: f64) -> String {
    micros(value)
}

/// Formats bytes in binary units with three digits.
pub(crate) fn bytes(value: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut scaled = value;
    let mut unit = 0;
    while scaled >= 999.5 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    format!("{} {}", digits(scaled), UNITS[unit])
}

/// Formats seconds as seconds, minutes or hours.
pub(crate) fn seconds(value: f64) -> String {
    if value < 600.0 {
        format!("{} s", digits(value))
    } else if value < 7_200.0 {
        format!("{} min", digits(value / 60.0))
    } else {
        format!("{} h", digits(value / 3_600.0))
    }
}

/// Formats seconds, as milliseconds below one.
pub(crate) fn short_seconds(value: f64) -> String {
    if value < 0.9995 { format!("{} ms", digits(value * 1e3)) } else { seconds(value) }
}

/// Formats operations a second with three digits, because more are harder to read.
pub(crate) fn per_second(value: f64) -> String {
    if value >= 999_500.0 {
        format!("{} M/s", digits(value / 1e6))
    } else if value >= 9_995.0 {
        format!("{} k/s", digits(value / 1e3))
    } else {
        format!("{} /s", digits(value))
    }
}

/// Formats bytes a second in binary units.
pub(crate) fn bytes_per_second(value: f64) -> String {
    format!("{}/s", bytes(value))
}

/// Formats a number with three digits; thousands are separated by commas.
pub(crate) fn digits(value: f64) -> String {
    let size = value.abs();
    if size >= 99.95 {
        grouped(value.round() as u64)
    } else if size >= 9.995 {
        format!("{value:.1}")
    } else if size >= 0.01 || size == 0.0 {
        format!("{value:.2}")
    } else if size >= 1e-6 {
        // Show two digits that are not zero.
        let places = (1.0 - size.log10().floor()) as usize;
        format!("{value:.places$}")
    } else {
        format!("{value:.1e}")
    }
}

/// Formats the ratio of a value to the best one, such as `×1.65`.
pub(crate) fn ratio(value: f64) -> String {
    format!("×{}", digits(value))
}

/// Formats a range as `512–530`, with units if the two differ. For a single run the text is `1 run`.
pub(crate) fn spread(spread: &Spread, text: fn(f64) -> String) -> String {
    if spread.runs == 1 {
        return "1 run".to_owned();
    }
    let (min, max) = (text(spread.min), text(spread.max));
    match (min.rsplit_once(' '), max.rsplit_once(' ')) {
        (Some((low, unit)), Some((high, same))) if unit == same => format!("{low}–{high}"),
        _ => format!("{min}–{max}"),
    }
}

/// Formats the memory cap, or that there is none.
pub(crate) fn cap(cap: Option<u64>) -> String {
    cap.map_or_else(|| "no cap".to_owned(), |cap| format!("cap {}", bytes(cap as f64)))
}

/// Formats an operation: `read_negative` as `Negative read`. Unknown names keep their words.
pub(crate) fn op(op: &str) -> String {
    match op {
        "read_negative" => "Negative read".to_owned(),
        "read_positive" => "Positive read".to_owned(),
        "commit_per_item" => "Commit / item".to_owned(),
        "get_many" | "get_many_absent" => op.to_owned(),
        other => {
            let text = other.replace('_', " ");
            let mut letters = text.chars();
            letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
        }
    }
}

/// Formats the loop, closed or open, with its rate.
pub(crate) fn arrival(workload: &Workload) -> String {
    let rate = workload.target_rate.map_or_else(String::new, |rate| format!(" at {}", per_second(rate)));
    format!("{} loop{rate}", workload.arrival)
}

/// Lists every other setting that tells a workload from another, by name.
pub(crate) fn facts(workload: &Workload) -> Vec<(String, String)> {
    let mut facts = vec![
        ("keys".to_owned(), workload.keys.clone()),
        ("pairs".to_owned(), grouped(workload.pairs)),
        ("threads".to_owned(), workload.threads.to_string()),
        ("state".to_owned(), workload.state.clone()),
    ];
    facts.extend(workload.durability.iter().map(|durability| ("durability".to_owned(), durability.clone())));
    facts.push(("seed".to_owned(), workload.seed.to_string()));
    facts.extend(workload.more.iter().map(|(name, value)| (name.clone(), value.clone())));
    facts
}

/// Returns the workload's title: its name, its loop, whether its commits are synced, and every setting that differs
/// from others of that name.
pub(crate) fn workload(workload: &Workload, others: &[&Workload]) -> String {
    let mut title = format!("{}, {}", op(&workload.name), arrival(workload));
    if let Some(durability) = &workload.durability {
        title.push_str(&format!(", {durability}"));
    }
    let rivals: Vec<_> = others.iter().filter(|other| other.name == workload.name).map(|other| facts(other)).collect();
    for fact in facts(workload) {
        if fact.0 != "durability" && rivals.iter().any(|rival| !rival.contains(&fact)) {
            title.push_str(&format!(", {} {}", fact.0, fact.1));
        }
    }
    title
}

/// Formats a time in UTC: `2026-11-21 10:28`.
pub(crate) fn utc(unix_ms: u64) -> String {
    // The last millisecond of the year 9999, after which the format has no years.
    const LAST_MS: u64 = 253_402_300_799_999;
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(unix_ms.min(LAST_MS));
    let text = humantime::format_rfc3339_seconds(time).to_string();
    text.get(..16).unwrap_or(&text).replace('T', " ")
}

/// Escapes a text for a line or a table cell of markdown.
pub(crate) fn markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' | '#' => out.extend(['\\', letter]),
            '<' => out.push_str("&lt;"),
            '\n' | '\r' => out.push(' '),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_follow_the_size() {
        assert_eq!(bytes(64.0), "64.0 B");
        assert_eq!(bytes(146.0 * 1024.0 * 1024.0), "146 MiB");
        assert_eq!(bytes(40.8 * 1024.0 * 1024.0 * 1024.0), "40.8 GiB");
        assert_eq!(seconds(2.9 * 3600.0), "2.90 h");
        assert_eq!(seconds(12.34), "12.3 s");
        assert_eq!((digits(0.008_91), digits(0.000_123)), ("0.0089".into(), "0.00012".into()));
        assert_eq!((per_second(9_000.0), per_second(1_132_374.0)), ("9,000 /s".into(), "1.13 M/s".into()));
        assert_eq!(digits(0.0), "0.00");
        assert_eq!(utc(1_795_257_000_000), "2026-11-21 10:30");
        assert_eq!(utc(u64::MAX), "9999-12-31 23:59");
    }

    #[test]
    fn a_spread_says_its_unit_only_where_it_must() {
        let of = |min, max, runs| Spread { median: min, min, max, runs };
        assert_eq!(spread(&of(3_300.0, 3_600.0, 3), nanos), "3.30–3.60");
        assert_eq!(spread(&of(900.0 * 1024.0, 1.5 * 1024.0 * 1024.0, 3), bytes), "900 KiB–1.50 MiB");
        assert_eq!(spread(&of(1.0, 1.0, 1), nanos), "1 run");
    }

    #[test]
    fn text_of_others_is_only_text() {
        assert_eq!(markdown("a|b_c <i>\n"), "a\\|b\\_c &lt;i> ");
    }
}
