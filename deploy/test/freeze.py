#!/usr/bin/env python3
"""Stops one thread of a process, as a device that does not answer would: freeze.py PID NAME.

Holds it with ptrace until the process has ended; prints "frozen" when it stands still.
"""

import ctypes
import os
import sys

PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207

pid, name = sys.argv[1:]
threads = [tid for tid in os.listdir(f"/proc/{pid}/task") if open(f"/proc/{pid}/task/{tid}/comm").read().strip() == name]
if len(threads) != 1:
    sys.exit(f"freeze: no such thread: pid={pid} name={name} found={len(threads)}")
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
thread = int(threads[0])
for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
    if libc.ptrace(request, thread, None, None) != 0:
        sys.exit(f"freeze: ptrace refused: tid={thread} errno={ctypes.get_errno()}")
# 0x40000000 is __WALL, which also waits for a thread that is nobody's child.
os.waitpid(thread, 0x40000000)
print("frozen", flush=True)
try:
    os.waitpid(thread, 0x40000000)
except ChildProcessError:
    pass
