#!/bin/bash
# Runs the whole service for hours under a memory cap smaller than its data: a stream with faults, lookups, followers of
# the feed over shared memory and gRPC. It samples memory, lookup latency and lag throughout, the bytes that the engine
# has written, and its merges. It fails if an answer is wrong, if the service does not answer, if it lags by more than
# LAG_SLOTS_MAX slots, if the store's digest is not the stream's, if a follower lacks a change, and if the second half has
# taken more memory than the first by more than 5%. `make soak` runs it; it needs permission to make cgroups.
set -euo pipefail
: "${BIN:?folder of the built binaries; run this through make soak}"
: "${OUT:?file for the samples, a table with tabs}"
engine=${ENGINE:-strata} pairs=${PAIRS:-10000000} cap=${CAP:-384MiB} rate=${RATE:-3000} seconds=${SECONDS_LONG:-3600}
every=${EVERY:-30} lag_slots_max=${LAG_SLOTS_MAX:-5}
work=$(mktemp -d "${TMPDIR:-/tmp}/solkv-soak.XXXXXX")
cleanup() {
    # shellcheck disable=SC2046 # a list of processes
    kill $(jobs -p) 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

"$BIN/bootstrap" --engine "$engine" --dir "$work/store" --pairs "$pairs" --order sorted >/dev/null 2>&1
echo "== $engine, $pairs pairs, $(du -sh "$work/store" | cut -f1), cap $cap, $rate events/s for $seconds s"
"$BIN/loadgen" live --engine "$engine" --dir "$work/store" --pairs "$pairs" --cap "$cap" --verify \
    --events $((rate * seconds)) --rate "$rate" --events-per-slot $((rate * 2 / 5)) --change-share 0.3 --skew zipfian:0.8 \
    --dead-every 50 --skip-every 37 --out-of-order-every 23 --disconnect-every $((rate * 600)) --duplicates \
    -- --uds "$work/kv.sock" --shm "$work/shm.sock" >"$work/live.out" 2>"$work/live.err" &
live=$!
until [ -S "$work/kv.sock" ] && [ -S "$work/shm.sock" ]; do
    kill -0 "$live" || { cat "$work/live.err" >&2; exit 1; }
    sleep 0.2
done
if grep -q 'NOT in force' "$work/live.err"; then
    cat "$work/live.err" >&2
    exit 1
fi
service=$(pgrep -P "$live" -x service)
followers=()
for way in unix://"$work"/kv.sock shm://"$work"/shm.sock; do
    "$BIN/loadgen" follow --address "$way" >"$work/follow.${way%%:*}" 2>"$work/follow.${way%%:*}.err" &
    followers+=($!)
done
group=$(awk -F: '$2 == "memory" { print "/sys/fs/cgroup/memory" $3 } $1 == 0 { print "/sys/fs/cgroup" $3 }' \
    "/proc/$service/cgroup" | head -1)
charged() { cat "$group/memory.usage_in_bytes" 2>/dev/null || cat "$group/memory.current"; }

metrics=$(grep -o 'http://[0-9.:]*/metrics' "$work/live.err" | head -1)
# Fails if the service does not answer; there is no lag before the first slot.
lag_slots() { curl -s --max-time 2 --retry 1 "$metrics" | awk '$1 == "solkv_lag_slots" { lag = $2 } END { printf "%.0f\n", lag }'; }
runs() { kill -0 "$live" 2>/dev/null && kill -0 "$service" 2>/dev/null; }
failed() {
    echo "soak: $1" >&2
    exit 1
}
# The changes of the store, the bytes that the kernel counts as written by the process, and the engine's own figures: "-"
# where it has none. The kernel counts a whole large folio for each page of it that was changed through the page cache.
figures() {
    { cat "/proc/$service/io"; curl -s --max-time 2 "$metrics"; } | awk '
        $1 == "write_bytes:" { written = $2 }
        $1 == "solkv_events_written_total" || $1 == "solkv_events_deleted_total" { changes += $2 }
        match($1, /^solkv_engine_detail\{name="[a-z_]*"\}$/) { own[substr($1, 27, length($1) - 28)] = $2 }
        function of(name) { return name in own ? own[name] : "-" }
        END {
            printf "%.0f\t%.0f\t%s\t%s\t%s\t%s\n", changes, written, of("write_amplification_percent"),
                of("merges"), of("merge_us"), of("merge_step_longest_us")
        }'
}

printf 'seconds\trss_anon_kib\trss_file_kib\trss_shmem_kib\tcharged_kib\tfds\tthreads\tlookup_p50_us\tlookup_p99_us\tlag_slots_max\tchanges\twritten_bytes\twrite_amplification_percent\tmerges\tmerge_us\tmerge_step_longest_us\n' >"$OUT"
field() { awk -v name="$1:" '$1 == name { print $2 }' <<<"$status"; }
start=$SECONDS worst=0
while runs && status=$(cat "/proc/$service/status" 2>/dev/null); do
    "$BIN/loadgen" query --uds "$work/kv.sock" --pairs "$pairs" --rate 500 --time 5s --changed --negative-share 0.2 \
        --out "$work/query.jsonl" >/dev/null 2>"$work/query.err" &
    query=$! most=0
    for _ in $(seq "$every"); do
        sleep 1
        runs || break 2
        lag=$(lag_slots) || { sleep 1; runs || break 2; failed "the service does not answer $metrics"; }
        [ "$lag" -le "$most" ] || most=$lag
        [ "$lag" -le "$worst" ] || worst=$lag
    done
    wait "$query" || { runs || break; cat "$work/query.err" >&2; failed "the lookups have failed"; }
    lookups=$(tail -n 1 "$work/query.jsonl" | python3 -c '
import json, sys
quantiles = [c["quantiles_ns"] for c in json.load(sys.stdin)["curves"] if c["op"] == "read_positive"][0]
print(quantiles["p50"] / 1e3, quantiles["p99"] / 1e3, sep="\t")')
    fds=$(find "/proc/$service/fd" -mindepth 1 2>/dev/null | wc -l)
    own=$(figures) || { runs || break; failed "the service does not answer $metrics"; }
    printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' $((SECONDS - start)) "$(field RssAnon)" "$(field RssFile)" \
        "$(field RssShmem)" "$(($(charged) / 1024))" "$fds" "$(field Threads)" "$lookups" "$most" "$own" >>"$OUT"
done
wait "$live" || { cat "$work/live.out" "$work/live.err" >&2; exit 1; }
kill "${followers[@]}"
wait "${followers[@]}" || true
cat "$work/live.out" "$work"/follow.unix "$work"/follow.shm
seq=$("$BIN/bootstrap" info --dir "$work/store" | sed -n 's/^checkpoint seq=\([0-9]*\).*/\1/p')
python3 - "$OUT" "$seq" "$seconds" "$every" "$worst" "$lag_slots_max" "$work/follow.unix" "$work/follow.shm" <<'PYTHON'
import re, sys
table, seq, seconds, every, worst_lag, lag_slots_max, *followers = sys.argv[1:]
number = lambda name, path: int(re.search(rf"\b{name}=(\d+)", open(path).read())[1])
for path in followers:
    first, last, changes = number("next_seq", path + ".err"), number("seq", path), number("changes", path)
    assert last == int(seq), f"the follower is at seq={last}, the store at seq={seq}"
    assert changes == last - first + 1, f"the follower has {changes} changes of those from {first} to {last}"
rows = [line.split("\t") for line in open(table)][1:]
assert int(rows[-1][0]) >= int(seconds) - 3 * int(every), f"the last sample is of second {rows[-1][0]} of {seconds}"
lags = sorted(int(float(row[9])) for row in rows)
print(f"lag_slots: highest {worst_lag}, the median of the highest of each sample {lags[len(lags) // 2]}")
assert int(worst_lag) <= int(lag_slots_max), f"the service lags by more than {lag_slots_max} slots"
# The first samples only warm the caches.
rows = rows[len(rows) // 10:]
half = len(rows) // 2
worst = lambda rows, column: max(float(row[column]) for row in rows)
for name, column in (("rss_anon_kib", 1), ("fds", 5), ("threads", 6)):
    first, second = worst(rows[:half], column), worst(rows[half:], column)
    print(f"{name}: highest in the first half {first:.0f}, in the second {second:.0f}")
    assert second <= first * 1.05 + 4096 * (name == "rss_anon_kib"), f"{name} grows"
median = lambda rows, column: sorted(float(row[column]) for row in rows)[len(rows) // 2]
for name, column in (("lookup_p50_us", 7), ("lookup_p99_us", 8)):
    print(f"{name}: median of the first half {median(rows[:half], column):.0f}, of the second {median(rows[half:], column):.0f}")
# Key and value have 32 bytes each.
changes, written, amplification, merges, merge_us, longest_us = (field.strip() for field in rows[-1][10:])
times = int(written) / max(int(changes) * 64, 1)
print(f"written by the process, large folios whole: {int(written)} bytes, {times:.1f} times the changes")
if amplification != "-":
    print(f"write amplification of the engine, with its log: {float(amplification) / 100:.2f}")
if merge_us != "-":
    print(f"merges: {merges} in {float(merge_us) / 1e6:.1f} s, the longest step {float(longest_us) / 1e3:.0f} ms")
PYTHON
