"""Ops of `torch.library.custom_op` are ops of the step, however they are called."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from training import KiB, MiB

import chameleon_lab as cl
from chameleon_lab.errors import BelowFloorError

CALLS: dict[str, Callable[[Any], Callable[..., torch.Tensor]]] = {
    "the object": lambda made: made,
    "the overload": lambda made: torch.ops.chameleon_test.copied.default,
    # Torch has taken the packet through the dispatcher all along.
    "the packet": lambda made: torch.ops.chameleon_test.copied,
}


@pytest.fixture(scope="module")
def inside() -> list[Callable[[torch.Tensor], None]]:
    """What the op calls before its work."""
    return []


@pytest.fixture(scope="module")
def copied(inside: list[Callable[[torch.Tensor], None]]) -> Iterator[Any]:
    """A copy by bare addresses, as a kernel of one's own makes it."""

    @torch.library.custom_op("chameleon_test::copied", mutates_args=())
    def copied(x: torch.Tensor) -> torch.Tensor:
        for call in inside:
            call(x)
        out = torch.empty_like(x)
        ctypes.memmove(out.data_ptr(), x.data_ptr(), x.nbytes)
        return out

    copied.register_autograd(lambda ctx, grad: grad.clone())
    return copied


@pytest.mark.bits
@pytest.mark.parametrize("way", CALLS)
def test_what_it_was_given_stays_while_it_runs(way: str, copied: Any, inside: list[Any]) -> None:
    told = []
    with cl.Session("1MiB", min_swap="1KiB", planning=False) as session:
        inside.append(lambda x: told.append((session.evict(x), session.where(x))))
        try:
            x = torch.arange(float(64 * KiB))
            assert session.evict(x)
            assert torch.equal(CALLS[way](copied)(x), torch.arange(float(64 * KiB)))
        finally:
            inside.clear()
        session.step()
        step = session.trace().last
    assert told == [(False, "resident")]
    assert "chameleon_test::copied" in [step.op_name(op) for op in range(len(step.ops))]


@pytest.mark.parametrize("way", CALLS)
def test_below_its_floor_it_raises(way: str, copied: Any) -> None:
    """Its input and its result do not fit. The op is what needs them at once, and not an allocation inside of it."""
    with cl.Session("1MiB", min_swap="1KiB", planning=False):
        x = torch.ones(144 * KiB)
        with pytest.raises(BelowFloorError, match="chameleon_test::copied needs"):
            CALLS[way](copied)(x)


@pytest.mark.bits
def test_a_model_with_such_an_op_trains_to_the_bit_in_less_memory(copied: Any) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(copied(torch.relu(self.up(x))))

    def losses() -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(*[Block() for _ in range(4)])
        optimizer, found = torch.optim.AdamW(model.parameters()), []
        for _ in range(6):
            loss = model(torch.randn(512, 64)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    want = losses()
    with cl.Session(None, device="cpu") as session:
        assert losses() == want
    report = session.report()
    assert (report.escaped_bytes, report.live_peak_bytes > 4 * MiB) == (0, True)
    for part in (2, 3):
        with cl.Session(int(report.live_peak_bytes) // part, device="cpu", link="8GiB/s") as session:
            assert losses() == want
        assert session.report().swapped_out_bytes > 0
