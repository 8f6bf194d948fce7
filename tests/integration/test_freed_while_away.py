"""What is freed while it is away is not copied in for that, and what an op overwrites is as it is in torch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from training import MiB, child

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


def moved_in(act: Callable[[], object], session: cl.Session) -> int:
    """Bytes."""
    session.step()
    act()
    session.step()
    return session.history[-1].swapped_in_bytes


SETS: dict[str, Callable[[Tensor], object]] = {
    "another storage": lambda t: t.set_(torch.ones(SIZE)),
    "a part of itself": lambda t: t.set_(t, 3, (5,), (2,)),
    "its storage": lambda t: t.set_(t.untyped_storage(), 8, (2, 3)),
    "nothing": lambda t: t.set_(),
}


@resizes
@pytest.mark.parametrize("sets", SETS.values(), ids=SETS)
def test_what_gets_another_storage_is_not_copied_in(sets: Callable[[Tensor], object]) -> None:
    with cl.Session("64MiB", device="cpu") as session:
        tensor, alone = counted(), counted()
        held, held_alone = tensor.detach(), alone.detach()
        assert session.evict(tensor)
        assert moved_in(lambda: sets(tensor), session) == 0
        step = session.trace().last
        used = {step.op_name(op) for op in step.uses.op}
        assert "aten::set_" not in used, "a floor must not count it, nor a plan bring it in"
        sets(alone)
        assert torch.equal(tensor, alone) and torch.equal(held, held_alone)


def dual(shape: tuple[int, ...]) -> Tensor:
    return forward_ad.make_dual(torch.ones(shape), torch.ones(shape))


def in_dual_level(change: Callable[[Tensor], object]) -> Callable[[Tensor], object]:
    def changed_there(tensor: Tensor) -> None:
        with forward_ad.dual_level():
            change(tensor)

    return changed_there


OVERWRITES: dict[str, Callable[[Tensor], object]] = {
    "fill_": lambda t: t.fill_(3),
    "of a transposed view": lambda t: t.view(512, -1).t().fill_(3),
    "copy_ of one row": lambda t: t.view(512, -1).copy_(torch.ones(512)),
    "copy_ of another dtype": lambda t: t.copy_(torch.arange(1, SIZE + 1)),
    "normal_": lambda t: t.normal_(generator=torch.Generator().manual_seed(0)),
    "both of a list": lambda t: torch._foreach_zero_([t[:5], t]),
    "a list": lambda t: torch._foreach_copy_([torch.ones(3), t], [torch.zeros(3), torch.ones(SIZE)]),
    "half of a list": lambda t: torch._foreach_copy_([t, t[:3]], [torch.ones(SIZE), torch.ones(7)]),
    "a list whose second overlaps": lambda t: torch._foreach_copy_(
        [t, torch.ones(1).expand(5)], [torch.ones(SIZE), torch.zeros(1).expand(5)]
    ),
    "storage fill_": lambda t: t.untyped_storage().fill_(7),
    "set_ that grows the storage": lambda t: t.set_(t.untyped_storage(), 0, (SIZE + 5,)),
    "set_ of no such size": lambda t: t.set_(t.untyped_storage(), 0, (-3, 2), (1, 1)),
    "by its own element": lambda t: t.fill_(t[5]),
    "from itself": lambda t: t.view(512, -1).copy_(t.view(-1, 512).t()),
    "another shape": lambda t: t.copy_(torch.ones(7)),
    "no such deviation": lambda t: t.normal_(0, -1),
    "a leaf": lambda t: t.requires_grad_().fill_(3),
    "conjugated": lambda t: torch.view_as_complex(t.view(-1, 2)).conj().fill_(3 + 4j),
    "a part of the bytes": lambda t: t[::2].zero_(),
    "zero_ of a dtype without a kernel": lambda t: t.view(torch.uint8).view(torch.uint4).zero_(),
    "fill_ of a dtype without a kernel": lambda t: (
        t.view(torch.uint8).view(torch.uint4).fill_(torch.zeros((), dtype=torch.uint4))
    ),
    "copy_ of a dtype without a kernel": lambda t: (
        t.view(torch.uint8)
        .view(torch.uint4)
        .copy_(torch.zeros(4 * SIZE, dtype=torch.uint8).view(torch.uint4))
    ),
    "a number that the dtype has not": lambda t: t.view(torch.int32).fill_(2**40),
    "copy_ with gradients": lambda t: t.copy_(torch.ones(SIZE, requires_grad=True)),
    "copy_ of another device": lambda t: t.copy_(torch.ones(SIZE, device="meta")),
    "in torch.func.vmap": lambda t: torch.func.vmap(lambda row: row.zero_())(t.view(512, -1)),
    "by torch.func.functionalize": lambda t: torch.func.functionalize(lambda x: x.zero_())(t),
    "copy_ of a dual tensor": in_dual_level(lambda t: t.copy_(dual((SIZE,)))),
    "fill_ with a dual tensor": in_dual_level(lambda t: t.fill_(dual(()))),
}


WHOLE: dict[str, Callable[[Tensor], object]] = {
    "zero_": lambda t: t.zero_(),
    "fill_": lambda t: t.fill_(3),
    "fill_ with a tensor": lambda t: t.fill_(torch.tensor(2.5)),
    "fill_ of a transposed view": lambda t: t.view(512, -1).t().fill_(3),
    "[:] =": lambda t: t.__setitem__(slice(None), 4),
    "copy_": lambda t: t.copy_(torch.ones(SIZE)),
    "copy_ of another dtype": lambda t: t.copy_(torch.arange(1, SIZE + 1)),
    "copy_ of every other element": lambda t: t.copy_(torch.arange(2 * SIZE)[::2]),
    "in inference mode": torch.inference_mode()(lambda t: t.zero_()),
    "under autocast": torch.autocast("cpu")(lambda t: t.zero_()),
    "gradients": lambda t: zero_gradients(t),
}


def zero_gradients(gradient: Tensor) -> None:
    weight = torch.nn.Parameter(torch.ones(SIZE))
    weight.grad = gradient
    torch.optim.SGD([weight]).zero_grad(set_to_none=False)


@resizes
@pytest.mark.parametrize("change", WHOLE.values(), ids=WHOLE)
def test_what_is_overwritten_whole_is_not_copied_in(change: Callable[[Tensor], object]) -> None:
    with cl.Session("64MiB", device="cpu") as session:
        tensor, alone = counted(), counted()
        assert session.evict(tensor)
        assert moved_in(lambda: change(tensor), session) == 0
        assert session.where(tensor) == "resident"
        change(alone)
        assert torch.equal(tensor, alone)
        assert session.evict(tensor) and torch.equal(tensor, alone)


@resizes
def test_what_is_overwritten_gets_room_as_anything_else_does() -> None:
    with cl.Session("4MiB", device="cpu") as session:
        tensor, other = torch.ones(2 * SIZE), torch.ones(3 * SIZE)
        assert session.where(tensor) == "away"
        assert moved_in(tensor.zero_, session) == 0
        assert session.where(other) == "away" and not tensor.any() and other.all()
        assert session.where(tensor) == "away"
        held = other.numpy()
        with pytest.raises(RuntimeError, match="below the floor"):
            tensor.fill_(5)
        assert held.all()
        del held
        session.step()
        assert not tensor.any(), "the op never ran"


@resizes
@pytest.mark.parametrize("read", [lambda t: t.clone(), lambda t: t.numpy()], ids=["op", "numpy"])
def test_another_thread_finds_old_bytes_or_new_ones(read: Callable[[Tensor], Any]) -> None:
    with cl.Session("512MiB", device="cpu") as session, ThreadPoolExecutor(1) as other:
        for _ in range(10):
            tensor = torch.zeros(16 * SIZE)
            assert session.evict(tensor)
            torch.full((16 * SIZE,), 7.0)  # what lies in the block that comes next
            waits = Event()

            def read_the_end(tensor: Tensor = tensor, waits: Event = waits) -> set[float]:
                waits.set()
                while session.where(tensor) == "away":
                    pass
                return {float(read(tensor[-1:])[0]) for _ in range(20)}

            found = other.submit(read_the_end)
            assert waits.wait(60)
            tensor.fill_(1)
            assert found.result() <= {0.0, 1.0}


MEANWHILE: dict[str, Callable[[Tensor], Any]] = {
    "numpy": lambda t: t.numpy(),
    "numpy of a view": lambda t: t.view(torch.int32).numpy(),
    "to": lambda t: t.to(torch.float32),
    "an op": lambda t: t + 0,
    "evict": core.evict,
}


@resizes
@pytest.mark.parametrize("act", MEANWHILE.values(), ids=MEANWHILE)
def test_another_thread_may_use_it_meanwhile(act: Callable[[Tensor], Any]) -> None:
    with cl.Session("64MiB", device="cpu") as session, ThreadPoolExecutor(1) as other:
        for value in range(20):
            tensor = counted()
            assert session.evict(tensor)
            found = other.submit(act, tensor)
            tensor.fill_(value)
            shown = found.result()
            assert (tensor == value).all()
            if isinstance(shown, np.ndarray):
                assert (shown.view(np.float32) == value).all()


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


@pytest.mark.skipif(not core.SEES_RAW_ACCESS, reason="nothing is replayed before torch 2.13")
def test_what_is_made_of_the_old_bytes_is_made_again_before_they_are_overwritten() -> None:
    with cl.Session("64MiB", device="cpu") as session:
        session._runtime.keep_producers(True)
        source = counted()
        made = source * 2
        assert core.drop(made) == "" and session.evict(source)
        source.zero_()
        assert torch.equal(made, 2 * torch.arange(SIZE, dtype=torch.float32)) and not source.any()


@pytest.mark.parametrize(
    ("replaced", "key", "overwrite"),
    [
        ("zero_", "CPU", "tensor.zero_()"),
        ("zero_", "AutogradCPU", "tensor.zero_()"),
        ("fill_.Scalar", "CPU", "tensor.fill_(0)"),
        ("fill_.Scalar", "CPU", "tensor.zero_()"),
        ("fill_.Tensor", "CPU", "tensor.fill_(torch.zeros(()))"),
        ("copy_", "CPU", "tensor.copy_(torch.zeros(MiB))"),
        ("copy_", "ADInplaceOrView", "tensor.copy_(torch.zeros(MiB))"),
        ("copy_", "CPU", "tensor.fill_(torch.zeros(()))"),
    ],
)
def test_a_kernel_that_reads_what_it_is_to_overwrite_finds_it(
    replaced: str, key: str, overwrite: str
) -> None:
    """Also where the op calls another one that has such a kernel."""
    child(f"""
        library = torch.library.Library("aten", "IMPL")

        def read_first(tensor, *others):
            if tensor.numel() == MiB and not reading:
                reading.append(True)
                read.append(tensor.abs()[:9].tolist())  # an op inside of the op, which calls none of these
                if refuses:
                    raise RuntimeError("no")
                tensor.sub_(tensor)
            return tensor

        library.impl("{replaced}", read_first, "{key}")
        expected = torch.arange(MiB, dtype=torch.float32)
        for refuses in (False, True):
            read, reading = [], [True]
            with cl.Session("64MiB", device="cpu") as session:
                tensor = torch.arange(MiB, dtype=torch.float32)
                assert session.evict(tensor)
                reading.clear()
                try:
                    {overwrite}
                except RuntimeError:
                    assert refuses
                assert read == [list(range(9))], (refuses, read)
                assert torch.equal(tensor, expected if refuses else expected - expected)
    """)


@resizes
def test_a_source_that_is_away_has_host_memory_to_make_room_with() -> None:
    """The copy of the one that is overwritten is kept until the op has ended, and that of the source is spare."""

    def made(value: float) -> Tensor:
        return torch.empty(SIZE).copy_(torch.full((SIZE,), float(value)))

    with cl.Session("3MiB", device="cpu", host_capacity="2MiB") as session:
        tensor, source = made(1), made(2)
        assert session.evict(tensor) and session.evict(source)
        others = [made(3), made(4)]
        tensor.copy_(source)
        assert (tensor == 2).all() and (source == 2).all()
        assert all((other == value).all() for other, value in zip(others, (3, 4), strict=True))


def test_who_holds_a_tensor_while_an_op_writes_it_keeps_no_old_copy() -> None:
    """As ``torch.save`` on another thread does, for longer than the op takes."""
    child("""
        import threading

        began, held = threading.Event(), threading.Event()

        @torch.library.custom_op("probe::add_one", mutates_args=("tensor",))
        def add_one(tensor: torch.Tensor) -> None:
            began.set()
            assert held.wait(60)
            tensor.add_(1)

        with cl.Session("64MiB", device="cpu") as session:
            tensor = torch.zeros(MiB)
            address = core.storage_address(tensor)
            assert session.evict(tensor)
            other = threading.Thread(target=add_one, args=(tensor,))
            other.start()
            assert began.wait(60)
            assert core.hold(address)
            held.set()
            other.join()
            core.let_go(address)
            assert session.evict(tensor)
            assert (tensor == 1).all()
    """)
