#!/usr/bin/env bash
# Tests the host check on fake machines made of files: a good one, a bad one, and the changes by --apply. Needs no root.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
check=deploy/host/check.sh
fail() { echo "host: $*" >&2; exit 1; }
put() { mkdir -p "$(dirname "$work/$1")" && printf '%s\n' "$2" >"$work/$1"; }
verdict() { # verdict NAME EXPECTED
    found=$(bash $check --root "$work" --dir "$work" | awk -v name="$1" '$1 == name { print $2 }')
    [ "$found" = "$2" ] || fail "$1 is said to be $found, not $2"
}
block=$(basename "$(df --output=source "$work" | tail -n 1)")
good() {
    put sys/kernel/mm/transparent_hugepage/enabled 'always [madvise] never'
    put proc/sys/vm/nr_hugepages 0
    put proc/meminfo 'SwapTotal: 0 kB'
    put proc/sys/vm/swappiness 60
    put proc/sys/vm/max_map_count 65530
    put proc/sys/vm/overcommit_memory 0
    put "sys/class/block/$block/queue/read_ahead_kb" 128
    put "sys/class/block/$block/queue/scheduler" '[none] mq-deadline'
    put "sys/class/block/$block/queue/rotational" 0
    put proc/mounts "x $(df --output=target "$work" | tail -n 1) xfs rw,relatime 0 0"
    put sys/devices/system/cpu/cpu0/cpufreq/scaling_governor performance
    put sys/devices/system/clocksource/clocksource0/current_clocksource tsc
    put proc/sys/kernel/osrelease 6.1.0-13-amd64
    put proc/sys/kernel/io_uring_disabled 0
    put sys/fs/cgroup/cgroup.controllers 'cpu memory'
}
good
names=$(bash $check --root "$work" --dir "$work" | awk '/^[a-z]/ { print $1 }')
for name in $names; do
    [ "$name" = nofile ] || verdict "$name" ok # of this shell, whatever the files say
done
[ "$(wc -w <<<"$names")" -eq 16 ] || fail "names: $names"
bad() { # bad NAME VERDICT FILE VALUE
    put "$3" "$4"
    verdict "$1" "$2"
    good
}
bad thp hurts sys/kernel/mm/transparent_hugepage/enabled '[always] madvise never'
bad hugepages hurts proc/sys/vm/nr_hugepages 512
bad swap hurts proc/meminfo 'SwapTotal: 1024 kB'
bad max_map_count bad proc/sys/vm/max_map_count 1000
bad overcommit bad proc/sys/vm/overcommit_memory 2
bad readahead hurts "sys/class/block/$block/queue/read_ahead_kb" 8192
bad scheduler hurts "sys/class/block/$block/queue/scheduler" '[bfq] none'
bad disk hurts "sys/class/block/$block/queue/rotational" 1
bad filesystem hurts proc/mounts "x $(df --output=target "$work" | tail -n 1) btrfs rw,relatime 0 0"
bad mount bad proc/mounts "x $(df --output=target "$work" | tail -n 1) ext4 rw,nobarrier 0 0"
bad governor hurts sys/devices/system/cpu/cpu0/cpufreq/scaling_governor powersave
bad clocksource hurts sys/devices/system/clocksource/clocksource0/current_clocksource hpet
bad io_uring_disabled hurts proc/sys/kernel/io_uring_disabled 2
bad memlock unknown proc/sys/kernel/osrelease ''
rm -r "$work/sys/fs/cgroup"
verdict cgroup unknown
good

put "sys/class/block/$block/queue/read_ahead_kb" 8192
put proc/sys/vm/swappiness 60
said=$(bash $check --root "$work" --dir "$work" --apply readahead swap)
grep -q "readahead: before: 8192 KiB on $block; after: 128 KiB on $block" <<<"$said" || fail "--apply says: $said"
[ "$(cat "$work/proc/sys/vm/swappiness")" = 1 ] || fail "--apply swap changed nothing"
code=0
bash $check --root "$work" --apply nofile 2>/dev/null || code=$?
[ "$code" -eq 1 ] || fail "what cannot be applied: code=$code"
bash $check --nonsense >/dev/null 2>&1 || code=$?
[ "$code" -eq 2 ] || fail "wrong arguments: code=$code"
echo "host: $(wc -w <<<"$names") looks, each with a good and a bad machine"
