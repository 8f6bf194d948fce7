"""Kernels that Triton launches by hand are ops of the step, and so is the search for their best configuration.

Triton takes the address of each tensor that a kernel is given. A launch is stream-ordered and ends: its tensors come in
before it and stay until it is queued, and no address that is taken inside keeps a storage on the device. What a
kernel writes is not known here, so all of its tensors count as written.

``kernel[grid](...)`` comes down to ``JITFunction.run``, under ``triton.autotune`` and ``triton.heuristics`` too, and
to ``InterpretedFunction.run`` with ``TRITON_INTERPRET=1``. What ``kernel.warmup(...)`` returns is launched unseen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from ..launching import OneOp
from .late import LatePatches


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among a kernel's arguments, in tuples, reinterpreted ones and tensor descriptors too."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
        elif isinstance(base := getattr(value, "base", None), torch.Tensor):
            yield base


def _launch(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OneOp:
    return OneOp(f"triton::{name}", [], list(_tensors((*args, *kwargs.values()))))


# Of these, a kernel may have parameters of any name.


def _one_op(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def launch_as_one_op(kernel: Any, /, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("warmup"):  # it is compiled alone
            return run(kernel, *args, **kwargs)
        with _launch(kernel.__name__, args, kwargs):
            return run(kernel, *args, **kwargs)

    return launch_as_one_op


def _one_op_a_configuration(bench: Callable[..., Any]) -> Callable[..., Any]:
    """Hundreds of launches otherwise."""

    @functools.wraps(bench)
    def bench_as_one_op(tuner: Any, /, *args: Any, **kwargs: Any) -> Any:
        with _launch("autotune", args, kwargs):
            return bench(tuner, *args, **kwargs)

    return bench_as_one_op


def _noted(run: Callable[..., Any]) -> Callable[..., Any]:
    """What is given a meta tensor is an op, and computes and tunes nothing."""

    @functools.wraps(run)
    def launch_noted(kernel: Any, /, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("warmup") or not any(t.is_meta for t in _tensors((*args, *kwargs.values()))):
            return run(kernel, *args, **kwargs)
        with _launch(getattr(kernel, "base_fn", kernel).__name__, args, kwargs):
            return None

    return launch_noted


def launches() -> LatePatches:
    """For as long as a session is open."""
    return LatePatches(
        [
            ("triton.runtime.jit", "JITFunction.run", _one_op),
            ("triton.runtime.interpreter", "InterpretedFunction.run", _one_op),
            ("triton.runtime.autotuner", "Autotuner._bench", _one_op_a_configuration),
        ]
    )


def launches_without_data() -> LatePatches:
    """For as long as meta tensors are traced."""
    return LatePatches(
        [
            ("triton.runtime.jit", "JITFunction.run", _noted),
            ("triton.runtime.interpreter", "InterpretedFunction.run", _noted),
            ("triton.runtime.autotuner", "Autotuner.run", _noted),
        ]
    )
