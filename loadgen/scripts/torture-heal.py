#!/usr/bin/env python3
"""Heals stores from snapshot archives by `service --heal-from`, kills it, and checks every result and a subscriber.

  loadgen/scripts/torture-heal.py [--bin DIR] [--work DIR] [--pairs N] [--kills N] [--seed S] [--fault FAULT] ENGINE...

`loadgen stream` has been running for longer than it keeps its slots when the service starts on a store from before its
first slot. Archives come into the watched directory as the stream passes their slots, as a validator writes them. A
subscriber follows from before the heal, across all starts. For every engine the first life is not killed, which shows how
long the heal takes. Then lives follow until there were --kills kills: in each, one to four starts of the service are
killed (SIGKILL) at random moments within that time, and the last start goes on to the stream's end. The digests of the
store and of the subscriber's map have to be the stream's, nothing of the heal may be left, and the service has to end
with 0.

With --fault a second server comes before the stream's: one without a fault (two), one that lacks a slot after the heal has
begun (withholds), or one that stops to answer then (stalls). It keeps no more slots than the other.

Prints a line for each life. Exit code 1: a check failed; the last line says which, and how to repeat it.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

from kit import ENGINES, Failed, check, free_port, options
from torture_life import LIFE_SECONDS_MAX, LOOK_SECONDS, Life, kill_lives, write_archives

SLOT_EVENTS = 500
STORY = ["--events-per-slot", str(SLOT_EVENTS), "--unknown-share", "0.05", "--change-share", "0.3"]
STORY += ["--close-share", "0.05", "--skip-every", "11"]
RATE = 20_000
SLOTS_A_SECOND = RATE // SLOT_EVENTS
# Slots of the stream before the first archive that a heal may take, and between two of them.
ARCHIVE_SLOTS = [250, 150]


class Times:
    """Seconds of a life: how long the server keeps slots, the service is away, and the stream plays."""

    def __init__(self, fault):
        # A connection to a server that has stalled is given up after 20 seconds. The other one has to have the slots then.
        self.kept, self.away, self.stream = (30, 32, 80) if fault == "stalls" else (3, 5, 30)
        # The heal begins five seconds after the gap.
        self.withheld = self.away + 9

    def archive_slots(self):
        first, more = ARCHIVE_SLOTS
        return [first] + [more] * ((self.stream * SLOTS_A_SECOND - first) // more - 2)


class Healing(Life):
    """A life whose stream has gone on without the service."""

    def __init__(self, args, engine, archives, story, base, stands_at):
        times = Times(args.fault)
        self.watched, self.socket = (os.path.join(args.work, name) for name in ("watched", "kv.sock"))
        options = ["--heal-from", self.watched, "--uds", self.socket, "--commit-every", "1000"]
        self.faulty, self.faulty_port = None, free_port()
        if args.fault:
            # A provider is left before the other one has dropped its slots.
            options += ["--gap-timeout", "1s"]
        delivery = ["--rate", str(RATE), "--replay-slots", str(times.kept * SLOTS_A_SECOND), "--no-wait"]
        super().__init__(args, engine, story, delivery, options)
        began = time.monotonic()
        self.timers, self.follower, self.base = [], None, base
        if args.fault:
            gap = ["--gap-at", str(base + times.withheld * SLOTS_A_SECOND)] if args.fault == "withholds" else []
            self.faulty = self.play(self.faulty_port, [*story, *gap], delivery)
        shutil.rmtree(self.watched, ignore_errors=True)
        os.makedirs(self.watched)
        slots = 0
        for archive, more in zip(archives, [0, *times.archive_slots()]):
            slots += more
            name = os.path.join(self.watched, os.path.basename(archive["file"]))
            self.timers.append(threading.Timer(slots / SLOTS_A_SECOND, os.link, [archive["file"], name]))
        for timer in self.timers:
            timer.start()
        load = [os.path.join(args.bin, "bootstrap"), "--engine", engine, "--dir", self.store, "--slot", str(stands_at)]
        load += ["--pairs", str(args.pairs), "--seed", str(args.seed), "--extract", "account-owner"]
        done = subprocess.run(load, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        check(done.returncode == 0, f"bootstrap: {done.stdout}{done.stderr}")
        self.digest = re.search(r"digest=(\S+)", self.info("--digest")).group(1)
        time.sleep(max(0, times.away - (time.monotonic() - began)))

    def geyser(self):
        first = ["--geyser", f"http://127.0.0.1:{self.faulty_port}"] if self.args.fault else []
        return first + super().geyser()

    def begin(self):
        """Starts the service, and a subscriber of its first change."""
        self.start()
        self.progress = open(os.path.join(self.args.work, "follow.log"), "w+")
        until = time.monotonic() + LIFE_SECONDS_MAX
        while not self.ready().startswith("healing"):
            self.check_runs()
            check(time.monotonic() < until, f"no heal has begun: {self.ready()}")
            time.sleep(LOOK_SECONDS)
        self.follower = subprocess.Popen(
            [os.path.join(self.args.bin, "loadgen"), "follow", "--address", f"unix://{self.socket}"]
            + ["--digest", self.digest, "--every", "200ms"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.progress, text=True,
        )
        while "feed_id=" not in self.followed():
            check(time.monotonic() < until and self.follower.poll() is None, f"no feed: {self.followed()}")
            time.sleep(LOOK_SECONDS)
        if self.args.fault == "stalls":
            self.faulty.send_signal(signal.SIGSTOP)

    def followed(self):
        self.progress.seek(0)
        return self.progress.read()

    def kill_begun(self, seconds):
        time.sleep(seconds)
        return self.kill()

    def is_done_with_spool(self):
        return (self.slot() or 0) > self.base and super().is_done_with_spool()

    def check_follower(self):
        """Waits until the subscriber has the stream's end, and compares its map."""
        end, until = self.end(), time.monotonic() + LIFE_SECONDS_MAX
        while f" slot={end['slot']} " not in self.followed():
            check(self.follower.poll() is None, f"the subscriber has ended: {self.followed()[-500:]}")
            check(time.monotonic() < until, f"the subscriber is not at the stream's end: {self.followed()[-200:]}")
            time.sleep(LOOK_SECONDS)
        self.follower.send_signal(signal.SIGINT)
        said = self.follower.communicate(timeout=60)[0]
        check(f"digest={end['digest']}" in said, f"subscriber's digest: expected={end['digest']} said={said}")

    def close(self):
        for timer in self.timers:
            timer.cancel()
        for child in (self.follower, self.faulty):
            if child and child.poll() is None:
                child.kill()
                child.wait()
        super().close()


def live(args, engine, archives, story, base, number, moments):
    """Returns the phases of the kills, and the seconds from the last start until the store was healed. In each second life an
    incremental archive suffices, and else its base is newer than the store."""
    life = Healing(args, engine, archives, story, base, base - number % 2)
    try:
        life.begin()
        phases = [life.kill_begun(moment) if number == 0 else life.kill_after(moment) for number, moment in enumerate(moments)]
        return phases, life.finish(life.check_follower)
    finally:
        life.close()


def kill_moments(rng, count, seconds):
    return [rng.uniform(0, seconds / 2) for _ in range(count)]


def main():
    parser = options(__doc__, "torture-heal")
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=20, help="kills for each engine")
    parser.add_argument("--seed", type=int, default=1, help="seed of the archives and of the moments of the kills")
    parser.add_argument("--memory", default="64MiB", help="memory of the engine")
    parser.add_argument("--fault", choices=["two", "withholds", "stalls"], help="a second server, and its fault")
    parser.add_argument("engines", nargs="+", choices=ENGINES)
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    times = Times(args.fault)
    story = ["--pairs", str(args.pairs), "--seed", str(args.seed), "--events", str(RATE * times.stream), *STORY]
    engine = args.engines[0]
    try:
        archives = write_archives(args, story, ["--incremental-slots", ",".join(map(str, times.archive_slots()))])
        base = archives[0]["slot"]
        for engine in args.engines:
            run = lambda number, moments: live(args, engine, archives, story, base, number, moments)
            kill_lives(args, engine, run, kill_moments, "healed")
    except Failed as failed:
        again = f"--pairs {args.pairs} --kills {args.kills} --seed {args.seed} --memory {args.memory}"
        again += f" --fault {args.fault}" if args.fault else ""
        print(f"FAILED: {engine}: {failed}\nagain: loadgen/scripts/torture-heal.py --bin {args.bin} {again} {engine}")
        print(f"left in {args.work}: archives, store, service.log, follow.log and stream-*.log")
        sys.exit(1)
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()
