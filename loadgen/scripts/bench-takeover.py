#!/usr/bin/env python3
"""Measures a takeover: the time from the silence's time-out to the next applied slot.

  loadgen/scripts/bench-takeover.py [--bin DIR] [--work DIR] [--engine NAME] [--repeats N] [--out FILE]

Two `loadgen stream` play the same slots. The service follows the first one, which is stopped (SIGSTOP) in the middle:
its connection stays open and brings nothing. After the idle time, half as long again as gap_timeout, the service leaves it for the second one. The time-out
is the time of the service's own log line; the next applied slot is looked for every 10 ms.

Prints a JSON line for each takeover, which --out appends to a file, and then the slowest. Exit code 1: a program failed, or
a takeover took 3 s or longer.
"""

import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

from kit import ENGINES, free_port, options

STORY = ["--pairs", "200000", "--seed", "1", "--events", "10000000", "--events-per-slot", "2000", "--rate", "5000"]
STORY += ["--replay-slots", "1000000"]
GAP_TIMEOUT_S = 2
IDLE_TIMEOUT_S = GAP_TIMEOUT_S * 1.5
SLOTS_BEFORE = 10
LOOK_SECONDS = 0.01
WAIT_SECONDS_MAX = 60
TARGET_S = 3


def slot(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return 0
    return next((int(float(line.split()[-1])) for line in lines if line.startswith("solkv_checkpoint_slot ")), 0)


def wait_beyond(port, least):
    """Waits until a slot after `least` is applied. Returns it, and the time in seconds since the Unix epoch."""
    started = time.monotonic()
    while time.monotonic() - started < WAIT_SECONDS_MAX:
        at = slot(port)
        if at > least:
            return at, time.time()
        time.sleep(LOOK_SECONDS)
    sys.exit(f"no slot after slot={least} within {WAIT_SECONDS_MAX} s: see service.log")


def timed_out(log):
    """Returns the time of the log's line about the silence, in seconds since the Unix epoch."""
    with open(log) as file:
        found = re.search(r"^(\S+)Z +WARN .*idle_ms=", file.read(), re.MULTILINE)
    if not found:
        sys.exit(f"no line with idle_ms: log={log}")
    return datetime.datetime.fromisoformat(found[1]).replace(tzinfo=datetime.timezone.utc).timestamp()


def takeover(args, children):
    shutil.rmtree(args.work, ignore_errors=True)
    os.makedirs(args.work)
    store, log = os.path.join(args.work, "store"), os.path.join(args.work, "service.log")
    ports, metrics = [free_port(), free_port()], free_port()
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for port in ports:
        listen = ["--listen", f"127.0.0.1:{port}", "--base-empty", "--no-wait", "--linger", "1h"]
        children.append(subprocess.Popen([os.path.join(args.bin, "loadgen"), "stream", *listen, *STORY], **quiet))
    command = [os.path.join(args.bin, "service"), "run", "--engine", args.engine, "--memory", "64MiB", "--dir", store]
    command += ["--create-empty", "--extract", "account-owner", "--gap-timeout", f"{GAP_TIMEOUT_S}s"]
    command += [part for port in ports for part in ("--geyser", f"http://127.0.0.1:{port}")]
    command += ["--listen", f"127.0.0.1:{free_port()}", "--metrics", f"127.0.0.1:{metrics}"]
    with open(log, "wb") as out:
        children.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT))
    first, _ = wait_beyond(metrics, 0)
    wait_beyond(metrics, first + SLOTS_BEFORE)
    children[0].send_signal(signal.SIGSTOP)
    # What was sent before the stop is applied.
    time.sleep(IDLE_TIMEOUT_S / 2)
    before = slot(metrics)
    after, applied = wait_beyond(metrics, before)
    return {"engine": args.engine, "idle_timeout_s": IDLE_TIMEOUT_S, "slot_before": before, "slot_after": after,
            "takeover_ms": round((applied - timed_out(log)) * 1000)}


def main():
    parser = options(__doc__, "bench-takeover")
    parser.add_argument("--engine", default="strata", choices=ENGINES)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", help="file that the lines are appended to")
    args = parser.parse_args()
    slowest_ms = 0
    for _ in range(args.repeats):
        children = []
        try:
            row = takeover(args, children)
        finally:
            for child in children:
                child.kill()
                child.wait()
        slowest_ms = max(slowest_ms, row["takeover_ms"])
        print(json.dumps(row), flush=True)
        if args.out:
            os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
            with open(args.out, "a") as file:
                file.write(json.dumps(row) + "\n")
    shutil.rmtree(args.work)
    print(f"slowest takeover_ms={slowest_ms} target_ms={TARGET_S * 1000}")
    sys.exit(slowest_ms >= TARGET_S * 1000)


if __name__ == "__main__":
    main()
