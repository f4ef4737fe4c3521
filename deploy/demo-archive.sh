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
story="--pairs $PAIRS --seed $SEED --events $EVENTS --extract token-owner"

echo "== 1. a snapshot archive with $PAIRS token accounts, older versions and closed accounts"
# shellcheck disable=SC2086 -- a list of flags
"$BIN/loadgen" archive $story --out "$work"
archive=$(ls "$work"/snapshot-*.tar.zst)

echo
echo "== 2. bootstrap: the wallet of each token account into $ENGINE, and a comparison with the archive"
"$BIN/bootstrap" --engine "$ENGINE" --dir "$work/store" --input "$archive" --extract token-owner
"$BIN/bootstrap" verify --dir "$work/store" --input "$archive" --extract token-owner

echo
echo "== 3. live: $EVENTS events from the archive's slot on"
# shellcheck disable=SC2086
"$BIN/loadgen" live --engine "$ENGINE" --dir "$work/store" $story --rate max --verify

echo
echo "== 4. an account whose wallet the stream has changed: in the archive and now"
# The comparison names accounts that differ, and its exit code says that there are some.
"$BIN/bootstrap" verify --dir "$work/store" --input "$archive" --extract token-owner >"$work/changes" 2>&1 || [ $? -eq 1 ]
sed -n 's/^different: key=\([^ ]*\) expected=\([^ ]*\) .*/\1 \2/p' "$work/changes" | head -n 1 >"$work/account"
[ -s "$work/account" ] || { cat "$work/changes"; echo "none of these was changed: give more EVENTS"; exit 0; }
read -r account wallet <"$work/account"
echo "archive: $account $wallet"
echo "now:     $("$BIN/bootstrap" get --dir "$work/store" "$account")"
