"""A memory limit for programs that a benchmark starts. Making one needs permission.

Used by bench-outage.py and bench-large.py.
"""

import os


class Group:
    """A cgroup with a memory limit, of the first or the second version; none if `limit_bytes` is None."""

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
