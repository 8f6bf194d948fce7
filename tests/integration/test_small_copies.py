"""The CPU device: who asks for a small copy makes it where the link is free, and the time counts as a wait for it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from training import Gpt, MiB, reference, tight_bytes, train

import chameleon_lab as cl
from chameleon_lab.runtime import core
from chameleon_lab.trace import Cause, Direction
from chameleon_lab.trace.overlap import overlap_of
from chameleon_lab.trace.stall_parts import parts_of_step

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def by_who_asks() -> None:
    core.hand_over_copies(False)


def trained(**session: Any) -> cl.Session:
    """The session of a training that is the same as without one."""
    sessions: list[cl.Session] = []
    bare, _ = reference(Gpt)
    run = train(Gpt, session_kwargs=session, each_step=lambda _, __, s: sessions.append(s) if s else None)
    assert run.same(bare) and run.report is not None
    return sessions[-1]


def at_once(log: core.StepLog) -> np.ndarray:
    """Which copies were waited for exactly as long as they took: bool (copies,)."""
    stalls = log.stalls()
    waits = {(row["start_ticks"], row["end_ticks"]) for row in stalls[["start_ticks", "end_ticks"]]}
    copies = log.transfers()[["start_ticks", "end_ticks"]]
    return np.array([(row["start_ticks"], row["end_ticks"]) in waits for row in copies])


@pytest.mark.bits
@pytest.mark.parametrize("planning", [True, False])
def test_small_copies_are_made_at_once_and_counted_as_waits(planning: bool) -> None:
    session = trained(capacity=tight_bytes(Gpt), link="1TiB/s", planning=planning, min_swap="1KiB")
    logs, report = session._journal.logs(), session.report()
    copies = np.concatenate([at_once(log) for log in logs])
    assert len(copies) > 20 and copies.all()
    assert sum(step.late_prefetches for step in report.history) == 0, (
        "nothing was late: nobody was waited for"
    )
    for step in session.trace().steps:
        assert not parts_of_step(step).late_s[step.stalls.cause == Cause.PLANNED].any()
    for log, step in zip(logs, report.history[-len(logs) :], strict=True):
        took = log.transfers()["end_ticks"] - log.transfers()["start_ticks"]
        assert log.stall_ticks == took.sum() and step.overlap in (0.0, None)


@pytest.mark.bits
def test_on_a_slow_link_copies_are_made_beside_compute() -> None:
    logs = trained(capacity=tight_bytes(Gpt), link="200MB/s", min_swap="1KiB")._journal.logs()
    of_size = [
        log.transfers()["bytes"] > 20_000 for log in logs
    ]  # takes the link longer than a sleeper oversleeps
    assert sum(chosen.sum() for chosen in of_size) > 5
    assert not any(at_once(log)[chosen].any() for log, chosen in zip(logs, of_size, strict=True))


def test_large_copies_are_made_beside_compute() -> None:
    with cl.Session("8MiB", planning=False, link="1TiB/s") as session:
        held = [torch.full((MiB // 4,), float(k)) for k in range(16)]
        assert [x[-1].item() for x in held] == list(range(16))
        session.step()
        log = session._journal.logs()[-1]
        chosen = log.transfers()["bytes"] == MiB
        assert chosen.sum() >= 8 and not at_once(log)[chosen].any()


def test_a_copy_that_compute_waits_for_in_any_case_may_be_twice_as_large() -> None:
    with cl.Session("8MiB", planning=False, link="1TiB/s") as session:
        held = [torch.full((125_000,), float(k)) for k in range(12)]
        for x in held:
            session.evict(x)
        assert [x[-1].item() for x in held] == list(range(12))
        session.step()
        log = session._journal.logs()[-1]
        large = log.transfers()["bytes"] == 500_000
        back = log.transfers()["direction"] == Direction.IN
        assert (large & back).sum() == (large & ~back).sum() == 12
        assert at_once(log)[large & back].all(), "the system has less to do than to wake a thread"
        assert not at_once(log)[large & ~back][0], "nothing waits for it"


def test_where_the_thread_is_slower_than_the_link_larger_copies_are_made_at_once() -> None:
    """No thread copies as fast as this link, and what it copied is cold to compute."""
    with cl.Session("8MiB", planning=False, link="1TiB/s") as session:
        held = []
        for k in range(100):
            held.append(torch.full((125_000,), float(k)))
            session.evict(held[-1])
            while session.where(held[-1]) != "away":
                time.sleep(1e-4)
        session.step()
        log = session._journal.logs()[-1]
        beside = np.flatnonzero(~at_once(log)[log.transfers()["bytes"] == 500_000])
        # A copy that is asked for while the thread is still at the end of the one before comes behind that.
        apart = np.diff(beside)
        assert beside[0] == 0 and set(apart) <= {1, 65}, f"the thread is tried again after 64: {beside}"
        assert 65 in apart, f"it is tried all the time: {beside}"


def test_a_small_copy_comes_behind_the_large_one_that_it_waits_for() -> None:
    """The same storage leaves and returns: the copy in reads what the copy out, still on its way, has to write."""
    for _ in range(20):
        with cl.Session("3MiB", planning=False, min_swap="1KiB") as session:
            large, small = torch.arange(MiB // 4), torch.arange(5000)
            for turn in range(1, 5):
                large += 1
                small += 1
                session.evict(large)
                session.evict(small)
                assert small.sum().item() == sum(range(5000)) + 5000 * turn
            assert large[-1].item() == MiB // 4 + 3


@pytest.mark.parametrize("link", ["1TiB/s", "2GiB/s", "200MB/s"])
@pytest.mark.parametrize("beside", [True, False])
def test_the_overlap_of_a_step_is_that_of_its_trace(link: str, beside: bool) -> None:
    core.hand_over_copies(beside)
    sessions: list[cl.Session] = []
    kept = {"capacity": tight_bytes(Gpt), "link": link, "min_swap": "1KiB"}
    train(Gpt, session_kwargs=kept, each_step=lambda _, __, s: sessions.append(s) if s else None)
    steps = sessions[-1].trace().steps
    assert any(step.transfers.bytes.sum() for step in steps)
    for step, log in zip(steps, sessions[-1]._journal.logs(), strict=True):
        want = overlap_of(step)
        assert log.overlap() == (None if want is None else pytest.approx(want, abs=1e-6))
