#!/usr/bin/env python3
"""Measures the service behind a server that compresses each message by itself, as a stock server does for clients that accept it.

  loadgen/scripts/bench-compression.py [--bin DIR] [--repeats N] [--work DIR] [--pairs N] [--out FILE] ENGINE...

Two kinds of cells: catching up, a stream at full speed, and live, 20,000 updates a second for 30 s with the lag that
/status.json shows. Each is run behind a server that never compresses (none), and one that does so for who accepts it (stock). The servers take
turns. Prints a JSON line for each cell, which --out appends to a file; cells that are in the file already are not run again.
Exit code 1: a program failed.
"""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request

from kit import engine_options, load_sorted, origin, tell

CELLS = {
    # As many slots as a stock server keeps.
    "catch-up": ["--events", "1050000", "--events-per-slot", "7000", "--rate", "max"],
    "live": ["--events", "600000", "--events-per-slot", "8000", "--rate", "20000", "--confirm-after", "2"],
}
LIVE_S = 30
# What names a cell in a line.
NAMES = ["engine", "pairs", "repeat", "cell", "server"]
SERVERS = {
    "none": ["--compression", "none"],
    "stock": ["--compression", "stock"],
}
LOOK_SECONDS = 0.1


def version(args):
    """Returns the version and the commit that the programs name."""
    told = subprocess.run([os.path.join(args.bin, "loadgen"), "--version"], capture_output=True, text=True, check=True).stdout
    return told.split(" ", 1)[1].strip()


def lags(process, metrics):
    """Returns the lags in ms that the service shows until `loadgen live` ends, in ascending order."""
    found = []
    while process.poll() is None:
        time.sleep(LOOK_SECONDS)
        try:
            with urllib.request.urlopen(f"http://{metrics}/status.json", timeout=5) as answer:
                status = json.load(answer)
        except OSError:
            continue
        if status.get("checkpoint", {}).get("slot") and status.get("lag_ms") is not None:
            found.append(int(status["lag_ms"]))
    return sorted(found)


def run(args, store, cell, server):
    """Runs one cell on the store. Returns its figures."""
    report = os.path.join(args.work, "report.json")
    command = [os.path.join(args.bin, "loadgen"), "live", "--dir", store, "--service-bin", os.path.join(args.bin, "service"), "--report", report]
    command += ["--pairs", str(args.pairs), "--seed", "1", "--verify", *CELLS[cell], *SERVERS[server]]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = process.stderr.readline()
    while said and "service metrics at" not in said:
        said = process.stderr.readline()
    address = re.search(r"http://([^/]+)/", said)
    shown = lags(process, address.group(1)) if address else []
    rest = process.stderr.read()
    if process.wait() != 0:
        sys.exit(f"loadgen live failed: code={process.returncode}\n{said}{rest}")
    with open(report) as file:
        told = json.load(file)
    figures = {"events_per_s": round(told["events_per_s"]), "seconds": round(told["seconds"], 2)}
    figures["service_cpu_s"] = round(told["usage"]["user_s"] + told["usage"]["system_s"], 2)
    if cell == "live":
        at = lambda share: shown[min(int(len(shown) * share), len(shown) - 1)] if shown else None
        figures |= {"lag_ms_p50": at(0.5), "lag_ms_p99": at(0.99), "lag_ms_max": at(1.0)}
        figures["behind_s"] = round(told["seconds"] - LIVE_S, 2)
    return figures


def done(out):
    """Returns the cells that the file has already."""
    if not out or not os.path.exists(out):
        return set()
    with open(out) as file:
        rows = [json.loads(line) for line in file]
    return {tuple(row[part] for part in NAMES) for row in rows}


def main():
    parser = engine_options(__doc__, "bench-compression", pairs=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    names = itertools.product(args.engines, [args.pairs], range(1, args.repeats + 1), CELLS, SERVERS)
    left = [name for name in names if name not in done(args.out)]
    base, store = os.path.join(args.work, "base"), os.path.join(args.work, "store")
    for engine in args.engines:
        of_engine = [name for name in left if name[0] == engine]
        shutil.rmtree(args.work, ignore_errors=True)
        os.makedirs(args.work)
        if of_engine:
            load_sorted(args, engine, base)
        for name in of_engine:
            shutil.rmtree(store, ignore_errors=True)
            shutil.copytree(base, store)
            tell(dict(zip(NAMES, name)) | run(args, store, *name[3:]) | origin(version(args)), args.out)
    shutil.rmtree(args.work, ignore_errors=True)


if __name__ == "__main__":
    main()
