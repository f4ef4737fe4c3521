#!/usr/bin/env bash
# Measures settings of LMDB and redb that the engines' options do not reach, by turns, and prints a table for each question.
#   engines/trials/run.sh DIR [SET...]     sets: versions gets commits loads readahead redb-gets redb-commits redb-opening redb-loads; all without any
# DIR is on the device to be measured and keeps the stores for the next run. Run it alone on the machine.
# Settings: TURNS=9, PAIRS=5000000 (of the stores), LOAD_PAIRS=2000000 (of a load), COMMITS=60 (of a turn),
#   BOOTSTRAP=the program that makes the stores, LMDB_SOURCE=a checkout's libraries/liblmdb to compare as well.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,7p' "$0" >&2; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")"
turns=${TURNS:-9} pairs=${PAIRS:-5000000} load_pairs=${LOAD_PAIRS:-2000000} commits=${COMMITS:-60}
target=${CARGO_TARGET_DIR:-$PWD/target}
export CARGO_TARGET_DIR=$target/trials
sets=${*:-versions gets commits loads readahead redb-gets redb-commits redb-opening redb-loads}
bin=$dir/bin
mkdir -p "$bin"

# One build for each LMDB: all versions define the same symbols.
build() { # feature, name
    cargo build --locked --quiet --release --features "$1" --bins
    cp "$CARGO_TARGET_DIR/release/lmdb" "$bin/lmdb-$2"
}
build lmdb-master master
[ -z "${LMDB_SOURCE:-}" ] || build lmdb-source source
build lmdb-rkv rkv
cp "$CARGO_TARGET_DIR/release/"{redb,turns} "$bin/"
# As whoever does not ask for the checks builds it.
CARGO_TARGET_DIR=$CARGO_TARGET_DIR/unchecked CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=false \
    cargo build --locked --quiet --release --features lmdb-rkv --bin redb
cp "$CARGO_TARGET_DIR/unchecked/release/redb" "$bin/redb-unchecked"

store() { # engine
    local made=$dir/$1-$pairs
    if [ ! -e "$made/complete" ]; then
        rm -rf "$made"
        local bootstrap=${BOOTSTRAP:-$target/release/bootstrap}
        [ -x "$bootstrap" ] || { echo "there is no bootstrap: file=$bootstrap: build it, or name it with BOOTSTRAP=" >&2; exit 1; }
        # In random order, as a store is after a while: leaves are then as full as updates leave them.
        "$bootstrap" --engine "$1" --order shuffled --dir "$made/store" --pairs "$pairs" --seed 1 >&2
        touch "$made/complete"
    fi
    echo "$made/store"
}

# Arguments: the title, then NAME: COMMAND each, of which the first is what the others are compared with.
compare() {
    printf '\n## %s\n\n' "$1"
    shift
    "$bin/turns" --turns "$turns" "$@"
}
work="--work $dir/work"

versions() {
    local from="--store $(store lmdb)" variants=() version
    for version in rkv ${LMDB_SOURCE:+source} master; do
        variants+=("$("$bin/lmdb-$version" version)|$bin/lmdb-$version")
    done
    each() { local variant; list=(); for variant in "${variants[@]}"; do list+=("${variant%%|*}: ${variant#*|} $*"); done; }
    each get $from
    compare "LMDB's versions, gets in memory of a store of $pairs pairs" "${list[@]}"
    each commit $from $work --commits "$commits"
    compare "LMDB's versions, synced commits of 1000 puts into $pairs pairs" "${list[@]}"
    each append $work --pairs "$load_pairs" --flag nometasync
    compare "LMDB's versions, sorted load of $load_pairs pairs" "${list[@]}"
}

gets() {
    local one="$bin/lmdb-rkv get --store $(store lmdb)"
    compare "LMDB, gets in memory of a store of $pairs pairs" \
        "as it is: $one" "own comparison: $one --words" "duplicates of a prefix: $one --dups $dir/work"
}

commits() {
    local one="$bin/lmdb-rkv commit --store $(store lmdb) $work --commits $commits"
    compare "LMDB, synced commits of 1000 puts into $pairs pairs" \
        "as it is: $one" "sorted: $one --sorted" "sorted, cursor: $one --sorted --how cursor" \
        "reserve: $one --how reserve" "nomeminit: $one --flag nomeminit" "writemap: $one --flag writemap"
}

loads() {
    local load
    for load in append shuffled; do
        local one="$bin/lmdb-rkv $load $work --pairs $load_pairs"
        compare "LMDB, load of $load_pairs pairs, $load" "nometasync: $one --flag nometasync" "nosync: $one --flag nosync" \
            "writemap, mapasync: $one --flag writemap --flag mapasync" "sorted batches: $one --flag nometasync --sorted" \
            "nosync, sorted batches: $one --flag nosync --sorted" "nomeminit: $one --flag nometasync --flag nomeminit"
    done
}

readahead() {
    local one="$bin/lmdb-rkv get --store $(store lmdb) --cold --gets 5000"
    compare "LMDB, $pairs pairs, nothing in memory" "none: $one" "readahead: $one --flag readahead"
}

redb-gets() {
    local from="get --store $(store redb) $work"
    compare "redb, gets in memory of a store of $pairs pairs" \
        "as it is: $bin/redb $from" "compacted: $bin/redb $from --compact" "no overflow checks: $bin/redb-unchecked $from"
}

redb-commits() {
    local one="$bin/redb commit --store $(store redb) $work --commits $commits"
    compare "redb, synced commits of 1000 puts into $pairs pairs" \
        "quick repair each: $one" "every 10th: $one --quick-repair-every 10" "never: $one --quick-repair-every 0" \
        "never, two flushes: $one --quick-repair-every 0 --two-phase" "each, sorted: $one --sorted"
}

# Ten commits: after every 5th the newest commit has quick repair, after every 4th it has not.
redb-opening() {
    local one="$bin/redb open --store $(store redb) $work --commits 10"
    compare "redb, opening $pairs pairs after a kill, nothing in memory" \
        "quick repair each: $one" "every 5th: $one --quick-repair-every 5" "every 4th: $one --quick-repair-every 4" \
        "never: $one --quick-repair-every 0"
}

redb-loads() {
    local load
    for load in append shuffled; do
        local one="$bin/redb $load $work --pairs $load_pairs"
        compare "redb, load of $load_pairs pairs, $load" \
            "as it is: $one" "sorted batches: $one --sorted" "no quick repair: $one --quick-repair-every 0" \
            "a flush every 50th: $one --durable-every 50" \
            "a flush every 50th, sorted, no quick repair: $one --durable-every 50 --sorted --quick-repair-every 0"
    done
}

for set in $sets; do
    case $set in
    versions | gets | commits | loads | readahead | redb-gets | redb-commits | redb-opening | redb-loads) ;;
    *) echo "there is no set $set: see $0 without arguments" >&2; exit 2 ;;
    esac
    "$set"
done
rm -rf "$dir/work"
