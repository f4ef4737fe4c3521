#!/bin/sh
# Measures strata in the states that users get, and says which of its targets are met. `make bench TOPIC=strata` runs it; a second run
# completes the missing parts. With names of pieces it runs only these (the times of scans, shapes and zipfian are estimates):
#   memory    gets of 50M pairs in memory, beside a miss of the caches                5 GB, 8 minutes
#   cold      gets of 50M pairs from a cold start, beside the device                  5 GB, 3 minutes
#   fresh     reads of 20M pairs right after a load, and settled                      3 GB, 10 minutes
#   scans     ten pairs from a random key of 10M pairs                                2 GB, 5 minutes
#   shapes    gets of 10M pairs whose keys share leading bytes                        3 GB, 12 minutes
#   loads     loads of 50M pairs until they have settled, all engines                 15 GB, 35 minutes
#   inserts   300M pairs in shuffled order with lookups in between, 1 and 4 GiB       30 GB, 11 minutes
#   updates   reads of 100M pairs beside 10,000 updates a second                      15 GB, half an hour
#   zipfian   popular keys after ten minutes of them, all engines                     20 GB, three hours
set -eu
: "${BIN:?folder of the built binaries; run this through make bench TOPIC=strata}" "${OUT:?folder of the results}"
scripts=$(cd "$(dirname "$0")" && pwd)
work="$OUT/work"
mkdir -p "$OUT"
bench() { # FILE SCENARIO OPTION...
    file=$1 scenario=$2
    shift 2
    "$BIN/loadgen" bench "$scripts/../scenarios/strata/$scenario.toml" --out "$OUT/$file.jsonl" --work "$work" --keep "$@"
}
[ $# -gt 0 ] || set -- memory cold fresh scans shapes loads inserts updates zipfian
for piece in "$@"; do
    case $piece in
        memory | cold | scans | shapes | inserts | updates | zipfian) bench "$piece" "$piece" ;;
        fresh)
            # The two by turns, because the machine changes within minutes.
            for repeats in 1 2 3 4 5; do
                bench fresh settled --repeats "$repeats"
                bench fresh fresh --repeats "$repeats"
            done
            ;;
        loads)
            # By turns as far as the longer one goes.
            for repeats in 1 2 3; do
                bench loads loads-sorted --repeats "$repeats"
                bench loads loads-shuffled --repeats "$repeats"
            done
            bench loads loads-sorted
            ;;
        *) echo "no such piece: $piece: see the beginning of $0" >&2; exit 2 ;;
    esac
    # The next piece cannot use the stores of this one.
    rm -rf "$work"
done
"$BIN/loadgen" best "$OUT"/*.jsonl --targets "$scripts/../targets.toml" | tee "$OUT/targets.md"
