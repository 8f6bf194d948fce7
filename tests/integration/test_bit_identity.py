"""Promise 1, never a wrong number: training under pressure gives the bits that training without Chameleon Lab gives."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from training import (
    ConvNet,
    Gpt,
    Loop,
    Moe,
    adamw,
    child,
    disk_folder,
    of_the_gate,
    reference,
    sgd,
    tight_bytes,
    train,
)

pytestmark = pytest.mark.bits

GPT_DROPOUT = partial(Gpt, dropout=0.1)
FOREACH, FUSED = partial(adamw, foreach=True), partial(adamw, fused=True)

CASES: dict[str, tuple[Any, Any, Loop]] = {
    "gpt-adamw": (Gpt, adamw, Loop()),
    "gpt-foreach": (Gpt, FOREACH, Loop()),
    "gpt-fused": (Gpt, FUSED, Loop()),
    "gpt-sgd": (Gpt, sgd, Loop()),
    "gpt-clip": (Gpt, adamw, Loop(clip=True)),
    "gpt-scaler-clip-foreach": (Gpt, FOREACH, Loop(clip=True, scaler=True)),
    "gpt-scaler-fused": (Gpt, FUSED, Loop(scaler=True)),
    "gpt-bf16": (Gpt, adamw, Loop(autocast=True)),
    "gpt-accumulate-zeros": (Gpt, FOREACH, Loop(accumulate=3, set_to_none=False)),
    "gpt-dropout-schedule": (GPT_DROPOUT, adamw, Loop(scheduler=True)),
    "gpt-reentrant-checkpoint": (partial(GPT_DROPOUT, layers=11, recompute="reentrant"), adamw, Loop()),
    "gpt-checkpoint-bf16": (partial(GPT_DROPOUT, layers=11, recompute="plain"), adamw, Loop(autocast=True)),
    "gpt-tied": (partial(Gpt, tied=True), FOREACH, Loop(clip=True)),
    "conv-adamw": (ConvNet, adamw, Loop()),
    "conv-sgd-accumulate": (ConvNet, partial(sgd, foreach=True), Loop(accumulate=2, set_to_none=False)),
    "conv-bf16": (ConvNet, adamw, Loop(autocast=True)),
    "moe-adamw": (Moe, adamw, Loop()),
    "moe-fused-clip": (Moe, FUSED, Loop(clip=True)),
}

WAYS: dict[str, dict[str, Any]] = {
    "planned": {},
    "evicted": {"planning": False},
    "planned-link": {"link": "4GiB/s"},
    "evicted-link": {"planning": False, "link": "4GiB/s"},
    "planned-disk": {"verify": True},
    "evicted-disk": {"planning": False},
}


KINDS = ("gpt-fused", "gpt-checkpoint-bf16", "conv-sgd-accumulate", "moe-adamw")
"""Of the cases: what differs in kind."""


def check(case: str, share: str, way: str) -> None:
    """``share``: of the peak, or "tight": little above the floor measured here. A share is never less than tight."""
    model, optimizer, loop = CASES[case]
    bare, live_peak = reference(model, optimizer, 4, loop)
    tight = tight_bytes(model, optimizer, 4, loop)
    capacity = tight if share == "tight" else max(live_peak // int(share.removeprefix("1/")), tight)
    assert capacity < live_peak, "nothing has to move: the case tests nothing"
    options = {"capacity": capacity, "min_swap": "2KiB", **WAYS[way]}
    if way.endswith("-disk"):
        options["disk"] = disk_folder()
    run = train(model, optimizer, 4, options, loop=loop)
    assert run.report is not None
    assert [step.index for step in run.report.history if step.peak_bytes > capacity] == []
    assert run.report.peak_bytes <= capacity
    assert run.report.history[-1].swapped_out_bytes > 0, "nothing was moved: the case tests nothing"
    assert run.losses == bare.losses
    assert [name for name, value in bare.state.items() if run.state[name] != value] == []


@pytest.mark.parametrize("share", of_the_gate("tight", all_of=["1/2", "1/4", "tight"]))
@pytest.mark.parametrize("case", of_the_gate(*KINDS, "gpt-adamw", "conv-bf16", all_of=CASES))
def test_planned_training_gives_the_same_bits(case: str, share: str) -> None:
    check(case, share, "planned")


@pytest.mark.parametrize("case", of_the_gate(*KINDS, all_of=CASES))
def test_evicting_over_a_slow_link_gives_the_same_bits(case: str) -> None:
    check(case, "1/4", "evicted-link")


@pytest.mark.parametrize("way", ["evicted", "planned-link"])
@pytest.mark.parametrize("share", ["1/2", "tight"])
@pytest.mark.parametrize("case", of_the_gate("gpt-adamw", all_of=["gpt-adamw", "conv-adamw", "moe-adamw"]))
def test_every_way_gives_the_same_bits(case: str, share: str, way: str) -> None:
    check(case, share, way)


@pytest.mark.parametrize("case", of_the_gate(*KINDS, all_of=CASES))
def test_a_disk_gives_the_same_bits(case: str) -> None:
    check(case, "1/4", "planned-disk")


@pytest.mark.parametrize(
    "case", of_the_gate("gpt-adamw", all_of=["gpt-adamw", "gpt-fused", "conv-adamw", "moe-adamw"])
)
def test_evicting_to_a_disk_gives_the_same_bits(case: str) -> None:
    check(case, "tight", "evicted-disk")


def test_lstm_and_double_backward() -> None:
    """Kernels with hidden buffers, and gradients of gradients."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(32, 64, 2, batch_first=True), nn.Linear(64, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.requires_grad_()
            out = self.head(self.lstm(x)[0].tanh())
            (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            return out.pow(2).mean() + gradient.pow(2).sum()

        def batch(self, generator: torch.Generator) -> torch.Tensor:
            return torch.randn(16, 24, 32, generator=generator)

    bare, live_peak = reference(Net)
    run = train(Net, session_kwargs={"capacity": live_peak // 2, "min_swap": "2KiB"})
    assert run.same(bare)
    assert run.report is not None and run.report.history[-1].swapped_out_bytes > 0


def test_sparse_gradients() -> None:
    """A sparse gradient keeps its bytes in tensors of its own, which no op names as inputs."""
    child("""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.tables = nn.ModuleList(nn.Embedding(2000, 32, sparse=True) for _ in range(6))

            def forward(self, index):
                return sum(table(index).tanh().pow(2).sum() for table in self.tables)

            def batch(self, generator):
                return torch.randint(0, 2000, (3000,), generator=generator)

        bare, live_peak = reference(Net, torch.optim.SparseAdam)
        run = train(Net, torch.optim.SparseAdam, session_kwargs={"capacity": live_peak // 2})
        assert run.same(bare)
        assert run.report.history[-1].swapped_out_bytes > 0
        assert run.report.escaped_storages == 0
    """)
