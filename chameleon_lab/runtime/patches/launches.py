"""Kernels that Triton launches by hand are ops of the step, and so is the search for their best configuration.

Triton takes the address of each tensor that a kernel is given. A launch is stream-ordered and ends: its tensors come in
before it and stay until it is queued, and no address that is taken inside keeps a storage on the device. What a kernel
writes is read from what Triton has compiled; where that cannot be told, all of its tensors count as written.

``kernel[grid](...)`` comes down to ``JITFunction.run``, under ``triton.autotune`` and ``triton.heuristics`` too, and
to ``InterpretedFunction.run`` with ``TRITON_INTERPRET=1``. What ``kernel.warmup(...)`` returns is launched unseen.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import torch

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
        else:  # a descriptor of a reinterpreted tensor has two
            bases = (base := getattr(value, "base", None), getattr(base, "base", None))
            yield from (each for each in bases if isinstance(each, torch.Tensor))


def _launch(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OneOp:
    return OneOp(f"triton::{name}", [], list(_tensors((*args, *kwargs.values()))))


_MOST_VARIANTS = 1000
"""Of a kernel. One with more of them takes a number as a constant that changes all the time."""


class _Kernel:
    """A kernel's parameters, and by variant what Triton launches, with the parameters that are written there."""

    def __init__(self, kernel: Any) -> None:
        self.constants = {parameter.name: parameter.is_constexpr for parameter in kernel.params}
        self.names = tuple(self.constants)
        kinds = {parameter.kind for parameter in kernel.signature.parameters.values()}
        self.takes_more = inspect.Parameter.VAR_POSITIONAL in kinds  # a parameter of the form *args
        # No reference to what has been compiled: it has one to the kernel, which would live for ever.
        self.variants: dict[Hashable, tuple[weakref.ref[Any], frozenset[str] | None]] = {}


_kernels: weakref.WeakKeyDictionary[Any, _Kernel] = weakref.WeakKeyDictionary()


def _known(kernel: Any) -> _Kernel:
    known = _kernels.get(kernel)
    if known is None:
        known = _kernels[kernel] = _Kernel(kernel)
    return known


def _variant(kernel: _Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """The same for two launches only if Triton compiles the same for them, but for the alignment of addresses: one for
    each value of a constant or option, and for integers that are 1. None if a value is of a kind that is not known.

    See ``specialize_impl`` and ``compute_cache_key`` in ``triton/runtime/jit.py``.
    """
    if kernel.takes_more:
        return None
    constants = kernel.constants
    try:
        return (
            *(_kind(value, constant) for value, constant in zip(args, constants.values(), strict=False)),
            *(
                (name, _kind(value, constants.get(name, True)))
                for name, value in kwargs.items()
                if name not in ("grid", "warmup")
            ),
        )
    except LookupError:
        return None


_PLAIN = frozenset((int, bool, str, type(None), torch.dtype))


def _kind(value: Any, constant: bool) -> Hashable:
    kind = type(value)
    if not constant:
        if isinstance(value, torch.Tensor):
            return value.dtype, value.get_device()
        if kind is int:
            return value == 1, value % 16 == 0, -(2**31) <= value < 2**31, value < 2**63
        if kind is float:
            return (kind,)
    if kind in _PLAIN:
        return kind, value
    if kind is float:
        return kind, repr(value)  # tells 0.0 from -0.0, and is the same for each NaN
    if isinstance(value, list | tuple):
        return kind, *(_kind(each, constant) for each in value)
    if kind.__module__.startswith("triton."):
        if kind.__name__ == "constexpr":
            return kind, _kind(value.value, True)
        if kind.__name__ == "dtype":
            return kind, value
        if kind.__name__ == "JITFunction":
            return kind, value.cache_key
        if kind.__name__ == "TensorDescriptor":
            return kind, _kind(value.base, False), *value.block_shape
        if kind.__name__ == "TensorWrapper":  # triton.reinterpret's
            return kind, value.dtype, _kind(value.base, False)
    raise LookupError(kind)


# A kernel's parameters may have any name: these functions take their own by position alone.


def _launch_compiled(run: Callable[..., Any]) -> Callable[..., Any]:
    """A variant is compiled in an op of its own: else the first launch would be an op that takes seconds."""

    @functools.wraps(run)
    def launch_as_one_op(kernel: Any, /, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("warmup"):  # it is compiled alone
            return run(kernel, *args, **kwargs)
        known = _known(kernel)
        # Its own hooks would run once more, and may write at addresses that they take.
        variant = None if kernel.pre_run_hooks else _variant(known, args, kwargs)
        compiled, written = known.variants.get(variant, (_nothing, None))
        if variant is not None and compiled() is None and len(known.variants) < _MOST_VARIANTS:
            with OneOp("triton::compile", list(_tensors((*args, *kwargs.values()))), []):
                made = run(kernel, *args, **kwargs | {"warmup": True})
            if made is not None:
                compiled, written = known.variants[variant] = weakref.ref(made), written_parameters(made)
        with OneOp(f"triton::{kernel.__name__}", *_read_and_written(known, args, kwargs, written)):
            launched = run(kernel, *args, **kwargs)
        if written is not None and launched is not None and launched is not compiled():
            _check(kernel, launched, written)
        return launched

    return launch_as_one_op


def _nothing() -> None:
    """In place of a reference."""


def _read_and_written(
    kernel: _Kernel, args: tuple[Any, ...], kwargs: dict[str, Any], written: frozenset[str] | None
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
