#!/bin/sh
# Shows the way in from the chain without a network: writes a small snapshot archive as a validator does, loads the wallets
# of its token accounts, checks the store against the archive, follows the stream that goes on after the archive's slot,
# and looks up an account by its base58 address.
# `make demo-archive` runs it; ENGINE, PAIRS, EVENTS and SEED set the options.
set -eu
: "${BIN:?folder of the built binaries; run this through make demo-archive}"
work=$(mktemp -d "${TMPDIR:-/tmp}/solkv-demo.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Addresses that a person can tell: base58 has no zero.
awk -v pairs="$PAIRS" 'BEGIN { for (i = 1; i <= pairs; i++) { key = sprintf("Demo%039d", i); gsub("0", "z", key); print key } }' \
    >"$work/keys"
keys=$(head -n 1000 "$work/keys")
story="--keys $work/keys --seed $SEED --events $EVENTS --extract token-owner"

echo "== 1. a snapshot archive with $PAIRS token accounts, older versions and closed accounts"
# shellcheck disable=SC2086 -- a list of flags
"$BIN/loadgen" archive $story --out "$work"
archive=$(ls "$work"/snapshot-*.tar.zst)

echo
echo "== 2. bootstrap: the wallet of each token account into $ENGINE, and a comparison with the archive"
"$BIN/bootstrap" --engine "$ENGINE" --dir "$work/store" --input "$archive" --extract token-owner
"$BIN/bootstrap" verify --dir "$work/store" --input "$archive" --extract token-owner
# shellcheck disable=SC2086 -- a list of keys
"$BIN/bootstrap" get --dir "$work/store" $keys >"$work/before"
head -n 1 "$work/before"

echo
echo "== 3. live: $EVENTS events from the archive's slot on"
# shellcheck disable=SC2086
"$BIN/loadgen" live --engine "$ENGINE" --dir "$work/store" $story --rate max --verify

echo
echo "== 4. the first of 1000 accounts whose wallet the stream has changed: before and now"
# shellcheck disable=SC2086
"$BIN/bootstrap" get --dir "$work/store" $keys >"$work/now" 2>"$work/absent" || [ $? = 1 ] # closed accounts are absent
{ diff "$work/before" "$work/now" || true; } | awk '/^[<>]/ { if (!(($1) in seen)) print ($1 == "<" ? "before: " : "now:    ") $2 " " $3; seen[$1] = 1 }'
