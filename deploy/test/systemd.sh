#!/usr/bin/env bash
# Runs the installed units under a real systemd, in a container over this machine's own system, and checks their
# promises; systemd-inside.sh runs there. Needs root, systemd-nspawn and 3 GB of disk, and cleans up afterwards.
# BIN is the directory of the built programs. ENGINE, PAIRS, CAP (MemoryMax) and EVENTS size the test: the store must be
# larger than the cap. RocksDB without further settings needs 192M; LMDB and strata run in 128M. OUT keeps the logs.
set -euo pipefail
: "${BIN:?folder of the built programs; run this through make test TOPIC=systemd}"
cd "$(dirname "$0")/../.."
# shellcheck source=deploy/test/container.sh
. deploy/test/container.sh
container_needs systemd systemd-nspawn python3 curl
ENGINE=${ENGINE:-rocksdb} PAIRS=${PAIRS:-4000000} CAP=${CAP:-192M} EVENTS=${EVENTS:-600000}

trap container_gone EXIT
container_over_this_system "$BIN" deploy/test/systemd-inside.sh deploy/test/freeze.py
printf '%s\n' "ENGINE=$ENGINE" "PAIRS=$PAIRS" "CAP=$CAP" "EVENTS=$EVENTS" >"$root/merged/srv/environment"
echo "systemd: engine=$ENGINE pairs=$PAIRS cap=$CAP events=$EVENTS, $(systemctl --version | head -n 1)"
container_enter
container_run "$root/merged" /srv/systemd-inside.sh "$out" "${TIME_LIMIT:-600}" --bind="$work/state:/var/lib/solkv"
