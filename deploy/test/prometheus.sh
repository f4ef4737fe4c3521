#!/bin/sh
# Runs a real Prometheus (Debian package prometheus) with our configuration and rules against a live service. The
# service follows `loadgen stream`, answers lookups and makes a snapshot. Every query of the dashboard and every series
# of the rules must have data, or a known reason for none; no alert may fire. BIN is the directory of the programs;
# ENGINE defaults to strata.
set -eu
cd "$(dirname "$0")/../.."
: "${BIN:?where the programs are}"
ENGINE=${ENGINE:-strata}
for tool in prometheus promtool python3 curl; do
    command -v "$tool" >/dev/null 2>&1 || { echo "needs: $tool (Debian packages prometheus, python3, curl)" >&2; exit 1; }
done

work=$(mktemp -d)
pids=""
finish() {
    # The value is a list of processes.
    # shellcheck disable=SC2086
    [ -z "$pids" ] || kill $pids 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 1' INT TERM

free_ports() {
    python3 -c "
import socket
sockets = [socket.create_server(('127.0.0.1', 0)) for _ in range($1)]
print(*(socket.getsockname()[1] for socket in sockets))"
}
# The output is four words.
# shellcheck disable=SC2046
set -- $(free_ports 4)
stream=127.0.0.1:$1 grpc=127.0.0.1:$2 http=127.0.0.1:$3 prometheus=127.0.0.1:$4

"$BIN/bootstrap" --engine "$ENGINE" --dir "$work/store" --pairs 100000 --seed 1 --slot 999 --extract account-owner >/dev/null
"$BIN/loadgen" stream --listen "$stream" --pairs 100000 --seed 1 --events 1000000000 --events-per-slot 800 --rate 4000 \
    --unknown-share 0.05 --close-share 0.02 --confirm-after 6 --dead-every 13 --fork-every 11 >"$work/stream.log" 2>&1 &
pids="$pids $!"
"$BIN/service" --engine "$ENGINE" --dir "$work/store" --geyser "http://$stream" --listen "$grpc" --metrics "$http" \
    --processed >"$work/service.log" 2>&1 &
pids="$pids $!"
sed "s/127.0.0.1:7401/$http/; s/\(scrape_interval\|evaluation_interval\): 5s/\1: 1s/" deploy/prometheus/prometheus.yml \
    >"$work/prometheus.yml"
cp deploy/prometheus/solkv.*.yml "$work/"
prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/tsdb" --web.listen-address="$prometheus" \
    >"$work/prometheus.log" 2>&1 &
pids="$pids $!"
until curl -sf "http://$http/readyz" >/dev/null; do
    # The value is a list of processes.
    # shellcheck disable=SC2086
    kill -0 $pids || { cat "$work"/*.log >&2; exit 1; }
    sleep 0.2
done
"$BIN/loadgen" query --target "$grpc" --pairs 100000 --seed 1 --rate 200 --time 10m --negative-share 0.5 \
    --changed >"$work/query.log" 2>&1 &
pids="$pids $!"
"$BIN/service" snapshot --dir "$work/store" --to "$work/snapshot"

curl -s "http://$http/metrics" | promtool check metrics
python3 deploy/test/queries.py "http://$prometheus" deploy/grafana/solkv.json || { tail -n 5 "$work"/*.log >&2; exit 1; }
