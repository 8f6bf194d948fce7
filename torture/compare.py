"""Results as plain values that are equal if, and only if, the results are the same to the bit."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_flatten


def seed_all(seed: int) -> None:
    """Every generator that a sample or an op may draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def bits(value: Any) -> Any:
    """Shape, strides, dtype and bytes of every tensor in a nest of containers, those of every array but its strides,
    and the ``repr`` of all else. Of a subclass of Tensor what is inside. Raises TypeError where that cannot be seen.
    """
    return [_bits(leaf) for leaf in tree_flatten(value)[0]]


def _bits(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        return ("numpy", value.shape, str(value.dtype), value.tobytes())
    if not isinstance(value, torch.Tensor):
        return _without_addresses(repr(value))
    with torch.no_grad():
        return _tensor_bits(value)


def _tensor_bits(value: torch.Tensor) -> Any:
    if type(value) not in (torch.Tensor, nn.Parameter):
        shape = re.sub(r"\bj\d+", "j", str(tuple(value.shape)))  # ragged sizes have a number each
        return (type(value).__name__, shape, *_inside(value))
    if value.device.type != "cpu":  # meta and fake: there are no bytes
        return (str(value.device), str(value.dtype), str(tuple(value.shape)))
    if value.is_nested:
        return [_tensor_bits(part) for part in value.unbind()]
    if value.layout is torch.sparse_coo:
        parts = (value._indices(), value._values())
        return (tuple(value.shape), value.is_coalesced(), *map(_tensor_bits, parts))
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = (value.crow_indices(), value.col_indices(), value.values())
        return (tuple(value.shape), *map(_tensor_bits, parts))
    if value.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = (value.ccol_indices(), value.row_indices(), value.values())
        return (tuple(value.shape), *map(_tensor_bits, parts))
    if value.is_mkldnn:
        return _tensor_bits(value.to_dense())
    if value.is_quantized:
        return (str(value.qscheme()), _tensor_bits(value.int_repr()))
    # A copy: numpy would keep the tensor's own storage from ever leaving again.
    plain = value.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return (tuple(value.shape), value.stride(), str(value.dtype), raw)


def _inside(value: torch.Tensor) -> list[Any]:
    """The bits of what a subclass holds: its inner tensors, or, where it is no wrapper, its own memory."""
    if hasattr(value, "__tensor_flatten__"):
        return [_tensor_bits(getattr(value, name)) for name in value.__tensor_flatten__()[0]]
    inner = [part for part in vars(value).values() if isinstance(part, torch.Tensor)]
    if inner:
        return [_tensor_bits(part) for part in inner]
    if type(value).__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
        with torch._C.DisableTorchFunctionSubclass():
            return [_tensor_bits(value.as_subclass(torch.Tensor))]
    raise TypeError(f"what is inside of a {type(value).__name__} cannot be compared")


def attempt(run: Callable[[], Any]) -> tuple[bool, Any]:
    """(True, what ``run`` returns), or (False, the text of the error that it raised)."""
    try:
        return True, run()
    except Exception as error:  # noqa: BLE001
        first = (str(error).splitlines() or [""])[0]
        return False, f"{type(error).__name__}: {_without_addresses(first)[:200]}"


def different(want: Any, got: Any) -> str:
    """In what the two differ first, in a few words; empty if in nothing."""
    if want == got:
        return ""
    if not (isinstance(want, list) and isinstance(got, list)) or len(want) != len(got):
        return f"{_short(got)} instead of {_short(want)}"
    for place, (one, other) in enumerate(zip(want, got, strict=True)):
        if one != other:
            return f"result {place}: {_short(other)} instead of {_short(one)}"
    return ""


def _short(value: Any) -> str:
    if isinstance(value, tuple) and value and isinstance(value[-1], bytes):
        return f"{value[2]}{list(value[0])} {value[-1][:24].hex()}"
    text = str(value)
    return text if len(text) <= 160 else text[:157] + "..."


def _without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x", text)
