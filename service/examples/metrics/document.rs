//! METRICS.md, generated from the catalogue.
//!
//! Owns: its layout. Must not: state facts about a family that the catalogue does not hold. Thread: `main`.

use std::fmt::Write as _;

use solkv_service::catalogue::{ALL, Group, Metric, When};

const HEAD: &str = "\
# Metrics

Generated from the catalogue in `service/src/pages/metrics/catalogue.rs` by `make metrics`; `make check` compares the two.
`/metrics` has exactly these families. A family without a condition is in every scrape. A family with one is absent,
rather than 0, while it has no value. Counters begin at 0 with the process.

[deploy/grafana/solkv.json](deploy/grafana/solkv.json) is a dashboard of all of them: import it and choose your
Prometheus as its data source.
[deploy/prometheus](deploy/prometheus) has a scrape configuration, recording rules and alerts.
";

pub(crate) fn markdown() -> String {
    let mut out = HEAD.to_owned();
    for group in Group::ALL {
        write!(out, "\n## {}\n\n| name | type | unit | labels | meaning |\n|---|---|---|---|---|\n", group.name())
            .expect("a string takes every write");
        ALL.iter().filter(|metric| metric.group == group).for_each(|metric| row(metric, &mut out));
    }
    out
}

fn row(metric: &Metric, out: &mut String) {
    let Metric { name, kind, unit, labels, when, help, .. } = metric;
    let labels: Vec<String> = labels.iter().map(|label| label.replace('|', ", ").replacen('=', ": ", 1)).collect();
    let condition = match when {
        When::Always => String::new(),
        When::If(condition) => format!(". Only if {condition}"),
    };
    let (kind, unit, labels) = (kind.name(), unit.name(), labels.join("; "));
    writeln!(out, "| `{name}` | {kind} | {unit} | {labels} | {help}{condition} |").expect("a string takes every write");
}
