"""Each suggestion is done as its code says: the step then has the peak that was predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from training import Gpt

import chameleon_lab as cl
from chameleon_lab.planner import Suggestion, floor, plan, simulate, suggest
from chameleon_lab.testing import modeled_time
from chameleon_lab.trace import StepTrace

BATCH = 8


@pytest.fixture(autouse=True)
def steady() -> Iterator[None]:
    """What is worth suggesting depends on how long ops take."""
    with modeled_time(2e-6, op_bandwidth="4GB/s"):
        yield


def recorded(model: Any, run: Callable[[Any, torch.Tensor, cl.Session], None]) -> StepTrace:
    """The third step of a training loop whose steps ``run`` runs and ends."""
    batch = model.batch(torch.Generator().manual_seed(0), BATCH)
    with cl.Session(capacity=None) as session:
        for _ in range(3):
            run(model, batch, session)
        return session.trace().steps[-1]


def as_it_is(make: Callable[[], Any], optimizer: Callable[..., torch.optim.Optimizer]) -> StepTrace:
    """A step of the plain loop."""
    torch.manual_seed(0)
    model = make()
    own = optimizer(model.parameters())

    def run(model: Any, batch: torch.Tensor, session: cl.Session) -> None:
        model(batch).backward()
        own.step()
        own.zero_grad()

    return recorded(model, run)


def of_kind(step: StepTrace, kind: str, **arguments: Any) -> Any:
    """The one suggestion of a kind."""
    (found,) = [each for each in suggest(step, **arguments) if type(each).__name__ == kind]
    assert isinstance(found, Suggestion) and found.code and found.what in str(found)
    return found


def wide() -> Gpt:
    """Most of its memory is logits."""
    return Gpt(dim=32, layers=2, vocab=2048, time=64)


def deep() -> Gpt:
    """Most of its memory is activations."""
    return Gpt(dim=64, layers=6, vocab=64, time=64)


def heavy() -> Gpt:
    """Most of its memory is parameters, gradients and optimizer states."""
    return Gpt(dim=128, layers=6, vocab=64, time=8)


def test_the_optimizer_in_the_backward() -> None:
    step = as_it_is(heavy, torch.optim.AdamW)
    found = of_kind(step, "OptimizerInBackward")
    model = heavy()
    names: dict[str, Any] = {"torch": torch, "model": model}
    exec(found.code, names)

    def run(model: Any, batch: torch.Tensor, session: cl.Session) -> None:
        model(batch).backward()
        session.step()

    done = recorded(model, run)
    assert done.live_peak_bytes == pytest.approx(found.changed_peak_bytes, rel=0.08)
    assert found.saved_s is None

    def times(step: StepTrace) -> np.ndarray:
        return np.maximum(step.used_bytes / 4e9, 2e-6)

    for share, link in ((0.5, 5e8), (0.4, 5e8)):
        capacity = int(share * step.live_peak_bytes)
        more = {"capacity_bytes": capacity, "link": link}
        saved_s = of_kind(step, "OptimizerInBackward", op_times=times(step), **more).saved_s
        stall_s = [
            simulate(each, plan(each, **more, op_times=times(each)), op_times=times(each)).stall_s
            for each in (step, done)
        ]
        assert saved_s > 0 and stall_s[0] - stall_s[1] == pytest.approx(saved_s, rel=0.3)


def test_checkpointing() -> None:
    step = as_it_is(deep, torch.optim.AdamW)
    found = of_kind(step, "Checkpointing")
    model = deep()
    exec(found.code, {"model": model})
    own = torch.optim.AdamW(model.parameters())

    def run(model: Any, batch: torch.Tensor, session: cl.Session) -> None:
        model(batch).backward()
        own.step()
        own.zero_grad()

    done = recorded(model, run)
    assert done.live_peak_bytes == pytest.approx(found.changed_peak_bytes, rel=0.1)


def test_a_loss_in_chunks() -> None:
    step = as_it_is(wide, torch.optim.AdamW)
    found = of_kind(step, "ChunkedLoss")
    assert found.head == "head"
    model = wide()
    own = torch.optim.AdamW(model.parameters())

    def run(model: Any, batch: torch.Tensor, session: cl.Session) -> None:
        inputs, targets = batch[:, :-1], batch[:, 1:].flatten()
        x = model.tokens(inputs) + model.positions.weight[: inputs.shape[1]]
        for block in model.blocks:
            x = block(x)
        names: dict[str, Any] = {"model": model, "hidden": model.ln(x).flatten(0, 1), "targets": targets}
        del x
        exec(found.code, names)
        del names["hidden"]
        names.pop("loss").backward()
        own.step()
        own.zero_grad()

    done = recorded(model, run)
    assert done.live_peak_bytes == pytest.approx(found.changed_peak_bytes, rel=0.1)
    assert floor(done).bytes == pytest.approx(found.changed_floor_bytes, rel=0.2)


def test_gradient_accumulation() -> None:
    step = as_it_is(deep, torch.optim.AdamW)
    found = of_kind(step, "GradientAccumulation", capacity_bytes=0.6)
    assert found.parts < BATCH
    model = deep()
    own = torch.optim.AdamW(model.parameters())

    def run(model: Any, batch: torch.Tensor, session: cl.Session) -> None:
        exec(found.code, {"model": model, "batch": batch, "optimizer": own})

    done = recorded(model, run)
    assert done.live_peak_bytes == pytest.approx(found.changed_peak_bytes, rel=0.08)


def test_where_the_optimizer_must_wait_for_all_gradients_it_stays() -> None:
    """Clipping by the norm of all gradients, gradients that add up, and a scaler's check."""

    def clipped(model: Any, batch: torch.Tensor, own: torch.optim.Optimizer) -> None:
        model(batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        own.step()
        own.zero_grad()

    def added_up(model: Any, batch: torch.Tensor, own: torch.optim.Optimizer) -> None:
        for part in batch.split(BATCH // 2):
            model(part).backward()
        own.step()
        own.zero_grad()

    def kept(model: Any, batch: torch.Tensor, own: torch.optim.Optimizer) -> None:
        model(batch).backward()
        own.step()
        own.zero_grad(set_to_none=False)

    scaler = torch.amp.GradScaler("cpu")

    def scaled(model: Any, batch: torch.Tensor, own: torch.optim.Optimizer) -> None:
        scaler.scale(model(batch)).backward()
        scaler.step(own)
        scaler.update()
        own.zero_grad()

    for loop in (clipped, added_up, kept, scaled):
        model = heavy()
        own = torch.optim.AdamW(model.parameters())
        step = recorded(model, lambda model, batch, _, own=own, loop=loop: loop(model, batch, own))
        assert "OptimizerInBackward" not in [type(each).__name__ for each in suggest(step)], loop.__name__
    # What another loop of the process has done is of no consequence.
    of_kind(as_it_is(heavy, torch.optim.AdamW), "OptimizerInBackward")
