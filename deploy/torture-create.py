#!/usr/bin/env python3
"""Makes stores of a snapshot archive by `service --create` while a stream runs, kills it, and checks every result.

  deploy/torture-create.py [--bin DIR] [--work DIR] [--pairs N] [--kills N] [--seed S] ENGINE...

`loadgen archive` writes the archive of the slot before the stream's first one, and `loadgen stream` plays the slots after
it at a fixed rate. For every engine the first life is not killed, which shows how long the load and the spool's replay
take. Then lives follow until there were --kills kills: in each, one to four starts of the service are killed (SIGKILL)
at random moments within that time, and the last start goes on to the stream's end. The store's digest has to be the
stream's, nothing of spool and spill may be left, and the service has to end with 0.

Prints a line for each life. Exit code 1: a check failed; the last line says which, and how to repeat it.
"""

import argparse
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

STORY = ["--events-per-slot", "500", "--unknown-share", "0.05", "--change-share", "0.3", "--close-share", "0.05"]
STORY += ["--skip-every", "11"]
# Slots that the server keeps: all, because a kill may come at any time.
REPLAY_SLOTS = 1_000_000
RATE = 20_000
STREAM_SECONDS = 20
LOOK_SECONDS = 0.1
LIFE_SECONDS_MAX = 300


class Failed(Exception):
    """A check that did not hold."""


def check(holds, text):
    if not holds:
        raise Failed(text)


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


class Life:
    """One store, its stream, and the starts of the service."""

    def __init__(self, args, engine, archive, story):
        self.args, self.engine, self.archive = args, engine, archive
        self.store = os.path.join(args.work, "store")
        self.summary = os.path.join(args.work, "summary.json")
        for made in (self.store, self.store + ".work"):
            shutil.rmtree(made, ignore_errors=True)
        if os.path.exists(self.summary):
            os.remove(self.summary)
        self.stream_port, self.metrics_port = free_port(), free_port()
        self.log = open(os.path.join(args.work, "service.log"), "wb")
        self.stream = subprocess.Popen(
            [os.path.join(args.bin, "loadgen"), "stream", "--listen", f"127.0.0.1:{self.stream_port}", *story]
            + ["--rate", str(RATE), "--replay-slots", str(REPLAY_SLOTS), "--linger", "1h", "--summary", self.summary],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )

    def start(self):
        self.service = subprocess.Popen(
            [os.path.join(self.args.bin, "service"), "run", "--engine", self.engine, "--memory", self.args.memory]
            + ["--dir", self.store, "--create", "--snapshot", self.archive, "--extract", "account-owner"]
            + ["--geyser", f"http://127.0.0.1:{self.stream_port}", "--listen", f"127.0.0.1:{free_port()}"]
            + ["--metrics", f"127.0.0.1:{self.metrics_port}"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT,
        )

    def ready(self):
        """Returns the words of /readyz; empty while the service does not listen."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/readyz", timeout=5) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.read().decode()
        except OSError:
            return ""

    def kill_after(self, seconds):
        """Kills a start, and returns the phase that it was in."""
        self.start()
        time.sleep(seconds)
        phase = self.ready().split(":")[0].strip() or "starting"
        check(self.service.poll() is None, f"the service ended by itself: code={self.service.returncode}")
        self.service.kill()
        self.service.wait()
        spool = "spool" if os.path.exists(os.path.join(self.store, "spool")) else "no spool"
        return f"{phase}, {spool}"

    def finish(self):
        """Waits for the stream's end in the store. Returns the seconds until the spool was gone."""
        started, seconds = time.monotonic(), None
        self.start()
        while True:
            check(self.service.poll() is None, f"the service ended by itself: code={self.service.returncode}")
            check(time.monotonic() - started < LIFE_SECONDS_MAX, f"not at the stream's end: {self.ready()}")
            if seconds is None and self.slot() is not None and not os.path.exists(os.path.join(self.store, "spool")):
                seconds = time.monotonic() - started
            if seconds is not None and os.path.exists(self.summary) and self.slot() == self.end()["slot"]:
                break
            time.sleep(LOOK_SECONDS)
        self.service.terminate()
        check(self.service.wait(60) == 0, f"the service's exit code={self.service.returncode}")
        info = self.info("--digest")
        check(f"digest={self.end()['digest']}" in info, f"digest: expected={self.end()['digest']} info={info}")
        check(not os.path.exists(self.store + ".work"), "the spill is left")
        return seconds

    def slot(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return None
        return next((int(float(line.split()[-1])) for line in lines if line.startswith("solkv_checkpoint_slot ")), None)

    def end(self):
        with open(self.summary) as file:
            return json.load(file)["final"]

    def info(self, *more):
        command = [os.path.join(self.args.bin, "bootstrap"), "info", "--dir", self.store, *more]
        return subprocess.run(command, capture_output=True, text=True).stdout

    def close(self):
        for child in (self.stream, getattr(self, "service", None)):
            if child and child.poll() is None:
                child.kill()
                child.wait()
        self.log.close()


def live(args, engine, archive, story, moments):
    """Returns the phases of the kills, and the seconds until the last start was done with the spool."""
    life = Life(args, engine, archive, story)
    try:
        return [life.kill_after(moment) for moment in moments], life.finish()
    finally:
        life.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="target/release", help="directory of the built programs")
    parser.add_argument("--work", default="/tmp/solkv-torture-create", help="directory for archive and store; removed")
    parser.add_argument("--pairs", type=int, default=4_000_000)
    parser.add_argument("--kills", type=int, default=20, help="kills for each engine")
    parser.add_argument("--seed", type=int, default=1, help="seed of the archive and of the moments of the kills")
    parser.add_argument("--memory", default="64MiB", help="memory of the engine")
    parser.add_argument("engines", nargs="+", choices=["lmdb", "redb", "rocksdb", "strata"])
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    story = ["--pairs", str(args.pairs), "--seed", str(args.seed), "--events", str(RATE * STREAM_SECONDS), *STORY]
    engine = args.engines[0]
    try:
        archives = os.path.join(args.work, "archives")
        made = [os.path.join(args.bin, "loadgen"), "archive", "--out", archives, *story, "--without", "large"]
        done = subprocess.run(made, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        check(done.returncode == 0, f"loadgen archive: {done.stdout}{done.stderr}")
        archive = next(os.path.join(archives, name) for name in os.listdir(archives) if name.startswith("snapshot-"))
        for engine in args.engines:
            _, seconds = live(args, engine, archive, story, [])
            print(f"ok    {engine} without a kill: spool gone after seconds={seconds:.1f}", flush=True)
            kills = number = 0
            while kills < args.kills:
                number += 1
                rng = random.Random(f"{args.seed} {engine} {number}")
                # Half of them within the first quarter, which is mostly the load.
                moments = [rng.uniform(0, seconds / rng.choice([1, 4])) for _ in range(min(rng.randint(1, 4), args.kills - kills))]
                phases, last = live(args, engine, archive, story, moments)
                kills += len(phases)
                where = "; ".join(f"{moment:.2f}s {phase}" for moment, phase in zip(moments, phases))
                print(f"ok    {engine} life={number}: killed at {where}; then spool gone after seconds={last:.1f}", flush=True)
    except Failed as failed:
        again = f"--pairs {args.pairs} --kills {args.kills} --seed {args.seed} --memory {args.memory}"
        print(f"FAILED: {engine}: {failed}\nagain: deploy/torture-create.py --bin {args.bin} {again} {engine}")
        print(f"left in {args.work}: archive, store and service.log")
        sys.exit(1)
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()
