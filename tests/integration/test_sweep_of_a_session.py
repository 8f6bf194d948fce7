"""The figure of a session's policy: the fewest op times over several steps, with replays, and the mark on the curve."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training import Gpt, adamw, reference, train

import chameleon_lab as cl
from chameleon_lab.planner.memory import step_op_times
from chameleon_lab.policy import Policy
from chameleon_lab.runtime import core
from chameleon_lab.session import host_times
from chameleon_lab.testing import wait_for_plans
from chameleon_lab.trace import Trace

pytestmark = pytest.mark.full


@cache
def trained() -> tuple[Policy, Trace]:
    """A session's policy and its trace. Ops take other times in each step, but not so long, however busy the machine,
    that copies are worth more than replays."""
    seen: dict[str, Any] = {}
    generator = np.random.default_rng(0)

    def look(number: int, model: Any, session: cl.Session | None) -> None:
        if session is None:
            return
        wait_for_plans(session)  # a plan made in haste is off the curve
        if number == 6:
            seen.update(policy=session.policy, trace=session.trace())

    _, live_peak = reference(Gpt)
    settings = {"capacity": int(0.6 * live_peak), "link": "64MiB/s", "min_swap": "4KiB"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_times, "_op_times", lambda log, ops: generator.uniform(1e-5, 4e-5, len(ops)))
        train(Gpt, adamw, 8, settings, each_step=look)
    return seen["policy"], seen["trace"]


def drawn(figure: Any, name: str) -> Any:
    (found,) = [trace for trace in figure.data if trace.name.startswith(name)]
    return found


@pytest.mark.parametrize("given", ["nothing", "trace", "step"])
def test_the_mark_lies_on_the_curve_on_the_clock_that_the_session_planned_with(given: str) -> None:
    policy, trace = trained()
    assert policy.swaps and (policy.drops or not core.SEES_RAW_ACCESS)
    figure = policy.sweep_figure({"nothing": None, "trace": trace, "step": trace.last}[given])
    line, now = drawn(figure, "Step, predicted"), drawn(figure, "Now")
    assert dict(zip(line.x, line.y, strict=True))[now.x[0]] == pytest.approx(now.y[0], rel=1e-9)
    assert now.y[0] == pytest.approx(policy.predicted["step_s"], rel=1e-9), "what the session was told"
    assert policy.op_times is not None
    assert drawn(figure, "Without stalls").y[0] == pytest.approx(float(policy.op_times.sum()))
    assert "op times of the plan" in figure.layout.title.subtitle.text


def test_a_file_has_no_op_times_and_the_figure_says_which_it_takes(tmp_path: Path) -> None:
    policy, trace = trained()
    policy.save(tmp_path / "p.json")
    loaded = Policy.load(tmp_path / "p.json")
    assert loaded.op_times is None and loaded == policy
    figure = loaded.sweep_figure(trace)
    assert f"op times of step {trace.last.index}" in figure.layout.title.subtitle.text
    assert drawn(figure, "Without stalls").y[0] == pytest.approx(float(step_op_times(trace.last).sum()))
    assert "every op taking as long" in loaded.sweep_figure().layout.title.subtitle.text
