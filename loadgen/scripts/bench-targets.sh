#!/bin/sh
# Measures strata's targets against the best of the other engines in every cell, and writes one result file a scenario
# and the table. `make bench TOPIC=targets` runs it; a second run completes the missing parts. With names of pieces it runs
# only these:
#   caps     reads of 50M pairs under caps                       30 GB
#   memory   reads of 20M pairs in memory, scans, recovery       12 GB
#   changes  writes, readers during writes, aged stores          4 GB
#   loads    loads of 20M pairs, shuffled and sorted             3 GB
#   live     the service on a stream at full speed, 50M pairs    20 GB
#   one-by-one  the same with one lookup after another           20 GB; runs only if named
#   large    100M pairs under caps, once, and loads of 50M       75 GB; runs only if named
set -eu
: "${BIN:?folder of the built binaries; run this through make bench TOPIC=targets}" "${OUT:?folder of the results}"
scenarios="$(cd "$(dirname "$0")" && pwd)/../scenarios/targets"
work="$OUT/work"
mkdir -p "$OUT"
bench() { # FILE SCENARIO OPTIONS...
    file=$1 scenario=$2
    shift 2
    "$BIN/loadgen" bench "$scenarios/$scenario.toml" --out "$OUT/$file.jsonl" --work "$work" --keep "$@"
}
piece() {
    case $1 in
        caps) bench caps caps ;;
        memory) for scenario in warm warm-more recover; do bench "$scenario" "$scenario"; done ;;
        changes) for scenario in writes batches beside aged values; do bench "$scenario" "$scenario"; done ;;
        loads) for scenario in loads-sorted loads-shuffled loads-shuffled-once; do bench loads "$scenario"; done ;;
        live) for scenario in live-caps live-memory; do bench "$scenario" "$scenario"; done ;;
        one-by-one) for scenario in one-by-one-caps one-by-one-memory; do bench "$scenario" "$scenario"; done ;;
        large)
            bench caps-100m caps --pairs 100000000 --repeats 1
            bench recover-100m recover --pairs 100000000 --repeats 1 --engine strata
            for scenario in loads-sorted loads-shuffled; do
                bench loads-50m "$scenario" --pairs 50000000 --repeats 1
            done
            ;;
        *) echo "no such piece: $1: caps, memory, changes, loads, live, one-by-one or large" >&2; exit 2 ;;
    esac
    # The next piece cannot use the stores of this one.
    rm -rf "$work"
}
[ $# -gt 0 ] || set -- caps memory changes loads live
for name in "$@"; do
    piece "$name"
done
"$BIN/loadgen" best "$OUT"/*.jsonl --engine strata | tee "$OUT/best.md"
