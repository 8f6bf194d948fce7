"""What the machine and its control groups have left, from made-up trees of /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from chameleon_lab.runtime.host_memory import SHARE, available_bytes, default_capacity_bytes

GiB = 1 << 30


def tree(root: Path, files: dict[str, object]) -> Path:
    for name, text in {
        "proc/meminfo": f"MemFree: 1 kB\nMemAvailable: {64 * GiB // 1024} kB\n",
        **files,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def v2(path: str, limit: object, usage: int, cache: int = 0) -> dict[str, object]:
    place = f"sys/fs/cgroup/{path}/"
    return {
        place + "memory.max": limit,
        place + "memory.current": usage,
        place + "memory.stat": f"anon 1\ninactive_file {cache}",
    }


def v1(path: str, limit: object, usage: int, cache: int = 0) -> dict[str, object]:
    place = f"sys/fs/cgroup/memory/{path}/"
    return {
        place + "memory.limit_in_bytes": limit,
        place + "memory.usage_in_bytes": usage,
        place + "memory.stat": f"inactive_file 0\ntotal_inactive_file {cache}",
    }


CASES: dict[str, tuple[dict[str, object], int]] = {
    "no groups": ({}, 64 * GiB),
    "no limit": ({"proc/self/cgroup": "0::/a", **v2("a", "max", GiB)}, 64 * GiB),
    "version 2": ({"proc/self/cgroup": "0::/a", **v2("a", 16 * GiB, 4 * GiB)}, 12 * GiB),
    "files in the cache go first": (
        {"proc/self/cgroup": "0::/a", **v2("a", 16 * GiB, 9 * GiB, 5 * GiB)},
        12 * GiB,
    ),
    "the group around it has less": (
        {"proc/self/cgroup": "0::/a/b", **v2("a", 8 * GiB, 6 * GiB), **v2("a/b", 7 * GiB, GiB)},
        2 * GiB,
    ),
    "the group has more than the machine": ({"proc/self/cgroup": "0::/a", **v2("a", 999 * GiB, 0)}, 64 * GiB),
    "a container that shows the host's path": (
        {"proc/self/cgroup": "0::/docker/x", **v2(".", 4 * GiB, GiB)},
        3 * GiB,
    ),
    "outside of what is shown": ({"proc/self/cgroup": "0::/../../x", **v2(".", 4 * GiB, GiB)}, 3 * GiB),
    "version 1": (
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/a/b",
            **v1("a/b", 9 * GiB, 5 * GiB, GiB),
            **v1("a", 1 << 62, 0),
        },
        5 * GiB,
    ),
    "version 1, nested": (
        {"proc/self/cgroup": "4:memory:/a/b", **v1("a/b", 9 * GiB, GiB), **v1("a", 6 * GiB, 5 * GiB)},
        GiB,
    ),
    "both": (
        {"proc/self/cgroup": "4:memory:/a\n0::/b", **v1("a", 9 * GiB, GiB), **v2("b", 3 * GiB, GiB)},
        2 * GiB,
    ),
    "over its limit": ({"proc/self/cgroup": "0::/a", **v2("a", GiB, 2 * GiB)}, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_the_least_of_all_counts(name: str, tmp_path: Path) -> None:
    files, expected = CASES[name]
    root = tree(tmp_path, files)
    assert available_bytes(root) == expected
    assert default_capacity_bytes(root=root) == max(int(SHARE * expected), 1)
    assert default_capacity_bytes(GiB, root) == int(SHARE * (expected + GiB)), (
        "what is pinned already is not lost"
    )


def test_a_system_that_says_nothing_bounds_nothing(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None and default_capacity_bytes(0, tmp_path) is None


def test_this_machine_has_something_left() -> None:
    assert (available_bytes() or 0) > 1 << 20
