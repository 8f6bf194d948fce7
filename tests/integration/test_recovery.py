"""Scaled steps against recorded ones of that shape: what they need, and their floors."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from training import Gpt, of_the_gate

import chameleon_lab as cl
from chameleon_lab.planner import floor
from chameleon_lab.recovery.expand import Changed
from chameleon_lab.recovery.scaling import in_turns, larger_batch, layers_of, micro_batches, more_layers

WITHIN = 0.03


@cache
def recorded(
    batch: int = 4, micro: int = 1, layers: int = 3, kind: str = "plain", optimizer: str = "AdamW"
) -> cl.Trace:
    """Newest of a few steps of a small GPT, recorded without a capacity."""
    options = {
        "plain": {},
        "checkpointed": {"recompute": "plain"},
        "tied": {"tied": True},
        "dropout": {"dropout": 0.1},
    }[kind]
    with cl.Session() as session:
        model = Gpt(layers=layers, **options)
        steps = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-3)
        data = torch.Generator().manual_seed(0)
        for _ in range(4):
            for _ in range(micro):
                model(model.batch(data, batch)).backward()
            steps.step()
            steps.zero_grad()
        return session.trace()


KINDS = ["plain", "checkpointed", "tied", "dropout"]


def agree(scaled: Changed, real: cl.Trace) -> None:
    assert scaled.step.live_peak_bytes == pytest.approx(real.last.live_peak_bytes, rel=WITHIN)
    assert floor(scaled.step).bytes == pytest.approx(floor(real).bytes, rel=WITHIN)


@pytest.mark.parametrize("batch", of_the_gate(6, all_of=[3, 6, 16]))
@pytest.mark.parametrize("kind", KINDS)
def test_another_batch_size(kind: str, batch: int) -> None:
    agree(larger_batch(recorded(kind=kind).last, batch / 4), recorded(batch=batch, kind=kind))


@pytest.mark.parametrize("kind", KINDS)
def test_several_micro_batches(kind: str) -> None:
    one, two = recorded(kind=kind), recorded(kind=kind, micro=2)
    assert micro_batches(one.last) == 1 and micro_batches(two.last) == 2
    agree(in_turns(one.last, 2), two)
    agree(in_turns(two.last, 4), recorded(kind=kind, micro=4))


@pytest.mark.parametrize("kind", KINDS)
def test_more_layers(kind: str) -> None:
    one = recorded(kind=kind)
    assert layers_of(one.last) == ("blocks.0", "blocks.1", "blocks.2")
    for layers in (4, 7):
        agree(more_layers(one.last, layers), recorded(kind=kind, layers=layers))


def test_more_layers_of_a_step_with_several_micro_batches() -> None:
    agree(more_layers(recorded(micro=3).last, 4), recorded(micro=3, layers=4))


def test_another_optimizer() -> None:
    agree(larger_batch(recorded(optimizer="SGD").last, 1.5), recorded(batch=6, optimizer="SGD"))


def test_a_recorded_session_under_a_capacity_and_its_outlook() -> None:
    """A step that swapped and replayed itself: its own stalls are not in what is planned from it."""
    whole = recorded(batch=8)
    capacity = int(0.7 * whole.last.live_peak_bytes)
    with cl.Session(capacity, link="256MiB/s") as session:
        model = Gpt(layers=3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        data = torch.Generator().manual_seed(0)
        for _ in range(6):
            model(model.batch(data, 8)).backward()
            optimizer.step()
            optimizer.zero_grad()
        trace = session.trace()
    outlook = cl.recovery.what_if(trace, ranks=4, mttr="10min")
    assert outlook.capacity_bytes == capacity
    assert outlook["fewer"].needs_bytes == pytest.approx(whole.last.live_peak_bytes, rel=WITHIN)
    real = recorded(batch=8 * 4 // 3)
    assert outlook["larger"].needs_bytes == pytest.approx(real.last.live_peak_bytes * 32 / 30, rel=0.1)
    assert outlook["larger"].memory in ("swaps", "swaps and replays") and outlook.choice is not None
