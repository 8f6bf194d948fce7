"""The host's memory under a benchmark: how much is left, and a guard that ends the process before the system does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

SHARE = 0.8
"""Of what is left at the start, the most that one run may take."""

_EVERY_S = 0.2

_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_bytes() -> int:
    """What the machine has left, and the container, whichever is less."""
    meminfo = Path("/proc/meminfo").read_text()
    found = int(meminfo.partition("MemAvailable:")[2].split()[0]) * 1024
    for limit_file, used_file in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            found = min(found, int(Path(limit_file).read_text()) - int(Path(used_file).read_text()))
    return max(0, found)


@contextlib.contextmanager
def guarded(least_bytes: int, end: Callable[[int], object]) -> Iterator[None]:
    """While inside, ``end(left)`` is called, on a thread of its own and once, where less than ``least_bytes`` is left.

    Where memory runs out the system kills whatever it likes: the row of who took it would be lost, and others' too.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_EVERY_S):
            if (left := available_bytes()) < least_bytes:
                end(left)
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
