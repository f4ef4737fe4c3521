#!/bin/bash
# Lists settings of this machine that hurt solkv: value, verdict, reason, and the command that changes it. It changes
# nothing by itself. --apply changes the named settings until the next boot and shows the values before and after; only
# this needs root. Installed as solkv-host-check.
set -u

usage() {
    cat <<'END'
Lists the settings of this machine that hurt solkv. Changes nothing without --apply.

Usage: solkv-host-check [--dir DIR] [--root DIR] [--apply NAME...]

  --dir DIR        the store's directory, or the one it will be in [default: /var/lib/solkv]
  --root DIR       look at /proc and /sys below DIR, such as a host's in a container
  --apply NAME...  change these, until the next boot; the names are those of the table

Verdicts: ok; hurts: slower or less even than it could be; bad: lookups or data are at risk;
unknown: unknown here. Exit codes: 0 looked, or applied; 1 something could not be applied;
2 wrong arguments.
END
}

dir=/var/lib/solkv root='' apply='' failed=0
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --dir | --root)
            [ $# -ge 2 ] || { echo "solkv-host-check: $1 needs a directory" >&2; exit 2; }
            if [ "$1" = --dir ]; then dir=$2; else root=$2; fi
            shift 2 ;;
        --apply)
            shift
            while [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; do apply="$apply $1"; shift; done
            [ -n "$apply" ] || { echo "solkv-host-check: --apply needs a name from the table" >&2; exit 2; } ;;
        *) echo "solkv-host-check: unknown argument: $1" >&2; usage >&2; exit 2 ;;
    esac
done

# ---- Reading settings

first() { # the first line of a file, or nothing
    { head -n 1 "$root$1"; } 2>/dev/null
}
chosen() { # of "a [b] c" the b
    first "$1" | sed -n 's/.*\[\(.*\)\].*/\1/p'
}
number() { # true when $1 is one
    case $1 in '' | *[!0-9]*) return 1 ;; esac
}

# If the directory does not exist yet, its nearest existing parent stands for it.
below=$dir
while [ ! -d "$below" ] && [ "$below" != / ] && [ "$below" != . ]; do below=$(dirname "$below"); done
fs=$(stat -f -c %T "$below" 2>/dev/null)
mount=$(df --output=target "$below" 2>/dev/null | tail -n 1)
# If a path has several mounts, the last one is visible.
options=$(awk -v at="$mount" '$2 == at { found = $4 } END { print found }' "$root/proc/mounts" 2>/dev/null)
fstype=$(awk -v at="$mount" '$2 == at { found = $3 } END { print found }' "$root/proc/mounts" 2>/dev/null)
source=$(df --output=source "$below" 2>/dev/null | tail -n 1)
# A partition has no queue; its disk has one.
block=$(basename "$(readlink -f "$source" 2>/dev/null || echo "$source")")
queue=/sys/class/block/$block/queue
if [ ! -d "$root$queue" ]; then
    disk=$(basename "$(dirname "$(readlink -f "$root/sys/class/block/$block" 2>/dev/null)")" 2>/dev/null)
    queue=/sys/class/block/$disk/queue
fi

# ---- Output

# Prints one setting: show NAME VALUE VERDICT WHY COMMAND KEEP. COMMAND changes it now, KEEP makes the change permanent.
show() {
    [ -z "$only" ] || [ "$only" = "$1" ] || return 0
    if [ -n "$only" ]; then
        shown_value=$2 shown_command=$5
        return 0
    fi
    printf '%-17s %-8s %s\n' "$1" "$3" "$2"
    [ "$3" != ok ] || return 0
    printf '%-17s   why:    %s\n' '' "$4"
    [ -z "$5" ] || printf '%-17s   change: %s\n' '' "$5"
    [ -z "${6:-}" ] || printf '%-17s   keep:   %s\n' '' "$6"
}

# ---- Checks, one function a topic

look_memory() {
    thp=$(chosen /sys/kernel/mm/transparent_hugepage/enabled)
    case $thp in
        madvise) verdict=ok ;;
        always) verdict=hurts ;;
        never) verdict=hurts ;;
        *) verdict=unknown thp='unknown' ;;
    esac
    show thp "$thp" "$verdict" \
        "always: the kernel also gives huge pages to engines that did not request them, and stalls them to make room; never: strata's requests have no effect" \
        "echo madvise > $root/sys/kernel/mm/transparent_hugepage/enabled" \
        "'w /sys/kernel/mm/transparent_hugepage/enabled - - - - madvise' in /etc/tmpfiles.d/solkv-host.conf"

    huge=$(first /proc/sys/vm/nr_hugepages)
    verdict=ok; number "$huge" || verdict=unknown
    [ "$verdict" = unknown ] || [ "$huge" -eq 0 ] || verdict=hurts
    show hugepages "${huge:-unknown} reserved" "$verdict" \
        "solkv uses transparent huge pages only, so reserved ones are memory that it cannot use" \
        "echo 0 > $root/proc/sys/vm/nr_hugepages" "vm.nr_hugepages = 0 in /etc/sysctl.d/60-solkv.conf"

    swap=$(awk '$1 == "SwapTotal:" { print $2 }' "$root/proc/meminfo" 2>/dev/null)
    swappiness=$(first /proc/sys/vm/swappiness)
    verdict=ok; number "$swap" && number "$swappiness" || verdict=unknown
    [ "$verdict" = unknown ] || [ "$swap" -eq 0 ] || [ "$swappiness" -le 10 ] || verdict=hurts
    show swap "${swap:-?} KiB, swappiness ${swappiness:-?}" "$verdict" \
        "each lookup that needs a swapped-out filter or cache waits for the device" \
        "echo 1 > $root/proc/sys/vm/swappiness" "vm.swappiness = 1 in /etc/sysctl.d/60-solkv.conf"

    maps=$(first /proc/sys/vm/max_map_count)
    verdict=ok; number "$maps" || verdict=unknown
    [ "$verdict" = unknown ] || [ "$maps" -ge 65530 ] || verdict=bad
    show max_map_count "${maps:-unknown}" "$verdict" "below the kernel's default: allocations of large stores may fail" \
        "echo 65530 > $root/proc/sys/vm/max_map_count" "vm.max_map_count = 65530 in /etc/sysctl.d/60-solkv.conf"

    over=$(first /proc/sys/vm/overcommit_memory)
    case $over in
        0 | 1) verdict=ok ;;
        2) verdict=bad ;;
        *) verdict=unknown over='unknown' ;;
    esac
    show overcommit "$over" "$verdict" "2: the kernel counts thread stacks and caches in full before they are used, and may refuse them" \
        "echo 0 > $root/proc/sys/vm/overcommit_memory" "vm.overcommit_memory = 0 in /etc/sysctl.d/60-solkv.conf"
}

look_disk() {
    ahead=$(first "$queue/read_ahead_kb")
    verdict=ok; number "$ahead" || verdict=unknown
    [ "$verdict" = unknown ] || [ "$ahead" -le 128 ] || verdict=hurts
    show readahead "${ahead:-unknown} KiB on $block" "$verdict" \
        "a page fault may read this much: lookups were 200 times slower at 8192. solkv's engines switch readahead off for their files; backups and other programs do not" \
        "echo 128 > $root$queue/read_ahead_kb" \
        "'ACTION==\"add|change\", KERNEL==\"$block\", ATTR{queue/read_ahead_kb}=\"128\"' in /etc/udev/rules.d/60-solkv.rules"

    scheduler=$(chosen "$queue/scheduler")
    [ -n "$scheduler" ] || scheduler=$(first "$queue/scheduler")
    case $scheduler in
        none | mq-deadline | kyber) verdict=ok ;;
        '') verdict=unknown scheduler='unknown' ;;
        *) verdict=hurts ;;
    esac
    show scheduler "$scheduler on $block" "$verdict" "it makes reads wait for others, which a flash drive does not need" \
        "echo none > $root$queue/scheduler" \
        "'ACTION==\"add|change\", KERNEL==\"$block\", ATTR{queue/scheduler}=\"none\"' in /etc/udev/rules.d/60-solkv.rules"

    rotational=$(first "$queue/rotational")
    case $rotational in
        0) verdict=ok kind='not rotational' ;;
        1) verdict=hurts kind='rotational, or a virtual disk that reports so' ;;
        *) verdict=unknown kind='unknown' ;;
    esac
    show disk "$kind: $block" "$verdict" "on a rotating disk, each lookup that misses memory takes 10 ms" '' ''

    case ${fstype:-$fs} in
        ext4 | xfs | ext2/ext3) verdict=ok ;;
        nfs* | cifs | fuse* | tmpfs | 9p) verdict=bad ;;
        '') verdict=unknown ;;
        *) verdict=hurts ;;
    esac
    show filesystem "${fstype:-${fs:-unknown}} at $below" "$verdict" \
        "solkv is measured on ext4. Copy-on-write file systems write data twice; on network and memory file systems a flushed write can be lost" '' ''

    case ,$options, in
        *,nobarrier,* | *,barrier=0,* | *,data=writeback,*) verdict=bad ;;
        *,sync,* | *,strictatime,*) verdict=hurts ;;
        ,,) verdict=unknown ;;
        *) verdict=ok ;;
    esac
    show mount "${options:-unknown}" "$verdict" \
        "without barriers, a power cut loses committed data; sync and strictatime write on every access" \
        "mount -o remount,barrier=1,relatime $mount" "the same options in /etc/fstab"
}

look_processor() {
    governor=$(cat "$root"/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor 2>/dev/null | sort | uniq -c | sort -rn |
        awk '{ print $2; exit }')
    case $governor in
        performance) verdict=ok ;;
        '') verdict=ok governor='none: the host or the firmware decides' ;;
        *) verdict=hurts ;;
    esac
    show governor "$governor" "$verdict" "after each pause, the first lookups run on a core at low speed" \
        "for f in $root/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor; do echo performance > \"\$f\"; done" \
        "cpufreq.default_governor=performance on the kernel's command line"

    clock=$(first /sys/devices/system/clocksource/clocksource0/current_clocksource)
    case $clock in
        tsc | kvm-clock | hyperv_clocksource_tsc_page | arch_sys_counter) verdict=ok ;;
        '') verdict=unknown clock='unknown' ;;
        *) verdict=hurts ;;
    esac
    show clocksource "$clock" "$verdict" "each reading of the clock is a system call or an access to a slow device, and solkv reads it often" \
        "echo tsc > $root/sys/devices/system/clocksource/clocksource0/current_clocksource" \
        "clocksource=tsc on the kernel's command line, if the kernel offers it"
}

look_limits() {
    files=$(ulimit -H -n 2>/dev/null)
    verdict=ok
    [ "$files" = unlimited ] || { number "$files" && [ "$files" -ge 65536 ]; } || verdict=hurts
    show nofile "$files in this shell" "$verdict" \
        "engines keep all files of a store open. This concerns programs started by hand; the unit sets its own limit" '' \
        "'* hard nofile 1048576' in /etc/security/limits.d/solkv.conf"

    kernel=$(first /proc/sys/kernel/osrelease)
    major=${kernel%%.*} minor=${kernel#*.} minor=${minor%%.*}
    lock=$(ulimit -H -l 2>/dev/null)
    verdict=ok
    if ! number "$major" || ! number "$minor"; then
        verdict=unknown
    elif [ "$major" -lt 5 ] || { [ "$major" -eq 5 ] && [ "$minor" -lt 12 ]; }; then
        [ "$lock" = unlimited ] || { number "$lock" && [ "$lock" -ge 65536 ]; } || verdict=hurts
    fi
    show memlock "$lock KiB, Linux ${kernel:-?}" "$verdict" \
        "before Linux 5.12, io_uring's rings count as locked memory. The unit sets its own limit" '' \
        "'* hard memlock 65536' in /etc/security/limits.d/solkv.conf"

    uring=$(first /proc/sys/kernel/io_uring_disabled)
    case $uring in
        0) verdict=ok ;;
        '') verdict=ok uring='no such setting: enabled since Linux 5.1' ;;
        *) verdict=hurts ;;
    esac
    show io_uring_disabled "$uring" "$verdict" "without io_uring, strata reads the pages of a batch one after another" \
        "echo 0 > $root/proc/sys/kernel/io_uring_disabled" "kernel.io_uring_disabled = 0 in /etc/sysctl.d/60-solkv.conf"

    if [ -e "$root/sys/fs/cgroup/cgroup.controllers" ]; then
        version=v2 verdict=ok
    elif [ -d "$root/sys/fs/cgroup/memory" ]; then
        version=v1 verdict=hurts
    else
        version=none verdict=unknown
    fi
    show cgroup "$version" "$verdict" "with v1, MemoryMax works, but MemoryHigh and MemorySwapMax have no effect" '' \
        "systemd.unified_cgroup_hierarchy=1 on the kernel's command line"
}

look() { look_memory; look_disk; look_processor; look_limits; }

# ---- Applying changes

only='' shown_value='' shown_command=''
if [ -z "$apply" ]; then
    look
    exit 0
fi
for only in $apply; do
    shown_value='' shown_command=''
    look
    if [ -z "$shown_value" ]; then
        echo "$only: not a name of the table" >&2
        failed=2
        continue
    fi
    if [ -z "$shown_command" ]; then
        echo "$only: this program cannot change it; its line in the table says how" >&2
        failed=1
        continue
    fi
    before=$shown_value
    # Every command comes from this file, so it is safe to run.
    if ! sh -c "$shown_command"; then
        echo "$only: not changed: $shown_command" >&2
        failed=1
        continue
    fi
    look
    echo "$only: before: $before; after: $shown_value"
done
exit "$failed"
