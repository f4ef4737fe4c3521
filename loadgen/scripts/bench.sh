#!/bin/sh
# Runs every scenario on every engine and lookups against a running service, and writes the report. `make bench` and `make bench
# TOPIC=full` run it; arguments go to `loadgen bench`.
set -eu
: "${BIN:?folder of the built binaries; run this through make bench}"
: "${OUT:?folder for the results}"
cd "$(dirname "$0")/../.."
mkdir -p "$OUT"
"$BIN/loadgen" bench loadgen/scenarios/*.toml --out "$OUT/results.jsonl" "$@"

work=$(mktemp -d "${TMPDIR:-/tmp}/solkv-query.XXXXXX")
service=""
stop() {
    [ -z "$service" ] || kill "$service" 2>/dev/null || true
    rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
if [ ! -f "$OUT/query.jsonl" ]; then
    pairs=1000000
    for engine in $(sed -n 's/^default = \[\(.*\)\]/\1/p' engines/registry/Cargo.toml | tr -d '",'); do
        "$BIN/bootstrap" --engine "$engine" --dir "$work/store" --pairs "$pairs" --order sorted --extract account-owner >/dev/null 2>&1
        # This measures only lookups: nothing listens on the stream's port, and the service keeps trying to connect.
        "$BIN/service" --engine "$engine" --dir "$work/store" --geyser http://127.0.0.1:9 --listen 127.0.0.1:17400 \
            --uds "$work/sock" --metrics 127.0.0.1:17401 >"$work/service.log" 2>&1 &
        service=$!
        until [ -S "$work/sock" ]; do
            kill -0 "$service" || { cat "$work/service.log" >&2; exit 1; }
            sleep 0.1
        done
        for to in "--target 127.0.0.1:17400" "--uds $work/sock"; do
            # shellcheck disable=SC2086 -- a flag and its value
            "$BIN/loadgen" query $to --pairs "$pairs" --rate 1000,2000,5000 --time 2s --out "$work/query.jsonl"
            # shellcheck disable=SC2086
            "$BIN/loadgen" query $to --pairs "$pairs" --rate max --batch 1000 --in-flight 4 --time 2s \
                --out "$work/query.jsonl"
        done
        kill "$service"
        wait "$service"
        service=""
        rm -rf "$work/store" "$work/sock"
    done
    mv "$work/query.jsonl" "$OUT/query.jsonl"
fi
"$BIN/loadgen" report "$OUT/results.jsonl" "$OUT/query.jsonl" --html "$OUT/report.html" --markdown "$OUT/report.md"
echo "report: $OUT/report.html and $OUT/report.md"
