#!/bin/sh
# Shows the main job on one screen: bulk-loads pairs, follows a live Yellowstone stream through a real socket, prints
# the cost of the load and the live latencies, and checks the final map against the stream's digest.
# `make demo` runs it; ENGINE, PAIRS, EVENTS, BLOOM and SEED set the options.
set -eu
: "${BIN:?folder of the built binaries; run this through make demo}"
engine="--engine $ENGINE"
[ "$ENGINE" = rocksdb ] && engine="$engine --bloom $BLOOM"
work=$(mktemp -d "${TMPDIR:-/tmp}/solkv-demo.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

echo "== 1. bootstrap: $PAIRS pairs into $ENGINE"
# shellcheck disable=SC2086 -- a list of flags
"$BIN/bootstrap" $engine --dir "$work/store" --pairs "$PAIRS" --seed "$SEED"

echo
echo "== 2. live: $EVENTS events over a Yellowstone gRPC socket, every commit synced"
# shellcheck disable=SC2086
"$BIN/loadgen" live $engine --dir "$work/store" --pairs "$PAIRS" --seed "$SEED" --events "$EVENTS" --rate max --verify
