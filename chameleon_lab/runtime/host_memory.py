"""Available memory of the machine and of the process's control groups."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from . import core

SHARE = 0.8
"""Of what is available when a session opens, that pinned memory may take unless the session is told otherwise. Pinned
pages can't be paged out: what is left has to do for everything else on the machine."""

_NO_LIMIT = 1 << 60
"""Version 1 of control groups says "no limit" by a number about as large as it goes."""


def default_capacity_bytes(held_bytes: int = 0, root: Path = Path("/")) -> int | None:
    """What pinned memory may take, ``held_bytes`` that it has already among it; None where the system does not say."""
    available = available_bytes(root)
    return None if available is None else max(int(SHARE * (available + held_bytes)), 1)


def release_host_memory() -> None:
    """Give pinned host memory back that no session needs now.

    Sessions leave theirs to later ones of the process, since pinning is slow; at the end of the process it goes anyway.
    """
    core.release_host()


def available_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that can be taken before the kernel runs out of memory; None where it does not say.

    The least of the machine's (``MemAvailable``) and of what each control group around the process has left, of both
    versions: a group's limit holds for all within it.
    """
    found = [_meminfo(root / "proc/meminfo")]
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            place, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            place = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        inside = PurePosixPath("/", path).relative_to("/")
        # In a container the path may be that of the host, which is not there: the root is the container's own then.
        found += [_left(place / group, *names) for group in (inside, *inside.parents)]
    known = [left for left in found if left is not None]
    return min(known) if known else None


def _left(group: Path, limit_name: str, usage_name: str, cache_name: str) -> int | None:
    """What a control group has left: its files in the page cache go before anything is killed."""
    limit, usage = _number(group / limit_name), _number(group / usage_name)
    if limit is None or usage is None or limit >= _NO_LIMIT:
        return None
    cache = next(
        (
            int(words[1])
            for line in _lines(group / "memory.stat")
            if (words := line.split())[:1] == [cache_name]
        ),
        0,
    )
    return max(limit - max(usage - cache, 0), 0)


def _meminfo(path: Path) -> int | None:
    for line in _lines(path):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _number(path: Path) -> int | None:
    text = next(iter(_lines(path)), "")
    return int(text) if text.isdigit() else None  # "max" is none


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
