#!/usr/bin/env python3
"""Keeps the machine's free memory in the page cache, so that what is measured beside it gets memory from there.

  loadgen/scripts/fill-memory.py [--work DIR] [COMMAND...]

A virtual machine may give free memory back to its host and get it again page by page at the next use, which then takes
several microseconds a page: more than reading the page from a fast device. A program that has run for a while on a
machine of its own never sees that. This reads holes of an empty file for as long as more than --free bytes are free.
Runs until COMMAND has ended, whose exit code it takes, or without one until SIGINT or SIGTERM.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading

from kit import meminfo, options

LOOK_SECONDS = 0.2
READ_BYTES = 1 << 20


class Filler:
    """A file without data that is as large as the memory. The page cache keeps the pages that were read last."""

    def __init__(self, work, free_bytes):
        os.makedirs(work, exist_ok=True)
        self.path, self.free_bytes, self.at = os.path.join(work, "holes"), free_bytes, 0
        self.file = open(self.path, "w+b", buffering=0)
        self.file.truncate(meminfo("MemTotal"))
        self.buffer = bytearray(READ_BYTES)

    def fill(self, ended):
        """Reads until no more than the given bytes are free, or until `ended`."""
        while meminfo("MemFree") > self.free_bytes and not ended.is_set():
            for _ in range(64):
                self.file.seek(self.at)
                read = self.file.readinto(self.buffer)
                self.at = self.at + read if read else 0

    def remove(self):
        self.file.close()
        os.remove(self.path)


def main():
    parser = options(__doc__, "fill-memory")
    parser.add_argument("--free", type=int, default=512 << 20, help="bytes that stay free")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    args = parser.parse_args()
    ended = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: ended.set())
    filler = Filler(args.work, args.free)
    try:
        filler.fill(ended)
        child = subprocess.Popen(args.command) if args.command else None
        # The lowest priority from now on, so that the command has the processors.
        os.nice(19)
        while not ended.wait(LOOK_SECONDS) and (child is None or child.poll() is None):
            filler.fill(ended)
        if child:
            child.terminate()
            sys.exit(child.wait())
    finally:
        filler.remove()


if __name__ == "__main__":
    main()
