"""What is freed while it is away is not copied in for that, and what an op overwrites is as it is in torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from torch import Tensor
from training import MiB

import chameleon_lab as cl
from chameleon_lab.runtime import core

pytestmark = pytest.mark.bits

SIZE = MiB // 4  # elements of a MiB

resizes = pytest.mark.skipif(
    not core.SEES_RAW_ACCESS, reason="before torch 2.13 any access to a storage that is away raises"
)


def counted() -> Tensor:
    return torch.arange(SIZE, dtype=torch.float32)


def assign(tensor: Tensor, other: Tensor) -> None:
    tensor.data = other


@pytest.mark.parametrize(
    "free",
    [
        lambda t: assign(t, torch.ones(SIZE)),
        lambda t: assign(t, torch.ones(3)),
        pytest.param(lambda t: t.untyped_storage().resize_(0), marks=resizes),
    ],
    ids=["data", "data of another shape", "storage resize_"],
)
def test_what_is_freed_is_not_copied_in(free: Callable[[Tensor], object]) -> None:
    with cl.Session("64MiB", device="cpu") as session:
        tensor = counted()
        held = tensor.detach()  # assigning to a tensor leaves the bytes to others
        assert session.evict(tensor)
        session.step()
        free(tensor)
        session.step()
        assert session.history[-1].swapped_in_bytes == 0
        if held.untyped_storage().nbytes():
            assert torch.equal(held, torch.arange(SIZE)) and torch.equal(tensor, torch.ones_like(tensor))


@resizes
def test_no_room_is_needed_for_what_is_freed() -> None:
    with cl.Session("4MiB", device="cpu") as session:
        tensor = torch.ones(2 * SIZE)
        assert session.evict(tensor)
        held = torch.ones(3 * SIZE).numpy()  # cannot leave
        tensor.untyped_storage().resize_(0)
        assert tensor.untyped_storage().nbytes() == 0 and held.all()


def skipping(*skipped: str) -> torch.utils._python_dispatch.TorchDispatchMode:
    """A mode that leaves out ops of these names, and reads what the others change before they do."""

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # torch's own
            if func._schema.name in skipped:
                return args[0]
            seen.append(args[0].clone())
            return func(*args, **(kwargs or {}))

    seen: list[Tensor] = []
    mode = Mode()
    mode.seen = seen  # type: ignore[attr-defined]  # for the test to look at
    return mode


OVERWRITES: dict[str, Callable[[Tensor], object]] = {
    "fill_": lambda t: t.fill_(3),
    "copy_ of one row": lambda t: t.view(512, -1).copy_(torch.ones(512)),
    "normal_": lambda t: t.normal_(generator=torch.Generator().manual_seed(0)),
    "_foreach_zero_": lambda t: torch._foreach_zero_([t[:5], t]),
    "storage fill_": lambda t: t.untyped_storage().fill_(7),
    "set_": lambda t: t.set_(torch.ones(SIZE)),
    "by its own element": lambda t: t.fill_(t[5]),
    "from itself": lambda t: t.view(512, -1).copy_(t.view(-1, 512).t()),
    "another shape": lambda t: t.copy_(torch.ones(7)),
    "no such deviation": lambda t: t.normal_(0, -1),
    "a leaf": lambda t: t.requires_grad_().fill_(3),
    "half of a list": lambda t: torch._foreach_copy_([t, t[:3]], [torch.ones(SIZE), torch.ones(7)]),
}


def changed(change: Callable[[Tensor], object], tensor: Tensor) -> Tensor:
    with suppress(RuntimeError):
        change(tensor)
    return tensor.detach()


@pytest.mark.parametrize("change", OVERWRITES.values(), ids=OVERWRITES)
def test_what_is_overwritten_holds_what_it_holds_without_a_session(
    change: Callable[[Tensor], object],
) -> None:
    """Also where the op raises, before it has written or after a part."""
    with cl.Session("64MiB", device="cpu") as session:
        tensor = counted()
        assert session.evict(tensor)
        found = changed(change, tensor)
        expected = changed(change, counted())
        assert torch.equal(found, expected)
        assert session.evict(found) and torch.equal(found, expected)


def test_an_inference_tensor_that_is_written_before_torch_refuses_it() -> None:
    with cl.Session("64MiB", device="cpu") as session:
        with torch.inference_mode():
            tensor = counted() + 0
        assert session.evict(tensor)
        with pytest.raises(RuntimeError, match="[Ii]nference"):
            tensor.fill_(7)
        assert torch.equal(tensor, torch.full((SIZE,), 7.0))


def test_a_mode_sees_what_an_op_is_about_to_overwrite() -> None:
    with cl.Session("64MiB", device="cpu") as session:
        tensor, left_out = counted(), counted()
        assert session.evict(tensor) and session.evict(left_out)
        with skipping("aten::normal_") as mode:
            tensor.zero_()
            left_out.normal_()
        assert torch.equal(mode.seen[0], torch.arange(SIZE)) and not tensor.any()
        assert torch.equal(left_out, torch.arange(SIZE))
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            weight = torch.arange(SIZE, dtype=torch.float32, requires_grad=True)
            value = weight * 1
            squares = value.square()
            assert session.evict(value)
            with torch.no_grad():
                value.zero_()
            squares.sum().backward()
        assert weight.grad is not None and torch.equal(weight.grad, 2 * torch.arange(SIZE))
