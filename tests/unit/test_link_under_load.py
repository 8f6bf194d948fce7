"""What a session takes the link for: what its newest steps found, and how much less the slowest of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chameleon_lab.policy import Link
from chameleon_lab.runtime import core
from chameleon_lab.session.link_under_load import LinkUnderLoad
from chameleon_lab.trace import Direction

MIB = 1 << 20
BEFORE = Link(100.0 * MIB, 200.0 * MIB)
OUT, IN = Direction.OUT, Direction.IN


class Log:
    """A finished step: of each copy the direction, the MiB, and the MiB a second; none: it has not ended."""

    def __init__(self, index: int, *copies: tuple[Direction, float, float | None], plan: int = 3) -> None:
        self.index, self.program = index, plan
        kinds = {"direction": "u1", "bytes": "i8", "start_ticks": "u8", "end_ticks": "u8"}
        self._rows = np.zeros(len(copies), list(kinds.items()))
        for row, (direction, size, speed) in zip(self._rows, copies, strict=True):
            ended = 0 if speed is None else 1000 + round(size / speed / core.seconds_per_tick())
            row["direction"], row["bytes"] = direction, size * MIB
            row["start_ticks"], row["end_ticks"] = 1000, ended

    def transfers(self) -> np.ndarray:
        """As the core gives them."""
        return self._rows


def learned(*steps: tuple[Any, ...]) -> LinkUnderLoad:
    """After steps that made these copies."""
    link = LinkUnderLoad()
    link.learn(Log(-1))  # type: ignore[arg-type]
    for index, copies in enumerate(steps):
        link.learn(Log(index, *copies))  # type: ignore[arg-type]
    return link


def outs(*speeds: float, size: float = 100) -> list[tuple[Any, ...]]:
    """Steps that each sent so much to the host, this fast."""
    return [((OUT, size, speed),) for speed in speeds]


def out_mib_s(link: LinkUnderLoad) -> float:
    found = link.typical(BEFORE)[0].out_bytes_per_s
    assert found is not None
    return found / MIB


def test_before_any_step_has_told_it_is_as_it_was() -> None:
    for link in (LinkUnderLoad(), learned((), ((OUT, 0.5, 1.0),), ((IN, 100, None),))):
        assert link.typical(BEFORE) == (BEFORE, 0.0) and not link.is_settled
        assert link.typical(Link(None, 1e9)) == (Link(None, 1e9), 0.0)


def test_one_step_is_believed_and_has_no_spread() -> None:
    """It is bytes over the time that all copies of a direction took."""
    link, margin = learned(((OUT, 100, 40.0), (IN, 60, 60.0), (IN, 40, 20.0))).typical(BEFORE)
    assert link.out_bytes_per_s == pytest.approx(40 * MIB, rel=1e-4)
    assert link.in_bytes_per_s == pytest.approx(100 / 3 * MIB, rel=1e-4) and margin == 0.0


def test_the_margin_is_what_the_slowest_steps_had_less() -> None:
    """One odd step of many changes neither the link nor the margin; a quarter of them is the margin."""
    odd = learned(*outs(*[40.0] * 15, 10.0))
    assert out_mib_s(odd) == pytest.approx(40, rel=1e-4) and odd.typical(BEFORE)[1] == pytest.approx(
        0, abs=1e-4
    )
    slower = learned(*outs(*[40.0] * 12, *[30.0] * 4))
    assert out_mib_s(slower) == pytest.approx(40, rel=1e-4)
    assert slower.typical(BEFORE)[1] == pytest.approx(0.25, abs=1e-4)
    assert learned(*outs(*[40.0, 1.0] * 8)).typical(BEFORE)[1] == 0.5, "no more than a half"
    for count in range(1, 12):
        few = learned(*outs(*[40.0] * count, 10.0))
        assert few.typical(BEFORE)[1] == pytest.approx(0, abs=1e-4), "an odd one of few is no margin"


def test_steps_without_copies_and_with_few_say_nothing() -> None:
    """Evaluation between training steps, say: neither the link before nor what small copies find counts."""
    for quiet in ((), ((OUT, 0.5, 1.0),), ((OUT, 2, 1.0),)):
        link = learned(*[quiet, *outs(40.0, 40.0, 40.0)] * 4)
        assert out_mib_s(link) == pytest.approx(40, rel=1e-4), quiet
        assert link.typical(BEFORE)[1] == pytest.approx(0, abs=1e-4) and link.is_settled
        assert link.typical(BEFORE)[0].in_bytes_per_s == BEFORE.in_bytes_per_s
    assert out_mib_s(learned(*[()] * 15, *outs(40.0))) == pytest.approx(40, rel=1e-4)


def test_old_steps_are_forgotten() -> None:
    link = learned(*outs(*[5.0] * 16, *[40.0] * 16))
    assert out_mib_s(link) == pytest.approx(40, rel=1e-4)
    assert link.typical(BEFORE)[1] == pytest.approx(0, abs=1e-4)


def test_steps_that_follow_no_plan_or_one_for_the_first_time_say_nothing() -> None:
    """They use host memory for the first time, which takes long. Plans may take turns."""
    link = LinkUnderLoad()
    for index, plan in enumerate((-1, -1, 0, 1)):
        link.learn(Log(index, (OUT, 100, 5.0), plan=plan))  # type: ignore[arg-type]
        assert link.typical(BEFORE) == (BEFORE, 0.0)
    for index, plan in enumerate((0, 1, 2, 0, 2)):
        link.learn(Log(4 + index, (OUT, 100, 5.0 if index == 2 else 40.0), plan=plan))  # type: ignore[arg-type]
    assert link._speeds(OUT) == pytest.approx([40 * MIB] * 4, rel=1e-4)


def test_before_any_step_has_told_it_is_what_the_step_has_found_that_is_planned_for() -> None:
    log: Any = Log(9, (OUT, 100, 25.0))
    link, margin = LinkUnderLoad().typical(BEFORE, log)
    assert link.out_bytes_per_s == pytest.approx(25 * MIB, rel=1e-4)
    assert link.in_bytes_per_s == BEFORE.in_bytes_per_s and margin == 0.0
    link, _ = learned(*outs(40.0)).typical(BEFORE, log)
    assert link.out_bytes_per_s == pytest.approx(40 * MIB, rel=1e-4)


def test_it_is_settled_after_twelve_steps_that_have_told() -> None:
    steps = outs(*[40.0] * 12)
    assert not learned(*steps[:11]).is_settled and learned(*steps).is_settled
    assert not learned(*steps, ((IN, 100, 40.0),)).is_settled, (
        "of the other direction too, where there is any"
    )
