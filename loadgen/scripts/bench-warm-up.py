#!/usr/bin/env python3
"""Measures how long the service needs from a cold start until it applies a stream at its full rate in memory.

  loadgen/scripts/bench-warm-up.py [--bin DIR] [--work DIR] [--pairs N] [--repeats N] [--out FILE] ENGINE...

For each engine and repeat, the store's files are read in sequence with nothing of them in memory, which is the device's own
time. Then they are dropped from memory again, and the service is started without a cap behind a stream that never waits.
The full rate is that of the last five seconds of the run, which ends ten seconds after the warm-up. It is reached at the
beginning of the first second that has nine tenths of it. All times count from the start of the service's process. Each
repeat uses a fresh copy of the store. Before the first, this script writes once to as much memory as is free: a virtual
machine may get each page of memory from its host at the first use of the page, which takes longer than reading it. Prints
a JSON line for each repeat, which --out appends to a file. Exit code 1: a program failed.
"""

import mmap
import os
import shutil
import subprocess
import time

from kit import ENGINES, Group, Service, drop_cached, free_port, load_sorted, options, tell

EVENTS_PER_SLOT = 2000
LOOK_SECONDS = 0.05
# Time over which a rate is taken, and the part of the full rate that counts as full.
RATE_SECONDS = 1.0
FULL_PART = 0.9
# Time for which a run goes on after the warm-up, and its end in which the full rate is taken.
AFTER_SECONDS = 10
STEADY_SECONDS = 5
READ_BYTES = 1 << 20


def touch_memory():
    """Writes to each page of the free memory but for an eighth of it, and gives the pages back."""
    with open("/proc/meminfo") as file:
        free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemFree:"))
    with mmap.mmap(-1, free // 8 * 7) as memory:
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1


def read_in_sequence(store):
    """Returns the bytes of the engine's files and the seconds in which they were read, with nothing of them in memory."""
    drop_cached(store)
    buffer, total, began = bytearray(READ_BYTES), 0, time.monotonic()
    data = os.path.join(store, "data")
    for name in sorted(os.listdir(data)):
        with open(os.path.join(data, name), "rb", buffering=0) as file:
            while read := file.readinto(buffer):
                total += read
    seconds = time.monotonic() - began
    drop_cached(store)
    return total, seconds


def rates(slots):
    """Returns (time, events a second over the RATE_SECONDS before it) for the looks that are late enough."""
    found, first = [], 0
    for at, slot in slots:
        while slots[first + 1][0] <= at - RATE_SECONDS:
            first += 1
        if slots[first][0] <= at - RATE_SECONDS:
            found.append((at, (slot - slots[first][1]) * EVENTS_PER_SLOT / (at - slots[first][0])))
    return found


def follow(service):
    """Returns the looks at the service as (seconds, applied slot), and the seconds at which its warm-up ended."""
    began, slots, ended = time.monotonic(), [], None
    while ended is None or time.monotonic() - began < ended + AFTER_SECONDS:
        slot, warming, now = service.slot(), service.metric("solkv_warming"), time.monotonic() - began
        if slot:
            slots.append((now, slot))
            if ended is None and warming == 0:
                ended = now
        time.sleep(LOOK_SECONDS)
    return slots, ended


def run(args, engine, store, log):
    sequential_bytes, sequential_s = read_in_sequence(store)
    port, children = free_port(), []
    try:
        command = [os.path.join(args.bin, "loadgen"), "stream", "--listen", f"127.0.0.1:{port}", "--linger", "1h"]
        command += ["--pairs", str(args.pairs), "--seed", "1", "--events", str(10**9), "--events-per-slot", str(EVENTS_PER_SLOT)]
        children.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log))
        service = Service(args, engine, store, port, Group(None), log)
        children.append(service.process)
        slots, ended = follow(service)
        warmed = service.metric("solkv_warm_up_read_bytes")
        service.stop()
    finally:
        for child in children:
            child.kill()
            child.wait()
    until, newest = slots[-1]
    since, first = next(look for look in slots if look[0] >= until - STEADY_SECONDS)
    full = (newest - first) * EVENTS_PER_SLOT / (until - since)
    full_s = next((at - RATE_SECONDS for at, rate in rates(slots) if rate >= FULL_PART * full), None)
    return {"engine": engine, "pairs": args.pairs, "sequential_bytes": sequential_bytes,
            "sequential_s": round(sequential_s, 2), "first_slot_s": round(slots[0][0], 2),
            "warm_up_ended_s": round(ended, 2), "warm_up_read_bytes": warmed,
            "full_rate": round(full), "full_rate_s": full_s and round(full_s, 2),
            "warm_up_to_sequential": round(ended / sequential_s, 2),
            "full_rate_to_sequential": full_s and round(full_s / sequential_s, 2)}


def measure(args, engine):
    shutil.rmtree(args.work, ignore_errors=True)
    os.makedirs(args.work)
    base, store = os.path.join(args.work, "base"), os.path.join(args.work, "store")
    load_sorted(args, engine, base)
    with open(os.path.join(args.work, "service.log"), "wb") as log:
        for repeat in range(args.repeats):
            shutil.copytree(base, store)
            tell({"repeat": repeat, **run(args, engine, store, log)}, args.out)
            shutil.rmtree(store)


def main():
    parser = options(__doc__, "bench-warm-up")
    parser.add_argument("engines", nargs="+", metavar="ENGINE", choices=ENGINES)
    parser.add_argument("--pairs", type=int, default=50_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", help="file that the lines are appended to")
    args = parser.parse_args()
    touch_memory()
    for engine in args.engines:
        measure(args, engine)
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()
