"""Which launches of a Triton kernel run the same compiled code: their variant, a key no coarser than Triton's own."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Hashable
from typing import Any

import torch

MOST_VARIANTS = 1000
"""Of a kernel. One with more of them takes a number as a constant that changes all the time."""


class KernelVariants:
    """A kernel's parameters, and by variant what Triton has compiled, with the parameters that are written there."""

    def __init__(self, kernel: Any) -> None:
        self.constants = {parameter.name: parameter.is_constexpr for parameter in kernel.params}
        self.names = tuple(self.constants)
        kinds = {parameter.kind for parameter in kernel.signature.parameters.values()}
        self.takes_more = inspect.Parameter.VAR_POSITIONAL in kinds  # a parameter of the form *args
        # No reference to what has been compiled: it has one to the kernel, which would live for ever.
        self.compiled: dict[Hashable, tuple[weakref.ref[Any], frozenset[str] | None]] = {}


_kernels: weakref.WeakKeyDictionary[Any, KernelVariants] = weakref.WeakKeyDictionary()


def variants_of(kernel: Any) -> KernelVariants:
    """Those of Triton's ``JITFunction``, for as long as it lives."""
    known = _kernels.get(kernel)
    if known is None:
        known = _kernels[kernel] = KernelVariants(kernel)
    return known


def variant_of(kernel: KernelVariants, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
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
