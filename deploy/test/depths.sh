#!/bin/bash
# Plays one stream into a store of each engine, with one lookup at a time in the ingest and with many, and compares the
# digest of every store with the stream's. The stream is the same each time, so all stores have to be equal.
#
#   BIN=DIR [PAIRS=1000000] [EVENTS=10000000] [DEPTHS="1 64 1024"] [CAP=96MiB] deploy/test/depths.sh ENGINE...
#
# With CAP the service runs in a cgroup of that size, where nearly every lookup waits for the device and the threads
# that read for the ingest are used. Exit code 1: a digest differs, or a program failed.
set -euo pipefail
: "${BIN:?folder of the built binaries; run this through make test TOPIC=depths}"
pairs=${PAIRS:-1000000} events=${EVENTS:-10000000} depths=${DEPTHS:-1 64 1024} seed=${SEED:-1}
[ $# -gt 0 ] || { echo "name at least one engine" >&2; exit 2; }
work=$(mktemp -d "${TMPDIR:-/tmp}/solkv-depths.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Many keys change twice within a slot, are removed, and come back: the cases in which a stale value would show.
story=(--pairs "$pairs" --seed "$seed" --events "$events" --events-per-slot 5000 --unknown-share 0.05 --change-share 0.4
    --close-share 0.1 --skew zipfian:0.9 --dead-every 17 --skip-every 11 --out-of-order-every 23 --duplicates)
all=
for engine in "$@"; do
    for depth in $depths; do
        rm -rf "$work/store"
        "$BIN/bootstrap" --engine "$engine" --order sorted --dir "$work/store" --pairs "$pairs" --seed "$seed" \
            >"$work/out" 2>&1 || { cat "$work/out" >&2; exit 1; }
        "$BIN/loadgen" live --dir "$work/store" "${story[@]}" ${CAP:+--cap "$CAP"} --verify --report "$work/report.json" \
            -- --ingest-depth "$depth" >"$work/out" 2>&1 ||
            { cat "$work/out" >&2; echo "failed: engine=$engine depth=$depth" >&2; exit 1; }
        digest=$(python3 -c '
import json, sys
report = json.load(open(sys.argv[1]))
print(report["verified_digest"], round(report["events_per_s"]))' "$work/report.json")
        echo "$engine depth=$depth digest=${digest% *} events_per_s=${digest##* }"
        all+="${digest% *}"$'\n'
    done
done
[ "$(sort -u <<<"${all%$'\n'}" | wc -l)" = 1 ] || { echo "the digests differ" >&2; exit 1; }
echo "all digests are equal: engines=$* depths=$depths events=$events"
