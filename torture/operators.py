"""Every operator of PyTorch's OpInfo database: all dtypes and sample inputs, forward, in place and backward."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map_only

from .compare import attempt, seed_all
from .forced import Tries, by_name, compare
from .outcome import Outcome
from .pool import Options

_MOST_SAMPLES = 60  # of an op and dtype
_MOST_SAMPLES_OF_SHARE = 2
_ONE_OF = 3  # operators, in the share
UNINITIALISED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
}
ARBITRARY = {"linalg.lstsq": ("driver", "gelsy")}
"""Keyword and value with which an op's result depends on memory that it has not initialized: LAPACK's gelsy first moves
the columns that its argument ``jpvt`` marks, which torch leaves as ``empty`` made it."""


@cache
def _operators() -> dict[str, Any]:
    from torch.testing._internal import common_methods_invocations as database

    kinds = ("unary", "binary", "pointwise", "reduce", "other")
    lists = (op for kind in kinds for op in getattr(database, f"foreach_{kind}_op_db"))
    return by_name((op.full_name, op) for op in [*database.op_db, *lists])


def cases(options: Options) -> list[str]:
    """A case is an operator."""
    return [name for name in _operators() if not options.share or zlib.crc32(name.encode()) % _ONE_OF == 0]


def check(case: str, options: Options) -> Outcome:
    """All its dtypes."""
    op, outcome = _operators()[case], Outcome(case)
    if op.name in UNINITIALISED:
        outcome.skipped["returns memory as it finds it"] += 1
        return outcome
    dtypes = sorted(op.supported_dtypes("cpu"), key=str)
    if not dtypes:
        outcome.skipped["has no dtype on the CPU"] += 1
    if options.share:
        dtypes = _two_of(dtypes, case)
    if op.name in ARBITRARY:
        outcome.skipped["{}={!r} reads uninitialized memory".format(*ARBITRARY[op.name])] += 1
    for dtype in dtypes:
        gradients = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
        for in_place in (False, True):
            if in_place and (op.inplace_variant is None or options.share):
                continue
            label = f"{str(dtype).removeprefix('torch.')}{' in place' if in_place else ''}"

            def run(dtype=dtype, gradients=gradients, in_place=in_place) -> Tries:
                return list(_tries(op, dtype, gradients and not in_place, in_place, options))

            compare(outcome, label, run, options.seed)
    return outcome


def _two_of(dtypes: list[torch.dtype], case: str) -> list[torch.dtype]:
    """float32, and another one that differs from op to op."""
    chosen = [dtype for dtype in dtypes if dtype is torch.float32]
    others = [dtype for dtype in dtypes if dtype is not torch.float32]
    return chosen + others[zlib.crc32(case.encode()) % len(others) :][:1] if others else chosen


def _tries(
    op: Any, dtype: torch.dtype, gradients: bool, in_place: bool, options: Options
) -> Iterator[tuple[bool, Any]]:
    seed_all(options.seed)
    name, value = ARBITRARY.get(op.name, ("", None))
    samples = (
        sample
        for sample in op.sample_inputs("cpu", dtype, requires_grad=gradients)
        if not name or sample.kwargs.get(name) != value
    )
    for sample in islice(samples, _MOST_SAMPLES_OF_SHARE if options.share else _MOST_SAMPLES):
        if in_place:
            yield attempt(lambda sample=sample: _in_place(op, sample))
        else:
            yield attempt(lambda sample=sample: _forward_and_backward(op, sample, gradients))


def _forward_and_backward(op: Any, sample: Any, gradients: bool) -> Any:
    given = (sample.input, sample.args, sample.kwargs)
    call = (
        op.method_variant if hasattr(sample, "ref_args") else op
    )  # a list op's own call wants its reference
    out = call(sample.input, *sample.args, **sample.kwargs)
    if not gradients:
        return out, given
    ends = [t for t in tree_flatten(sample.output_process_fn_grad(out))[0] if _wants_gradient(t)]
    starts = [t for t in tree_flatten(given)[0] if _wants_gradient(t) and t.is_leaf]
    if not ends or not starts:
        return out, given
    seeds = [torch.randn_like(end) for end in ends]
    return out, given, torch.autograd.grad(ends, starts, seeds, allow_unused=True)


def _in_place(op: Any, sample: Any) -> Any:
    target = tree_map_only(torch.Tensor, torch.clone, sample.input)
    returned = op.inplace_variant(target, *sample.args, **sample.kwargs)
    return returned, target, sample.args, sample.kwargs


def _wants_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
