#!/usr/bin/env python3
"""Times `bootstrap verify` against a scan of the store plus the sort of its source, engine by engine.

  loadgen/scripts/bench-verify.py [--bin DIR] [--work DIR] [--pairs N] [--limit RATIO] ENGINE...

For each engine a store is loaded from one file of N random pairs. Before each command the store and the file are dropped
from the page cache. Exit code 1: a verification answered wrongly, or took more than RATIO times the scan and the sort.

  scan     `count` of the store
  sort     `verify` of a store of one pair, from a pipe: the source is sorted and merged with next to nothing
  equal    `verify` of the store and its file
  sorted   the same from a pipe, which can be read only once and is sorted at once
  changed  `verify` with one value changed in the file: both digests, the sort, and the merge
"""

import os
import shutil
import subprocess
import sys
import time

from kit import drop_cached, options

PAIR_BYTES = 64
CHUNK_PAIRS = 1 << 16


def write_pairs(path, pairs):
    with open(path, "wb") as file:
        for at in range(0, pairs, CHUNK_PAIRS):
            file.write(os.urandom(PAIR_BYTES * min(CHUNK_PAIRS, pairs - at)))
        file.flush()
        os.fsync(file.fileno())


def timed(command, expected, source=None):
    started = time.monotonic()
    stdin = open(source, "rb") if source else subprocess.DEVNULL
    done = subprocess.run(command, stdin=stdin, capture_output=True, text=True)
    seconds = time.monotonic() - started
    if not done.stdout.startswith(expected):
        sys.exit(f"{' '.join(command)}: expected {expected!r}: {done.stdout[-300:]}{done.stderr[-300:]}")
    return seconds


def measure(bootstrap, engine, source, changed, work, pairs):
    store, small = os.path.join(work, engine), os.path.join(work, engine + "-one")
    for made in (store, small):
        shutil.rmtree(made, ignore_errors=True)
    load = [bootstrap, "load", "--engine", engine, "--order", "sorted", "--dir"]
    subprocess.run([*load, store, "--input", source], check=True, capture_output=True)
    subprocess.run([*load, small, "--pairs", "1"], check=True, capture_output=True)
    verify = [bootstrap, "verify", "--dir"]
    runs = {
        "scan": lambda: timed([bootstrap, "count", "--dir", store], str(pairs)),
        "sort": lambda: timed([*verify, small, "--input", "-"], "missing", source),
        "equal": lambda: timed([*verify, store, "--input", source], "equal"),
        "sorted": lambda: timed([*verify, store, "--input", "-"], "equal", source),
        "changed": lambda: timed([*verify, store, "--input", changed], "different"),
    }
    seconds = {}
    for name, run in runs.items():
        drop_cached(store, source, changed)
        seconds[name] = run()
    for made in (store, small):
        shutil.rmtree(made)
    return seconds


def main():
    parser = options(__doc__, "bench-verify")
    parser.add_argument("--pairs", type=int, default=2_000_000)
    parser.add_argument("--limit", type=float, default=2.0)
    parser.add_argument("engines", nargs="+")
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    source, changed = os.path.join(args.work, "pairs.bin"), os.path.join(args.work, "changed.bin")
    write_pairs(source, args.pairs)
    shutil.copyfile(source, changed)
    with open(changed, "r+b") as file:
        file.seek(args.pairs // 2 * PAIR_BYTES + 40)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    print(f"{args.pairs:,} pairs; seconds, and times the scan and the sort together")
    print(f"{'engine':<10}{'scan':>8}{'sort':>8}{'equal':>8}{'':>7}{'sorted':>8}{'':>7}{'changed':>8}")
    slow = False
    for engine in args.engines:
        took = measure(os.path.join(args.bin, "bootstrap"), engine, source, changed, args.work, args.pairs)
        both = took["scan"] + took["sort"]
        cells = "".join(f"{took[name]:>8.1f}{took[name] / both:>6.2f}x" for name in ("equal", "sorted", "changed"))
        print(f"{engine:<10}{took['scan']:>8.1f}{took['sort']:>8.1f}{cells}", flush=True)
        slow |= any(took[name] > args.limit * both for name in ("equal", "sorted", "changed"))
    os.remove(source)
    os.remove(changed)
    sys.exit(1 if slow else 0)


if __name__ == "__main__":
    main()
