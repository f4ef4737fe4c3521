#!/usr/bin/env python3
"""Measures the service's rate in memory with a core of its own: the service on one core, loadgen with the stream on another.

  loadgen/scripts/bench-pinned.py [--bin DIR] [--work DIR] [--pairs N] [--events N] [--repeats N] [--out FILE] ENGINE...

For each engine and repeat, `loadgen live` sends events at full speed to a service on a fresh copy of the store, once with
both pinned and once with neither, by turns. The store is warm: its files were read once, and the service's own warm-up
has ended. Prints a JSON line for each run, which --out appends to a file. Exit code 1: a program failed.
"""

import json
import os
import shutil
import stat
import subprocess
import sys

from kit import engine_options, load_sorted, tell

SERVICE_CPU, LOADGEN_CPU = 0, 1


def pinned_service(args):
    """Makes a program that is the service on its core: `loadgen live` starts the service itself, and bootstrap beside it."""
    os.symlink(os.path.abspath(os.path.join(args.bin, "bootstrap")), os.path.join(args.work, "bootstrap"))
    path = os.path.join(args.work, "service")
    with open(path, "w") as file:
        file.write(f'#!/bin/sh\nexec taskset -c {SERVICE_CPU} "{os.path.abspath(args.bin)}/service" "$@"\n')
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
    return path


def run(args, store, service):
    """Returns the report of a run; pinned if `service` is the program of `pinned_service`."""
    report = os.path.join(args.work, "report.json")
    command = [os.path.join(args.bin, "loadgen"), "live", "--dir", store, "--pairs", str(args.pairs), "--seed", "1"]
    command += ["--events", str(args.events), "--state", "warm", "--report", report]
    if service:
        command = ["taskset", "-c", str(LOADGEN_CPU), *command, "--service-bin", service]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"loadgen live failed: code={done.returncode}\n{done.stdout}{done.stderr}")
    with open(report) as file:
        return json.load(file)


def measure(args, engine):
    shutil.rmtree(args.work, ignore_errors=True)
    os.makedirs(args.work)
    base, store = os.path.join(args.work, "base"), os.path.join(args.work, "store")
    load_sorted(args, engine, base)
    service = pinned_service(args)
    for repeat in range(args.repeats):
        for is_pinned in ([True, False] if repeat % 2 == 0 else [False, True]):
            shutil.copytree(base, store)
            report = run(args, store, service if is_pinned else None)
            shutil.rmtree(store)
            tell({"engine": engine, "pairs": args.pairs, "events": args.events, "repeat": repeat, "is_pinned": is_pinned,
                  "events_per_s": round(report["events_per_s"])}, args.out)


def main():
    parser = engine_options(__doc__, "bench-pinned", pairs=20_000_000)
    parser.add_argument("--events", type=int, default=4_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    for engine in args.engines:
        measure(args, engine)
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()
