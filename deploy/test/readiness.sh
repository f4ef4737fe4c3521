#!/usr/bin/env bash
# Checks once a second that a service reports its readiness truthfully while its provider misbehaves: `loadgen provider`
# is by turns silent, down, late, refusing, forgetful and restarted, asks the service on every channel, and compares.
# The last line has the number of seconds judged, and the number of wrong ones.
# BIN is the directory of the built programs, DURATION the seconds (1200), ENGINE the engine (strata). OUT keeps logs.
# As root with systemd-nspawn, the packaged unit runs under a real systemd, and its status line is judged as well.
# Otherwise, or with PLAIN=1, the service is a plain process.
set -euo pipefail
: "${BIN:?folder of the built programs; run this through make test TOPIC=readiness}"
cd "$(dirname "$0")/../.."
DURATION=${DURATION:-1200} ENGINE=${ENGINE:-strata}
# The full script does not fit into a short run, which gets a shorter script with shorter limits.
acts="" limits=""
if [ "$DURATION" -lt 400 ]; then
    acts="--acts serves=8,pings=18,serves=6,lags=18,serves=6,loses=22,serves=6,small=8,restarts=10,down=16,serves=14,refuses=12,serves=45"
    limits='gap_timeout = "5s"\n'
fi

in_container() {
    # shellcheck source=deploy/test/container.sh
    . deploy/test/container.sh
    container_needs readiness systemd-nspawn
    trap container_gone EXIT
    container_over_this_system "$BIN" deploy/test/readiness-inside.sh
    printf '%s\n' "ENGINE=$ENGINE" "DURATION=$DURATION" "ACTS='$acts'" "LIMITS='$limits'" >"$root/merged/srv/environment"
    container_enter
    container_run "$root/merged" /srv/readiness-inside.sh "$out" $((DURATION + 300)) --bind="$work/state:/var/lib/solkv"
}

as_process() {
    work=$(mktemp -d) pids=""
    out=$(realpath -m "${OUT:-$work/out}")
    mkdir -p "$out"
    # The value is a list of processes.
    # shellcheck disable=SC2086
    trap 'kill $pids 2>/dev/null; wait; rm -rf "$work"' EXIT
    # The output is three words.
    # shellcheck disable=SC2046
    set -- $(python3 -c 'import socket
sockets = [socket.socket() for _ in range(3)]
for s in sockets: s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))')
    "$BIN/bootstrap" --engine "$ENGINE" --dir "$work/store" --pairs 1000 --seed 1 --slot 999 --extract account-owner \
        >"$out/bootstrap.log"
    printf "engine = \"%s\"\ndir = \"%s\"\ngeyser = \"http://127.0.0.1:$1\"\nlisten = \"127.0.0.1:$2\"\nmetrics = \"127.0.0.1:$3\"\n$limits" \
        "$ENGINE" "$work/store" >"$work/solkv.toml"
    "$BIN/service" --config "$work/solkv.toml" >"$out/service.log" 2>&1 &
    pids="$pids $!"
    # The acts are an option and its value, or empty.
    # shellcheck disable=SC2086
    "$BIN/loadgen" provider --listen "127.0.0.1:$1" --grpc "127.0.0.1:$2" --http "127.0.0.1:$3" --seconds "$DURATION" \
        --log "$out/readiness.jsonl" $acts
}

if [ "${PLAIN:-0}" = 1 ] || [ "$(id -u)" -ne 0 ] || ! command -v systemd-nspawn >/dev/null; then
    echo "readiness: engine=$ENGINE seconds=$DURATION, a process without systemd"
    as_process
else
    echo "readiness: engine=$ENGINE seconds=$DURATION, the packaged unit"
    in_container
fi
