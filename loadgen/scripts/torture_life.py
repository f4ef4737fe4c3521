"""One store under a service that is started and killed again and again, and the stream that it follows.

Used by torture-create.py and torture-heal.py. A check that does not hold raises Failed.
"""

import json
import os
import random
import shutil
import subprocess
import time
import urllib.error
import urllib.request

from kit import Failed, check, free_port

LOOK_SECONDS = 0.1
LIFE_SECONDS_MAX = 300


def write_archives(args, story, more):
    """Writes archives of the story into args.work/archives. Returns the report's list of them, the full one first."""
    out, report = os.path.join(args.work, "archives"), os.path.join(args.work, "archives.json")
    made = [os.path.join(args.bin, "loadgen"), "archive", "--out", out, *story, "--without", "large", "--report", report]
    done = subprocess.run(made + more, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    check(done.returncode == 0, f"loadgen archive: {done.stdout}{done.stderr}")
    with open(report) as file:
        return json.load(file)["archives"]


def kill_lives(args, engine, live, moments, ended):
    """Lives of a store of the engine, until --kills kills: the first one without a kill, to know how long it takes.

    live(number, moments) runs a life and returns the phases of its kills, and the seconds of its last start; number counts the
    lives from 0. moments(rng, count, seconds) returns the times of the next kills after each start. ended says what ends a life.
    """
    _, seconds = live(0, [])
    print(f"ok    {engine} without a kill: {ended} after seconds={seconds:.1f}", flush=True)
    kills = number = 0
    while kills < args.kills:
        number += 1
        rng = random.Random(f"{args.seed} {engine} {number}")
        chosen = moments(rng, min(rng.randint(1, 4), args.kills - kills), seconds)
        phases, last = live(number, chosen)
        kills += len(phases)
        where = "; ".join(f"{moment:.2f}s {phase}" for moment, phase in zip(chosen, phases))
        print(f"ok    {engine} life={number}: killed at {where}; then {ended} after seconds={last:.1f}", flush=True)


class Life:
    """One store, its stream, and the starts of the service."""

    def __init__(self, args, engine, story, delivery, options):
        self.args, self.engine, self.options, self.service = args, engine, options, None
        self.store = os.path.join(args.work, "store")
        self.summary = os.path.join(args.work, "summary.json")
        for made in (self.store, self.store + ".work"):
            shutil.rmtree(made, ignore_errors=True)
        if os.path.exists(self.summary):
            os.remove(self.summary)
        self.stream_port, self.metrics_port = free_port(), free_port()
        self.log = open(os.path.join(args.work, "service.log"), "wb")
        self.stream = self.play(self.stream_port, story, [*delivery, "--summary", self.summary])

    def play(self, port, story, delivery):
        """Starts a server that plays the story."""
        with open(os.path.join(self.args.work, f"stream-{port}.log"), "wb") as log:
            return subprocess.Popen(
                [os.path.join(self.args.bin, "loadgen"), "stream", "--listen", f"127.0.0.1:{port}", *story]
                + [*delivery, "--linger", "1h"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )

    def check_runs(self):
        """Checks that the service and the stream's server run."""
        check(self.service.poll() is None, f"the service ended by itself: code={self.service.returncode}")
        check(self.stream.poll() is None, f"the stream's server ended by itself: code={self.stream.returncode}")

    def start(self):
        self.service = subprocess.Popen(
            [os.path.join(self.args.bin, "service"), "run", "--engine", self.engine]
            + (["--memory", self.args.memory] if self.args.memory else [])
            + ["--dir", self.store, "--extract", "account-owner", *self.geyser()]
            + ["--listen", f"127.0.0.1:{free_port()}", "--metrics", f"127.0.0.1:{self.metrics_port}", *self.options],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT,
        )

    def geyser(self):
        """Returns the options that name the stream's servers."""
        return ["--geyser", f"http://127.0.0.1:{self.stream_port}"]

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
        """Starts the service, and kills it after this time. Returns the phase that it was in."""
        self.start()
        time.sleep(seconds)
        return self.kill()

    def kill(self):
        """Kills the service, and returns the phase that it was in."""
        phase = self.ready().split(":")[0].strip() or "starting"
        self.check_runs()
        self.service.kill()
        self.service.wait()
        spool = "spool" if os.path.exists(os.path.join(self.store, "spool")) else "no spool"
        return f"{phase}, {spool}"

    def finish(self, at_end=lambda: None):
        """Starts the service unless it runs, and waits for the stream's end in the store. Then it calls `at_end`, stops the
        service and compares the store with the stream. Returns the seconds until the spool was gone."""
        started, seconds = time.monotonic(), None
        if self.service is None or self.service.poll() is not None:
            self.start()
        while True:
            self.check_runs()
            check(time.monotonic() - started < LIFE_SECONDS_MAX, f"not at the stream's end: {self.ready()}")
            if seconds is None and self.is_done_with_spool():
                seconds = time.monotonic() - started
            if seconds is not None and os.path.exists(self.summary) and self.slot() == self.end()["slot"]:
                break
            time.sleep(LOOK_SECONDS)
        at_end()
        self.service.terminate()
        check(self.service.wait(60) == 0, f"the service's exit code={self.service.returncode}")
        info = self.info("--digest")
        check(f"digest={self.end()['digest']}" in info, f"digest: expected={self.end()['digest']} info={info}")
        for left in (self.store + ".work", os.path.join(self.store, "heal")):
            check(not os.path.exists(left), f"left: {left}")
        return seconds

    def is_done_with_spool(self):
        """Whether the store is open, and the spool was applied and removed."""
        return self.slot() is not None and not os.path.exists(os.path.join(self.store, "spool"))

    def slot(self):
        return self.metric("solkv_checkpoint_slot")

    def metric(self, name):
        """Returns a metric without labels; None while the service does not answer, or does not have it."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return None
        return next((int(float(line.split()[-1])) for line in lines if line.startswith(f"{name} ")), None)

    def end(self):
        with open(self.summary) as file:
            return json.load(file)["final"]

    def info(self, *more):
        command = [os.path.join(self.args.bin, "bootstrap"), "info", "--dir", self.store, *more]
        return subprocess.run(command, capture_output=True, text=True).stdout

    def close(self):
        for child in (self.stream, self.service):
            if child and child.poll() is None:
                child.kill()
                child.wait()
        self.log.close()
