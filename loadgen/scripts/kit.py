"""Parts of several scripts: the common options, a memory limit for a program, the bytes of directories, lines of results, checks."""

import argparse
import json
import os
import socket

ENGINES = ["lmdb", "redb", "rocksdb", "strata"]


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


def drop_cached(*paths):
    """Writes files, or the files of directories, to the disk and drops their pages from the page cache."""
    for path in paths:
        files = [path] if os.path.isfile(path) else [os.path.join(d, f) for d, _, fs in os.walk(path) for f in fs]
        for name in files:
            handle = os.open(name, os.O_RDONLY)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


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


def tell(row, out):
    """Prints a line of results, and appends it to the file `out` if there is one."""
    print(json.dumps(row), flush=True)
    if out:
        os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
        with open(out, "a") as file:
            file.write(json.dumps(row) + "\n")
