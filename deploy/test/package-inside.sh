#!/usr/bin/env bash
# Runs as a unit of a clean Debian's systemd, and tests what is left after installing, upgrading, removing and purging.
# package.sh looks for the last line of the output.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
step() { printf '== %-3s s  %s\n' "$SECONDS" "$*"; }
fail() {
    echo "FAILED: $*"
    systemctl status solkv.service --no-pager -l || true
    exit 1
}
is() { [ "$2" = "$3" ] || fail "$1: got=$2 expected=$3"; }
gone() { [ ! -e "$1" ] || fail "still there: $1"; }
there() { [ -e "$1" ] || fail "not there: $1"; }
show() { systemctl show -P "$1" solkv.service; }
ask() { solkv-loadgen query --target 127.0.0.1:7400 --pairs 20000 --seed 1 --negative-share 0.3 --rate 500 --time 1s >/dev/null || fail "lookups $1"; }

step "install: there, and nothing runs"
dpkg -i /srv/first.deb
getent passwd solkv >/dev/null || fail "no user"
is "home" "$(getent passwd solkv | cut -d : -f 6)" /var/lib/solkv
is "data's owner and mode" "$(stat -c %U:%G:%a /var/lib/solkv)" solkv:solkv:750
is "secrets' owner and mode" "$(stat -c %U:%a /etc/credstore)" root:700
is "state" "$(show ActiveState)" inactive
is "enabled" "$(systemctl is-enabled solkv.service || true)" disabled
for file in /usr/share/man/man1/solkv-{service,bootstrap,loadgen,host-check}.1.gz \
    /usr/share/bash-completion/completions/solkv-service /usr/share/zsh/vendor-completions/_solkv-bootstrap \
    /usr/share/fish/vendor_completions.d/solkv-loadgen.fish /usr/share/doc/solkv/{copyright,{README,GUIDE,RUNBOOK,ARCHITECTURE,CHANGELOG,ERRORS,METRICS,RELIABILITY}.md} \
    /usr/share/solkv/prometheus/solkv.{alerts,recording}.yml /usr/share/solkv/grafana/solkv.json \
    /usr/share/solkv/proto/solkv/{v1/kv,v1/feed,admin/v1/admin}.proto \
    /usr/share/solkv/systemd/memory-8g.conf /usr/bin/solkv-host-check; do
    there "$file"
done
for page in /usr/share/man/man1/solkv-*.1.gz; do
    text=$(zcat "$page")
    grep -qx '.SH SEE ALSO' <<<"$text" || fail "no SEE ALSO: $page"
    ! grep -qx '.SH EXTRA' <<<"$text" || fail "a section called EXTRA: $page"
done
for program in solkv-service solkv-bootstrap solkv-loadgen; do
    "$program" --version | grep -q "^$program " || fail "$program does not say its name"
    bash -n "/usr/share/bash-completion/completions/$program"
    grep -q "complete .*$program\$" "/usr/share/bash-completion/completions/$program" || fail "completions of $program"
done
solkv-host-check >/srv/out/host.log
grep -q '^cgroup ' /srv/out/host.log || fail "the host check"

step "loadgen finds the service under its installed name"
solkv-bootstrap --engine strata --dir /tmp/live --pairs 2000 --seed 1 --slot 999 >/dev/null 2>&1
solkv-loadgen live --engine strata --dir /tmp/live --pairs 2000 --seed 1 --events 5000 --verify >/srv/out/live.log 2>&1 ||
    fail "$(tail -n 5 /srv/out/live.log)"

step "configure, load, run"
sed -i 's|^#geyser = .*|geyser = "http://127.0.0.1:1"|; s|^#engine = .*|engine = "strata"|' /etc/solkv/solkv.toml
echo 'LOAD=--engine strata --dir /var/lib/solkv/store --pairs 20000 --seed 1 --extract account-owner' >/etc/solkv/solkv.bootstrap
systemctl start solkv-bootstrap@solkv.service
(umask 077 && echo secret >/etc/credstore/solkv.x-token)
systemctl enable --quiet --now solkv.service
ask "after the start"
config=$(md5sum </etc/solkv/solkv.toml) pid=$(show MainPID)

step "upgrade: restarted, with its data and the configuration that was edited"
dpkg --force-confdef --force-confold -i /srv/next.deb
is "version" "$(dpkg-query -W -f '${Version}' solkv)" 999.0.0
is "state" "$(show ActiveState)" active
[ "$(show MainPID)" != "$pid" ] || fail "the old program still runs"
is "configuration" "$(md5sum </etc/solkv/solkv.toml)" "$config"
is "enabled" "$(systemctl is-enabled solkv.service)" enabled
ask "after the upgrade"

step "a service that was stopped stays stopped over an upgrade"
systemctl stop solkv.service
dpkg --force-confdef --force-confold -i /srv/next.deb
is "state" "$(show ActiveState)" inactive
systemctl start solkv.service

step "remove: stopped and gone, data and configuration stay"
dpkg -r solkv
gone /usr/bin/solkv-service
! grep -qsx solkv-service /proc/[0-9]*/comm || fail "still runs"
there /var/lib/solkv/store/SOLKV
there /etc/solkv/solkv.toml
gone /run/solkv

step "installed again it goes on with them"
dpkg --force-confdef --force-confold -i /srv/first.deb
systemctl start solkv.service
ask "after the second installation"

step "purge: asks nothing, takes data, configuration and secrets; the user stays"
mkdir -p /etc/systemd/system/solkv.service.d
cp /usr/share/solkv/systemd/memory-1g.conf /etc/systemd/system/solkv.service.d/
dpkg -P solkv </dev/null
for place in /var/lib/solkv /etc/solkv /etc/credstore/solkv.x-token /run/solkv; do gone "$place"; done
getent passwd solkv >/dev/null || fail "the user is gone"
left=$(find / -xdev -path /proc -prune -o -path /sys -prune -o -path /srv -prune -o -path /var/log -prune -o -name '*solkv*' -print)
is "left behind" "$left" ""
step "the end"
echo "all of it holds"
