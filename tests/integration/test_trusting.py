"""Replays where torch does not show raw accesses: off, or on a promise. A torch that does is made to look like one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from training import Gpt, MiB, adamw, reference, train

import chameleon_lab as cl
from chameleon_lab.policy import Link
from chameleon_lab.runtime import core

SLOW = Link(32 * MiB, 32 * MiB)  # so slow that replays are worth their while


@pytest.fixture(autouse=True)
def sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch 2.11 and 2.12 do; what the guards of older torch see is seen."""
    monkeypatch.setattr(core, "SEES_RAW_ACCESS", False)
    monkeypatch.setattr(core, "measure_link", lambda: (SLOW.out_bytes_per_s, SLOW.in_bytes_per_s))
    monkeypatch.setattr(Link, "under_load", lambda link, step: link)


def planned(_number: int, _model: torch.nn.Module, session: cl.Session | None) -> None:
    """Steps begin with the plan that was made of those before, on a busy machine too."""
    if session:
        session._plans.wait()


def test_training_replays_on_a_promise_only() -> None:
    bare, live_peak = reference(Gpt, adamw, 5)
    capacity = int(0.6 * live_peak)
    told, trusting = (
        train(
            Gpt, adamw, 5, {"capacity": capacity, "min_swap": "2KiB", "rematerialise": how}, each_step=planned
        )
        for how in (True, "trusting")
    )
    assert told.same(bare) and trusting.same(bare)
    assert told.report is not None and trusting.report is not None
    assert sum(step.drops for step in told.report.history) == 0
    assert sum(step.replays for step in trusting.report.history) > 0
    assert "before 2.13" in told.report.replays_off and '"trusting"' in told.report.replays_off
    assert "Replays" in str(told.report) and "before 2.13" in told.report.not_replayed["aten::mm"]
    assert trusting.report.replays_off == "" and "aten::mm" not in trusting.report.not_replayed


def test_what_python_writes_through_a_pointer_is_seen_all_the_same() -> None:
    with cl.Session("16MiB", min_swap="1KiB", rematerialise="trusting") as session:
        core.keep_producers(True)
        x = torch.ones(64, 256)
        x.sum()
        out = F.gelu(x)
        expected = out.clone()
        assert core.drop(out) == "" and session.where(out) == "dropped"
        x.numpy()[:] = 2.0
        assert torch.equal(out, expected)
        assert "raw pointer" in core.drop(F.gelu(x))


@pytest.mark.parametrize("value", [None, "trust", "Trusting", 2, 0.5, ()])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match='rematerialise must be True, False or "trusting", got') as caught:
        cl.Session("16MiB", rematerialise=value)  # type: ignore[arg-type]
    assert repr(value) in str(caught.value)


def test_rematerialise_false_says_that_it_is_off() -> None:
    with cl.Session("16MiB", rematerialise=False) as session:
        assert session.report().replays_off == "rematerialise=False"
    with cl.Session() as session:
        assert session.report().replays_off == ""
