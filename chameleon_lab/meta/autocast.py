"""Autocast for meta tensors, which torch lacks: the traced device's casts.

``torch.autocast`` of any device works on the CPU's dispatch key, which is switched on for meta tensors too; the key's
kernels cast by the lists of aten/src/ATen/autocast_mode.h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ..runtime.patches.patch import Patches
from .kernels import override

_KEY = torch._C.DispatchKey.AutocastCPU

_split = str.split
_LOWER = _split("""conv1d conv2d conv3d conv1d.padding conv2d.padding conv3d.padding conv_tbc conv_transpose1d
    conv_transpose2d.input conv_transpose3d.input addmm addbmm baddbmm bmm mm matmul linear linalg_vecdot
    scaled_dot_product_attention""")
_LOWER_GPU = _split("prelu addmv addr mv einsum chain_matmul linalg_multi_dot convolution")
_FLOAT_GPU = _split("""acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm cosine_similarity poisson_nll_loss
    cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss
    margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
    binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp""")
_FLOAT_RESULT_GPU = _split("""prod prod.dim_int softmax.int log_softmax.int cumprod cumsum sum sum.dim_IntList
    linalg_vector_norm""")
_WIDEST = _split("cat stack")
_WIDEST_GPU = _split("addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put tensordot scatter_add")


class MetaAutocast:
    """While installed, ``torch.autocast`` casts meta tensors as it does a GPU's, or a CPU's."""

    def __init__(self, is_gpu: bool) -> None:
        self._kernels = {name: self._lower for name in _LOWER + (_LOWER_GPU if is_gpu else [])}
        self._kernels |= {name: _widest for name in _WIDEST + (_WIDEST_GPU if is_gpu else [])}
        if is_gpu:
            self._kernels |= {name: _float for name in _FLOAT_GPU}
            self._kernels |= {name: _float_result for name in _FLOAT_RESULT_GPU}
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}  # of weights, until the outermost region ends
        self._library: torch.library.Library | None = None
        self._patches = Patches(
            [
                (torch.autocast, "__init__", _on_cpu_key),
                (torch, "clear_autocast_cache", self._clearing),
            ]
        )

    def install(self) -> None:
        """Begin."""
        self._library = torch.library.Library("aten", "IMPL")
        for name, policy in self._kernels.items():
            kernel = policy(getattr(torch.ops.aten, name.partition(".")[0]))
            override(self._library, name, _outside_autocast(kernel), _KEY.name)
        self._patches.install()
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, True)

    def remove(self) -> None:
        """Leave torch as it was. May be repeated."""
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, False)
        self._patches.remove()
        self._copies.clear()
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _clearing(self, clear: Callable[[], None]) -> Callable[[], None]:
        def clear_both() -> None:
            self._copies.clear()
            clear()

        return clear_both

    def _lower(self, op: Any) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            return op(*tree_map(self._lowered, args), **tree_map(self._lowered, kwargs))

        return kernel

    def _lowered(self, value: Any) -> Any:
        dtype = torch.get_autocast_dtype("cpu")
        if not _eligible(value) or value.dtype is dtype:
            return value
        weight = value.requires_grad and value.is_leaf and value.dtype is torch.float32
        if not (weight and torch.is_autocast_cache_enabled()):
            return value.to(dtype)
        if id(value) not in self._copies:
            self._copies[id(value)] = value, value.to(dtype)
        return self._copies[id(value)][1]


def _eligible(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype is not torch.float64


def _as_float(value: Any) -> Any:
    return value.float() if _eligible(value) else value


def _float(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return op(*tree_map(_as_float, args), **tree_map(_as_float, kwargs))

    return kernel


def _float_result(op: Any) -> Callable[..., Any]:
    """The op reads the lower precision and writes float32, unless the caller asks for a dtype."""

    def kernel(first: Tensor, *args: Any, **kwargs: Any) -> Any:
        has_dtype = kwargs.get("dtype") is not None or any(isinstance(a, torch.dtype) for a in args)
        if _eligible(first) and not has_dtype:
            args = tuple(a for a in args if a is not None) if args and args[-1] is None else args
            kwargs["dtype"] = torch.float32
        return op(first, *args, **kwargs)

    return kernel


def _widest(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if any(t.dtype is torch.float32 for t in filter(_eligible, tree_leaves((args, kwargs)))):
            return op(*tree_map(_as_float, args), **tree_map(_as_float, kwargs))
        return op(*args, **kwargs)

    return kernel


def _outside_autocast(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def outside(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY)):
            return kernel(*args, **kwargs)

    return outside


def _on_cpu_key(init: Callable[..., None]) -> Callable[..., None]:
    def on_cpu_key(
        region: torch.autocast, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
    ) -> None:
        if device_type in ("cuda", "meta"):
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        init(region, device_type, dtype, *args, **kwargs)

    return on_cpu_key
