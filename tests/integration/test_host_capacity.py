"""Sessions whose copies may take less host memory than their plan would: the numbers of the run without Chameleon Lab,
and never a byte more than allowed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from training import ConvNet, Gpt, KiB, adamw, of_the_gate, reference, train

import chameleon_lab as cl
from chameleon_lab.runtime import core
from chameleon_lab.testing import modeled_time

STEPS = 8
OPTIONS: dict[str, Any] = {"link": "512MiB/s", "min_swap": "4KiB"}


@pytest.fixture(autouse=True)
def steady() -> Iterator[None]:
    """Ops that take the same time whatever else the machine does: plans depend on it."""
    with modeled_time():
        yield


@cache
def wanted(model: type, share: float) -> tuple[int, int]:
    """The capacity, and what the plan takes on the host if it may."""
    _, live_peak_bytes = reference(model, adamw, STEPS)
    capacity = int(share * live_peak_bytes)
    report = train(model, adamw, STEPS, {"capacity": capacity, **OPTIONS}).report
    assert report is not None and report.plans
    return capacity, report.plans[-1].host_peak_bytes


@pytest.mark.bits
@pytest.mark.parametrize("host_share", of_the_gate(0.75, 0.25, all_of=[0.9, 0.75, 0.5, 0.25]))
@pytest.mark.parametrize("model", of_the_gate(Gpt, all_of=[Gpt, ConvNet]))
@pytest.mark.skipif(not core.SEES_RAW_ACCESS, reason="nothing is replayed before torch 2.13")
def test_a_run_goes_on_within_less_than_its_plan_takes(model: type, host_share: float) -> None:
    bare, _ = reference(model, adamw, STEPS)
    capacity, host_bytes = wanted(model, 0.6)
    allowed = int(host_share * host_bytes)
    reserved = []

    def look(number: int, *_: object) -> None:
        reserved.append(core.of().counters()["host_reserved_bytes"])

    run = train(
        model, adamw, STEPS, {"capacity": capacity, "host_capacity": allowed, **OPTIONS}, each_step=look
    )
    assert run.same(bare)
    assert run.report is not None
    assert 0 < run.report.host_peak_bytes <= allowed == run.report.host_capacity_bytes
    assert max(reserved) <= allowed
    assert run.report.peak_bytes <= capacity
    assert run.report.plans and run.report.plans[-1].decisions
    assert run.report.plans[-1].host_pool_bytes <= allowed


def test_without_replays_what_fits_nowhere_is_refused_by_name() -> None:
    """As many bytes have to leave as the capacity lacks: with less on the host than that, nothing goes."""
    _, live_peak_bytes = reference(Gpt, adamw, STEPS)
    capacity = int(0.6 * live_peak_bytes)
    options = {"capacity": capacity, "rematerialize": False, **OPTIONS}
    with pytest.raises(RuntimeError, match="host_capacity is .*Give a larger host_capacity"):
        train(Gpt, adamw, STEPS, {**options, "host_capacity": (live_peak_bytes - capacity) // 2})


@pytest.mark.bits
@pytest.mark.parametrize("planning", [True, False])
def test_without_replays_little_more_than_has_to_leave_is_enough(planning: bool) -> None:
    bare, live_peak_bytes = reference(Gpt, adamw, STEPS)
    capacity = int(0.6 * live_peak_bytes)
    allowed = int(1.15 * (live_peak_bytes - capacity))
    options = {"capacity": capacity, "rematerialize": False, "planning": planning, **OPTIONS}
    run = train(Gpt, adamw, STEPS, {**options, "host_capacity": allowed})
    assert run.same(bare)
    assert run.report is not None and run.report.host_peak_bytes <= allowed


@pytest.mark.bits
def test_a_policy_that_takes_more_is_planned_anew(tmp_path) -> None:
    bare, live_peak_bytes = reference(Gpt, adamw, STEPS)
    capacity = int(0.6 * live_peak_bytes)
    free = tmp_path / "free.json"

    def save(number: int, _: object, session: cl.Session | None) -> None:
        if number == STEPS - 1 and session is not None and session.policy is not None:
            session.policy.save(free)

    train(Gpt, adamw, STEPS, {"capacity": capacity, "rematerialize": False, **OPTIONS}, each_step=save)
    allowed = cl.Policy.load(free).predicted["host_peak_bytes"] - 32 * KiB
    options = {
        "capacity": capacity,
        "rematerialize": False,
        "policy": free,
        "host_capacity": allowed,
        **OPTIONS,
    }
    run = train(Gpt, adamw, STEPS, options)
    assert run.same(bare)
    assert run.report is not None and run.report.host_peak_bytes <= allowed
    assert any("its copies take" in note for note in run.report.notes)
