"""Ops that are made of others alone (CompositeImplicit): what each needs at once as one, and what its inner ops need.

Every operator of PyTorch's OpInfo database is called twice on samples of some KiB: once as a session counts its ops,
and once with every op that is made of others seen through. Where the second needs much less, the op belongs into the
list of ``csrc/op_info.cpp``, or into ``LEFT`` with the reason why not. That what is seen through gives the same bits
while a random part of all storages is away is tried with all operators, by the part ``operators``.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from chameleon_lab.planner import floor
from chameleon_lab.runtime import core
from chameleon_lab.testing import evict_always

from .compare import attempt, seed_all
from .forced import by_name
from .operators import ARBITRARY, UNINITIALISED
from .outcome import Outcome
from .pool import Options

LEFT: dict[str, str] = {
    "aten::matmul": "one product inside does the work, and plans know its replay by this name",
    "aten::rms_norm": "plans know its replay by this name",
    "aten::take_along_dim": "plans know its replay by this name",
}
"""Ops that need more as one unit and are not seen through, each with the reason."""

GAIN = 1.25
"""An op that needs less than so many times what its inner ops do is left as it is: it is replayed as one, and is one
row of a trace."""

_SIZES = {"XS": 8, "S": 16, "M": 24, "L": 32}
"""Of the samples: the database's own are so small that a block's alignment hides what is in it."""
_LOOKED_AT = 40  # samples
_MOST_SAMPLES = 12
_MOST_SAMPLES_OF_SHARE = 3
_ONE_OF = 24  # operators, in the share
_DTYPES = (torch.float32, torch.complex64, torch.int64, torch.bool)
_GRAIN_BYTES = 2048  # blocks are of 512 bytes: below this their number says little


@cache
def _operators() -> dict[str, Any]:
    from torch.testing._internal import common_methods_invocations as database

    return by_name((op.full_name, op) for op in database.op_db)


@cache
def composites() -> frozenset[str]:
    """The names of all ops that have a kernel made of other ops, and none of a device's own."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = torch._C._dispatch_get_all_op_names()
    return frozenset(
        name.split(".")[0]
        for name in names
        if name.startswith("aten::")
        and has(name, "CompositeImplicitAutograd")
        and not any(has(name, device) for device in ("CPU", "CUDA"))
    )


def cases(options: Options) -> list[str]:
    """A case is an operator of the database."""
    return [name for name in _operators() if not options.share or zlib.crc32(name.encode()) % _ONE_OF == 0]


def check(case: str, options: Options) -> Outcome:
    """Samples of one dtype, with gradients and without."""
    op, outcome = _operators()[case], Outcome(case)
    dtype = next((dtype for dtype in _DTYPES if dtype in op.supported_dtypes("cpu")), None)
    if dtype is None or op.name in UNINITIALISED or op.name in ARBITRARY:
        outcome.skipped["has no dtype that is tried, or returns memory as it finds it"] += 1
        return outcome
    gradients = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    worst: dict[str, tuple[float, str]] = {}
    for with_gradients in (False, True) if gradients else (False,):
        for sample in _samples(op, dtype, with_gradients, options):
            compare(outcome, worst, lambda s=sample: op(s.input, *s.args, **s.kwargs), sample, with_gradients)
    outcome.wrong += [text for _, text in worst.values()]
    return outcome


def _samples(op: Any, dtype: torch.dtype, gradients: bool, options: Options) -> list[Any]:
    """The largest of larger ones, where the database's function can make these, else of its own."""
    most = _MOST_SAMPLES_OF_SHARE if options.share else _MOST_SAMPLES
    for sizes in (_SIZES, {}):
        seed_all(options.seed)
        with _sized(sizes):
            made, samples = attempt(
                lambda: list(islice(op.sample_inputs("cpu", dtype, requires_grad=gradients), _LOOKED_AT))
            )
        if made:
            working = [sample for sample in sorted(samples, key=_numbers, reverse=True) if _works(op, sample)]
            if working:
                return working[:most]
    return []


def _tensors(sample: Any) -> list[torch.Tensor]:
    leaves = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _numbers(sample: Any) -> int:
    return sum(tensor.numel() for tensor in _tensors(sample))


@contextmanager
def _sized(sizes: dict[str, int]) -> Iterator[None]:
    """Other sizes in all modules of the database."""
    places = [
        (vars(module), name)
        for key, module in list(sys.modules.items())
        if key.startswith("torch.testing._internal.") and module is not None
        for name in sizes
        if isinstance(vars(module).get(name), int)
    ]
    before = [values[name] for values, name in places]
    for values, name in places:
        values[name] = sizes[name]
    try:
        yield
    finally:
        for (values, name), size in zip(places, before, strict=True):
            values[name] = size


def _works(op: Any, sample: Any) -> bool:
    return attempt(lambda: op(sample.input, *sample.args, **sample.kwargs))[0]


def compare(
    outcome: Outcome,
    worst: dict[str, tuple[float, str]],
    call: Callable[[], Any],
    sample: Any,
    gradients: bool,
) -> None:
    """One sample both ways. ``worst`` takes, of each op that needs too much as one, by how much and in words."""
    one = _needed(call, sample, gradients, core.names_seen_through())
    if one is None:
        outcome.skipped["fails, or cannot be recorded"] += 1
        return
    if not one.units:
        outcome.skipped["calls no op that is made of others"] += 1
        return
    outcome.tried += 1
    inner = _needed(call, sample, gradients, composites() - set(LEFT))
    if inner is None:
        outcome.skipped["nothing is done inside of it: views, or a dropout that drops nothing"] += 1
        return
    # Whoever goes on with a view of an input needs that input: not to need it for the view is no gain.
    largest_bytes = max((tensor.nbytes for tensor in _tensors(sample)), default=0)
    gain = one.bytes / max(inner.bytes, largest_bytes, _GRAIN_BYTES)
    if gain > GAIN and gain > worst.get(one.op_name, (0.0, ""))[0]:
        worst[one.op_name] = (
            gain,
            f"{one.op_name} needs {one.bytes} B as one ({'with' if gradients else 'without'} gradients), and "
            f"{inner.op_name} {inner.bytes} B: see through {', '.join(sorted(one.units))}, or say in LEFT why not",
        )


@dataclass(frozen=True)
class _Need:
    bytes: int
    op_name: str
    units: frozenset[str]
    """The ops of the step that are made of others."""


def _needed(call: Callable[[], Any], sample: Any, gradients: bool, names: frozenset[str]) -> _Need | None:
    """The floor of a step in which the op is called once; None where it fails, or no op ran."""
    core.see_through(names)
    try:
        with evict_always() as session:
            for tensor in _tensors(sample):
                with suppress(Exception):  # sparse ones, and what else it cannot take
                    session.adopt(tensor)
            torch.ones(1).add_(1)  # all are away by then
            session.step()
            with torch.set_grad_enabled(gradients):
                made, out = attempt(call)
            session.step()
            step = session.trace().last
            if not made or not len(step.ops):
                return None
            lowest = floor(step)
            called = frozenset(step.op_name(number) for number in range(len(step.ops)))
            del out
            return _Need(lowest.bytes, lowest.op_name, called & composites())
    finally:
        core.see_through(None)
