#!/bin/sh
# Checks the Prometheus configuration and rules with promtool and runs the rules' tests. Checks that each alert has a
# test, is part of the healthy test, and has an entry in the runbook. `make check` runs it. Prints a note if promtool is
# missing.
set -eu
cd "$(dirname "$0")"

alerts=$(sed -n 's/^ *- alert: //p' solkv.alerts.yml)
tests=solkv.tests.yml
runbook=$(ls ../../RUNBOOK*.md)
for alert in $alerts; do
    grep -q "^      - alertname: $alert\$" "$tests" || { echo "prometheus: no test in which $alert fires" >&2; exit 1; }
    grep -q "alertname: $alert, eval_time: 30m, exp_alerts: \[\]" "$tests" ||
        { echo "prometheus: the healthy test does not ask for $alert" >&2; exit 1; }
    url="file:///usr/share/doc/solkv/RUNBOOK.md#$(echo "$alert" | tr '[:upper:]' '[:lower:]')"
    grep -qxF "          runbook_url: $url" solkv.alerts.yml || { echo "prometheus: no runbook_url: $url" >&2; exit 1; }
    # A list of files.
    # shellcheck disable=SC2086
    grep -qh "^##* $alert\$" $runbook || { echo "prometheus: the runbook has no heading $alert" >&2; exit 1; }
done

if ! command -v promtool >/dev/null 2>&1; then
    echo "prometheus: NOT CHECKED by promtool, which is not installed (Debian package prometheus)"
    exit 0
fi
promtool check config prometheus.yml >/dev/null
promtool check rules solkv.recording.yml solkv.alerts.yml >/dev/null
promtool test rules "$tests" >/dev/null
echo "prometheus: $(echo "$alerts" | wc -w) alerts, each fires in its test and is quiet in the healthy one"
