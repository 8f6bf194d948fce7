"""Results as plain values that are equal if, and only if, the results are the same to the bit."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten


def seed_all(seed: int) -> None:
    """Every generator that a sample or an op may draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def bits(value: Any) -> Any:
    """Shape, strides, dtype and bytes of every tensor in a nest of containers, and the ``repr`` of all else."""
    return [_bits(leaf) for leaf in tree_flatten(value)[0]]


def _bits(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return _without_addresses(repr(value))
    with torch.no_grad():
        return _tensor_bits(value.detach())


def _tensor_bits(value: torch.Tensor) -> Any:
    if value.device.type != "cpu" or type(value) is not torch.Tensor:
        return (str(value.device), type(value).__name__, str(tuple(value.shape)))
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
