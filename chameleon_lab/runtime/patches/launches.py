"""Kernels that Triton launches by hand are ops of the step, and so is the search for their best configuration.

Triton takes the address of each tensor that a kernel is given. A launch is stream-ordered and ends: its tensors come in
before it and stay until it is queued, and no address that is taken inside keeps a storage on the device. What a kernel
writes is read from what Triton has compiled; where that cannot be told, all of its tensors count as written.

``kernel[grid](...)`` comes down to ``JITFunction.run``, under ``triton.autotune`` and ``triton.heuristics`` too, and
to ``InterpretedFunction.run`` with ``TRITON_INTERPRET=1``. What ``kernel.warmup(...)`` returns is launched unseen.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from ..kernel_variants import MOST_VARIANTS, KernelVariants, variant_of, variants_of
from ..kernel_writes import written_parameters
from ..launching import OneOp
from .late import LatePatches


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among a kernel's arguments, in tuples, reinterpreted ones and tensor descriptors too."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
        elif (
            base := getattr(value, "base", None)
        ) is not None:  # a descriptor of a reinterpreted tensor has two
            bases = base, getattr(base, "base", None)
            yield from (each for each in bases if isinstance(each, torch.Tensor))


def _launch(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OneOp:
    return OneOp(f"triton::{name}", [], list(_tensors((*args, *kwargs.values()))))


# A kernel's parameters may have any name: these functions take their own by position alone.


def _launch_compiled(run: Callable[..., Any]) -> Callable[..., Any]:
    """A variant is compiled in an op of its own: else the first launch would be an op that takes seconds."""

    @functools.wraps(run)
    def launch_as_one_op(kernel: Any, /, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("warmup"):  # it is compiled alone
            return run(kernel, *args, **kwargs)
        known = variants_of(kernel)
        # Its own hooks would run once more, and may write at addresses that they take.
        variant = None if kernel.pre_run_hooks else variant_of(known, args, kwargs)
        compiled, written = known.compiled.get(variant, (_nothing, None))
        if variant is not None and compiled() is None and len(known.compiled) < MOST_VARIANTS:
            with OneOp("triton::compile", list(_tensors((*args, *kwargs.values()))), []):
                made = run(kernel, *args, **kwargs | {"warmup": True})
            if made is not None:
                compiled, written = known.compiled[variant] = weakref.ref(made), written_parameters(made)
        with OneOp(f"triton::{kernel.__name__}", *_read_and_written(known, args, kwargs, written)):
            launched = run(kernel, *args, **kwargs)
        if written is not None and launched is not None and launched is not compiled():
            _check(kernel, launched, written)
        return launched

    return launch_as_one_op


def _nothing() -> None:
    """In place of a reference."""


def _read_and_written(
    kernel: KernelVariants, args: tuple[Any, ...], kwargs: dict[str, Any], written: frozenset[str] | None
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    if written is None:
        return [], list(_tensors((*args, *kwargs.values())))
    found: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
    for names, values in ((kernel.names, args), (kwargs, kwargs.values())):
        for name, value in zip(names, values, strict=False):
            found[name in written].extend(_tensors((value,)))
    return found


def _check(kernel: Any, launched: Any, written: frozenset[str]) -> None:
    """Triton has compiled the same variant once more, for addresses that are aligned in another way."""
    more = written_parameters(launched)
    if more is None or more - written:
        names = "more than can be told" if more is None else ", ".join(sorted(more - written))
        raise RuntimeError(
            f"Triton's kernel {kernel.__name__} has written {names}, and for arguments of the same kinds it wrote "
            f"{', '.join(sorted(written)) or 'nothing'} before: copies of its other tensors may be stale. Go on from "
            "a checkpoint without this session, and report this"
        )


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
            ("triton.runtime.jit", "JITFunction.run", _launch_compiled),
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
