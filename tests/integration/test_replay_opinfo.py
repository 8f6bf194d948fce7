"""Every op of torch's own test database: replays give the bits of the first run, and what is refused says why."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch

from chameleon_lab.runtime import core
from chameleon_lab.runtime.replay_check import replayable
from chameleon_lab.trace.replay_ops import REPLAY_CLASS

opinfo = pytest.importorskip("torch.testing._internal.common_methods_invocations")

pytestmark = pytest.mark.skipif(not core.SEES_RAW_ACCESS, reason="nothing is replayed before torch 2.13")

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
MOST_SAMPLES = 6
PARTS = 4

# Ops of the list that no call in the database ends in, on a CPU: these are CUDA's.
NOT_THERE = {
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_flash_attention",
}


@pytest.fixture
def recording() -> Iterator[None]:
    """The core with producers kept, and no storage too small for it."""
    options = core.Options()
    options.capacity_bytes = 1 << 30
    options.min_swap_bytes = options.min_tracked_bytes = 1
    core.open(options)
    allowed = replayable("cpu", torch.get_num_threads())
    core.allow_replays(allowed.dtypes)
    core.keep_producers(True)
    yield
    core.close()


def tensors(result: Any) -> Iterator[torch.Tensor]:
    """The tensors in what an op returns."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, list | tuple):
        for part in result:
            yield from tensors(part)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements as bytes."""
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return (
        torch.view_as_real(whole).view(torch.uint8)
        if whole.is_complex()
        else whole.flatten().view(torch.uint8)
    )


def calls(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    """Samples as they come, and strided ones."""
    wants_grad = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    samples = op.sample_inputs("cpu", dtype, requires_grad=wants_grad)
    for number, sample in enumerate(islice(samples, MOST_SAMPLES)):
        yield sample
        if number < 2 and isinstance(sample.input, torch.Tensor):
            yield sample.noncontiguous()


def try_op(op: Any, dtype: torch.dtype, reasons: Counter[str], wrong: list[str]) -> int:
    """Run, drop, and compare. Returns how many tensors came back."""
    came_back = 0
    for sample in calls(op, dtype):
        try:
            result = op(sample.input, *sample.args, **sample.kwargs)
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            continue  # what the database knows as unsupported here
        for tensor in tensors(result):
            if tensor.layout != torch.strided or not tensor.numel() or tensor.is_quantized:
                continue
            first, strides = bits(tensor).clone(), tensor.stride()
            why = core.drop(tensor)
            reasons[why] += 1
            if why:
                continue
            torch.full((max(1, first.numel()),), 0x5A, dtype=torch.uint8)  # where its bytes were
            if not torch.equal(bits(tensor), first) or tensor.stride() != strides:
                wrong.append(f"{op.formatted_name} {dtype} {tuple(tensor.shape)}")
            came_back += 1
    return came_back


seen_names: set[str] = set()


@pytest.mark.parametrize("part", range(PARTS))
def test_replays_give_the_bits_of_the_first_run(recording: None, part: int) -> None:
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    reasons: Counter[str] = Counter()
    wrong: list[str] = []
    for op in opinfo.op_db[part::PARTS]:
        supported = op.supported_dtypes("cpu")
        for number, dtype in enumerate(d for d in DTYPES if d in supported):
            if not try_op(op, dtype, reasons, wrong) and number == 0:
                break  # no op in it is replayed
        names = core.op_names()
        log = core.end_step()
        seen_names.update(names[name] for name in log.replays()["name"])
    assert not wrong, wrong[:20]
    assert reasons[""] > 400
    assert set(reasons) <= set(core.REFUSALS)


def test_every_op_of_the_list_was_among_them() -> None:
    if not seen_names:
        pytest.skip("the tests before it did not run")
    leaves = {
        name
        for name in REPLAY_CLASS
        if any(
            torch._C._dispatch_has_kernel_for_dispatch_key(f"{schema}", "CPU")
            or torch._C._dispatch_has_kernel_for_dispatch_key(f"{schema}", "CompositeExplicitAutograd")
            for schema in overloads(name)
        )
    }
    assert leaves - seen_names == NOT_THERE


def overloads(name: str) -> Iterator[str]:
    """An op's overloads, as the dispatcher names them."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"))
    for overload in packet.overloads():
        yield name if overload == "default" else f"{name}.{overload}"
