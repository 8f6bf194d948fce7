"""Modeled time: what passes is what the model says, and a run is the same again, its plans and stalls included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from training import ConvNet, Gpt, MiB, adamw, disk_folder, reference, train

import chameleon_lab as cl
from chameleon_lab.runtime import core
from chameleon_lab.testing import modeled_time, wait_for_plans

OP_S = 1e-4


def trained(model: type, settings: dict[str, Any], steps: int = 8) -> tuple[Any, cl.Policy | None, cl.Trace]:
    seen: dict[str, Any] = {}

    def look(number: int, _: Any, session: cl.Session | None) -> None:
        if session is not None:
            seen.update(policy=session.policy, trace=session.trace())

    run = train(model, adamw, steps, settings, each_step=look)
    return run, seen["policy"], seen["trace"]


@pytest.mark.bits
@pytest.mark.parametrize("model", [Gpt, ConvNet])
def test_a_run_is_the_same_again(model: type) -> None:
    bare, live_peak = reference(model, adamw, 8)
    settings = {"capacity": int(0.6 * live_peak), "link": "256MiB/s", "min_swap": "4KiB"}
    with modeled_time(OP_S):
        runs = [trained(model, settings) for _ in range(2)]
        for run, policy, _ in runs:
            assert run.same(bare) and policy is not None
        (first, policy, trace), (again, policy_again, trace_again) = runs
        assert policy.to_json() == policy_again.to_json()
        assert [(s.step_s, s.stall_s, s.replay_s) for s in first.report.history] == [
            (s.step_s, s.stall_s, s.replay_s) for s in again.report.history
        ]
        assert [plan.why for plan in first.report.plans] == [plan.why for plan in again.report.plans]
        for name in ("start_s", "end_s"):
            ours, theirs = (getattr(one.last.transfers, name) for one in (trace, trace_again))
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
        assert first.report.history[-1].swapped_out_bytes > 0


def test_ops_take_what_the_model_says() -> None:
    with modeled_time(OP_S, op_bandwidth="1MiB/s"), cl.Session("unlimited", device="cpu") as session:
        a, b = torch.ones(MiB // 4), torch.ones(MiB // 4)
        session.step()
        a.add_(b)
        session.step()
        step = session.trace().last
        assert [step.names[name] for name in step.ops.name] == ["aten::add_"]
        assert step.ops.duration_s[0] == pytest.approx(OP_S + 2.0, rel=1e-9)
        assert step.duration_s == pytest.approx(OP_S + 2.0, rel=1e-9)


@pytest.mark.bits
def test_copies_take_what_the_link_says_and_compute_waits_for_them() -> None:
    with modeled_time(OP_S), cl.Session("8MiB", device="cpu", link="1000MB/s", planning=False) as session:
        x = torch.ones(MiB // 4)
        y = x + 1
        session.step()
        assert session.evict(x) and session.where(x) == "away"  # it waits for the copy
        y.mul_(2)
        x.add_(1)  # and so does this
        session.step()
        copy_s = MiB / 1e9
        step, summary = session.trace().last, session.report().history[-1]
        np.testing.assert_allclose(
            step.transfers.end_s - step.transfers.start_s, [copy_s, copy_s], rtol=0, atol=2e-9
        )
        assert summary.stall_s == pytest.approx(2 * copy_s, abs=3e-9)
        assert summary.step_s == pytest.approx(2 * OP_S + 2 * copy_s, abs=3e-9)
        assert torch.equal(x, torch.full_like(x, 2.0))


def test_the_prediction_is_what_passes() -> None:
    _, live_peak = reference(Gpt, adamw, 8)
    with modeled_time(OP_S):
        run, policy, _ = trained(
            Gpt, {"capacity": int(0.7 * live_peak), "link": "1GiB/s", "rematerialize": False}
        )
        assert policy is not None
        assert run.report.history[-1].step_s == pytest.approx(policy.predicted["step_s"], rel=0.02)


def test_what_is_refused() -> None:
    for arguments, what in (
        ({"op_s": -1.0}, "op_s must be seconds from 0 up, got -1.0"),
        ({"op_s": float("nan")}, "op_s"),
        ({"op_bandwidth": "fast"}, "op_bandwidth 'fast' is not a bandwidth"),
        ({"link": 0}, "link must be positive"),
    ):
        with pytest.raises(ValueError, match=what), modeled_time(**arguments):
            pass
    with modeled_time(), pytest.raises(cl.SessionError, match="modeled time is on"), modeled_time():
        pass
    with (
        cl.Session("unlimited", device="cpu") as session,
        pytest.raises(cl.SessionError, match="a session is open"),
        modeled_time(),
    ):
        pass
    wait_for_plans(session)  # there is none
    with modeled_time() as model:
        pass
    with pytest.raises(cl.SessionError, match="modeled time has ended"):
        model.op_s = 1.0
    left = cl.Session("unlimited", device="cpu")
    with pytest.raises(cl.SessionError, match="end it inside"), modeled_time():
        left.start()
    left.stop()
    assert not core.time_is_modeled()


def test_no_time_is_modeled_for_a_disk() -> None:
    folder = disk_folder()
    with modeled_time(), pytest.raises(cl.SessionError, match="no time is modeled for a disk"):
        cl.Session("64MiB", device="cpu", disk=folder).start()
