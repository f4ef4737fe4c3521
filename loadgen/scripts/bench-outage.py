#!/usr/bin/env python3
"""Measures how long the service needs after an outage until it is level with the stream again.

  loadgen/scripts/bench-outage.py [--bin DIR] [--work DIR] [--pairs N] [--cap BYTES] [--rate R] [--outage S] [--out FILE] ENGINE...

For each engine, `loadgen live` first measures the service's rate at full speed on a copy of the store. Then `loadgen
stream` plays the same kind of slots at --rate events a second, whether or not anyone listens. The service follows it, is
stopped for --outage seconds and started again. It is level once the slot that it has applied is as far from the stream's
schedule as it was before the outage. The time counts from the start of the process. A service that catches up at its
full rate needs outage * rate / (full rate - rate) seconds; the target is 1.2 times this.

--cap puts the service into a cgroup of that many bytes, for which this needs permission. The store is cold at each start
then. Prints a JSON line for each engine, which --out appends to a file. Exit code 1: a program failed, or the service was
never level again.
"""

import json
import os
import shutil
import subprocess
import sys
import time

from kit import Group, Service, drop_cached, engine_options, free_port, load_sorted, tell

EVENTS_PER_SLOT = 2000
# Events on which the full rate is measured, and seconds of the stream before the outage.
FULL_EVENTS = 1_000_000
BEFORE_SECONDS = 10
LOOK_SECONDS = 0.05
WAIT_SECONDS_MAX = 1800
TARGET = 1.2
# Names of the engine's own figures that a line gets, of the catching up alone.
FIGURES = ("write_amplification_percent", "merges", "merge_us", "merge_step_longest_us")
# Slots that the server keeps: all.
REPLAY_SLOTS = 1_000_000


def story(args, events):
    return ["--pairs", str(args.pairs), "--seed", "1", "--events", str(events), "--events-per-slot", str(EVENTS_PER_SLOT)]


def full_rate(args, store):
    """Returns the events a second of a service that always has more to do."""
    report = os.path.join(args.work, "report.json")
    command = [os.path.join(args.bin, "loadgen"), "live", "--dir", store, *story(args, FULL_EVENTS), "--report", report]
    command += ["--cap", str(args.cap)] if args.cap else []
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"loadgen live failed: code={done.returncode}\n{done.stdout}{done.stderr}")
    with open(report) as file:
        return json.load(file)["events_per_s"]


def ahead(service, slots_per_s):
    """Returns how far the applied slot is from a schedule of `slots_per_s` that began with the machine's clock."""
    slot = service.slot()
    return None if slot is None else slot - time.monotonic() * slots_per_s


def cool(args, store):
    """Drops the store's pages under a cap: pages that another process has read are charged to that process."""
    if args.cap:
        drop_cached(store)


def outage(args, store, engine, children, log):
    """Returns the seconds from the second start until the service is level with the stream, and the engine's figures."""
    port, slots_per_s = free_port(), args.rate / EVENTS_PER_SLOT
    group = Group(args.cap)

    def start():
        service = Service(args, engine, store, port, group, log)
        children.append(service.process)
        return service

    try:
        command = [os.path.join(args.bin, "loadgen"), "stream", "--listen", f"127.0.0.1:{port}", *story(args, 10**9)]
        command += ["--rate", str(args.rate), "--replay-slots", str(REPLAY_SLOTS), "--linger", "1h"]
        children.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log))
        cool(args, store)
        service = start()
        while service.slot() in (None, 0):
            time.sleep(LOOK_SECONDS)
        time.sleep(BEFORE_SECONDS)
        seen = [ahead(service, slots_per_s) for _ in range(20) if time.sleep(LOOK_SECONDS) is None]
        # The least of them: the schedule runs on while a slot is under way.
        level = min(seen)
        service.stop()
        cool(args, store)
        time.sleep(args.outage)
        started = time.monotonic()
        service = start()
        while time.monotonic() - started < WAIT_SECONDS_MAX:
            now = ahead(service, slots_per_s)
            if now is not None and now >= level:
                seconds, figures = time.monotonic() - started, service.figures(FIGURES)
                service.stop()
                return seconds, figures
            time.sleep(LOOK_SECONDS)
        sys.exit(f"not level with the stream within {WAIT_SECONDS_MAX} s: engine={engine}")
    finally:
        for child in children:
            child.kill()
            child.wait()
        group.remove()


def measure(args, engine):
    shutil.rmtree(args.work, ignore_errors=True)
    os.makedirs(args.work)
    base, store = os.path.join(args.work, "base"), os.path.join(args.work, "store")
    load_sorted(args, engine, base)
    shutil.copytree(base, store)
    rate = full_rate(args, store)
    shutil.rmtree(store)
    os.rename(base, store)
    row = {"engine": engine, "pairs": args.pairs, "cap_bytes": args.cap, "rate": args.rate, "outage_s": args.outage,
           "full_rate": round(rate)}
    if rate <= args.rate:
        sys.exit(f"the service never catches up: full_rate={rate:.0f} rate={args.rate} engine={engine}")
    with open(os.path.join(args.work, "service.log"), "wb") as log:
        seconds, figures = outage(args, store, engine, [], log)
    row["level_s"] = round(seconds, 2)
    row["by_rates_s"] = round(args.outage * args.rate / (rate - args.rate), 2)
    row["is_within_target"] = row["level_s"] <= TARGET * row["by_rates_s"]
    row["engine_figures"] = figures
    return row


def main():
    parser = engine_options(__doc__, "bench-outage", pairs=20_000_000)
    parser.add_argument("--cap", type=int, help="memory of the service in bytes; none without this")
    parser.add_argument("--rate", type=int, default=10_000, help="events a second of the stream")
    parser.add_argument("--outage", type=float, default=60, help="seconds for which the service is stopped")
    args = parser.parse_args()
    for engine in args.engines:
        row = measure(args, engine)
        tell(row, args.out)
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()
