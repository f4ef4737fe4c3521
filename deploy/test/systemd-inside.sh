#!/usr/bin/env bash
# Runs as a unit of the container's systemd: installs, loads, serves, injects faults, and checks. systemd.sh looks for
# the last line of the output. /var/lib/solkv is on the host's disk; /srv/out keeps the logs.
set -euo pipefail
: "${ENGINE:?}" "${PAIRS:?}" "${CAP:?}" "${EVENTS:?}"
store=/var/lib/solkv/store
step() { printf '== %-3s s  %s\n' "$SECONDS" "$*"; }
fail() {
    echo "FAILED: $*"
    systemctl status solkv.service --no-pager -l || true
    journalctl -u solkv.service -u stream.service --no-pager | tail -n 60
    exit 1
}
is() { [ "$2" = "$3" ] || fail "$1: got=$2 expected=$3"; }
show() { systemctl show -P "$1" "${2:-solkv.service}"; }
wait_for() { # wait_for SECONDS WHAT COMMAND...: polls, for there is no event that a shell could wait for
    local until=$((SECONDS + $1)) what=$2
    shift 2
    until "$@"; do
        [ "$SECONDS" -lt "$until" ] || fail "nothing within the time: $what"
        sleep 0.2
    done
}
status_is() { [[ "$(show StatusText)" == *"$1"* ]]; }
active() { [ "$(show ActiveState)" = active ]; }
restarted() { [ "$(show NRestarts)" -gt "$1" ] && active; }
slot() { curl -s http://127.0.0.1:7401/status.json | python3 -c 'import json,sys; print(json.load(sys.stdin)["checkpoint"]["slot"])'; }
memory() { cat "$group/$1" 2>/dev/null; }
# Compares each answer with the seed's pairs; the stream below does not change loaded pairs.
ask() { solkv-loadgen query --target 127.0.0.1:7400 --pairs "$PAIRS" --seed 1 --negative-share 0.3 "$@"; }

step "users and directories"
systemd-sysusers solkv.conf
systemd-tmpfiles --create solkv.conf
chown solkv:solkv /var/lib/solkv

step "a configuration without a stream: refused with what is missing, and not tried again"
! systemctl start solkv.service || fail "started without a stream"
is "exit code" "$(show ExecMainStatus)" 2
is "restarts" "$(show NRestarts)" 0
journalctl -u solkv.service | grep -q 'geyser = "URL"' || fail "the log does not say what is missing"
systemctl reset-failed solkv.service

step "bootstrap: stopped, gone on with, complete, and started once more"
cat >/etc/solkv/solkv.bootstrap <<END
LOAD=--engine $ENGINE --dir $store --pairs $PAIRS --seed 1 --slot 999 --extract account-owner --order sorted --settle
END
systemctl start --no-block solkv-bootstrap@solkv.service
wait_for 60 "a part of the load" test -s $store/bootstrap.toml
systemctl stop solkv-bootstrap@solkv.service
is "result of a stop" "$(show Result solkv-bootstrap@solkv.service)" success
systemctl start solkv-bootstrap@solkv.service
grep -q "^pairs = $PAIRS" $store/bootstrap.toml || fail "the load is not complete"
systemctl start solkv-bootstrap@solkv.service
journalctl -u solkv-bootstrap@solkv.service | grep -q "nothing to resume" || fail "the third start did something"

step "$ENGINE under MemoryMax=$CAP with a store of $(du -sm $store | cut -f 1) MiB: ready, and not connected yet"
cat >/etc/solkv/solkv.toml <<END
engine = "$ENGINE"
dir = "$store"
geyser = "http://127.0.0.1:10000"
uds = "/run/solkv/kv.sock"
shm = "/run/solkv/shm.sock"
max_connections = 16
END
mkdir -p /etc/systemd/system/solkv.service.d
cat >/etc/systemd/system/solkv.service.d/test.conf <<END
[Service]
MemoryMax=$CAP
WatchdogSec=8s
END
systemctl daemon-reload
# The load's pages in the page cache are charged to no cgroup, so drop them, file by file.
find $store -type f -exec dd oflag=nocache conv=notrunc,fdatasync count=0 status=none of={} \;
systemctl start solkv.service
ask --rate 200 --time 1s >/dev/null || fail "ready, and lookups are not answered"
status_is "not connected" || fail "status: $(show StatusText)"
[ "$(stat -c %a:%U /run/solkv/kv.sock)" = 660:solkv ] || fail "the socket's mode"
if [ -d /sys/fs/cgroup/memory ]; then
    group=/sys/fs/cgroup/memory/solkv.slice/solkv.service
    limit=memory.limit_in_bytes peak=memory.max_usage_in_bytes
else
    group=/sys/fs/cgroup/solkv.slice/solkv.service
    limit=memory.max peak=memory.peak
fi
is "the cgroup's limit" "$(memory $limit)" "$(numfmt --from=iec "$CAP")"
division=$(journalctl -u solkv.service -o cat | grep -o 'memory_limit_bytes=.*' | tail -n 1)
step "$division"
[[ "$division" == *"limit_from=\"$group/$limit\""* ]] || fail "the service does not size itself by it"

systemctl reload solkv.service
wait_for 20 "certificates and tokens read again" sh -c 'journalctl -u solkv.service | grep -q "SIGHUP: certificates and tokens are read again"'

step "the stream's token: refused without it, a credential after a restart"
(umask 077 && echo open-sesame >/etc/credstore/solkv.x-token)
cat >/etc/systemd/system/stream.service <<END
[Service]
ExecStart=/usr/bin/solkv-loadgen stream --listen 127.0.0.1:10000 --pairs $PAIRS --seed 1 --events $EVENTS --rate 6000 --change-share 0 --close-share 0 --unknown-share 0.3 --replay-slots 100000 --x-token-file /etc/credstore/solkv.x-token
StandardOutput=append:/srv/out/stream.log
END
systemctl daemon-reload
systemctl start stream.service
wait_for 60 "a refusal in the log" sh -c 'journalctl -u solkv.service | grep -q x-token'
systemctl restart solkv.service
wait_for 60 "live" status_is "live at slot"
step "status: $(show StatusText)"

step "lookups beside the ingest, under the cap"
ask --batch 100 --rate 20 --time 2s >/dev/null || fail "batches"
if [ "$ENGINE" = strata ]; then
    ls -l "/proc/$(show MainPID)/fd" >/srv/out/fds.log
    grep -q 'anon_inode:\[io_uring\]' /srv/out/fds.log || fail "the unit keeps strata from io_uring"
fi
at=$(slot)
ask --rate 3000 --time 20s >/srv/out/query.log || fail "a lookup failed: $(tail -n 3 /srv/out/query.log)"
[ "$(slot)" -gt "$at" ] || fail "nothing was ingested meanwhile"
used=$(memory $peak) most=$(memory $limit)
failures=$(memory memory.failcnt || memory memory.events | awk '$1 == "max" { print $2 }')
[ "$used" -le "$most" ] || fail "over the cap: peak_bytes=$used limit_bytes=$most"
step "peak $used of $most bytes, the limit was met $failures times, $(($(slot) - at)) slots meanwhile"
# strata keeps to its budget and bypasses the page cache, so it may stay below the cap; the other engines must reach it.
[ "$ENGINE" = strata ] || [ "$failures" -gt 0 ] || fail "the cap was never met: the test proves nothing"
is "restarts" "$(show NRestarts)" 0

step "a thread that stands still is found by the watchdog"
for thread in ingest-apply lookup-0 shm-lookup; do
    restarts=$(show NRestarts) pid=$(show MainPID)
    python3 /srv/freeze.py "$pid" $thread >/srv/out/frozen.log &
    wait_for 10 "the freeze" grep -q frozen /srv/out/frozen.log
    wait_for 60 "a restart after the freeze of $thread" restarted "$restarts"
    wait
    journalctl -u solkv.service | grep -q "threads=\"*$thread" || fail "the log does not name $thread"
done
journalctl -u solkv.service | grep -q "Watchdog timeout" || fail "it was not the watchdog"
step "a process that stands still, too"
restarts=$(show NRestarts)
kill -STOP "$(show MainPID)"
wait_for 60 "a restart after SIGSTOP" restarted "$restarts"

step "SIGKILL: goes on from its checkpoint"
wait_for 60 "live" status_is "live at slot"
at=$(slot) restarts=$(show NRestarts)
kill -KILL "$(show MainPID)"
wait_for 60 "a restart after SIGKILL" restarted "$restarts"
after=$(slot)
[ "$after" -ge "$at" ] || fail "went back: slot=$after before=$at"
ask --rate 500 --time 2s >/dev/null || fail "lookups after the crash"

step "SIGTERM: ends by itself and well, in bounded time"
wait_for 60 "live" status_is "live at slot"
began=$SECONDS
systemctl stop solkv.service
[ $((SECONDS - began)) -le 20 ] || fail "the stop took $((SECONDS - began)) s"
is "exit code" "$(show ExecMainStatus)" 0
is "result" "$(show Result)" success

step "to the stream's end, and the same map as the stream's"
systemctl start solkv.service
wait_for 180 "the stream's end" grep -q '^final ' /srv/out/stream.log
last=$(sed -n 's/^final slot=\([0-9]*\) .*/\1/p' /srv/out/stream.log)
digest=$(sed -n 's/^final .*digest=\([^ ]*\).*/\1/p' /srv/out/stream.log)
arrived() { [ "$(slot)" = "$last" ]; }
wait_for 120 "slot $last" arrived
ask --rate 500 --time 2s >/dev/null || fail "lookups at the end"
systemctl stop solkv.service
solkv-bootstrap info --dir $store --digest >/srv/out/info.log
grep -qF "$digest" /srv/out/info.log ||
    fail "digest=$digest but $(cat /srv/out/info.log)"

kills=$(journalctl -u solkv.service -o cat | grep -c 'code=killed, status=9/KILL' || true)
is "ends by SIGKILL, of which one was this test's and more would be the kernel's for want of memory" "$kills" 1

step "two instances beside each other, each with its own store"
n=0
for instance in strata lmdb; do
    n=$((n + 1))
    echo "LOAD=--engine $instance --dir /var/lib/solkv/$instance/store --pairs 1000 --seed 1 --extract account-owner" \
        >/etc/solkv/$instance.bootstrap
    cat >/etc/solkv/$instance.toml <<END
engine = "$instance"
dir = "/var/lib/solkv/$instance/store"
geyser = "http://127.0.0.1:1"
listen = "127.0.0.1:75${n}0"
metrics = "127.0.0.1:75${n}1"
uds = "/run/solkv/$instance/kv.sock"
memory = "64MiB"
END
    [ $instance != lmdb ] || sed -i '/^memory/d' /etc/solkv/$instance.toml
    systemctl start solkv-bootstrap@$instance.service
    systemctl start solkv@$instance.service
done
for instance in strata lmdb; do
    solkv-loadgen query --uds /run/solkv/$instance/kv.sock --pairs 1000 --seed 1 --rate 200 --time 1s >/dev/null ||
        fail "instance $instance"
done
systemctl stop solkv@strata.service
[ -S /run/solkv/lmdb/kv.sock ] || fail "one instance's stop took the other's socket"
systemctl stop solkv@lmdb.service
is "result of an instance" "$(show Result solkv@lmdb.service)" success
step "the end"
echo "all of it holds"
