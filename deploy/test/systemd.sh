#!/usr/bin/env bash
# Runs the installed units under a real systemd, in a container over this machine's own system, and asserts what they
# promise; systemd-inside.sh is what runs there. Root, systemd-nspawn and 3 GB of disk; leaves nothing behind.
# BIN: folder of the built programs. ENGINE (rocksdb), PAIRS, CAP (MemoryMax) and EVENTS size it; OUT keeps the logs.
set -euo pipefail
: "${BIN:?folder of the built programs; run this through make test-systemd}"
cd "$(dirname "$0")/../.."
export ENGINE="${ENGINE:-rocksdb}" PAIRS="${PAIRS:-4000000}" CAP="${CAP:-128M}" EVENTS="${EVENTS:-600000}"
[ "$(id -u)" -eq 0 ] || { echo "systemd: run as root: it starts a container" >&2; exit 1; }
command -v systemd-nspawn >/dev/null || { echo "systemd: please install: systemd-container" >&2; exit 1; }
command -v python3 >/dev/null || { echo "systemd: please install: python3" >&2; exit 1; }

work=$(mktemp -d)       # the store, on this machine's disk
root=$(mktemp -d)       # what the container writes elsewhere, in memory
out=${OUT:-$work/out}
mkdir -p "$out" "$work/state"
out=$(realpath "$out")
hierarchies=()
cgroup=solkv-test-$$
v1=/sys/fs/cgroup/memory
if [ -d $v1 ]; then
    # The container's cgroups have to be its own, or its limits do not hold: this shell moves into fresh ones.
    hierarchies=(memory pids cpu systemd)
    before=$(awk -F: '$2 == "memory" { print $3 }' /proc/$$/cgroup)
fi
cleanup() {
    for hierarchy in "${hierarchies[@]}"; do
        home=/sys/fs/cgroup/$hierarchy
        [ "$hierarchy" = memory ] && home=$home$before
        echo $$ >"$home/cgroup.procs"
        find "/sys/fs/cgroup/$hierarchy/$cgroup" -depth -type d -exec rmdir {} \; 2>/dev/null || true
    done
    umount "$root/merged" "$root" 2>/dev/null || true
    rmdir "$root" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

mount -t tmpfs tmpfs "$root"
mkdir "$root/upper" "$root/work" "$root/merged"
mount -t overlay overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" "$root/merged"
deploy/package/tree.sh "$BIN" "$work/tree"
cp -a "$work/tree/." "$root/merged/"
rm -rf "$work/tree"
: >"$root/merged/etc/machine-id"
mkdir -p "$root/merged/srv/out" "$root/merged/var/lib/solkv"
install -m 755 deploy/test/systemd-inside.sh deploy/test/freeze.py "$root/merged/srv/"
cat >"$root/merged/etc/systemd/system/inside.service" <<END
[Unit]
After=basic.target
[Service]
Type=oneshot
Environment=ENGINE=$ENGINE PAIRS=$PAIRS CAP=$CAP EVENTS=$EVENTS
ExecStart=/bin/bash /srv/systemd-inside.sh
ExecStopPost=/bin/systemctl poweroff -ff
StandardOutput=append:/srv/out/inside.log
StandardError=append:/srv/out/inside.log
END
: >"$out/inside.log"
for hierarchy in "${hierarchies[@]}"; do
    mkdir -p "/sys/fs/cgroup/$hierarchy/$cgroup"
    echo $$ >"/sys/fs/cgroup/$hierarchy/$cgroup/cgroup.procs"
done
echo "systemd: engine=$ENGINE pairs=$PAIRS cap=$CAP events=$EVENTS, $(systemctl --version | head -n 1)"
# nspawn mounts the controllers read-only; the container's systemd has to write limits there.
# For the shell in the container:
# shellcheck disable=SC2016
timeout -k 10 "${TIME_LIMIT:-420}" systemd-nspawn -q -D "$root/merged" --bind="$out:/srv/out" \
    --bind="$work/state:/var/lib/solkv" --private-network --register=no --keep-unit --console=pipe \
    /bin/sh -c 'for c in memory pids; do
                    [ ! -d /sys/fs/cgroup/$c ] || mount -o remount,rw,bind /sys/fs/cgroup/$c
                done
                exec /lib/systemd/systemd --log-target=journal --show-status=no --unit=inside.service' \
    >"$out/console.log" 2>&1 || true
cat "$out/inside.log"
grep -qx "all of it holds" "$out/inside.log" ||
    { echo "systemd: failed; the last of the console:" >&2; tail -n 20 "$out/console.log" >&2; exit 1; }
