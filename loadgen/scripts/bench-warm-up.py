#!/usr/bin/env python3
"""Measures how long the service needs from a cold start until it applies a stream at its full rate in memory.

  loadgen/scripts/bench-warm-up.py [--bin DIR] [--work DIR] [--pairs N] [--repeats N] [--out FILE] ENGINE...

For each engine and repeat, the store's files are read in sequence with nothing of them in memory, which is the device's own
time. Then they are dropped from memory again, and the service is started alone, without a cap, until its warm-up has
ended. Then they are dropped once more, and the service is started behind a stream that never waits. The full rate is that of the last five seconds of the run, which ends ten seconds after the warm-up. It is reached at the
beginning of the first second that has nine tenths of it. All times count from the start of the service's process. Each
repeat uses a fresh copy of the store. On a virtual machine run it under `loadgen/scripts/fill-memory.py`. Prints a JSON line
for each repeat, which --out appends to a file. Exit code 1: a program failed.
"""

import os
import shutil
import socket
import subprocess
import time

from kit import Group, Service, await_filler, drop_cached, engine_options, free_port, load_sorted, tell

EVENTS_PER_SLOT = 2000
LOOK_SECONDS = 0.05
# Time over which a rate is taken, and the part of the full rate that counts as full.
RATE_SECONDS = 1.0
FULL_PART = 0.9
# Time for which a run goes on after the warm-up, and its end in which the full rate is taken.
AFTER_SECONDS = 10
STEADY_SECONDS = 5
READ_BYTES = 1 << 20


def read_in_sequence(store):
    """Returns the bytes of the engine's files and the seconds in which they were read, with nothing of them in memory."""
    drop_cached(store)
    await_filler()
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


def alone(args, engine, store, log):
    """Returns the seconds from the start of a service without a stream until its warm-up has ended."""
    await_filler()
    began, service = time.monotonic(), Service(args, engine, store, free_port(), Group(None), log)
    try:
        while service.metric("solkv_warming") != 0:
            time.sleep(LOOK_SECONDS)
        return time.monotonic() - began
    finally:
        service.stop()


def follow(service):
    """Returns the looks at the service as (seconds, applied slot), and the seconds at which its warm-up ended."""
    began, slots, ended = time.monotonic(), [], None
    while ended is None or time.monotonic() - began < ended + AFTER_SECONDS:
        slot, warming, now = service.slot(), service.metric("solkv_warming"), time.monotonic() - began
        if ended is None and warming == 0:
            ended = now
        if slot:
            slots.append((now, slot))
        time.sleep(LOOK_SECONDS)
    return slots, ended


def streamed(args, engine, store, log):
    """Returns the looks at a service behind a stream, the seconds until its warm-up has ended, and the bytes that it has read."""
    port = free_port()
    command = [os.path.join(args.bin, "loadgen"), "stream", "--listen", f"127.0.0.1:{port}", "--linger", "1h"]
    command += ["--pairs", str(args.pairs), "--seed", "1", "--events", str(10**9), "--events-per-slot", str(EVENTS_PER_SLOT)]
    stream = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)
    try:
        await_port(port)
        drop_cached(store)
        await_filler()
        service = Service(args, engine, store, port, Group(None), log)
        try:
            slots, ended = follow(service)
            return slots, ended, service.metric("solkv_warm_up_read_bytes")
        finally:
            service.stop()
    finally:
        stream.kill()
        stream.wait()


def await_port(port):
    """Waits until a program listens on the port of this machine."""
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            time.sleep(LOOK_SECONDS)


def run(args, engine, store, log):
    sequential_bytes, sequential_s = read_in_sequence(store)
    alone_s = alone(args, engine, store, log)
    slots, ended_s, read_bytes = streamed(args, engine, store, log)
    until, newest = slots[-1]
    since, first = next(look for look in slots if look[0] >= until - STEADY_SECONDS)
    full = (newest - first) * EVENTS_PER_SLOT / (until - since)
    full_s = next(at - RATE_SECONDS for at, rate in rates(slots) if rate >= FULL_PART * full)
    seconds = {"alone": alone_s, "warm_up": ended_s, "full_rate": full_s}
    return {"engine": engine, "pairs": args.pairs, "sequential_bytes": sequential_bytes, "sequential_s": round(sequential_s, 2),
            "first_slot_s": round(slots[0][0], 2), "warm_up_read_bytes": read_bytes, "full_rate": round(full),
            **{f"{name}_s": round(value, 2) for name, value in seconds.items()},
            **{f"{name}_to_sequential": round(value / sequential_s, 2) for name, value in seconds.items()}}


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
    parser = engine_options(__doc__, "bench-warm-up", pairs=50_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    for engine in args.engines:
        measure(args, engine)
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()
