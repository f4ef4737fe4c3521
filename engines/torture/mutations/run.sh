#!/usr/bin/env bash
# Breaks the code on purpose and checks that the break is caught: run.sh [NAME...], by default every NAME.patch in the
# folders of mutations. run.sh --check builds and runs nothing: it checks that each patch applies to the code as it is
# and has its three lines; `make check` does so.
#
# A patch begins with three lines, and the diff follows:
#   what: what is broken, in words
#   build: the command that builds what runs it; it must succeed
#   run: the command that must fail with the patch, and must not without it
# Commands run at the top of a copy of the tracked files, which is thrown away; the programs that were built are first
# in the PATH. Everything else that they need from cargo is kept in a target directory beside the usual one.
# Exit code 1: a mutation survived, no longer applies, or does not compile; or a command fails on the code as it is.
set -euo pipefail
cd "$(dirname "$0")/../../.."
homes=(engines/torture/mutations service/mutations)
if [ "${1:-}" = --check ]; then
    count=0 failed=0
    for file in $(printf '%s/*.patch\n' "${homes[@]}"); do
        count=$((count + 1))
        for field in what build run; do
            sed '/^diff /q' "$file" | grep -q "^$field: ." ||
                { echo "mutations: has no line \"$field: \": file=$file" >&2; failed=1; }
        done
        said=$(git apply --check "$file" 2>&1) ||
            { printf 'mutations: no longer applies, make it anew: file=%s\n%s\n' "$file" "$said" >&2; failed=1; }
    done
    [ "$failed" -eq 0 ] && echo "mutations: all $count patches apply"
    exit "$failed"
fi
target=${CARGO_TARGET_DIR:-$PWD/target}/mutations
tree=$target/tree
log=$target/log
[ $# -gt 0 ] || set -- $(for home in "${homes[@]}"; do basename -s .patch "$home"/*.patch; done)

rm -rf "$tree"
mkdir -p "$tree"
# With the time of now: what an interrupted run has built from broken files is not taken for these.
git ls-files -z --cached --others --exclude-standard | tar --null --files-from - --create | tar --extract --touch --directory "$tree"
top=$PWD
cd "$tree"
git init --quiet .
# A break changes one function of a crate: only what that function is in is compiled again.
export CARGO_TARGET_DIR=$target PATH=$target/release:$PATH CARGO_INCREMENTAL=1
trap 'rm -rf "$tree"' EXIT

patch() {
    for home in "${homes[@]}"; do
        [ ! -f "$top/$home/$1.patch" ] || { echo "$top/$home/$1.patch"; return; }
    done
    echo "mutations: no such mutation: name=$1" >&2
    exit 1
}
field() { sed -n "s/^$1: //p;/^diff /q" "$(patch "$2")"; }
# The command's exit code; what it printed is in $log.
try() { nice bash -c "$1" >"$log" 2>&1; }
# What caught it: the first line of the most telling kind.
verdict() {
    local kind
    for kind in 'VIOLATION' '^test .*FAILED' 'panicked' '^error'; do
        grep -m1 -E "$kind" "$log" | cut -c1-150 && return
    done
    tail -1 "$log"
}

table=() failed=0
note() { table+=("$(printf '%-28s %-9s %5s s  %s' "$1" "$2" "$3" "$4")"); echo "${table[-1]}"; }

# Caught means nothing where the code as it is fails too.
declare -A sound
for name in "$@"; do
    run=$(field run "$name")
    [ -z "${sound[$run]:-}" ] || continue
    sound[$run]=1
    try "$(field build "$name")" || { cat "$log"; echo "mutations: the code as it is does not build" >&2; exit 1; }
    # A tenth of the time: what it would find is found again and again by the torture itself.
    short=$(sed -E 's/--seconds ([0-9]+)0\b/--seconds \1/' <<<"$run")
    try "$short" || { cat "$log"; echo "mutations: fails without a mutation: $short" >&2; exit 1; }
done

for name in "$@"; do
    if ! git apply "$(patch "$name")" 2>"$log"; then
        note "$name" STALE 0 "$(head -1 "$log")"
        failed=1
        continue
    fi
    start=$SECONDS
    if ! try "$(field build "$name")"; then
        note "$name" NO-BUILD $((SECONDS - start)) "$(verdict)"
        failed=1
    else
        start=$SECONDS
        if try "$(field run "$name")"; then
            note "$name" SURVIVED $((SECONDS - start)) "$(field what "$name")"
            failed=1
        else
            note "$name" caught $((SECONDS - start)) "$(verdict)"
        fi
    fi
    git apply --reverse "$(patch "$name")"
done
echo
printf '%s\n' "${table[@]}"
exit "$failed"
