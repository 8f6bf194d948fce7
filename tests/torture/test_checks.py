"""The checks of the torture can fail: what they look for is planted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import chameleon_lab as cl
from torture import bypass, faults, soak
from torture.compare import bits, different
from torture.outcome import Outcome
from torture.pool import Options
from torture.training import Counted, OpCounter, halfway, unlike


def _cut(before: int) -> Counted:
    """A training whose second optimizer step ends before an op."""
    training = Counted()
    training.step()
    training.stop = OpCounter(KeyboardInterrupt(), before=before)
    with pytest.raises(KeyboardInterrupt):
        training.step()
    return training


def test_tensors_of_a_cut_optimizer_step_are_compared_one_by_one() -> None:
    training = _cut(before=40)
    assert training.optimizing and training.ops is not None and training.ops.ended == 39
    got, allowed = training.tensors(), halfway(1, 39)
    assert not unlike(got, allowed)
    assert unlike(_cut(before=45).tensors(), allowed), "a few ops too many are seen"
    name, weight = next(iter(training.job.model.named_parameters()))
    with torch.no_grad():
        weight[0, 0] += 1
    assert unlike(training.tensors(), allowed) == name
    del got[f"{name} exp_avg"]
    assert "tensors instead of" in unlike(got, allowed)


class Plain(torch.Tensor):
    """A subclass that adds nothing."""


def _values(middle: float) -> list[Any]:
    """One thing of each kind that has elements; ``middle`` is one of them."""

    def tensor() -> torch.Tensor:
        made = torch.zeros(64, 40)
        made[32, 20] = middle
        return made

    return [
        tensor().numpy(),
        tensor(),
        nn.Parameter(tensor()),
        tensor().as_subclass(Plain),
        bypass._Wrapper(tensor()),
        TwoTensor(torch.zeros(64, 40), tensor()),
    ]


def test_one_element_in_the_middle_is_seen() -> None:
    for value, same, other in zip(_values(1.0), _values(1.0), _values(2.0), strict=True):
        assert not different(bits(value), bits(same)), type(value)
        assert different(bits(value), bits(other)), type(value)
    array = np.zeros((64, 40))
    assert different(bits(array), bits(array.reshape(40, 64)))
    assert different(bits(array), bits(array.astype(np.int64))), "the same bytes of another dtype"


@pytest.mark.parametrize(
    ("way", "said"),
    [
        (lambda: 1 / 0, "fails without Chameleon Lab too: ZeroDivisionError"),
        (lambda counted=iter(range(99)): next(counted), "two calls without Chameleon Lab differ"),  # noqa: B008
    ],
)
def test_a_way_that_fails_or_wavers_on_its_own_is_wrong(way: Any, said: str, monkeypatch: Any) -> None:
    monkeypatch.setitem(bypass._WAYS, "planted", way)
    (wrong,) = bypass.check("planted", Options()).wrong
    assert "planted" in wrong and said in wrong


def test_a_subclass_that_shows_nothing_is_refused() -> None:
    class Closed(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise RuntimeError("closed")

    with pytest.raises(TypeError, match="inside of a Closed cannot be compared"):
        bits(torch.Tensor._make_wrapper_subclass(Closed, (3,)))


def test_what_a_trial_leaves_behind_is_named_with_it() -> None:
    outcome = Outcome("")
    for number, _ in enumerate(faults._trials(outcome, Options(share=True), 3, 3)):
        if number == 1:
            cl.Session("1MiB", min_swap="2KiB").start()
    assert outcome.wrong == ["after trial 1: a session is still open"]


def _samples(leak_bytes: int = 0, host_bytes: int = 0, live_bytes: int = 0) -> dict[str, list[float]]:
    """Of a soak that leaks so much a step, with a wave of half a MiB on it."""
    steps = range(0, soak.STEPS, soak.STEPS // 200)
    samples: dict[str, list[float]] = {name: [7.0] * len(steps) for name in soak._EXACT}
    samples["live_bytes"][-1] += live_bytes
    samples["step"] = [*steps]
    samples["rss"] = [3e8 + leak_bytes * step + (k * 7919 % 13) * 40_000 for k, step in enumerate(steps)]
    samples["host_reserved_bytes"] = [4e5 + host_bytes * (step > 0.9 * soak.STEPS) for step in steps]
    return samples


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ({}, ""),
        ({"leak_bytes": 1024}, "the process grows"),
        ({"host_bytes": 100_000}, "host bytes grew"),
        ({"live_bytes": 4096}, "live_bytes after a step"),
    ],
)
def test_a_soak_that_leaks_is_found_out(planted: dict[str, int], said: str) -> None:
    outcome = Outcome("")
    soak._judge(_samples(**planted), [0.01] * soak.STEPS, outcome)
    assert len(outcome.wrong) == bool(said) and said in "".join(outcome.wrong), outcome.wrong
