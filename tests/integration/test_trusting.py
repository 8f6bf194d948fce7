"""Replays where torch does not show raw accesses: off, or on a promise. A torch that does is made to look like one."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from training import Gpt, MiB, adamw, reference, train

import chameleon_lab as cl
from chameleon_lab.runtime import core
from chameleon_lab.testing import modeled_time, wait_for_plans


@pytest.fixture(autouse=True)
def sees_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As torch 2.11 and 2.12 do; what the guards of older torch see is seen."""
    saw = core.SEES_RAW_ACCESS
    core.pretend_no_hook(True)
    monkeypatch.setattr(core, "SEES_RAW_ACCESS", False)
    with modeled_time(link=32 * MiB):  # so slow that replays are worth their while
        yield
    core.pretend_no_hook(not saw)


def planned(_number: int, _model: torch.nn.Module, session: cl.Session | None) -> None:
    """Steps begin with the plan that was made of those before, on a busy machine too."""
    if session:
        wait_for_plans(session)


@pytest.mark.bits
def test_training_replays_on_a_promise_only() -> None:
    bare, live_peak = reference(Gpt, adamw, 5)
    capacity = int(0.6 * live_peak)
    told, trusting = (
        train(
            Gpt, adamw, 5, {"capacity": capacity, "min_swap": "2KiB", "rematerialize": how}, each_step=planned
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


@pytest.mark.bits
def test_what_python_writes_through_a_pointer_is_seen_all_the_same() -> None:
    with cl.Session("16MiB", min_swap="1KiB", rematerialize="trusting") as session:
        core.of().keep_producers(True)
        x = torch.ones(64, 256)
        x.sum()
        out = F.gelu(x)
        expected = out.clone()
        assert core.drop(out) == "" and session.where(out) == "dropped"
        view = x.numpy()
        view[:] = 2.0
        assert torch.equal(out, expected)
        made_meanwhile = F.gelu(x)
        assert "raw pointer" in core.drop(made_meanwhile)
        view[:] = 3.0
        del view
        assert "raw pointer" in core.drop(made_meanwhile)  # it is of what was there before the last write

        out = F.gelu(x)  # of what nobody can write unseen any more
        expected = out.clone()
        assert core.drop(out) == "" and torch.equal(out, expected)
        assert core.drop(out) == "" and session.where(out) == "dropped"
        x.numpy()[:] = 4.0  # another array: what is to be made of x is made before
        assert torch.equal(out, expected)

        x.data_ptr()  # an address has no end
        assert "raw pointer" in core.drop(F.gelu(x))


DATA_PTR = torch.Tensor.data_ptr  # what C++ calls: the guards of older torch are not on its way


def zero_from_outside(tensor: torch.Tensor) -> None:
    """As an extension's kernel does which is no op."""
    ctypes.memset(DATA_PTR(tensor), 0, tensor.nbytes)


@pytest.mark.parametrize("how", [True, False])
def test_a_write_that_nobody_sees_is_not_undone_by_a_copy_on_the_host(how: bool) -> None:
    with cl.Session("16MiB", min_swap="1KiB", rematerialize=how) as session:
        x = torch.ones(64, 256)
        assert session.evict(x)
        with pytest.raises(RuntimeError, match="is away, on the host"):
            DATA_PTR(x)
        assert x.sum() == 64 * 256  # it is back, by an op that only reads
        zero_from_outside(x)
        assert session.evict(x) and session.where(x) == "away"
        assert x.sum() == 0
    assert x.sum() == 0


def test_a_promise_keeps_the_copy_and_the_second_way_out_is_free() -> None:
    moved = {}
    for how in ("trusting", True):
        with cl.Session("16MiB", min_swap="1KiB", rematerialize=how) as session:  # type: ignore[arg-type]
            x = torch.ones(64, 256)
            for _ in range(3):
                assert session.evict(x)
                assert x.sum() == 64 * 256
            session.step()
            moved[how] = session.report().swapped_out_bytes
    assert moved == {"trusting": x.nbytes, True: 3 * x.nbytes}


def test_what_is_leaving_cannot_be_written_unseen() -> None:
    """Its copy is on the way, and would miss the write."""
    with cl.Session("2MiB", min_swap="1KiB", rematerialize=False) as session:
        held = [torch.full((64, 256), float(number)) for number in range(80)]
        for _ in range(64):  # what is used soon does not leave ahead of need
            held[-1].sum()
        held += [torch.full((64, 256), float(number)) for number in range(80, 90)]
        leaving = [number for number, tensor in enumerate(held) if session.where(tensor) == "leaving"]
        assert leaving, "nothing leaves ahead of need: the case tests nothing"
        for number in leaving[:4]:
            with pytest.raises(RuntimeError, match="is leaving for the host"):
                DATA_PTR(held[number])
            assert held[number].mean() == number  # an op has it stay
            assert session.where(held[number]) == "resident"
            zero_from_outside(held[number])
            assert session.evict(held[number])
            assert held[number].sum() == 0
        assert all(tensor.mean() == number for number, tensor in enumerate(held) if number not in leaving[:4])


def test_plans_know_that_no_copy_lasts() -> None:
    """Every planned swap-out copies then, and so it is predicted."""
    _, live_peak = reference(Gpt, adamw, 8)
    copied = {}
    for how in (False, "trusting"):
        steps: list[tuple[int, int]] = []

        def look(number: int, model: torch.nn.Module, session: cl.Session | None, steps: Any = steps) -> None:
            if session is None or number < 6:
                return
            policy, step = session.policy, session.report().history[-1]
            assert policy is not None and step.match_rate == 1.0
            steps.append((policy.predicted["swapped_out_bytes"], step.swapped_out_bytes))

        kwargs = {"capacity": live_peak // 2, "min_swap": "2KiB", "rematerialize": how}
        assert train(Gpt, adamw, 8, kwargs, each_step=look).report is not None
        predicted, measured = steps[-1]
        assert measured == pytest.approx(predicted, rel=0.02), (how, steps)
        copied[how] = measured
    assert copied[False] > 1.2 * copied["trusting"], "parameters went out for nothing all the same"


@pytest.mark.parametrize("value", [None, "trust", "Trusting", 2, 0.5, ()])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(
        ValueError, match='rematerialize must be True, False, "cheap" or "trusting", got'
    ) as caught:
        cl.Session("16MiB", rematerialize=value)  # type: ignore[arg-type]
    assert repr(value) in str(caught.value)


def test_rematerialize_false_says_that_it_is_off() -> None:
    with cl.Session("16MiB", rematerialize=False) as session:
        assert session.report().replays_off == "rematerialize=False"
    with cl.Session() as session:
        assert session.report().replays_off == ""
