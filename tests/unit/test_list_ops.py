"""The sizes of the parts in which list ops run."""

from __future__ import annotations

import pytest

from chameleon_lab.trace.list_ops import part_limit_bytes

MiB, GiB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("capacity", "most"),
    [
        (1, 1),
        (64 * MiB, 8 * MiB),
        (512 * MiB, 64 * MiB),
        (2 * GiB, 64 * MiB),
        (4 * GiB, 64 * MiB),
        (80 * GiB, 80 * GiB // 64),
    ],
)
def test_a_part_is_an_eighth_of_a_small_capacity_and_a_64th_of_a_large_one(capacity: int, most: int) -> None:
    assert part_limit_bytes(capacity) == most


def test_no_larger_capacity_has_smaller_parts() -> None:
    limits = [part_limit_bytes(MiB * size) for size in range(1, 10_000)]
    assert limits == sorted(limits)
