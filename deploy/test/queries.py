#!/usr/bin/env python3
"""Asks a Prometheus every query of the dashboard and every series of the rules that it has loaded.

Each must have data within two minutes, or a reason why a healthy service has none; no alert may fire.
Arguments: the Prometheus, the dashboard.
"""

import json
import re
import sys
import time
import urllib.parse
import urllib.request

# Series that a healthy service does not have, and the reasons. The patterns match a query or one of a rule's series.
EMPTY = {
    r"solkv_gap_(first|last)_slot": "only while slots are missing",
    r"solkv_memory_bytes": "only in a memory cgroup; solkv_memory_resident_bytes is there instead",
    r'name="write_stopped"': "RocksDB's own",
    r'name="write_stalls"': "strata's own",
}
PATIENCE_S = 120


def api(server, path, **arguments):
    url = f"{server}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)["data"]


def dashboard_queries(path):
    with open(path, encoding="utf-8") as file:
        panels = json.load(file)["panels"]
    for panel in panels:
        for target in panel.get("targets", []):
            yield target["expr"].replace("$instance", ".*").replace("$__rate_interval", "15s")


def rule_series(server):
    """The recorded series, and each series that an expression reads: an alert itself has no data while all is well."""
    for group in api(server, "rules")["groups"]:
        for rule in group["rules"]:
            if rule["type"] == "recording":
                yield rule["name"]
            yield from re.findall(r"(?:solkv[a-z0-9_:]+|\bup\b)(?:\{[^}]*\})?", rule["query"])


def wait_for_data(server, queries):
    """The queries that have no data when patience ends."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        queries = [query for query in queries if not api(server, "query", query=query)["result"]]
        if all(reason(query) for query in queries) or time.monotonic() > deadline:
            return queries
        time.sleep(1)


def reason(query):
    return next((why for pattern, why in EMPTY.items() if re.search(pattern, query)), None)


def main(server, dashboard):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            series = sorted(set(rule_series(server)))
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    queries = list(dict.fromkeys(dashboard_queries(dashboard))) + series
    empty = wait_for_data(server, queries)
    for query in empty:
        print(f"empty: {query}: {reason(query) or 'NO REASON'}")
    rules = [rule for group in api(server, "rules")["groups"] for rule in group["rules"]]
    broken = [rule["name"] for rule in rules if rule["health"] != "ok"]
    firing = [alert["labels"]["alertname"] for alert in api(server, "alerts")["alerts"] if alert["state"] == "firing"]
    print(f"asked={len(queries)} with_data={len(queries) - len(empty)} rules={len(rules)} broken={broken} firing={firing}")
    return 1 if broken or firing or any(not reason(query) for query in empty) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
