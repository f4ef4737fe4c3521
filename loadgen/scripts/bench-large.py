#!/usr/bin/env python3
"""Loads a map of mainnet's size under a memory cap, and follows a stream with it at once.

  loadgen/scripts/bench-large.py [--bin DIR] [--work DIR] [--pairs N] [--cap BYTES] [--order ORDER] [--settle] [--hours H]
      [--sorted-input] [--out FILE] ENGINE...

ENGINE is an engine with its options, in one word for the shell: "rocksdb --bloom 20". For each one `bootstrap` loads --pairs
pairs of a seed, whose keys come in random order. The load runs in a cgroup of --cap bytes; --order is the engine's default
unless it is given. After --hours the load is stopped, and the line says how far it came. With --sorted-input the pairs are then
loaded from that store, in the order of its keys, into a second one, which is removed. As soon as a load ends, `loadgen live`
plays two streams at full speed into a service under the same cap: one as the service comes, and one that looks up one key
after another (`--ingest-depth 1`), whose latencies are those of single gets.

Samples the disk of the store and of its work directory, and the anonymous memory of the load. Prints a JSON line for each
engine, which --out appends to a file. Exit code 1: a program failed.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys

from kit import built, capped, load, options, origin, series, tell

STREAMS = {"as_it_comes": (1_000_000, []), "one_by_one": (200_000, ["--ingest-depth", "1"])}


def load_in_key_order(args, engine, store):
    """Loads the pairs of a store into another one, and returns the seconds that it takes to read and write them."""
    other = f"{store}-again"
    command = [os.path.join(args.bin, "bootstrap"), "--from-store", store, "--engine", *shlex.split(engine), "--dir", other]
    child, _, _ = capped(args, command + (["--settle"] if args.settle else []), other)
    with open(os.path.join(args.work, "load.log")) as log:
        told = [word for line in log for word in line.split() if word.startswith("load_s=")]
    if child.returncode != 0 or not told:
        sys.exit(f"the load in key order failed: code={child.returncode}: see {args.work}/load.log")
    shutil.rmtree(other)
    # The command compares the two stores in the end, which is no part of the load.
    return float(told[0].split("=")[1])


def live(args, store, events, more):
    """Plays a stream into a service on the store, and returns the figures of that."""
    report = os.path.join(args.work, "live.json")
    command = [os.path.join(args.bin, "loadgen"), "live", "--dir", store, "--pairs", str(args.pairs), "--seed", "1"]
    command += ["--events", str(events), "--cap", str(args.cap), "--state", "cold", "--report", report]
    done = subprocess.run([*command, "--", *more], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"loadgen live failed: code={done.returncode}\n{done.stdout}{done.stderr}")
    with open(report) as file:
        told = json.load(file)
    return {
        "events": events,
        "events_per_s": round(told["events_per_s"]),
        "peak_memory_bytes": told["usage"]["peak_rss_bytes"],
        "latency": series(told["latency"]),
    }


def measure(args, engine):
    shutil.rmtree(args.work, ignore_errors=True)
    os.makedirs(args.work)
    store = os.path.join(args.work, "store")
    row = {**origin(built(args.bin)), "engine": engine, "pairs": args.pairs, "cap_bytes": args.cap}
    order = ["--order", args.order] if args.order else []
    row |= load(args, engine, store, *order, *(["--settle"] if args.settle else []))
    if row["is_complete"] and args.sorted_input:
        row["sorted_input_s"] = load_in_key_order(args, engine, store)
    if row["is_complete"]:
        row["live"] = {name: live(args, store, events, more) for name, (events, more) in STREAMS.items()}
    return row


def main():
    parser = options(__doc__, "bench-large")
    parser.add_argument("engines", nargs="+", metavar="ENGINE")
    parser.add_argument("--pairs", type=int, default=700_000_000)
    parser.add_argument("--cap", type=int, default=4 << 30, help="memory of the load and of the service, in bytes")
    parser.add_argument("--order", help="order of the load: sorted or shuffled")
    parser.add_argument("--settle", action="store_true", help="a load ends when the engine has settled")
    parser.add_argument("--sorted-input", action="store_true", help="measure a load of the same pairs in key order as well")
    parser.add_argument("--hours", type=float, default=3, help="hours after which a load is stopped")
    parser.add_argument("--out", help="file that the lines are appended to")
    args = parser.parse_args()
    for engine in args.engines:
        row = measure(args, engine)
        tell(row, args.out)
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()
