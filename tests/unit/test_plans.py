"""Parts of the plans' life cycle that need no session."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hangs import HANGS_AFTER_S

from chameleon_lab.session import plan_cache


def test_likeness_counts_the_runs_in_common() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 2**32, 400).astype(np.uint32)
    whole, half = plan_cache._grams(tokens), plan_cache._grams(np.append(tokens[:200], tokens[:200][::-1]))
    assert plan_cache._likeness(whole, whole) == 1.0
    assert plan_cache._likeness(whole, half) == pytest.approx(0.5, abs=0.01)
    assert (
        plan_cache._likeness(whole, plan_cache._grams(rng.integers(0, 2**32, 400).astype(np.uint32))) == 0.0
    )
    assert plan_cache._likeness(whole, plan_cache._grams(tokens[:2])) == 0.0  # too short for a run


class Core:
    """Notes which programs it was given."""

    def __init__(self) -> None:
        self.known: list[int] = []

    def reserve_host(self, planned_bytes: int, in_all_bytes: int) -> None:
        pass

    def own_work(self, on: bool) -> None:
        pass

    def add_program(self, plan: int, _: Any) -> None:
        self.known.append(plan)

    def drop_program(self, plan: int) -> None:
        if plan in self.known:
            self.known.remove(plan)


def test_a_job_hands_over_what_it_made_and_takes_it_back_when_nobody_wants_it(monkeypatch: Any) -> None:
    core = Core()
    monkeypatch.setattr(plan_cache, "core", core)
    began, goes_on = threading.Event(), threading.Event()

    def work() -> Any:
        began.set()
        goes_on.wait(HANGS_AFTER_S)
        host = SimpleNamespace(pool_bytes=0)
        return SimpleNamespace(
            summary=SimpleNamespace(plan=7), ready=None, program=SimpleNamespace(host=host)
        )

    def job(abandoned_at: str = "") -> plan_cache._Job:
        began.clear()
        goes_on.clear()
        made = plan_cache._Job(core, work, (0, 0))
        if abandoned_at == "during":
            assert began.wait(HANGS_AFTER_S)
            made.abandon()
        goes_on.set()
        made.join(HANGS_AFTER_S)
        assert not made.is_alive()
        if abandoned_at == "after":
            made.abandon()
        return made

    assert job().done and core.known == [7]
    core.known.clear()
    assert job("during").done and core.known == []
    assert job("after").done and core.known == []


@pytest.mark.parametrize(
    ("least_s", "stall_s", "steps", "again"),
    [
        (0.080, 0.010, 1, True),  # its first step is enough
        (0.099, 0.010, 1, False),  # as foretold
        (0.080, 0.001, 1, False),  # it costs next to nothing
        (0.080, 0.010, 3, False),  # later it takes more of them
        (0.080, 0.010, 4, True),
        (float("inf"), 0.010, 4, False),  # this step took long, and no other is known
    ],
)
def test_a_plan_is_made_again_where_its_ops_have_taken_less_time_before(
    least_s: float, stall_s: float, steps: int, again: bool, monkeypatch: Any
) -> None:
    jobs: list[Any] = []
    monkeypatch.setattr(plan_cache, "_Job", lambda *arguments: jobs.append(arguments))
    known = plan_cache.PlanCache(Core(), lambda log: None, lambda log: None, lambda text: None, lambda: 100)  # type: ignore[arg-type, return-value]
    own: Any = SimpleNamespace(
        policy=SimpleNamespace(predicted={"step_s": 0.110, "stall_s": 0.005, "replay_s": 0.005}),
        summary=SimpleNamespace(followed_steps=1 if steps == 1 else 20),
        refinements=0,
        relinks=0,
        renewals=0,
        quick_steps=0,
        answers=0,
    )
    log: Any = SimpleNamespace(truncated_ops=0, index=9, fingerprint=1, live_peak_bytes=2)
    summary: Any = SimpleNamespace(evictions=0, stall_s=stall_s, replay_s=0.0, step_s=0.130)
    for _ in range(steps):
        assert not jobs
        known._refine(own, log, summary, least_s)
    assert bool(jobs) == again


@pytest.mark.parametrize(
    ("followed", "relinks", "why", "again"),
    [
        (16, 0, "copies find another link", True),
        (32, 1, "copies find another link", True),
        (17, 0, "copies find another link", False),  # not looked at in each step
        (16, 2, "copies find another link", False),  # enough
        (16, 0, None, False),
    ],
)
def test_a_plan_is_made_again_where_copies_find_another_link(
    followed: int, relinks: int, why: str | None, again: bool, monkeypatch: Any
) -> None:
    jobs: list[Any] = []
    monkeypatch.setattr(plan_cache, "_Job", lambda *arguments: jobs.append(arguments))
    known = plan_cache.PlanCache(
        *(Core(), lambda log: None, lambda log: None, lambda text: None, lambda: 100),  # type: ignore[arg-type]
        other_link=lambda _: why,
    )
    own: Any = SimpleNamespace(
        policy=SimpleNamespace(),
        summary=SimpleNamespace(followed_steps=followed),
        **{"refinements": 0, "relinks": relinks, "answers": 0, "renewals": 2},
    )
    log: Any = SimpleNamespace(truncated_ops=0, index=9, fingerprint=1, live_peak_bytes=2)
    known.failed((1, 2), 8, RuntimeError("made up"))
    known._relink(own, SimpleNamespace(**vars(log) | {"index": 8}))  # type: ignore[arg-type]
    assert not jobs, "planning for these ops has failed a moment ago"
    known._relink(own, log)
    assert bool(jobs) == again
    known._relink(own, log)
    assert len(jobs) == int(again), "it is asked for once"
