#!/usr/bin/env python3
"""Measures the parser of snapshot archives, their reading, and a load from one, by turns on one file.

  loadgen/scripts/bench-archive.py [--bin DIR] [--work DIR] [--gigabytes N] [--repeats N] [--out NAME]

`loadgen archive` writes one archive of about N GB unpacked. Each repeat then runs, one after the other:

  zstd       `zstd -dc` of the archive to nowhere; without that program the library's decoder, and the output says so
  read       unpack, parse and extract to nowhere
  sorted     a sorted load into strata of as many pairs as the archive's map has, from a seed, settled
  load       a load of the archive into strata, settled
  parser     accounts files in memory, one core, GB/s

Ratios are those of one repeat: read to zstd, and load to zstd and sorted together. Before each command but `parser` the
archive is read once, so that it comes from the page cache, if there is room for it; the state is in the output. Writes
NAME.jsonl (a line for each repeat) and NAME.txt. Exit code 1: a program failed. Targets that are missed are named.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

from kit import options

EXTRACT = "token-owner"
# Unpacked bytes of an archive for each pair, with the oddities and other accounts that `loadgen archive` writes.
PAIR_BYTES = 400
PARSER_GB_PER_S = 1.5
READ_RATIO = LOAD_RATIO = 1.3


def run(command, nowhere=False):
    """Returns seconds and output."""
    started = time.monotonic()
    out = subprocess.DEVNULL if nowhere else subprocess.PIPE
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, text=True)
    seconds = time.monotonic() - started
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: code={done.returncode} {done.stdout or ''}{done.stderr[-500:]}")
    return seconds, done.stdout or ""


def warm(path):
    with open(path, "rb") as file:
        while file.read(1 << 22):
            pass


def memory_bytes():
    with open("/proc/meminfo") as file:
        return int(re.search(r"MemAvailable:\s+(\d+)", file.read())[1]) * 1024


def load(args, source):
    store = os.path.join(args.work, "store")
    shutil.rmtree(store, ignore_errors=True)
    bootstrap = [os.path.join(args.bin, "bootstrap"), "load", "--engine", "strata", "--order", "sorted", "--settle"]
    seconds, _ = run([*bootstrap, "--dir", store, *source])
    shutil.rmtree(store)
    return seconds


def measure(args, archive, pairs):
    read = os.path.join(args.bin, "examples", "read")
    zstd = shutil.which("zstd")
    seconds = {}
    warm(archive)
    seconds["zstd"] = run([zstd, "-dcq", archive] if zstd else [read, "unpack", archive], nowhere=True)[0]
    warm(archive)
    seconds["read"] = run([read, "extract", archive])[0]
    seconds["sorted"] = load(args, ["--pairs", str(pairs), "--seed", "1"])
    warm(archive)
    seconds["load"] = load(args, ["--input", archive, "--extract", EXTRACT])
    _, said = run([os.path.join(args.bin, "examples", "append_vec")])
    rates = [float(rate) for rate in re.findall(r"gb_per_s=([\d.]+)", said)]
    return {
        "seconds": seconds,
        "parser_gb_per_s": statistics.median(rates),
        "read_ratio": seconds["read"] / seconds["zstd"],
        "load_ratio": seconds["load"] / (seconds["zstd"] + seconds["sorted"]),
    }


def row(name, values, unit, target, holds):
    middle = statistics.median(values)
    verdict = "" if target is None else f"  target {target:g}: {'met' if holds(middle) else 'MISSED'}"
    return f"{name:<22}{middle:>8.2f} {unit:<5}{min(values):>8.2f} to {max(values):.2f}{verdict}"


def main():
    parser = options(__doc__, "bench-archive")
    parser.add_argument("--gigabytes", type=float, default=10, help="unpacked size of the archive, about")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", default="archive", help="results: OUT.jsonl and OUT.txt")
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    report = os.path.join(args.work, "report.json")
    made = ["archive", "--out", args.work, "--pairs", str(int(args.gigabytes * 1e9 / PAIR_BYTES)), "--extract", EXTRACT]
    run([os.path.join(args.bin, "loadgen"), *made, "--report", report])
    with open(report) as file:
        full = json.load(file)["archives"][0]
    archive, pairs = full["file"], int(full["digest"].split(":")[0])
    unpacked, packed, available = full["unpacked_bytes"], full["packed_bytes"], memory_bytes()
    with open("/proc/loadavg") as file:
        load_average = float(file.read().split()[0])
    state = {
        "unpacked_bytes": unpacked, "packed_bytes": packed, "pairs": pairs, "cores": os.cpu_count(),
        "memory_available_bytes": available, "page_cache": "warm" if packed < available / 2 else "cold in part",
        "load_average": load_average, "zstd": "program" if shutil.which("zstd") else "the library, by examples/read",
    }
    results = []
    with open(args.out + ".jsonl", "w") as lines:
        for repeat in range(1, args.repeats + 1):
            results.append(measure(args, archive, pairs))
            lines.write(json.dumps({"repeat": repeat, **state, **results[-1]}) + "\n")
            print(f"repeat={repeat} " + " ".join(f"{k}={v:.1f}s" for k, v in results[-1]["seconds"].items()), flush=True)
    text = [f"{unpacked / 1e9:.2f} GB unpacked, {packed / 1e9:.2f} GB packed, {pairs:,} pairs; "
            f"page cache {state['page_cache']}; cores={state['cores']} load_average={load_average}; zstd: {state['zstd']}",
            f"{args.repeats} repeats by turns: median, then least and greatest"]
    text += [row(name, [r["seconds"][name] for r in results], "s", None, None) for name in ("zstd", "read", "sorted", "load")]
    rates = [r["parser_gb_per_s"] for r in results]
    text.append(row("parser", rates, "GB/s", PARSER_GB_PER_S, lambda rate: rate >= PARSER_GB_PER_S))
    for name, key, target in (("read / zstd", "read_ratio", READ_RATIO), ("load / (zstd+sorted)", "load_ratio", LOAD_RATIO)):
        text.append(row(name, [r[key] for r in results], "x", target, lambda ratio, target=target: ratio <= target))
    with open(args.out + ".txt", "w") as file:
        file.write("\n".join(text) + "\n")
    print("\n".join(text))
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()
