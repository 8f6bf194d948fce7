"""Makes meta tensors run the ops of the traced device, where torch chooses ops by device."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer as optim
from torch.utils import _foreach_utils

from ..errors import TraceError
from ..runtime.patches.patch import Patches
from ..util.units import format_bytes

_aten = torch.ops.aten

_MOST_READ_BYTES = 1 << 20
"""Larger results do not go to the host in a training loop; a model that is moved there would."""

_FLASH_DTYPES = (torch.float16, torch.bfloat16)
_FLASH_MOST_WIDTH = 256


class DeviceKernels:
    """While installed, attention, dropout and optimizers on meta tensors are those of a GPU, or of torch's CPU.

    What the host reads of them is ones, unless ``stand_ins`` (by op name) give something else.
    """

    def __init__(self, is_gpu: bool, stand_ins: Mapping[str, Callable[..., Any]]) -> None:
        self._is_gpu = is_gpu
        self._stand_ins = stand_ins
        self._library: torch.library.Library | None = None
        supported = [
            (optim, "_get_fused_kernels_supported_devices", _with_meta),
            (_foreach_utils, "_get_foreach_kernels_supported_devices", _with_meta),
        ]
        if is_gpu:  # optimizers use lists by themselves on GPUs alone
            supported.append((optim, "_get_foreach_kernels_supported_devices", _with_meta))
        self._patches = Patches(supported)

    def install(self) -> None:
        """Begin. May be repeated after remove()."""
        self._library = torch.library.Library("aten", "IMPL")
        attention = _gpu_attention if self._is_gpu else _cpu_attention
        override(self._library, "scaled_dot_product_attention", attention, "AutogradMeta")
        if self._is_gpu:
            override(self._library, "dropout", _gpu_dropout, "AutogradMeta")
        kernels: dict[str, Callable[..., Any]] = {
            "aten::_local_scalar_dense": _read_number,
            "aten::copy_": _copy,
            **self._stand_ins,
        }
        for name, kernel in kernels.items():
            override(self._library, name, kernel, "Meta")
        self._patches.install()

    def remove(self) -> None:
        """Give meta tensors their own kernels back. May be repeated."""
        self._patches.remove()
        if self._library is not None:
            self._library._destroy()
            self._library = None


def override(library: torch.library.Library, name: str, kernel: Callable[..., Any], key: str) -> None:
    """Put a kernel in the place of torch's, without torch's warning that it does."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Warning only once|\s*Overriding a previously registered")
        library.impl(name, kernel, key, allow_override=True)


def _with_meta(devices: Callable[[], list[str]]) -> Callable[[], list[str]]:
    return lambda: [*devices(), "meta"]


def _read_number(tensor: Tensor) -> float | int | bool:
    return torch.ones((), dtype=tensor.dtype, device="cpu").item()


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """A copy between meta tensors does nothing; one to the host, which has no data to give, writes ones."""
    source.expand(target.shape)  # raises where torch would
    if target.is_meta:
        return target
    if source.nbytes > _MOST_READ_BYTES:
        raise TraceError(
            f"a tensor of {format_bytes(source.nbytes)} and shape {tuple(source.shape)} goes from the traced device to "
            'the host, and a trace has no data for it: leave models where they are made, or move them to "cuda"'
        )
    return target.fill_(1)


def _gpu_dropout(x: Tensor, p: float, train: bool) -> Tensor:
    # The mask is one byte an element; without the fused kernel it has the input's dtype.
    if not train or p == 0 or x.numel() == 0:
        return x
    out: Tensor = _aten.native_dropout(x, p, train)[0]
    return out


def _gpu_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Flash attention where its kernel takes the inputs, else the memory-efficient one, else plain matmuls."""
    width = query.shape[-1]
    strided = query.dim() == 4 and query.dtype == key.dtype == value.dtype
    if (
        strided
        and attn_mask is None
        and query.dtype in _FLASH_DTYPES
        and width == value.shape[-1] <= _FLASH_MOST_WIDTH
    ):
        # The kernel wants widths in multiples of 8, and scales by the true one.
        missing = -width % 8
        scale = width**-0.5 if scale is None else scale
        query, key, value = (
            torch.constant_pad_nd(t, (0, missing)) if missing else t for t in (query, key, value)
        )
        out: Tensor = _aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, scale=scale
        )[0]
        return out[..., :width] if missing else out
    if strided and query.dtype in (*_FLASH_DTYPES, torch.float32):
        if enable_gqa:
            key, value = (_repeat_heads(t, query) for t in (key, value))
        mask = None if attn_mask is None else _as_bias(attn_mask, query, key)
        saves = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        out = _aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, saves, dropout_p, is_causal, scale=scale
        )[0]
        return out
    return _plain_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _cpu_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """What torch's CPU chooses: its flash kernel unless there is dropout, or a mask that needs a gradient."""
    mask_fits = attn_mask is None or not attn_mask.requires_grad
    if query.dim() == 4 and dropout_p == 0.0 and mask_fits and query.dtype == key.dtype == value.dtype:
        mask = None if attn_mask is None else _as_bias(attn_mask, query, None)
        out: Tensor = _aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale
        )[0]
        return out
    return _plain_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _plain_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
    scale: float | None, enable_gqa: bool,
) -> Tensor:  # fmt: skip
    """What torch's own code does to real tensors: on meta tensors it would not add a mask in place."""
    if enable_gqa or (attn_mask is None and not is_causal):
        out: Tensor = _aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
        return out
    dtype = query.dtype
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = _as_scores(attn_mask, dtype)
    if dtype in _FLASH_DTYPES:
        query, key, value = query.to(torch.float32), key.to(torch.float32), value.to(torch.float32)
    root = (query.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
    query = query * root
    if is_causal:
        seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        attn_mask = _as_scores(seen, query.dtype)
    scores = query @ (key.transpose(-2, -1) * root)
    scores = _aten._safe_softmax(scores.add_(attn_mask), -1)
    if dropout_p > 0:
        scores = torch.dropout(scores, dropout_p, True)
    returned = scores.to(dtype)  # the second result, which lives until the first is there
    out = (scores @ value).to(dtype)
    del returned
    return out


def _as_scores(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=dtype, device=mask.device))


def _repeat_heads(t: Tensor, query: Tensor) -> Tensor:
    return t.repeat_interleave(query.shape[-3] // t.shape[-3], -3)


def _as_bias(mask: Tensor, query: Tensor, key: Tensor | None) -> Tensor:
    """A boolean mask becomes what is added to the scores; the efficient kernel reads it for every head."""
    if mask.dtype is torch.bool:
        mask = torch.where(mask, 0.0, float("-inf")).to(query.dtype)
    return mask if key is None else mask.expand(*query.shape[:-1], key.shape[-2])
