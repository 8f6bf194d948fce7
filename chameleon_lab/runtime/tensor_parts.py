"""Tensors that are made of tensors, and tensors that libraries keep as attributes of parameters."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_PLAIN = (torch.Tensor, torch.nn.Parameter)

_KEPT = (
    *("quant_state.absmax", "quant_state.code", "quant_state.offset"),  # bitsandbytes, of weights of 4 bits
    *("quant_state.state2.absmax", "quant_state.state2.code"),  # bitsandbytes, of quantized scales
    *("CB", "SCB"),  # bitsandbytes, of weights of 8 bits
    *("ds_tensor", "ds_secondary_tensor"),  # DeepSpeed ZeRO-3
)


def parts(tensor: torch.Tensor) -> Iterable[tuple[str, torch.Tensor]]:
    """The tensors that hold a tensor's bytes, each with its path in the tensor.

    A plain tensor holds its own bytes, and its path is empty. The bytes of a tensor subclass may be in other tensors,
    which its ``__tensor_flatten__`` names and which may be subclasses in turn: torchao's quantized weights and states,
    nested tensors. A subclass with a single such tensor has an empty path as well: a DTensor, with the part of this
    rank. The result of a collective that has not been waited for has no bytes yet, and no parts.
    """
    if type(tensor) in _PLAIN or not is_traceable_wrapper_subclass(tensor):
        return (("", tensor),)  # asked of every gradient in every step
    if _waits(tensor):
        return ()
    inner = _inner(tensor)
    return _joined(inner) if inner else (("", tensor),)


def _joined(inner: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, one in inner.items():
        for path, part in parts(one):
            yield ".".join(filter(None, (name if len(inner) > 1 else "", path))), part


def _inner(tensor: Any) -> dict[str, torch.Tensor]:
    try:
        found = {name: getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]}
    except Exception:  # the class's own code may raise anything, in the middle of a forward
        return {}
    return {name: one for name, one in found.items() if isinstance(one, torch.Tensor)}


def belongings(parameter: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that libraries are known to keep as attributes of a parameter, each with its path of attributes.

    bitsandbytes keeps the scales of its weights there (nn/modules.py), and DeepSpeed's ZeRO-3 the part of a parameter
    that this rank has (runtime/zero/partition_parameters.py).
    """
    if not vars(parameter):
        return
    for path in _KEPT:
        value: Any = parameter
        for name in path.split("."):
            value = getattr(value, "__dict__", {}).get(name)
        if isinstance(value, torch.Tensor):
            yield path, value


def _waits(tensor: torch.Tensor) -> bool:
    # If the module has not been imported, there is no such tensor.
    functional: Any = sys.modules.get("torch.distributed._functional_collectives")
    waiting: Any = getattr(functional, "AsyncCollectiveTensor", None)
    return waiting is not None and isinstance(tensor, waiting)
