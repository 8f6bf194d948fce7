"""Splits list ops: ops on all parameters at once would set the floor at the size of the model.

torch's ``foreach`` and ``fused`` optimizers and ``clip_grad_norm_`` first group tensors by device and dtype, and then
run one list op a group. Returning several smaller groups with distinct keys makes them run one list op a part: the
element-wise results are the same to the bit, and so is the order in which norms are combined. Whoever calls a list op
of torch otherwise (``GradScaler``, ``zero_grad``, ``swa_utils``, an average of all weights) has that op split.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.utils.clip_grad as clip_grad
from torch.optim.optimizer import Optimizer

from ...trace.list_ops import spans
from .patch import Patches

_LIST_OPS = tuple(name for name in dir(torch) if name.startswith(("_foreach_", "_amp_foreach_")))

_SPLIT_ANYHOW = ("_amp_foreach_non_finite_check_and_unscale_", "_foreach_zero_")
"""Their kernels give the same bits, whatever the route."""


def _nbytes(tensor: Any) -> int:
    """Of what a session moves: others, such as sparse tensors, may have no size in bytes."""
    return tensor.nbytes if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided else 0


_Groups = dict[tuple[Any, Any], tuple[list[Any], list[int]]]
"""Lists and indices by device and dtype, as torch groups them."""


def _split_groups(
    group: Callable[..., _Groups], limit_bytes: Callable[[torch.device], int]
) -> Callable[..., _Groups]:
    def grouped(tensor_lists: Any, with_indices: bool = False) -> _Groups:
        parts: _Groups = {}
        for (device, dtype), (lists, indices) in group(tensor_lists, with_indices).items():
            sizes = [sum(_nbytes(column[i]) for column in lists if column) for i in range(len(lists[0]))]
            for part, (start, stop) in enumerate(spans(sizes, limit_bytes(device))):
                # The second half of the key is only ever a dict key; making it a pair keeps the parts apart.
                parts[(device, dtype if part == 0 else (dtype, part))] = (
                    [column[start:stop] for column in lists],
                    indices[start:stop] if indices else indices,
                )
        return parts

    return grouped


def _split_list_op(op: Callable[..., Any], limit_bytes: Callable[[torch.device], int]) -> Callable[..., Any]:
    @functools.wraps(op)
    def split(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return op(*args, **kwargs)
        lists = [value for value in (*args, *kwargs.values()) if isinstance(value, list | tuple)]
        columns = [column for column in lists if any(isinstance(item, torch.Tensor) for item in column)]
        count = len(columns[0]) if columns else 0
        if count < 2 or "out" in kwargs or any(len(column) != count for column in lists):
            return op(*args, **kwargs)
        sizes = [sum(map(_nbytes, row)) for row in zip(*columns, strict=True)]
        tensors = (item for item in columns[0] if isinstance(item, torch.Tensor))
        most_bytes = limit_bytes(next(tensors).device)
        if sum(sizes) <= most_bytes or not (op.__name__ in _SPLIT_ANYHOW or _alike_in_parts(columns)):
            return op(*args, **kwargs)

        def part(value: Any, start: int, stop: int) -> Any:
            one_each = isinstance(value, torch.Tensor) and value.dim() == 1 and len(value) == count
            return value[start:stop] if isinstance(value, list | tuple) or one_each else value

        results: list[Any] = []
        for start, stop in spans(sizes, most_bytes):
            made = op(
                *(part(value, start, stop) for value in args),
                **{name: part(value, start, stop) for name, value in kwargs.items()},
            )
            results.extend(made or ())
        return None if made is None else type(made)(results)

    return split


def _alike_in_parts(columns: list[Any]) -> bool:
    """Does the op give the same bits in parts? Not if autograd records it, or if parts may take a faster kernel."""
    tensors = [item for column in columns for item in column if isinstance(item, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    if all(tensor.device.type in ("cpu", "meta") for tensor in tensors):
        return True
    # On a GPU one list that does not suit the fast kernel has all of them go the slow way.
    first = tensors[0]
    return all(
        tensor.layout is torch.strided
        and tensor.dtype == first.dtype
        and tensor.device == first.device
        and tensor.is_contiguous()
        for tensor in tensors
    )


def small_groups(limit_bytes: Callable[[torch.device], int]) -> Patches:
    """While installed, optimizers, gradient clipping and ``torch._foreach_*`` work on parts of the model.

    Args:
        limit_bytes: asked at every use: the most bytes of tensors on a device that one list op should touch. One
            parameter with its gradient and states is never split.
    """
    return Patches(
        [
            (
                Optimizer,
                "_group_tensors_by_device_and_dtype",
                lambda group: staticmethod(_split_groups(group, limit_bytes)),
            ),
            (
                clip_grad,
                "_group_tensors_by_device_and_dtype",
                lambda group: _split_groups(group, limit_bytes),
            ),
            *((torch, name, lambda op: _split_list_op(op, limit_bytes)) for name in _LIST_OPS),
        ]
    )
