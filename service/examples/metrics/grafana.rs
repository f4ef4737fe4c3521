//! The Grafana dashboard deploy/grafana/solkv.json, generated from the catalogue.
//!
//! Owns: the query for each kind and unit, the layout, and the JSON that Grafana needs around a query. Must not: name a
//! family, except the two whose values others are shown from. Thread: `main`.

use serde_json::{Value, json};
use solkv_service::catalogue::{ALL, CHECKPOINT_SEQ, CHECKPOINT_SLOT, Group, Kind, Metric, Unit};

/// Number of columns in Grafana's grid.
const COLUMNS: u64 = 24;

/// Operations whose latency has a panel: those that every service makes.
const OPS: [&str; 5] = ["read_negative", "read_positive", "get_many", "write", "commit"];

/// Quantiles of an operation's latency, each with its name in the legend.
const QUANTILES: [(&str, &str); 3] = [("0.5", "p50"), ("0.99", "p99"), ("0.999", "p99.9")];

/// Restricts a query to the instances chosen at the top of the dashboard.
const CHOSEN: &str = "instance=~\"$instance\"";

struct Panel {
    group: Group,
    title: String,
    /// Meaning of the values, which Grafana shows on demand.
    help: &'static str,
    /// Grafana's identifier of the unit.
    unit: &'static str,
    /// Whether the panel shows a single value instead of a curve.
    stat: bool,
    /// Whether the panel shows the values of the sample's labels.
    names: bool,
    /// Queries, each with its legend.
    queries: Vec<(String, String)>,
}

/// Returns the panels in the order of the catalogue.
fn contents() -> Vec<Panel> {
    let mut all: Vec<Panel> = Vec::new();
    for metric in ALL {
        let parts: Vec<(String, Vec<(String, String)>)> = match (metric.kind, metric.unit) {
            (Kind::Histogram, _) => OPS.map(|op| (op.replace('_', " "), quantiles(metric.name, op))).to_vec(),
            (_, Unit::Mixed) => ["=", "!"]
                .map(|sign| {
                    let title = if sign == "=" { "Figures in bytes" } else { "Figures of other units" };
                    let query = format!("{}{{{CHOSEN},name{sign}~\".*_bytes\"}}", metric.name);
                    (title.to_owned(), vec![(query, legend(metric))])
                })
                .to_vec(),
            _ => vec![(title(metric), vec![(query(metric), legend(metric))])],
        };
        for (title, mut queries) in parts {
            match all.iter_mut().find(|panel| panel.group == metric.group && panel.title == title) {
                Some(shared) => shared.queries.append(&mut queries),
                None => all.push(Panel {
                    group: metric.group,
                    help: metric.help,
                    unit: unit(metric, &title),
                    stat: matches!(metric.unit, Unit::Bool | Unit::UnixSeconds),
                    names: metric.unit == Unit::Bool && !metric.labels.is_empty(),
                    title,
                    queries,
                }),
            }
        }
    }
    all
}

/// Returns the title of the family's panel: the shared one, or the family's name without its unit.
fn title(metric: &Metric) -> String {
    if !metric.panel.is_empty() {
        return metric.panel.to_owned();
    }
    metric.short_name().trim_end_matches("_seconds").trim_end_matches("_bytes").replace('_', " ")
}

/// Returns the query for a family. A counter is shown as its rate, a time as the seconds since, and a slot or a seq as its
/// distance from the store's own.
fn query(metric: &Metric) -> String {
    let name = format!("{}{{{CHOSEN}}}", metric.name);
    let own = match metric.unit {
        Unit::Slot => CHECKPOINT_SLOT.name,
        Unit::Seq => CHECKPOINT_SEQ.name,
        _ => "",
    };
    match (metric.kind, metric.unit) {
        (Kind::Counter, _) => format!("rate({name}[$__rate_interval])"),
        (_, Unit::UnixSeconds) => format!("time() - {name}"),
        (_, Unit::Slot | Unit::Seq) if own == metric.name => format!("rate({name}[$__rate_interval])"),
        (_, Unit::Slot | Unit::Seq) => format!("{name} - {own}{{{CHOSEN}}}"),
        (_, Unit::Bool) if !metric.labels.is_empty() => format!("{name} == 1"),
        _ => name,
    }
}

/// Returns the queries for the quantiles of an operation's latency, by instance and source.
fn quantiles(name: &str, op: &str) -> Vec<(String, String)> {
    let of = |(quantile, shown): (&str, &str)| {
        let rate = format!("rate({name}_bucket{{{CHOSEN},op=\"{op}\"}}[$__rate_interval])");
        let query = format!("histogram_quantile({quantile}, sum by (instance, source, le) ({rate}))");
        (query, format!("{{{{instance}}}} {{{{source}}}} {shown}"))
    };
    QUANTILES.map(of).to_vec()
}

/// Returns the legend: the instance, the family if others share its panel, and the labels.
fn legend(metric: &Metric) -> String {
    let family = if metric.panel.is_empty() { None } else { Some(metric.short_name().replace('_', " ")) };
    let labels = metric.labels.iter().map(|label| label.split('=').next().unwrap_or_default());
    let labels = labels.map(|label| format!("{{{{{label}}}}}"));
    ["{{instance}}".to_owned()].into_iter().chain(family).chain(labels).collect::<Vec<_>>().join(" ")
}

fn unit(metric: &Metric, title: &str) -> &'static str {
    match (metric.kind, metric.unit) {
        (Kind::Counter, _) => "ops",
        (_, Unit::Bool) => "bool_yes_no",
        (_, Unit::Bytes) => "bytes",
        (_, Unit::Mixed) if title.ends_with("bytes") => "bytes",
        (_, Unit::Seconds | Unit::UnixSeconds) => "s",
        _ => "none",
    }
}

/// Returns the dashboard in the form that Grafana imports, with a line break at the end.
pub(crate) fn dashboard() -> String {
    let dashboard = json!({
        "uid": "solkv",
        "title": "solkv",
        "description": "Made by `make metrics` from the catalogue of the service.",
        "tags": ["solkv"],
        "schemaVersion": 39,
        "version": 1,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": { "from": "now-1h", "to": "now" },
        "timezone": "",
        "annotations": { "list": [] },
        "templating": { "list": variables() },
        "panels": panels(),
    });
    format!("{dashboard:#}\n")
}

fn variables() -> Value {
    json!([
        { "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1 },
        {
            "name": "instance",
            "label": "Instance",
            "type": "query",
            "datasource": source(),
            "query": { "query": "label_values(solkv_build_info, instance)", "refId": "instance" },
            "refresh": 2,
            "sort": 1,
            "multi": true,
            "includeAll": true,
            "allValue": ".*",
            "current": { "text": "All", "value": "$__all" },
        },
    ])
}

fn source() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

fn panels() -> Vec<Value> {
    let (contents, mut all, mut id, mut y) = (contents(), Vec::new(), 0, 0);
    for group in Group::ALL {
        let mut next_id = || {
            id += 1;
            id
        };
        all.push(json!({
            "id": next_id(), "type": "row", "title": group.name(), "collapsed": false, "panels": [],
            "gridPos": { "x": 0, "y": y, "w": COLUMNS, "h": 1 },
        }));
        y += 1;
        let (mut x, mut height) = (0, 0);
        for shown in contents.iter().filter(|panel| panel.group == group) {
            let (w, h) = if shown.stat { (4, 4) } else { (8, 8) };
            if x + w > COLUMNS {
                (x, y, height) = (0, y + height, 0);
            }
            all.push(panel(shown, next_id(), json!({ "x": x, "y": y, "w": w, "h": h })));
            (x, height) = (x + w, height.max(h));
        }
        y += height;
    }
    all
}

fn panel(panel: &Panel, id: u64, position: Value) -> Value {
    let letters = (b'A'..).map(char::from);
    let targets = panel.queries.iter().zip(letters).map(|((query, legend), letter)| {
        json!({ "refId": letter.to_string(), "datasource": source(), "expr": query, "legendFormat": legend })
    });
    json!({
        "id": id,
        "type": if panel.stat { "stat" } else { "timeseries" },
        "title": panel.title,
        "description": panel.help,
        "datasource": source(),
        "gridPos": position,
        "targets": targets.collect::<Vec<_>>(),
        "fieldConfig": { "defaults": { "unit": panel.unit }, "overrides": [] },
        "options": if panel.stat {
            json!({ "textMode": if panel.names { "name" } else { "auto" } })
        } else {
            json!({ "legend": { "displayMode": "list", "placement": "bottom" }, "tooltip": { "mode": "multi" } })
        },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns the metric names in a query: the words with the prefix that all of the service's metrics share.
    fn names(query: &str) -> BTreeSet<&str> {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        query.split(|c| !word(c)).filter(|word| word.starts_with("solkv_")).collect()
    }

    #[test]
    fn every_family_is_shown_and_nothing_else_is_asked_for() {
        let contents = contents();
        let asked: BTreeSet<&str> =
            contents.iter().flat_map(|panel| &panel.queries).flat_map(|(query, _)| names(query)).collect();
        let known: BTreeSet<String> = ALL
            .iter()
            .map(|metric| match metric.kind {
                Kind::Histogram => format!("{}_bucket", metric.name),
                Kind::Counter | Kind::Gauge => metric.name.to_owned(),
            })
            .collect();
        assert_eq!(asked, known.iter().map(String::as_str).collect());
    }

    #[test]
    fn panels_do_not_overlap() {
        let all = panels();
        let of = |panel: &Value, side: &str| panel["gridPos"][side].as_u64().unwrap();
        for (at, one) in all.iter().enumerate() {
            for other in &all[at + 1..] {
                assert_ne!(one["id"], other["id"]);
                let apart = |from: &str, size: &str| {
                    of(one, from) + of(one, size) <= of(other, from)
                        || of(other, from) + of(other, size) <= of(one, from)
                };
                assert!(apart("x", "w") || apart("y", "h"), "{one:#}\n{other:#}");
            }
            assert!(of(one, "x") + of(one, "w") <= COLUMNS);
        }
    }
}
