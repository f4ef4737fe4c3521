//! The Grafana dashboard deploy/grafana/solkv.json, generated from the panels.
//!
//! Owns: the layout, and the JSON that Grafana needs around a query. Must not: know a metric.

use serde_json::{Value, json};

use super::catalogue::Group;
use super::panels::{PANELS, Panel};

/// Number of columns in Grafana's grid.
const COLUMNS: u64 = 24;

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

/// Restricts a query to the instances chosen at the top of the dashboard.
fn chosen(query: &str) -> String {
    query.replace('@', "instance=~\"$instance\"")
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
    let (mut all, mut id, mut y) = (Vec::new(), 0, 0);
    for group in Group::ALL {
        let mut next_id = || {
            id += 1;
            id
        };
        all.push(json!({
            "id": next_id(), "type": "row", "title": group.title(), "collapsed": false, "panels": [],
            "gridPos": { "x": 0, "y": y, "w": COLUMNS, "h": 1 },
        }));
        y += 1;
        let (mut x, mut height) = (0, 0);
        for shown in PANELS.iter().filter(|panel| panel.group == group) {
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
        json!({ "refId": letter.to_string(), "datasource": source(), "expr": chosen(query), "legendFormat": legend })
    });
    json!({
        "id": id,
        "type": if panel.stat { "stat" } else { "timeseries" },
        "title": panel.title,
        "datasource": source(),
        "gridPos": position,
        "targets": targets.collect::<Vec<_>>(),
        "fieldConfig": { "defaults": { "unit": panel.unit, "min": 0 }, "overrides": [] },
        "options": if panel.stat {
            json!({ "textMode": if panel.title == "Version" { "name" } else { "auto" } })
        } else {
            json!({ "legend": { "displayMode": "list", "placement": "bottom" }, "tooltip": { "mode": "multi" } })
        },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::pages::metrics::catalogue::{ALL, Kind};

    /// Returns the metric names in a query: the words with the prefix that all of the service's metrics share.
    fn names(query: &str) -> BTreeSet<&str> {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        query.split(|c| !word(c)).filter(|word| word.starts_with("solkv_")).collect()
    }

    #[test]
    fn every_family_is_shown_and_nothing_else_is_asked_for() {
        let asked: BTreeSet<&str> =
            PANELS.iter().flat_map(|panel| panel.queries).flat_map(|(query, _)| names(query)).collect();
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
