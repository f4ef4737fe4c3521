#!/usr/bin/env bash
# Runs as a unit of the container's systemd: loads, starts the packaged unit, and lets `loadgen provider` judge its
# answers. readiness.sh looks for the last line of the output.
set -euo pipefail
: "${ENGINE:?}" "${DURATION:?}"
store=/var/lib/solkv/store
systemd-sysusers solkv.conf
systemd-tmpfiles --create solkv.conf
chown solkv:solkv /var/lib/solkv
echo "LOAD=--engine $ENGINE --dir $store --pairs 1000 --seed 1 --slot 999 --extract account-owner" >/etc/solkv/solkv.bootstrap
systemctl start solkv-bootstrap@solkv.service
printf "engine = \"$ENGINE\"\ndir = \"$store\"\ngeyser = \"http://127.0.0.1:10000\"\n${LIMITS:-}" >/etc/solkv/solkv.toml
systemctl start solkv.service
# The acts are an option and its value, or empty.
# shellcheck disable=SC2086
if ! solkv-loadgen provider --seconds "$DURATION" --unit solkv.service --log /srv/out/readiness.jsonl ${ACTS:-}; then
    journalctl -u solkv.service --no-pager >/srv/out/service.log
    exit 1
fi
journalctl -u solkv.service --no-pager >/srv/out/service.log
systemctl stop solkv.service
[ "$(systemctl show -P NRestarts solkv.service)" = 0 ] || { echo "FAILED: the service was restarted"; exit 1; }
echo "all of it holds"
