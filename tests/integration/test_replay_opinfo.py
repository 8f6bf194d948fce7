"""Every op of torch's own test database: replays give the bits of the first run, and what is refused says why."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from training import of_the_gate

from chameleon_lab.runtime import core
from chameleon_lab.runtime.replay_check import replayable
from chameleon_lab.trace.replay_ops import REPLAY_CLASS

opinfo = pytest.importorskip("torch.testing._internal.common_methods_invocations")

pytestmark = [
    pytest.mark.bits,
    pytest.mark.skipif(not core.SEES_RAW_ACCESS, reason="nothing is replayed before torch 2.13"),
]

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.complex64,
    torch.int64,
    torch.uint8,
    torch.bool,
)
MOST_SAMPLES = 2
SHARES = 6
"""Of the database: each is a test, so that none takes long on a busy machine."""


@pytest.fixture(autouse=True)
def no_search_for_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database looks for torch's own test case in the source of every frame: minutes, where much is imported."""
    for module in ("common_utils", "opinfo.core"):
        monkeypatch.setattr(f"torch.testing._internal.{module}.extract_test_fn", lambda: None)


@pytest.fixture
def recording() -> Iterator[None]:
    """The core with producers kept, and no storage too small for it."""
    options = core.Options()
    options.capacity_bytes = 1 << 30
    options.min_swap_bytes = options.min_tracked_bytes = 1
    core.open(options)
    core.of().allow_replays(replayable(torch.device("cpu")).dtypes)
    core.of().keep_producers(True)
    yield
    core.of().close()


def tensors(result: Any) -> Iterator[torch.Tensor]:
    """The tensors in what an op takes or returns."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, list | tuple):
        for part in result:
            yield from tensors(part)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of its elements, as bytes."""
    whole = tensor.detach().resolve_conj().resolve_neg()
    real = torch.view_as_real(whole) if whole.is_complex() else whole
    return real.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def calls(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    """Samples as they come, and strided ones."""
    wants_grad = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    samples = op.sample_inputs("cpu", dtype, requires_grad=wants_grad)
    for number, sample in enumerate(islice(samples, MOST_SAMPLES)):
        yield sample
        strided = isinstance(sample.input, torch.Tensor) and sample.input.layout == torch.strided
        if number == 0 and strided:
            yield sample.noncontiguous()


def check(name: str, results: list[torch.Tensor], reasons: Counter[str], wrong: list[str]) -> int:
    """Drop tensors, and compare what comes back. Returns how many did."""
    came_back = 0
    for tensor in results:
        if tensor.layout != torch.strided or not tensor.numel() or tensor.is_quantized:
            continue
        first, strides = bits(tensor), tensor.stride()
        why = core.drop(tensor)
        reasons[why] += 1
        if why:
            continue
        torch.full((first.numel(),), 0x5A, dtype=torch.uint8)  # where its bytes were
        if not torch.equal(bits(tensor), first) or tensor.stride() != strides:
            wrong.append(f"{name} {tensor.dtype} {tuple(tensor.shape)}")
        came_back += 1
    return came_back


REFUSALS = (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError)
"""What PyTorch's own ops raise for a sample that they do not take."""


def try_op(op: Any, dtype: torch.dtype, reasons: Counter[str], wrong: list[str]) -> int:
    """Run an op forward and backward, and check what it makes."""
    came_back = 0
    for sample in calls(op, dtype):
        try:
            results = list(tensors(op(sample.input, *sample.args, **sample.kwargs)))
            graded = [t for t in tensors([sample.input, *sample.args]) if t.requires_grad]
            ends = [t for t in results if t.requires_grad and t.layout == torch.strided]
            ends = ends if dtype == torch.float32 else []  # backward ops are the same for the rest
            seeds = [torch.ones_like(t) * 0.5 for t in ends]
            gradients = torch.autograd.grad(ends, graded, seeds, allow_unused=True) if ends and graded else ()
        except REFUSALS:
            continue  # what does not run here
        came_back += check(op.formatted_name, results, reasons, wrong)
        came_back += check(f"{op.formatted_name} in place", in_place(op, sample), reasons, wrong)
        came_back += check(f"backward of {op.formatted_name}", list(tensors(gradients)), reasons, wrong)
    return came_back


def in_place(op: Any, sample: Any) -> list[torch.Tensor]:
    """What the op's in-place variant makes of a copy."""
    if op.inplace_variant is None or sample.broadcasts_input or not isinstance(sample.input, torch.Tensor):
        return []
    if sample.input.dtype not in (torch.float32, torch.bfloat16, torch.int64):
        return []
    start = sample.input.detach().clone()
    try:
        return list(tensors(op.inplace_variant(start, *sample.args, **sample.kwargs)))
    except REFUSALS:
        return []


def replayed_names() -> set[str]:
    """The ops replayed in the step, which ends."""
    names = core.op_names()
    return {names[name] for name in core.of().end_step().replays()["name"]}


@dataclass
class Found:
    """What became of the drops of a share of the database, and the ops that were replayed for them."""

    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)


@cache
def found_in(share: int) -> Found:
    """Try a share of the database. The core must be recording."""
    torch.manual_seed(share)
    warnings.simplefilter("ignore")
    found = Found()
    for op in opinfo.op_db[share::SHARES]:
        supported = op.supported_dtypes("cpu")
        for number, dtype in enumerate(d for d in DTYPES if d in supported):
            if not try_op(op, dtype, found.reasons, found.wrong) and number == 0:
                break  # nothing in it is replayed
        found.names |= replayed_names()
    return found


@pytest.mark.parametrize("share", of_the_gate(0, all_of=range(SHARES)))
def test_replays_give_the_bits_of_the_first_run(recording: None, share: int) -> None:
    wrong = found_in(share).wrong
    assert not wrong, wrong[:20]


@pytest.mark.full
def test_what_is_not_replayed_says_why(recording: None) -> None:
    reasons = sum((found_in(share).reasons for share in range(SHARES)), Counter())
    assert reasons.pop("") > 3000, reasons
    # The rest says why, by the op that made it or by what became of its inputs.
    told = {text.partition(",")[0] for text in reasons}
    assert {"the op that made it is not replayed", "an input was written or is gone"} <= told
    assert sum(reasons.values()) < 9000, reasons


alive: list[torch.Tensor] = []


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Random ones, which stay: what is made from them can be made again."""
    alive.append(torch.randn(shape).to(dtype))
    return alive[-1]


def grouped(dtype: torch.dtype) -> torch.Tensor:
    ends = torch.tensor([4, 9], dtype=torch.int32)
    alive.append(ends)
    product: torch.Tensor = torch._grouped_mm(numbers(dtype, 9, 8), numbers(dtype, 2, 8, 16), ends)
    return product


# Calls that end in ops which the database does not reach.
MORE = {
    "index": lambda d: numbers(d, 9, 7)[torch.tensor([1, 5, 2])],
    "_unsafe_index": lambda d: torch.ops.aten._unsafe_index(numbers(d, 9, 7), [None, torch.arange(3)]),
    "bernoulli": lambda d: torch.bernoulli(numbers(d, 9, 7).clamp_(0, 1), generator=torch.Generator()),
    **{
        name: lambda d, name=name, rest=rest: getattr(numbers(d, 9, 7).clone(), name)(
            *rest, generator=torch.Generator()
        )
        for name, *rest in (
            ("cauchy_",),
            ("exponential_",),
            ("geometric_", 0.3),
            ("log_normal_",),
            ("normal_",),
            ("random_", 9),
            ("uniform_",),
        )
    },
    "attention": lambda d: F.scaled_dot_product_attention(*[numbers(d, 2, 2, 8, 16)] * 3, is_causal=True),
    "_grouped_mm": lambda d: grouped(d if d.itemsize < 8 else torch.float32),
    "_addmm_activation": lambda d: torch._addmm_activation(numbers(d, 7), numbers(d, 9, 5), numbers(d, 5, 7)),
    "conj_physical": lambda d: torch.conj_physical(numbers(torch.complex64, 9, 7)),
    "copy": lambda d: torch.ops.aten.copy(numbers(d, 9, 7), numbers(d, 7)),
    "nll_loss_backward": lambda d: torch.ops.aten.nll_loss_backward(
        numbers(d), numbers(d, 9, 7), torch.arange(9) % 7, None, 1, -100, numbers(d).fill_(9)
    ),
    "gelu_": lambda d: torch.ops.aten.gelu_(numbers(d, 9, 7).clone()),
    "hardswish_": lambda d: F.hardswish(numbers(d, 9, 7).clone(), inplace=True),
    "hardtanh_": lambda d: F.hardtanh(numbers(d, 9, 7).clone(), inplace=True),
    "relu_": lambda d: F.relu(numbers(d, 9, 7).clone(), inplace=True),
    "eye": lambda d: torch.eye(9, dtype=d),
    "reflection_pad2d": lambda d: F.pad(numbers(d, 1, 2, 6, 6), (1, 2, 2, 1), mode="reflect"),
    "upsample_nearest2d": lambda d: F.interpolate(numbers(d, 1, 2, 6, 6), scale_factor=2),
    "upsample_nearest3d": lambda d: F.interpolate(numbers(d, 1, 2, 4, 4, 4), scale_factor=2),
}


@cache
def found_in_more() -> Found:
    """Try :data:`MORE`. The core must be recording."""
    torch.manual_seed(0)
    found = Found()
    for name, call in MORE.items():
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            check(name, [call(dtype)], found.reasons, found.wrong)
        found.names |= replayed_names()
    alive.clear()
    return found


def test_what_the_database_does_not_reach(recording: None) -> None:
    found = found_in_more()
    assert not found.wrong
    assert found.reasons[""] >= 3 * (len(MORE) - 2), found.reasons


@pytest.mark.full
def test_every_op_of_the_list_was_among_them(recording: None) -> None:
    leaves = {name for name in REPLAY_CLASS if any(has_kernel(overload) for overload in overloads(name))}
    seen = found_in_more().names.union(*(found_in(share).names for share in range(SHARES)))
    assert not leaves - seen


def has_kernel(overload: str) -> bool:
    """Is it run as such on a CPU, and not made of other ops?"""
    if not torch._C._dispatch_has_kernel(overload):
        return False
    keys = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(overload, key) for key in keys)


def overloads(name: str) -> Iterator[str]:
    """An op's functional overloads, or those in place, as the dispatcher names them."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"))
    for overload in packet.overloads():
        schema = getattr(packet, overload)._schema
        if schema.is_mutable == name.endswith("_") and not overload.startswith("prim"):
            yield name if overload == "default" else f"{name}.{overload}"
