#!/usr/bin/env python3
"""Checks that the service has the stream's content after many events, whatever number of keys it looks up together.

  loadgen/scripts/check-depths.py [--bin DIR] [--work DIR] [--pairs N] [--events N] [--cap BYTES] [--out FILE] ENGINE...

For each engine and each depth of --depths, `loadgen live --verify` plays events at full speed to a service on a fresh copy of
the store, and compares the digest of the store with that of the stream. Prints a JSON line for each run, which --out
appends to a file. Exit code 1: a digest differs, or a program failed.
"""

import json
import os
import shutil
import subprocess
import sys

from kit import engine_options, load_sorted, tell


def run(args, engine, base, depth):
    store, report = os.path.join(args.work, "store"), os.path.join(args.work, "report.json")
    shutil.rmtree(store, ignore_errors=True)
    shutil.copytree(base, store)
    command = [os.path.join(args.bin, "loadgen"), "live", "--dir", store, "--pairs", str(args.pairs), "--seed", "1"]
    command += ["--events", str(args.events), "--verify", "--report", report]
    command += ["--cap", str(args.cap)] if args.cap else []
    command += ["--", "--ingest-depth", str(depth)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"engine={engine} depth={depth}: loadgen live failed: code={done.returncode}\n{done.stdout}{done.stderr}")
    with open(report) as file:
        found = json.load(file)
    return {"engine": engine, "ingest_depth": depth, "pairs": args.pairs, "events": args.events, "cap_bytes": args.cap,
            "events_per_s": round(found["events_per_s"]), "verified_digest": found["verified_digest"]}


def main():
    parser = engine_options(__doc__, "check-depths", pairs=5_000_000)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 64, 1024])
    parser.add_argument("--cap", type=int, help="memory of the service in bytes; none without this")
    args = parser.parse_args()
    for engine in args.engines:
        shutil.rmtree(args.work, ignore_errors=True)
        os.makedirs(args.work)
        base = os.path.join(args.work, "base")
        load_sorted(args, engine, base)
        for depth in args.depths:
            tell(run(args, engine, base, depth), args.out)
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()
