"""The host's memory under a benchmark: how much is left, and a guard that ends the process before the system does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from chameleon_lab.runtime import host_memory

SHARE = 0.8
"""Of what is left at the start, the most that one run may take."""

_EVERY_S = 0.2


def available_bytes(root: Path = Path("/")) -> int:
    """What the machine and every control group around this process have left, whichever is least."""
    found = host_memory.available_bytes(root)
    if found is None:
        raise OSError("the system does not say how much memory is left: /proc/meminfo is missing")
    return found


@contextlib.contextmanager
def looking(look: Callable[[], object], every_s: float) -> Iterator[None]:
    """While inside, ``look()`` is called every so many seconds, on a thread of its own."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(every_s):
            look()

    thread = threading.Thread(target=run, name="looking", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def guarded(least_bytes: int, end: Callable[[int], object]) -> Iterator[None]:
    """While inside, ``end(left)`` is called, on a thread of its own and once, where less than ``least_bytes`` is left.

    Where memory runs out the system kills whatever it likes: the row of who took it would be lost, and others' too.
    """
    ended = False

    def look() -> None:
        nonlocal ended
        if not ended and (left := available_bytes()) < least_bytes:
            ended = True
            end(left)

    with looking(look, _EVERY_S):
        yield
