"""Parts of several scripts: the common options, a memory limit for a program, loads, the service, files and their pages, results, checks."""

import argparse
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

def engines():
    """Returns the names of the engines, which are the registry's default features."""
    manifest = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../engines/registry/Cargo.toml")
    with open(manifest, encoding="utf-8") as file:
        default = next(line for line in file if line.startswith("default = "))
    return sorted(json.loads(default.removeprefix("default = ")))


ENGINES = engines()
SAMPLE_SECONDS = 0.5
# Figures of a latency series that a line gets.
LATENCY = ("count", "mean_ns", "p50_ns", "p99_ns", "p999_ns", "max_ns")


class Failed(Exception):
    """A check that did not hold."""


def check(holds, text):
    if not holds:
        raise Failed(text)


def options(doc, name):
    """Returns a parser of a script's options with those that every script has: --bin and --work."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="target/release", help="directory of the built programs")
    parser.add_argument("--work", default=f"/tmp/solkv-{name}", help="directory for everything that is made")
    return parser


def engine_options(doc, name, pairs):
    """Returns such a parser of a script that measures engines: also ENGINE..., --pairs and --out."""
    parser = options(doc, name)
    parser.add_argument("engines", nargs="+", metavar="ENGINE", choices=ENGINES)
    parser.add_argument("--pairs", type=int, default=pairs)
    parser.add_argument("--out", help="file that the lines are appended to")
    return parser


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


class Group:
    """A cgroup of the first or the second version with a memory limit, or none without `limit_bytes`. Making one needs permission."""

    def __init__(self, limit_bytes):
        self.path = None
        if limit_bytes is None:
            return
        name = f"solkv-{os.getpid()}"
        first = os.path.isdir("/sys/fs/cgroup/memory")
        self.path = os.path.join("/sys/fs/cgroup/memory" if first else "/sys/fs/cgroup", name)
        os.mkdir(self.path)
        with open(os.path.join(self.path, "memory.limit_in_bytes" if first else "memory.max"), "w") as file:
            file.write(str(limit_bytes))

    def enter(self):
        """Moves the calling process into the group."""
        if self.path:
            with open(os.path.join(self.path, "cgroup.procs"), "w") as file:
                file.write(str(os.getpid()))

    def remove(self):
        if self.path:
            os.rmdir(self.path)


def load_sorted(args, engine, store):
    """Loads `args.pairs` pairs in key order into a new store, which is settled then."""
    command = [os.path.join(args.bin, "bootstrap"), "load", "--engine", engine, "--order", "sorted", "--dir", store]
    done = subprocess.run(command + ["--pairs", str(args.pairs), "--seed", "1"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"bootstrap failed: code={done.returncode}\n{done.stderr}")


class Peaks:
    """The peaks of a load's disk and anonymous memory, and the bytes that it has written."""

    def __init__(self, load, store):
        self.disk_bytes = self.anonymous_bytes = self.written_bytes = 0
        self.load, self.store, self.is_over = load, store, threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.is_over.wait(SAMPLE_SECONDS):
            self.disk_bytes = max(self.disk_bytes, used_bytes(self.store, self.store + ".work"))
            try:
                with open(f"/proc/{self.load.pid}/status") as status:
                    kib = next(line.split()[1] for line in status if line.startswith("RssAnon"))
                    self.anonymous_bytes = max(self.anonymous_bytes, int(kib) * 1024)
                with open(f"/proc/{self.load.pid}/io") as io:
                    self.written_bytes = next(int(line.split()[1]) for line in io if line.startswith("write_bytes"))
            except (OSError, StopIteration):
                pass

    def stop(self):
        self.is_over.set()
        self.thread.join()


def load(args, engine, store, *more):
    """Loads `args.pairs` pairs into a new store under `args.cap`, and returns the figures of that."""
    report = os.path.join(args.work, "load.json")
    command = [os.path.join(args.bin, "bootstrap"), "load", "--engine", *shlex.split(engine), "--dir", store]
    command += ["--pairs", str(args.pairs), "--seed", "1", "--report", report, *more]
    child, peaks, seconds = capped(args, command, store)
    if not os.path.exists(report):
        sys.exit(f"the load failed: code={child.returncode}: see {args.work}/load.log")
    with open(report) as file:
        told = json.load(file)
    return {
        "is_complete": child.returncode == 0,
        "order": told["order"],
        "is_settled": told["settled"],
        "load_s": round(seconds, 1),
        "loaded_pairs": told["pairs"],
        "store_bytes": used_bytes(store),
        "peak_disk_bytes": peaks.disk_bytes,
        "peak_anonymous_bytes": peaks.anonymous_bytes,
        "written_bytes": peaks.written_bytes,
        "latency": series(told["latencies"]),
    }


def capped(args, command, store):
    """Runs a load under the cap. Returns its process, its peaks and the seconds that it took."""
    group = Group(args.cap)
    started = time.monotonic()
    try:
        with open(os.path.join(args.work, "load.log"), "w") as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, preexec_fn=group.enter
            )
            peaks = Peaks(child, store)
            try:
                child.wait(args.hours * 3600)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGINT)
                child.wait()
            finally:
                peaks.stop()
        seconds = time.monotonic() - started
    finally:
        group.remove()
    return child, peaks, seconds


def series(latencies):
    return {one["op"]: {name: round(one[name]) for name in LATENCY} for one in latencies["series"]}


class Service:
    """One start of the service on a store of account owners, in a group, behind the stream on a port of this machine."""

    def __init__(self, args, engine, store, stream_port, group, log, more=()):
        self.metrics = free_port()
        command = [os.path.join(args.bin, "service"), "run", "--engine", engine, "--dir", store, "--extract", "account-owner"]
        command += ["--geyser", f"http://127.0.0.1:{stream_port}", "--listen", f"127.0.0.1:{free_port()}"]
        command += ["--metrics", f"127.0.0.1:{self.metrics}", *more]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, preexec_fn=group.enter
        )

    def lines(self):
        """Returns the lines of the metrics; none while the service does not answer."""
        if self.process.poll() is not None:
            sys.exit(f"the service ended by itself: code={self.process.returncode}: see service.log")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=5) as answer:
                return answer.read().decode().splitlines()
        except OSError:
            return []

    def metric(self, name):
        """Returns the metric of this name, with its labels if it has some; None while the service does not answer."""
        return next((int(float(line.split()[-1])) for line in self.lines() if line.startswith(f"{name} ")), None)

    def slot(self):
        """Returns the slot that is applied; None while the service does not answer."""
        return self.metric("solkv_checkpoint_slot")

    def figures(self, names):
        """Returns those of the engine's own figures that it has."""
        found = {}
        for line in self.lines():
            for name in names:
                if line.startswith(f'solkv_engine_detail{{name="{name}"}} '):
                    found[name] = int(float(line.split()[-1]))
        return found

    def stop(self):
        self.process.terminate()
        if self.process.wait(120) != 0:
            sys.exit(f"the service's exit code={self.process.returncode}: see service.log")


def drop_cached(*paths):
    """Writes files, or the files of directories, to the disk and drops their pages from the page cache."""
    for path in paths:
        files = [path] if os.path.isfile(path) else [os.path.join(d, f) for d, _, fs in os.walk(path) for f in fs]
        # A service that was killed leaves its socket.
        for name in filter(os.path.isfile, files):
            handle = os.open(name, os.O_RDONLY)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def meminfo(name):
    """Returns a figure of the machine's memory in bytes."""
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(f"{name}:"))


def await_filler():
    """Waits until the free memory no longer shrinks: `fill-memory.py` takes the memory of a program that has ended."""
    last = meminfo("MemFree")
    while True:
        time.sleep(0.5)
        now = meminfo("MemFree")
        if now > last - (64 << 20):
            return
        last = now


def used_bytes(*paths):
    """Returns the bytes of the directories' files, which may vanish meanwhile."""
    total = 0
    for path in paths:
        for directory, _, names in os.walk(path):
            for name in names:
                try:
                    total += os.lstat(os.path.join(directory, name)).st_blocks * 512
                except FileNotFoundError:
                    pass
    return total


def origin(program):
    """Returns the part of a line of results that says what was measured, when and on which machine, as `loadgen bench` names it."""
    cpu = {}
    with open("/proc/cpuinfo") as info:
        for line in info:
            name, _, value = line.partition(":")
            cpu.setdefault(name.strip(), value.strip())
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    machine = {"cpu": cpu.get("model name"), "cores": os.cpu_count(), "memory_bytes": memory_bytes, "kernel": os.uname().release}
    return {"program": program, "start_unix_ms": int(time.time() * 1000), "machine": machine}


def built(bin):
    """Returns version and commit of the programs in the folder `bin`."""
    told = subprocess.run([os.path.join(bin, "loadgen"), "--version"], capture_output=True, text=True, check=True)
    return told.stdout.split(" ", 1)[1].strip()


def tell(row, out):
    """Prints a line of results, and appends it to the file `out` if there is one."""
    print(json.dumps(row), flush=True)
    if out:
        os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
        with open(out, "a") as file:
            file.write(json.dumps(row) + "\n")
