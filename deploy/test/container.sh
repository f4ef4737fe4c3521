#!/usr/bin/env bash
# Boots a real systemd in a container, with effective memory limits. Other scripts source this file.
# On cgroup v1 the container needs its own cgroups: the calling shell moves into fresh ones, and `container_leave` moves
# it back. With cgroup v2 this is not needed.

container_hierarchies=()
container_group=solkv-test-$$

# Exits and names what is missing, unless the caller is root and all programs are installed.
container_needs() {
    [ "$(id -u)" -eq 0 ] || { echo "$1: run as root: it starts a container" >&2; exit 1; }
    local program
    for program in systemd-nspawn "${@:2}"; do
        command -v "$program" >/dev/null ||
            { echo "$1: please install: $program (Debian: systemd-container, python3, mmdebstrap)" >&2; exit 1; }
    done
}

container_enter() {
    [ -d /sys/fs/cgroup/memory ] || return 0
    container_hierarchies=(memory pids cpu systemd)
    container_before=$(awk -F: '$2 == "memory" { print $3 }' /proc/$$/cgroup)
    local hierarchy
    for hierarchy in "${container_hierarchies[@]}"; do
        mkdir -p "/sys/fs/cgroup/$hierarchy/$container_group"
        echo $$ >"/sys/fs/cgroup/$hierarchy/$container_group/cgroup.procs"
    done
}

container_leave() {
    local hierarchy home
    for hierarchy in "${container_hierarchies[@]}"; do
        home=/sys/fs/cgroup/$hierarchy
        [ "$hierarchy" = memory ] && home=$home$container_before
        echo $$ >"$home/cgroup.procs"
        find "/sys/fs/cgroup/$hierarchy/$container_group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
    done
    container_hierarchies=()
}

# container_over_this_system BIN FILES...: makes a root for container_run from this machine's own system, with the
# package installed over it and FILES in /srv. Sets `work` (the store, on this machine's disk), `root` (other writes of
# the container, in memory; the root itself is $root/merged) and `out` (OUT, or a temporary directory).
container_over_this_system() {
    local bin=$1
    shift
    work=$(mktemp -d)
    root=$(mktemp -d)
    out=$(realpath -m "${OUT:-$work/out}")
    mkdir -p "$out" "$work/state"
    mount -t tmpfs tmpfs "$root"
    mkdir "$root/upper" "$root/work" "$root/merged"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" "$root/merged"
    deploy/package/tree.sh "$bin" "$work/tree"
    cp -a "$work/tree/." "$root/merged/"
    rm -rf "$work/tree"
    mkdir -p "$root/merged/srv" "$root/merged/var/lib/solkv"
    install -m 755 "$@" "$root/merged/srv/"
}

# Removes everything that container_enter and container_over_this_system made.
container_gone() {
    container_leave
    [ -n "${root:-}" ] || return 0
    umount "$root/merged" "$root" 2>/dev/null || true
    rmdir "$root" 2>/dev/null || true
    rm -rf "$work"
}

# container_run ROOT SCRIPT OUT SECONDS NSPAWN-ARGUMENTS...: boots ROOT, runs SCRIPT (a path in it) as a unit with the
# environment of /srv/environment, and ends. The output is in OUT/inside.log. Returns true if the output contains the
# final line of a successful script.
container_run() {
    local root=$1 script=$2 out=$3 seconds=$4
    shift 4
    mkdir -p "$root/srv/out" "$root/etc/systemd/system"
    : >"$root/etc/machine-id"
    : >>"$root/srv/environment"
    : >"$out/inside.log"
    cat >"$root/etc/systemd/system/inside.service" <<END
[Unit]
After=basic.target
[Service]
Type=oneshot
EnvironmentFile=/srv/environment
ExecStart=/bin/bash $script
ExecStopPost=/bin/systemctl poweroff -ff
StandardOutput=append:/srv/out/inside.log
StandardError=append:/srv/out/inside.log
END
    # nspawn mounts the controllers read-only, but the container's systemd must write limits there. The variables below
    # are for the shell in the container:
    # shellcheck disable=SC2016
    timeout -k 10 "$seconds" systemd-nspawn -q -D "$root" --bind="$out:/srv/out" "$@" --private-network \
        --register=no --keep-unit --console=pipe \
        /bin/sh -c 'for c in memory pids; do
                        [ ! -d /sys/fs/cgroup/$c ] || mount -o remount,rw,bind /sys/fs/cgroup/$c
                    done
                    exec /lib/systemd/systemd --log-target=journal --show-status=no --unit=inside.service' \
        >"$out/console.log" 2>&1 || true
    cat "$out/inside.log"
    grep -qx "all of it holds" "$out/inside.log" && return 0
    echo "failed; the last of the console:" >&2
    tail -n 20 "$out/console.log" >&2
    return 1
}
