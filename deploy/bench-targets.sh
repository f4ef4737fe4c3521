#!/bin/sh
# strata's targets, measured against the best of the other engines in every cell: one result file a scenario, and the
# table. Run by `make bench-targets`; running it again does what is missing.
set -eu
: "${BIN:?folder of the built binaries; run this through make bench-targets}" "${OUT:?folder of the results}"
scenarios="$(cd "$(dirname "$0")" && pwd)/../loadgen/scenarios/targets"
work="$OUT/work"
mkdir -p "$OUT"
bench() { # FILE SCENARIO OPTIONS...
    file=$1 scenario=$2
    shift 2
    "$BIN/loadgen" bench "$scenarios/$scenario.toml" --out "$OUT/$file.jsonl" --work "$work" "$@"
}
for scenario in caps warm warm-threads warm-more writes; do
    bench "$scenario" "$scenario" --keep
done
rm -rf "$work"
# Shuffled loads of LMDB and redb take seven minutes each and are far from the best: once, and not at 50M.
fast() { bench "$@" --engine rocksdb --engine "rocksdb --bloom 20" --engine "rocksdb --profile tuned --bloom 10" --engine strata; }
fast loads loads
bench loads loads --engine lmdb --engine redb --repeats 1
fast loads-50m loads --pairs 50000000 --repeats 1
bench caps-100m caps --pairs 100000000 --repeats 1 --keep
bench recover recover
rm -rf "$work"
"$BIN/loadgen" best "$OUT"/*.jsonl --engine strata | tee "$OUT/best.md"
