"""What a session takes the link for: what its newest steps found, and how much less the slowest of them."""

from __future__ import annotations

import numpy as np
import pytest

from chameleon_lab.policy import Link
from chameleon_lab.session.link_under_load import MOST, LinkUnderLoad
from chameleon_lab.trace import Direction, Transfers

MIB = 1 << 20
BEFORE = Link(100.0 * MIB, 200.0 * MIB)


def copies(*found: tuple[Direction, float]) -> Transfers:
    """One copy of 100 MiB for each direction and bandwidth, in MiB/s."""
    n = len(found)
    return Transfers(
        storage=np.zeros(n, np.int32),
        direction=np.array([direction for direction, _ in found], np.uint8),
        cause=np.zeros(n, np.uint8),
        bytes=np.full(n, 100 * MIB, np.int64),
        issue_op=np.zeros(n, np.int32),
        issue_s=np.zeros(n),
        start_s=np.zeros(n),
        end_s=np.array([100 / speed for _, speed in found]),
    )


def learned(outs: list[float], back: float = 50.0) -> LinkUnderLoad:
    link = LinkUnderLoad()
    for step, out in enumerate(outs):
        link.learn(step, copies((Direction.OUT, out), (Direction.IN, back)), BEFORE)
    return link


def test_before_any_step_it_is_as_it_was() -> None:
    assert LinkUnderLoad().typical(BEFORE) == (BEFORE, 0.0)
    assert LinkUnderLoad().typical(Link(None, 1e9)) == (Link(None, 1e9), 0.0)


def test_one_step_is_believed_and_has_no_spread() -> None:
    link, margin = learned([40.0]).typical(BEFORE)
    assert link.out_bytes_per_s == pytest.approx(40 * MIB) and link.in_bytes_per_s == pytest.approx(50 * MIB)
    assert margin == 0.0


def test_the_margin_is_what_the_slowest_steps_had_less() -> None:
    """One odd step of many changes neither; a fifth of them does."""
    odd, _ = learned([40.0] * 15 + [10.0]).typical(BEFORE)
    assert odd.out_bytes_per_s == pytest.approx(40 * MIB)
    assert learned([40.0] * 15 + [10.0]).typical(BEFORE)[1] == pytest.approx(0.0)
    link, margin = learned([40.0] * 12 + [30.0] * 4).typical(BEFORE)
    assert link.out_bytes_per_s == pytest.approx(40 * MIB) and margin == pytest.approx(0.25)


def test_old_steps_are_forgotten_and_a_step_counts_once() -> None:
    link = learned([5.0] * 16 + [40.0] * 16)
    assert link.typical(BEFORE)[0].out_bytes_per_s == pytest.approx(40 * MIB)
    for _ in range(16):
        link.learn(99, copies((Direction.OUT, 1.0)), BEFORE)
    assert link.typical(BEFORE)[0].out_bytes_per_s == pytest.approx(40 * MIB)


def test_a_direction_without_copies_is_as_it_was_and_the_margin_has_a_limit() -> None:
    link = LinkUnderLoad()
    for step in range(8):
        link.learn(step, copies((Direction.OUT, 40.0 if step % 2 else 1.0)), BEFORE)
    found, margin = link.typical(BEFORE)
    assert found.in_bytes_per_s == BEFORE.in_bytes_per_s and margin == MOST


def test_a_link_without_a_limit_stays_without() -> None:
    link = LinkUnderLoad()
    link.learn(0, copies((Direction.OUT, 40.0)), Link(None, None))
    found, margin = link.typical(Link(None, None))
    assert found.in_bytes_per_s is None and found.out_bytes_per_s == pytest.approx(40 * MIB) and margin == 0.0
